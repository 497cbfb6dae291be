// Generated from internal/control/admin/openapi.json by npm run types. Do not edit.

/** An API key, with the hash of its secret: what a document has. */
export interface APIKey {
  /** Whether it is not good for now. */
  disabled?: boolean
  /** When it stops being good. */
  expires?: string
  /** The hash of its secret: sha256 or hmac-sha256, and 64 hexadecimal digits. */
  hash: string
  /** The part of the key between its prefix and its secret. */
  id: string
  /** Limits in place of those of the tier, by their names. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** For people. */
  name?: string
  /** How the key begins, so that its owner knows it again. */
  prefix?: string
  /** When it was revoked. */
  revoked?: string
  /** By whom. */
  revoked_by?: string
  /** The tenant that it is of. */
  tenant?: string
  /** The tier, in place of that of its user. */
  tier?: string
  /** Whose it is. */
  user?: string
}

/** That a user is banned. */
export interface Blocked {
  /** Why, for people. */
  reason?: string
  /** When that is over. Without it, never. */
  until?: string
}

/** One line of the log of changes. */
export interface Change {
  /** What became of it. */
  action: 'create' | 'update' | 'delete'
  /** Who has made it. */
  actor: string
  /** What it is now; without it, it was deleted. Hashes are hidden. */
  after?: unknown
  /** When it was made. */
  at: string
  /** What it was; without it, it was made. Hashes are hidden. */
  before?: unknown
  /** Of an update: the fields that are not as they were. */
  fields: FieldDiff[]
  /** Which one. */
  id: string
  /** What was changed. */
  kind: 'rule' | 'tier' | 'tenant' | 'user' | 'api_key' | 'exemption' | 'ban' | 'token'
  /** Its place in that, from 0. */
  place: number
  /** The revision that it is of. What was changed together has the same. */
  revision: number
}

/** A page of changes. */
export interface ChangeList {
  /** The changes, newest first. */
  items: Change[]
  /** What to give as before for those that come next; empty: there are none. */
  next: string
}

/** One thing that a node looks at. */
export interface Check {
  /** What is wrong with it. */
  detail?: string
  /** What it is. */
  name: string
  /** How it is. */
  status: string
}

/** What was found out of a rule. */
export interface Checked {
  /** Whether it could be stored as it is. */
  ok: boolean
  /** What is wrong with it, with all other rules and tiers. */
  problems: FieldProblem[]
  /** The rule in a plain sentence. */
  reading: string
}

/** How many there were. */
export interface Clients {
  /** Of which kind. */
  by: 'user' | 'tenant' | 'key' | 'ip'
  /** How many different ones. */
  clients: number
  /** It is their number, as it always is up to 16,384 of them; of more it is an estimate, mostly to within 1 in 100. */
  exact: boolean
}

/** An API key that was made, with its text. */
export interface CreatedKey {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** The text of the key, which is what its client sends. It is told this once, and kept nowhere. Empty if it was only tried. */
  key: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Key
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** A token that was made, with its text. */
export interface CreatedToken {
  /** When it was made. */
  created_at: string
  /** Who has made it. */
  created_by: string
  /** When it stops being good. Without it, never. */
  expires_at?: string
  /** Which one it is: a part of its text that is not secret. */
  id: string
  /** When it was last used, to the minute. Without it, never. */
  last_used_at?: string
  /** Whose it is, or what it is for: the actor of what is changed with it. */
  name: string
  /** What one may do with it: look; write what is limited, and how; say who may do so. */
  role: 'viewer' | 'operator' | 'admin'
  /** The text of the token. It is told this once, and kept nowhere. */
  token: string
}

/** What was changed. */
export interface Diff {
  /** What was changed, by kind and by id. */
  items: DiffItem[] | null
  /** The revision that the changes made, or the one before if there are none, or if they were undone. */
  revision: number
}

/** One thing that was changed. */
export interface DiffItem {
  /** What has become of it: create, update or delete. */
  action: string
  /** Of an update: the fields that are not as they were. */
  fields?: FieldDiff[]
  /** Its id. */
  id: string
  /** What kind of thing it is: rule, tier, tenant, user, api_key, exemption or ban. */
  kind: string
}

/** What a catalog holds, as people write it. */
export interface Document {
  /** API keys. */
  api_keys?: APIKey[]
  /** Who is refused. */
  bans?: Entry[]
  /** Who is not limited. */
  exemptions?: Entry[]
  /** The rules. */
  rules?: Rule[]
  /** Tenants of whom something is known. */
  tenants?: Tenant[]
  /** The tiers. */
  tiers?: Tier[]
  /** Users of whom something is known. */
  users?: User[]
}

/** Where a node listens. */
export interface Doors {
  /** This API. */
  admin?: string
  /** The gateway. */
  gateway?: string
  /** What Envoy asks. */
  grpc?: string
  /** The decision API. */
  http?: string
}

/** Who is exempt or banned: one of ip, user, tenant and key. */
export interface Entry {
  /** An address, or a network. */
  ip?: string
  /** The id of an API key. */
  key?: string
  /** Why, for people. */
  reason?: string
  /** A tenant. */
  tenant?: string
  /** When that is over. Without it, never. */
  until?: string
  /** A user. */
  user?: string
}

/** What has come of a limit since the node has started. */
export interface EnvoyHits {
  /** Of these, those near it. */
  near: number
  /** Hits over it. */
  over: number
  /** Of these, those that passed since it is only tried out. */
  shadow: number
  /** Hits within the limit. */
  within: number
}

/** A limit of Envoy's descriptors. */
export interface EnvoyLimit {
  /** What has come of it since the node has started. */
  hits: EnvoyHits
  /** What may pass, or unlimited. */
  limit: string
  /** Its name, if it has one. */
  name?: string
  /** The domain, and the keys and values that lead to it. */
  path: string
  /** What is over it is told to Envoy, and passes. */
  quota: boolean
  /** It is only tried out, and refuses nothing. */
  shadow: boolean
}

/** What Envoy is limited by. */
export interface EnvoyList {
  /** The limits, in the order of their declaration. */
  items: EnvoyLimit[]
  /** What after has to be, to go on; empty at the end. */
  next: string
  /** Whether this node serves Envoy at all. */
  served: boolean
}

/** A decision, as it is recorded. */
export interface Event {
  /** It rests on what was remembered, not on a count. */
  cached: boolean
  /** What the request costs. */
  cost: number
  /** How much of the limit is used. */
  count: number
  /** The id of the decision: that of its log lines and traces. */
  decision_id: string
  /** The path of the rule that matched. */
  endpoint: string
  /** The address, or as much of it, or its hash, as the settings say. */
  ip: string
  /** The id of the API key. */
  key_id: string
  /** How long the decision took, without that. */
  latency_us: number
  /** Its limit that matters most. */
  limit_name: string
  /** How much there is. */
  limit_value: number
  /** The method, as rules count it. */
  method: string
  /** The node that decided. */
  node: string
  /** What became of the request. */
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The region that decided. */
  region: string
  /** How long until the request could pass, in microseconds; -1: never. */
  retry_after_us: number
  /** The rule that decided. */
  rule: string
  /** The request passed, and a rule that is only tried out would have refused it: rule, limit and the rest are about that. */
  shadow: boolean
  /** The HTTP status of a refusal. */
  status: number
  /** Whose user that is. */
  tenant_id: string
  /** The tier. */
  tier: string
  /** When it was made. */
  time: string
  /** Who has asked; empty if that is not known, as with the next three. */
  user_id: string
  /** How long it was held. */
  waited_us: number
  /** How many decisions it stands for: of those that passed there is a sample. */
  weight: number
}

/** A page of decisions. */
export interface EventList {
  /** The events, newest first. */
  items: Event[]
  /** What to give as after for those that come next; empty: there are none. */
  next: string
}

/** A request that need not have been made. */
export interface ExplainRequest {
  /** The text of an API key, which is checked as a client's would be; or the id of one, which is believed. */
  api_key?: string
  /** What it costs, whatever rules say. */
  cost?: number
  /** Its headers: a text each, or a list of texts. */
  headers?: Record<string, string | string[]>
  /** The other end of the connection. */
  ip?: string
  /** Its method. Default: GET. */
  method?: string
  /** Its path. Default: /. */
  path?: string
  /** Whose user that is, in the same way. */
  tenant?: string
  /** The tier, in place of what is known. */
  tier?: string
  /** Who is asking: that is believed, and headers are not looked at for it. */
  user?: string
}

/** How a request stands with a limit. */
export interface ExplainedLimit {
  /** Whether it lets the request pass. */
  allowed: boolean
  /** The path of the rule that matched. */
  endpoint?: string
  /** What it is. */
  limit: string
  /** How much there is. */
  max: number
  /** Its name. */
  name: string
  /** It is no limit but a penalty: remaining are the violations until a ban. */
  penalty: boolean
  /** How much is left. */
  remaining: number
  /** In how many seconds all of it is back. */
  reset_after: number
  /** In how many seconds the request would pass, at the latest; 0: now; null: never. */
  retry_after: number | null
  /** Its rule. */
  rule: string
  /** It is only tried out, and refuses nothing. */
  shadow: boolean
}

/** What a rule has to do with a request. */
export interface ExplainedRule {
  /** The rule of its group that applies instead. */
  beaten_by?: string
  /** Its path that matched. */
  endpoint?: string
  /** Its limits, as they are for this request, if it matched. */
  limits?: ExplainedRuleLimit[]
  /** Whether all its conditions are met. */
  matched: boolean
  /** The first condition that is not. */
  reason?: string
  /** Its name. */
  rule: string
}

/** A limit of a rule, as it is for who asks. */
export interface ExplainedRuleLimit {
  /** What it is counted under; nothing if it is unlimited. */
  key?: string
  /** What it is, or unlimited. */
  limit: string
  /** Its name. */
  name: string
  /** Who says so: api_key, user, tier NAME, or rule. */
  source: string
}

/** Who is asking. */
export interface ExplainedSubject {
  /** The address. */
  ip: string
  /** The id of the API key. */
  key: string
  /** What told who it is. */
  source: 'given' | 'key' | 'jwt' | 'header' | 'ip'
  /** The tenant. */
  tenant: string
  /** The tier. */
  tier: string
  /** The user; empty if that is not known, as with the rest. */
  user: string
}

/** What would become of a request, and why. */
export interface Explanation {
  /** Whether it would pass. */
  allowed: boolean
  /** The limits that apply, the one that matters most first, and then those that are only tried out. */
  limits: ExplainedLimit[]
  /** What would become of it. */
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** What its client would be told. */
  reason?: string
  /** In how many seconds it would pass, at the latest; 0: it would now, or no one can tell; null: never. */
  retry_after: number | null
  /** The rule that decides. */
  rule?: string
  /** All rules, in the order of their priority: why each applies, or does not. None, if no rule is looked at. */
  rules: ExplainedRule[]
  /** The same in sentences: who is asking, and how that was found out; whether that one is banned or exempt; each rule that applies, and what its limits say; and what decides. */
  steps: string[]
  /** Who is asking. */
  subject: ExplainedSubject
}

/** A field that is not as it was. */
export interface FieldDiff {
  /** What it is, as JSON. Without it, it is not there. */
  after?: string
  /** What it was, as JSON. Without it, it was not there. */
  before?: string
  /** Which one. */
  path: string
}

/** One thing that is wrong with what was sent. */
export interface FieldProblem {
  /** And the column, in characters, from 1. */
  column?: number
  /** What it is about: a path in the body, or the name of a parameter. Without it, the whole. */
  field?: string
  /** What was probably meant. */
  hint?: string
  /** Where it stands in the body, if it cannot be read: the line, from 1. */
  line?: number
  /** What is wrong with it. */
  message: string
}

/** One of those that are limited. */
export interface FoundSubject {
  /** Which one: that of the user, API key or tenant; an address or a network. */
  id: string
  /** What it is. */
  kind: 'user' | 'key' | 'tenant' | 'ip'
  /** Whether the catalog has it. Others are limited all the same. */
  known: boolean
  /** Of a key or a tenant: what people call it. */
  name?: string
  /** Of a key: how its text begins. */
  prefix?: string
  /** Whose it is. */
  tenant?: string
  /** The tier that the catalog has for it. */
  tier?: string
  /** Of a key: whose it is. */
  user?: string
}

/** How a node is. */
export interface Health {
  /** What that rests on. */
  checks: Check[]
  /** Whether it works as it should, works all the same, or should not be asked. */
  status: 'ok' | 'degraded' | 'not_ready'
}

/** An API key, without the hash of its secret. */
export interface Key {
  /** Whether it is not good for now. */
  disabled?: boolean
  /** When it stops being good. */
  expires?: string
  /** The part of the key between its prefix and its secret. It cannot be changed. */
  id: string
  /** Limits in place of those of the tier, by their names. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** For people. */
  name?: string
  /** How the key begins, so that its owner knows it again. It cannot be changed. */
  prefix?: string
  /** When it was revoked. It cannot be changed here. */
  revoked?: string
  /** By whom. It cannot be changed here. */
  revoked_by?: string
  /** The tenant that it is of. */
  tenant?: string
  /** The tier, in place of that of its user. */
  tier?: string
  /** Whose it is. */
  user?: string
}

/** How long decisions took, in microseconds. */
export interface LiveLatency {
  /** What half of them took at most. */
  p50: number
  /** What 95 in 100 took at most. */
  p95: number
  /** What 99 in 100 took at most. */
  p99: number
}

/** Those who have asked most. */
export interface LiveTalkers {
  /** Addresses, or as much of them as the settings say. */
  addresses: Talkers
  /** API keys, by their ids. */
  keys: Talkers
  /** How long the time was in which they were counted: between 10 and 20, unless it has just begun. */
  seconds: number
  /** Tenants. */
  tenants: Talkers
  /** Users. */
  users: Talkers
}

/** What one logs in with. */
export interface Login {
  /** The text of the token. */
  token: string
}

/** Why, and for how long. */
export interface NewEntry {
  /** Why. Who is banned may see it. */
  reason?: string
  /** When it ends. Without it, never. */
  until?: string
}

/** An API key that is to be made. */
export interface NewKey {
  /** When it stops being good. Without it, never. */
  expires?: string
  /** Limits in place of those of the tier, by their names. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** For people. */
  name?: string
  /** The tenant that it is of. */
  tenant?: string
  /** The tier, in place of that of its user. */
  tier?: string
  /** Whose it is: a user of the catalog. */
  user?: string
}

/** A limit in place of that of the tier. */
export interface NewOverride {
  /** The limit, or unlimited. */
  limit: string
  /** When it ends. Without it, never. */
  until?: string
}

/** A token that is to be made. */
export interface NewToken {
  /** When it stops being good, instead of expires_in_seconds. */
  expires_at?: string
  /** How long it is good. Without this and expires_at, for good. */
  expires_in_seconds?: number
  /** Whose it is, or what it is for. */
  name: string
  /** What one may do with it. */
  role: 'viewer' | 'operator' | 'admin'
}

/** A node that shares the catalog. */
export interface Node {
  /** Another serves a newer revision. */
  behind: boolean
  /** Tells it from others of its name. */
  id?: string
  /** Its name. */
  name: string
  /** Why it does not serve the newest. */
  problem?: string
  /** The revision that it serves. */
  revision: number
  /** When it was last seen. */
  seen: string
  /** It is the one that answers. */
  self: boolean
  /** When it has started. */
  started?: string
  /** What it says of itself. */
  state?: NodeState
  /** The version of its program. */
  version: string
}

/** All nodes. */
export interface NodeList {
  /** The nodes that were seen within the last hour, by name. One that has stopped as it should is gone at once. */
  items: Node[]
}

/** How a node is, as it says itself. */
export interface NodeState {
  /** Whether it is asked. */
  breaker: 'closed' | 'open' | 'half_open' | 'none'
  /** What that rests on. */
  checks: Check[]
  /** What counts. */
  counters: 'memory' | 'redis'
  /** What 99 in 100 decisions take at most, in microseconds. */
  p99_us: number
  /** How many it refuses. */
  refused_per_second: number
  /** How many nodes it shares limits with, while what counts is away. */
  replicas: number
  /** How many requests it decides. */
  requests_per_second: number
  /** How it is. */
  status: 'ok' | 'degraded' | 'not_ready'
  /** How what counts is. */
  store: string
}

/** A part of a series. */
export interface Point {
  /** How many rest on what was remembered. */
  cached: number
  /** Of how many the record has an event. */
  events: number
  /** What half of the decisions took at most, in microseconds. */
  p50_us: number
  /** What 95 in 100 took at most. */
  p95_us: number
  /** What 99 in 100 took at most. */
  p99_us: number
  /** When the time begins. It ends where the next begins. */
  start: string
  /** How many decisions there were. */
  total: number
}

/** What a rule would have done. Numbers of requests are weighted. */
export interface Preview {
  /** How many events of the record were looked at. */
  events: number
  /** The time that was looked at: from. */
  from: string
  /** How many of these the rule would have matched. */
  matched: number
  /** What is to be known to read this. */
  notes: string[] | null
  /** How many of those that it matches were refused then. */
  refused_now: number
  /** How many requests they stand for. */
  requests: number
  /** The same, over time. */
  series: PreviewPoint[] | null
  /** How many would have been counted apart. */
  subjects: number
  /** And to. */
  to: string
  /** Those of whom it would have refused most. */
  top: PreviewSubject[] | null
  /** Of how many the record does not say whether it matches them. */
  unclear: number
  /** How many of these it would have refused. */
  would_refuse: number
}

/** The part of a preview that begins at a time. */
export interface PreviewPoint {
  /** How many requests the rule would have matched. */
  matched: number
  /** When it begins. */
  start: string
  /** How many of these it would have refused. */
  would_refuse: number
}

/** One that would have been counted apart. */
export interface PreviewSubject {
  /** How many requests the rule would have matched. */
  requests: number
  /** Who or what. */
  subject: string
  /** How many of these it would have refused. */
  would_refuse: number
}

/** Why there is no answer, as RFC 9457 has it. */
export interface Problem {
  /** What is wrong, in a sentence for people. */
  detail: string
  /** The fields that are to blame, if fields are. */
  errors?: FieldProblem[]
  /** The HTTP status. */
  status: number
  /** What the status means. */
  title: string
  /** Always about:blank: the status says what kind of problem it is. */
  type: string
  /** Of a conflict: the version that the thing has now. */
  version?: number
}

/** How one stands with a limit. */
export interface Quota {
  /** What it does when the limit is used up. */
  action: 'reject' | 'throttle' | 'log_only' | 'block' | 'allow'
  /** How it counts. */
  algorithm?: string
  /** What the numbers rest on: counted, or what stands in for that. */
  basis: string
  /** What it counts by. */
  count_by: string[]
  /** The path that is counted, if it counts by endpoints. */
  endpoint?: string
  /** What it is, or unlimited. */
  limit: string
  /** How much there is. */
  max: number
  /** The name of the limit. */
  name: string
  /** It is no limit but the rule's penalty: used are the violations that count towards a ban, and while there is one, retry_after is how much longer. */
  penalty: boolean
  /** Of a bucket: how many units come back in a second. */
  refill_per_second?: number
  /** How much is left. */
  remaining: number
  /** In how many seconds all of it is back. */
  reset_after: number
  /** In how many seconds, at the latest, one unit would pass; null: never. */
  retry_after: number | null
  /** The rule. */
  rule: string
  /** Who says so: api_key, user, tier NAME, or rule. */
  source: string
  /** What is counted by and only a request tells. Then the numbers are not known. */
  unknown?: string
  /** How much is used. */
  used: number
}

/** An exemption or a ban, as the catalog has it. */
export interface RecordEntry {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Entry
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** An API key, as the catalog has it. */
export interface RecordKey {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Key
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** A page of exemptions or bans. */
export interface RecordListRecordEntry {
  /** The things, by their ids. */
  items: RecordEntry[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A page of API keys. */
export interface RecordListRecordKey {
  /** The things, by their ids. */
  items: RecordKey[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A page of tenants. */
export interface RecordListRecordTenant {
  /** The things, by their ids. */
  items: RecordTenant[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A page of tiers. */
export interface RecordListRecordTier {
  /** The things, by their ids. */
  items: RecordTier[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A page of users. */
export interface RecordListRecordUser {
  /** The things, by their ids. */
  items: RecordUser[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A page of rules. */
export interface RecordListRuleRecord {
  /** The things, by their ids. */
  items: RuleRecord[]
  /** What after has to be for the next page. Empty: there is none. */
  next: string
}

/** A tenant, as the catalog has it. */
export interface RecordTenant {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Tenant
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** A tier, as the catalog has it. */
export interface RecordTier {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Tier
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** A user, as the catalog has it. */
export interface RecordUser {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: User
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** How often one was refused. */
export interface Refusals {
  /** How many a limit has refused. */
  denied: number
  /** Of whom or of what. */
  name: string
  /** How many were refused for whatever reason. */
  refused: number
}

/** What is to be forgotten. */
export interface ResetSubject {
  /** Only what is counted by this rule. */
  rule?: string
}

/** What of a revision is to be undone. */
export interface Revert {
  /** Undo also what has changed again since. */
  force?: boolean
  /** See kind. */
  id?: string
  /** Only the thing of this kind with this id. Without both, all that the revision has changed. */
  kind?: string
}

/** A revision of the catalog. */
export interface Revision {
  /** The revision that the change made, or the one before if nothing has changed. */
  revision: number
}

/** Whom it is about, what to count, how much may pass, and what happens to the rest. */
export interface Rule {
  /** What happens to what is over a limit: reject, throttle, log_only; or block or allow, for everything that matches. Default reject. */
  action?: 'reject' | 'throttle' | 'log_only' | 'block' | 'allow'
  /** What a request takes. Default 1. */
  cost?: number | {
    /** The header that says how many. */
    header?: string
    /** The most that it may say. */
    max?: number
    /** So many units, if the header says nothing. Default 1. */
    units?: number
  }
  /** What has a counter of its own: global, tenant, user, api_key, ip, endpoint, method, header:NAME or claim:NAME. Without any, there is one counter for all. */
  count_by?: string[]
  /** Whether it is in use. Default true. */
  enabled?: boolean
  /** Of the rules of a group, the best one that matches decides. */
  group?: string
  /** How much may pass. */
  limits?: RuleLimit[]
  /** Its conditions. All that are given must hold. Without any, it matches every request. */
  match?: RuleMatch
  /** How long throttle, or a leaky bucket, may hold a request. */
  max_delay?: string
  /** Tells the rule, and its counters, from others: letters, digits, and any of . _ - between them. */
  name: string
  /** What becomes of a request that cannot be counted: local, open or closed. Default local. */
  on_store_failure?: 'local' | 'open' | 'closed'
  /** What happens to those who go on while they are refused. */
  penalty?: RulePenalty
  /** Decides among the rules of a group: lower first. */
  priority?: number
  /** What a client that is refused gets. */
  response?: RuleResponse
}

/** A named limit. API keys, users and tiers may have another value under its name. */
export interface RuleLimit {
  /** How it is counted: token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log. */
  algorithm?: string
  /** How much may come at once, of a token_bucket, or may wait, of a leaky_bucket. */
  burst?: number
  /** How much may pass: so many per second, minute, hour, day, week, month, year, or per a time such as 90s. */
  limit: string
  /** Its name. */
  name: string
}

/** The conditions of a rule. Within one, any of its values may hold. */
export interface RuleMatch {
  /** Headers and their values; * is any value, but one. */
  headers?: Record<string, string>
  /** Networks of who asks. */
  ip_ranges?: string[]
  /** Methods of HTTP. */
  methods?: string[]
  /** Patterns of paths. */
  paths?: string[]
  /** Tiers of who asks. */
  tiers?: string[]
}

/** An order of rules. */
export interface RuleOrder {
  /** The names of rules, in the order of their priorities. */
  names: string[]
}

/** A ban for those who go on while they are refused. */
export interface RulePenalty {
  /** How long it lasts. */
  cooldown: string
  /** By how much longer the next ones last. */
  multipliers?: number[]
  /** How many refusals lead to it. */
  threshold: number
  /** Within which time. */
  within: string
}

/** How many requests a rule decides. */
export interface RuleRate {
  /** The name of the rule. */
  name: string
  /** How many of these were refused. */
  refused_per_second: number
  /** How many requests it has decided. */
  requests_per_second: number
}

/** A rule, as the catalog has it. */
export interface RuleRecord {
  /** When it was made. */
  created_at?: string
  /** What it is called in paths. */
  id: string
  /** The rule in a plain sentence. */
  reading: string
  /** When it was last changed. */
  updated_at?: string
  /** Who has changed it last. */
  updated_by?: string
  /** What it is. */
  value: Rule
  /** Tells whether it has changed since. 0: it is in a file. */
  version: number
}

/** What a client that is refused gets. */
export interface RuleResponse {
  /** What it is told. */
  message?: string
  /** The status. Default 429, and 403 of block. */
  status?: number
}

/** What was decided of one kind, over time. */
export interface Series {
  /** What it is about: an outcome, a rule, a tier, an endpoint or a region. */
  name: string
  /** The numbers, in the order of time. Those of all series lie at the same times. */
  points: Point[]
  /** It is all that found no place in the others, and has no name. */
  rest: boolean
}

/** What was decided, over time. */
export interface SeriesList {
  /** From when they are. */
  from: string
  /** The series, that with most decisions first, and the rest last. */
  items: Series[]
  /** The time between points; 0 if there is no series, and none was given. */
  step_seconds: number
  /** Until when they are. */
  to: string
}

/** Who one is, as the API sees it. */
export interface Session {
  /** What X-CSRF-Token has to be with this session's cookie, on every method but GET and HEAD. Not with a token: it needs none. */
  csrf?: string
  /** When the session ends. */
  expires_at?: string
  /** When the token expires. Without it, never. */
  expires_token_at?: string
  /** The name of the token, which is the actor of what is changed. */
  name: string
  /** What one may do. */
  role: 'viewer' | 'operator' | 'admin'
}

/** A setting of the node that answers. */
export interface Setting {
  /** What it does. */
  doc: string
  /** The variable of the environment that sets it. */
  env: string
  /** Where it stands in the config. */
  name: string
  /** Who says so. */
  origin: string
  /** What it is; a secret is not shown. */
  value: string
}

/** All settings. */
export interface SettingList {
  /** All settings, those that no one has set, too. */
  items: Setting[]
}

/** What a node has decided in the last seconds. */
export interface Snapshot {
  /** When. */
  at: string
  /** How long decisions took, in microseconds, without the time that requests were held. */
  latency_us: LiveLatency
  /** Where. */
  node?: string
  /** What became of them, by its name. All that there are are here. */
  outcomes_per_second: Record<string, number>
  /** How many were refused. */
  refused_per_second: number
  /** How many requests were decided. */
  requests_per_second: number
  /** The rules that decided most, the first first: at most 50. One of the name other may stand for those that are too many to be told apart. */
  rules: RuleRate[]
  /** How long the time was that rates and latency are about: the last 10 seconds, unless it has just begun. */
  seconds: number
  /** How many passed that a rule that is only tried out would have refused. */
  shadow_refused_per_second: number
  /** Those who have asked most. */
  talkers: LiveTalkers
}

/** What a node is made of, and how it is. */
export interface Status {
  /** What counts. */
  counters: 'memory' | 'redis'
  /** What the catalog is in. */
  database: 'none' | 'sqlite' | 'postgres'
  /** Where it listens. */
  doors: Doors
  /** Whether Envoy is served, as by envoyproxy/ratelimit. */
  envoy: boolean
  /** The file that the rules are in, if they are. */
  file?: string
  /** How it is. */
  health: Health
  /** Where the rules are. */
  mode: 'file' | 'database'
  /** The name of the node. */
  node: string
  /** Its clock. */
  now: string
  /** Whether there is a record of decisions. */
  record: boolean
  /** The revision of the catalog that is in use; 0 of a file. */
  revision: number
  /** How many rules are in use. */
  rules: number
  /** The version of the program. */
  version: string
}

/** One that is limited, and what is known of it. */
export interface Subject {
  /** What bans it, if anything does: that may also be its network, its tenant or its user. */
  ban?: Entry
  /** Of a user: that it is blocked. */
  blocked?: Blocked
  /** What exempts it, in the same way. */
  exemption?: Entry
  /** Which one. */
  id: string
  /** What it is. */
  kind: 'user' | 'key' | 'tenant' | 'ip'
  /** Whether the catalog has it; an address is known if it is on a list itself. */
  known: boolean
  /** When the last was. */
  last_used_at?: string
  /** Of a key or a tenant: what people call it. */
  name?: string
  /** The limits that it has in place of those of its tier, by their names. */
  overrides: SubjectOverride[]
  /** Whose it is. */
  tenant?: string
  /** The tier that it is limited by, wherever it comes from. */
  tier?: string
  /** Of a key: why it is not good any more. */
  unusable?: string
  /** Of a user or a key: how many requests it has made. */
  usage_total?: number
  /** Of a key: whose it is. */
  user?: string
  /** What the catalog has: the value of its record under /users, /keys or /tenants. */
  value?: unknown
  /** The version of that record. */
  version?: number
}

/** Those that were found. */
export interface SubjectList {
  /** Those that were found. */
  items: FoundSubject[]
}

/** A limit in place of that of the tier. */
export interface SubjectOverride {
  /** What it is instead. */
  limit: string
  /** The name of the limit. */
  limit_name: string
  /** When that ends. Without it, never. */
  until?: string
}

/** One who has asked, and how often. */
export interface Talker {
  /** Who it is. */
  name: string
  /** How many of these were refused. */
  refused: number
  /** How many requests there were. */
  requests: number
}

/** Those who have asked most, and those who were refused most. */
export interface Talkers {
  /** Those of whom most requests were refused. */
  by_refused: Talker[]
  /** Those with most requests, the first first. */
  by_requests: Talker[]
  /** The same, of those that were refused. */
  refused_off: number
  /** By how much numbers of requests may be too low: 0, unless there were very many who asked. */
  requests_off: number
}

/** A tenant of whom something is known. */
export interface Tenant {
  /** Which one. */
  id: string
  /** For people. */
  name?: string
  /** The tier of those of it who have no other. */
  tier?: string
}

/** What those have in common who pay the same: values for named limits. */
export interface Tier {
  /** For people. */
  display_name?: string
  /** Values in place of those of rules, by the names of limits, or unlimited. */
  limits?: Record<string, string>
  /** Its name. */
  name: string
  /** For people. */
  price?: string
}

/** A token, without its text. */
export interface Token {
  /** When it was made. */
  created_at: string
  /** Who has made it. */
  created_by: string
  /** When it stops being good. Without it, never. */
  expires_at?: string
  /** Which one it is: a part of its text that is not secret. */
  id: string
  /** When it was last used, to the minute. Without it, never. */
  last_used_at?: string
  /** Whose it is, or what it is for: the actor of what is changed with it. */
  name: string
  /** What one may do with it: look; write what is limited, and how; say who may do so. */
  role: 'viewer' | 'operator' | 'admin'
}

/** All tokens. */
export interface TokenList {
  /** The tokens, in the order in which they were made. */
  items: Token[]
  /** Always empty: the list is whole. */
  next: string
}

/** Those who were refused most. */
export interface Top {
  /** Those that were denied most, the first first. */
  items: Refusals[]
}

/** How one stands with all of its limits. */
export interface Usage {
  /** When. */
  at: string
  /** The limits, by the priority and the names of their rules. */
  items: Quota[]
}

/** A user of whom something is known. */
export interface User {
  /** That the user is banned. */
  blocked?: Blocked
  /** Which one. */
  id: string
  /** Limits in place of those of the tier, by their names. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** The tenant that it is of. */
  tenant?: string
  /** The tier. */
  tier?: string
}

/** A user who was refused by a rule. */
export interface Violation {
  /** How many requests of the user it has denied. */
  denied: number
  /** The rule. */
  rule: string
  /** The user. */
  user: string
}

/** Users who were refused, and by which rules. */
export interface ViolationList {
  /** The most frequent first. */
  items: Violation[]
}
