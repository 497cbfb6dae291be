// What the admin API speaks, as far as the dashboard reads it.

export type Role = 'viewer' | 'operator' | 'admin'

export interface Session {
  name: string
  role: Role
  csrf: string
  expires_at: string
  expires_token_at?: string
}

export interface FieldProblem {
  field: string
  message: string
  hint?: string
}

/** application/problem+json. */
export interface Problem {
  type?: string
  title: string
  status: number
  detail?: string
  errors?: FieldProblem[]
  /** Of a conflict: the version that was found. */
  version?: number
}

export interface Page<T> {
  items: T[]
  next: string
}

export interface Rec<T> {
  id: string
  version: number
  created_at: string
  updated_at: string
  updated_by: string
  value: T
}

export type Action = 'reject' | 'throttle' | 'log_only' | 'block' | 'allow'
export type OnFailure = 'local' | 'open' | 'closed'

export interface Match {
  paths?: string[]
  methods?: string[]
  tiers?: string[]
  ip_ranges?: string[]
  headers?: Record<string, string>
}

export interface Limit {
  name: string
  limit: string
  algorithm?: string
  burst?: number
}

export type Cost = number | { units?: number; header?: string; max?: number }

export interface Penalty {
  threshold: number
  within: string
  cooldown: string
  multipliers?: number[]
}

export interface Rule {
  name: string
  match?: Match
  count_by?: string[]
  limits?: Limit[]
  cost?: Cost
  action?: Action
  max_delay?: string
  priority?: number
  group?: string
  penalty?: Penalty
  on_store_failure?: OnFailure
  response?: { status?: number; message?: string }
  enabled?: boolean
}

export interface RuleRecord extends Rec<Rule> {
  /** The rule in a plain sentence. */
  reading?: string
}

export interface Tier {
  name: string
  display_name?: string
  price?: string
  limits?: Record<string, string>
}

/** One for good is a text. */
export type Override = string | { limit: string; until?: string }

export interface Tenant {
  id: string
  name?: string
  tier?: string
}

export interface User {
  id: string
  tenant?: string
  tier?: string
  limits?: Record<string, Override>
  blocked?: { reason?: string; until?: string }
}

export interface ApiKey {
  id: string
  prefix?: string
  name?: string
  user?: string
  tenant?: string
  tier?: string
  limits?: Record<string, Override>
  disabled?: boolean
  expires?: string
  revoked?: string
  revoked_by?: string
}

/** Exempts or bans one of ip, which may be a network, user, tenant and key. */
export interface Entry {
  ip?: string
  user?: string
  tenant?: string
  key?: string
  reason?: string
  until?: string
}

export interface Validation {
  ok: boolean
  problems?: FieldProblem[] | null
  reading?: string
}

export interface Preview {
  from: string
  to: string
  events: number
  requests: number
  matched: number
  would_refuse: number
  refused_now: number
  unclear: number
  subjects: number
  top?: { subject: string; requests: number; would_refuse: number }[] | null
  series?: { start: string; matched: number; would_refuse: number }[] | null
  notes?: string[] | null
}

export interface FieldDiff {
  path: string
  before?: unknown
  after?: unknown
}

export interface DiffItem {
  kind: string
  id: string
  action: 'create' | 'update' | 'delete'
  fields?: FieldDiff[] | null
}

export interface Diff {
  revision: number
  items?: DiffItem[] | null
}

export interface Change {
  revision: number
  place: number
  at: string
  actor: string
  kind: string
  id: string
  action: 'create' | 'update' | 'delete'
  fields?: FieldDiff[] | null
  before?: unknown
  after?: unknown
}

export type SubjectKind = 'user' | 'key' | 'tenant' | 'ip'

export interface FoundSubject {
  kind: SubjectKind
  id: string
  name?: string
  tier?: string
  tenant?: string
  user?: string
  prefix?: string
  known: boolean
}

export interface Subject {
  kind: SubjectKind
  id: string
  known: boolean
  tier?: string
  tenant?: string
  user?: string
  name?: string
  value?: Record<string, unknown>
  version?: number
  ban?: Entry
  exemption?: Entry
  blocked?: { reason?: string; until?: string }
  overrides?: { limit_name: string; limit: string; until?: string }[] | null
  usage_total?: number
  last_used_at?: string
}

export interface Quota {
  rule: string
  action: Action
  count_by?: string[] | null
  endpoint?: string
  name: string
  limit: string
  source: string
  penalty: boolean
  /** What is counted by and only a request tells. */
  unknown?: string
  max: number
  used: number
  remaining: number
  reset_after: number
  /** null: never. */
  retry_after: number | null
  basis?: string
  algorithm?: string
  refill_per_second?: number
}

export interface Usage {
  at: string
  items: Quota[] | null
}

export interface Explanation {
  outcome: string
  allowed: boolean
  rule?: string
  reason?: string
  retry_after?: number | null
  subject: { user?: string; tenant?: string; key?: string; tier?: string; ip?: string; source?: string }
  limits?:
    | {
        rule: string
        name: string
        endpoint?: string
        limit: string
        max: number
        remaining: number
        reset_after: number
        retry_after: number | null
        allowed: boolean
        shadow: boolean
        penalty: boolean
      }[]
    | null
  steps?: string[] | null
  rules?:
    | {
        rule: string
        matched: boolean
        reason?: string
        beaten_by?: string
        endpoint?: string
        limits?: { name: string; limit: string; source: string; key: string }[] | null
      }[]
    | null
}

/** A decision in the record. */
export interface Event {
  decision_id: string
  time: string
  outcome: string
  shadow: boolean
  cached: boolean
  user_id: string
  tenant_id: string
  key_id: string
  tier: string
  ip: string
  rule: string
  limit_name: string
  endpoint: string
  method: string
  count: number
  limit_value: number
  cost: number
  status: number
  /** -1: never. */
  retry_after_us: number
  waited_us: number
  latency_us: number
  region: string
  node: string
  weight: number
}

export interface SeriesPoint {
  start: string
  total: number
  events: number
  cached: number
  p50_us: number
  p95_us: number
  p99_us: number
}

export interface Series {
  from: string
  to: string
  step_seconds: number
  items: { name: string; rest?: boolean; points: SeriesPoint[] | null }[] | null
}

export interface Top {
  items: { name: string; denied: number; refused: number }[] | null
}

export interface Talker {
  name: string
  requests: number
  refused: number
}

export interface Talkers {
  by_requests: Talker[] | null
  by_refused: Talker[] | null
  requests_off: number
  refused_off: number
}

/** What one node sees at an instant. Rates are in requests per second. */
export interface Live {
  at: string
  node?: string
  seconds: number
  requests_per_second: number
  refused_per_second: number
  shadow_refused_per_second: number
  outcomes_per_second: Record<string, number>
  latency_us: { p50: number; p95: number; p99: number }
  talkers?: { seconds: number; users: Talkers; tenants: Talkers; keys: Talkers; addresses: Talkers }
  rules?: { name: string; requests_per_second: number; refused_per_second: number }[] | null
}

export interface Check {
  name: string
  status: string
  detail?: string
}

export interface NodeState {
  status: 'ok' | 'degraded' | 'not_ready'
  checks?: Check[] | null
  counters: 'memory' | 'redis'
  store: string
  breaker: 'closed' | 'open' | 'half_open' | 'none'
  replicas: number
  requests_per_second: number
  refused_per_second: number
  p99_us: number
}

export interface NodeInfo {
  id: string
  name: string
  version: string
  started: string
  seen: string
  revision: number
  problem?: string
  self: boolean
  behind: boolean
  state?: NodeState
}

export interface Status {
  version: string
  mode: 'file' | 'database'
  file?: string
  database: 'none' | 'sqlite' | 'postgres'
  counters: 'memory' | 'redis'
  record: boolean
  envoy?: boolean
  revision: number
  rules: number
  node: string
  health: { status: string; checks?: Check[] | null }
  doors?: { http?: string; gateway?: string; grpc?: string; admin?: string }
  now: string
}

export interface Setting {
  name: string
  env: string
  value: string
  origin: string
  doc: string
}

export interface Token {
  id: string
  name: string
  role: Role
  created_at: string
  created_by: string
  expires_at?: string
  last_used_at?: string
}

/** A limit of Envoy's descriptors, on the node that answers. */
export interface EnvoyLimit {
  path: string
  name?: string
  limit: string
  shadow: boolean
  quota: boolean
  hits: { within: number; near: number; over: number; shadow: number }
}
