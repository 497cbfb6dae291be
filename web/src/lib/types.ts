// Generated from internal/control/admin/openapi.json by npm run types. Do not edit.

/** An API key, with the hash of its secret, as documents contain it. */
export interface APIKey {
  /** Whether the key is disabled: requests with it are rejected. */
  disabled?: boolean
  /** When the key expires. */
  expires?: string
  /** The hash of the secret: sha256 or hmac-sha256, and 64 hexadecimal digits. */
  hash: string
  /** The part of the key between its prefix and its secret. */
  id: string
  /** Limits that override those of the tier, by name. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** A name for people. */
  name?: string
  /** The first characters of the key, so that its owner recognizes it. */
  prefix?: string
  /** The key that has replaced this one. */
  replaced_by?: string
  /** The key that this one has replaced. */
  replaces?: string
  /** When the key was revoked. */
  revoked?: string
  /** Who revoked it. */
  revoked_by?: string
  /** The tenant that the key belongs to. */
  tenant?: string
  /** The tier, overriding that of the user. */
  tier?: string
  /** The user that the key belongs to. */
  user?: string
}

/** A block of a user. */
export interface Blocked {
  /** The reason, for people. */
  reason?: string
  /** When the block ends. Never, if it is missing. */
  until?: string
}

/** A client for whom something would change. */
export interface CandidateClient {
  /** The client: a kind and a name. */
  client: string
  /** How many of its requests were denied that would have passed. */
  fewer_denied: number
  /** How many of its requests passed that would have been denied. */
  more_denied: number
}

/** A limit and what may take its place. */
export interface CandidateLimit {
  /** What may take its place. */
  candidate: string
  /** The limit. */
  limit: string
  /** The name of the limit. */
  name: string
}

/** What would change if what is tried out took its place. */
export interface Candidates {
  /** The clients for whom most would change, of the newest 1,000 requests for which it would. */
  clients: CandidateClient[]
  /** How many requests were denied that would have passed. */
  fewer_denied: number
  /** The start of the time range: not before the rule was last changed. */
  from: string
  /** The limits that have a candidate. */
  limits: CandidateLimit[]
  /** How many requests passed that would have been denied. */
  more_denied: number
  /** The rule that may take the place of this one. */
  replaced_by?: string
  /** The end of the time range. */
  to: string
}

/** The region that has the counters of central rules. */
export interface CentralRegion {
  /** Why it does not. */
  reason?: string
  /** The name of the region. */
  region: string
  /** Since when it does not. */
  since?: string
  /** Whether it can be reached, and decides. If not, this node applies its share of central limits. */
  up: boolean
}

/** An entry of the change log. */
export interface Change {
  /** What was done. */
  action: 'create' | 'update' | 'delete'
  /** Who made the change. */
  actor: string
  /** The new value. Missing, if it was deleted. Hashes are masked. */
  after?: unknown
  /** When the change was made. */
  at: string
  /** The old value. Missing, if it was created. Hashes are masked. */
  before?: unknown
  /** For an update: the fields that changed. */
  fields: FieldDiff[]
  /** The id of the object. */
  id: string
  /** The kind of object; counters, which are of a subject such as user:alice, are deleted when they are reset. */
  kind: 'rule' | 'tier' | 'tenant' | 'user' | 'api_key' | 'exemption' | 'ban' | 'token' | 'history' | 'counters'
  /** The position within the revision, from 0. */
  place: number
  /** The revision. Changes made together have the same. */
  revision: number
}

/** A page of changes. */
export interface ChangeList {
  /** The changes, newest first. */
  items: Change[]
  /** The value of before for the next page. Empty on the last page. */
  next: string
}

/** The result of a health check. */
export interface Check {
  /** The problem, if there is one. */
  detail?: string
  /** The name of the check. */
  name: string
  /** The result. */
  status: string
}

/** The result of checking a rule. */
export interface Checked {
  /** Whether the rule is valid. */
  ok: boolean
  /** The problems of the rule, together with all other rules and tiers. */
  problems: FieldProblem[]
  /** The rule as a sentence. */
  reading: string
}

/** The number of clients. */
export interface Clients {
  /** The kind of client. */
  by: 'user' | 'tenant' | 'key' | 'ip'
  /** The number of different clients. */
  clients: number
  /** Whether the number is exact, as it is up to 16,384; a larger one is an estimate, mostly within 1 %. */
  exact: boolean
}

/** What requests have used under rules with a meter. */
export interface Consumption {
  /** Those of the units used that were estimated, because they were not reported. */
  estimated: number
  /** Units that were reserved and not used. */
  given_back: number
  /** The id of the API key. Empty, if unknown or not grouped by. */
  key: string
  /** The meter. Units of different meters are never added up. */
  meter: string
  /** The language model. Empty, if unknown or not grouped by. */
  model: string
  /** Units that were used and not reserved. */
  overshoot: number
  /** The hour, day or month, of UTC. Empty, unless it is grouped by one. */
  period: string
  /** Requests that were settled, and not cancelled. */
  requests: number
  /** Units that were charged before it was known what the requests use. */
  reserved: number
  /** The rule. Empty, unless it is grouped by: then a request counts once for each meter, even if several rules have that meter. */
  rule: string
  /** The tenant. Empty, if unknown or not grouped by. As with users, API keys and models, the name other stands for those that were not counted one by one, because there were too many at once. */
  tenant: string
  /** Units that were used. */
  used: number
  /** The user. Empty, if unknown or not grouped by. */
  user: string
}

/** A page of what requests have used. */
export interface ConsumptionList {
  /** The start of the time range. */
  from: string
  /** What was used, the most first. */
  items: Consumption[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
  /** The end of the time range. */
  to: string
}

/** A Redis server that has counters. */
export interface CounterServer {
  /** Its address. */
  name: string
  /** The part of all subjects that it has, from 0 to 1. */
  share: number
  /** Whether it makes decisions. */
  up: boolean
}

/** A new API key, with its text. */
export interface CreatedKey {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** The text of the key, which clients send. It is shown only once and not stored. Empty for a dry run. */
  key: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Key
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** A new token, with its text. */
export interface CreatedToken {
  /** When it was created. */
  created_at: string
  /** Who created it. */
  created_by: string
  /** When it expires. Never, if it is missing. */
  expires_at?: string
  /** The id, which is the part of the text that is not secret. */
  id: string
  /** When it was last used, to the minute. Never, if it is missing. */
  last_used_at?: string
  /** The owner or the purpose: the actor in the change log. */
  name: string
  /** The role: viewer may read, operator may change the catalog, admin may also manage tokens; user may use the operations under /me only. */
  role: 'viewer' | 'operator' | 'admin' | 'user'
  /** The tenants that it is restricted to. Missing: it is for all. */
  tenants?: string[]
  /** The text of the token. It is shown only once and not stored. */
  token: string
  /** With the role user: the user that it is for. */
  user?: string
}

/** A list of changes. */
export interface Diff {
  /** The changes, by kind and id. */
  items: DiffItem[] | null
  /** The revision that the changes made; the one before, if nothing changed or if it was a dry run. */
  revision: number
}

/** A change to one object. */
export interface DiffItem {
  /** What was done: create, update or delete. */
  action: string
  /** For an update: the fields that changed. */
  fields?: FieldDiff[]
  /** The id of the object. */
  id: string
  /** The kind of object: rule, tier, tenant, user, api_key, exemption or ban. */
  kind: string
}

/** The contents of a catalog, in the form of a config file. */
export interface Document {
  /** The API keys. */
  api_keys?: APIKey[]
  /** The bans. */
  bans?: Entry[]
  /** The exemptions. */
  exemptions?: Entry[]
  /** The rules. */
  rules?: Rule[]
  /** The tenants. */
  tenants?: Tenant[]
  /** The tiers. */
  tiers?: Tier[]
  /** The users. */
  users?: User[]
}

/** The addresses that a node listens on. */
export interface Doors {
  /** This API. */
  admin?: string
  /** The gateway. */
  gateway?: string
  /** The rate limit service for Envoy. */
  grpc?: string
  /** The decision API. */
  http?: string
}

/** An exemption or a ban of exactly one ip, user, tenant or key. */
export interface Entry {
  /** An address or a network. */
  ip?: string
  /** The id of an API key. */
  key?: string
  /** The reason, for people. */
  reason?: string
  /** A tenant. */
  tenant?: string
  /** When the entry ends. Never, if it is missing. */
  until?: string
  /** A user. */
  user?: string
}

/** Hits of a limit since the node started. */
export interface EnvoyHits {
  /** Of these, hits near the limit. */
  near: number
  /** Hits over the limit. */
  over: number
  /** Of these, hits that passed because of shadow mode. */
  shadow: number
  /** Hits within the limit. */
  within: number
}

/** A limit of an Envoy descriptor. */
export interface EnvoyLimit {
  /** Hits since the node started. */
  hits: EnvoyHits
  /** The limit, or unlimited. */
  limit: string
  /** The name, if it has one. */
  name?: string
  /** The domain, and the keys and values of the descriptor. */
  path: string
  /** Whether hits over the limit pass, unless all quotas of the request are used up. */
  quota: boolean
  /** Whether the limit is in shadow mode and denies nothing. */
  shadow: boolean
}

/** The limits of Envoy descriptors. */
export interface EnvoyList {
  /** The limits, in the order of their declaration. */
  items: EnvoyLimit[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
  /** Whether this node serves Envoy. */
  served: boolean
  /** The first 100 files and directories in envoy.config that were not read: their limits do not apply. */
  skipped?: EnvoySkipped[]
}

/** A file or a directory that was not read. */
export interface EnvoySkipped {
  /** The path on this node. */
  path: string
  /** Why it was not read. */
  why: string
}

/** A recorded decision. */
export interface Event {
  /** True if the decision is based on a remembered denial, not on a count. */
  cached: boolean
  /** The cost of the request. */
  cost: number
  /** The units used of the limit. */
  count: number
  /** The id of the decision, as in logs and traces. */
  decision_id: string
  /** The path pattern that matched. */
  endpoint: string
  /** The address of the client, truncated or hashed as configured. */
  ip: string
  /** The id of the API key. Empty, if unknown. */
  key_id: string
  /** Microseconds that the decision took, without the delay. */
  latency_us: number
  /** The limit of the rule with the smallest share left. */
  limit_name: string
  /** The size of the limit. */
  limit_value: number
  /** The method. */
  method: string
  /** The node. */
  node: string
  /** The outcome. */
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The path of the request, as rules match it, or what the settings keep of it: {name} stands for a part that is not recorded, and /** at the end for more of them. Empty, if it is not recorded. */
  path: string
  /** The region of the node. */
  region: string
  /** Microseconds until the request could pass; -1: never. */
  retry_after_us: number
  /** The rule that decided. */
  rule: string
  /** What became of what the request had reserved, by rule. Missing, if it has reserved nothing, or that is not settled, or was settled in the last seconds. */
  settled?: Settlement[]
  /** True if what is only tried out, such as a log_only rule or a candidate, would have decided otherwise. If the request passed, that would have denied it, and rule, limit and the other fields are about that; if it was denied, it would have passed. */
  shadow: boolean
  /** How the client was identified: by an API key, a token, a header of a trusted proxy or its address only, or given by the program that asked. Empty, if that is not known. */
  source: '' | 'key' | 'jwt' | 'header' | 'ip' | 'given'
  /** The HTTP status of the response, if the request did not pass. */
  status: number
  /** The tenant. Empty, if unknown. */
  tenant_id: string
  /** The tier. */
  tier: string
  /** When the decision was made. */
  time: string
  /** Why its credentials were not accepted. Empty, if they were, or there were none, or that is not known. */
  unaccepted: string
  /** The user. Empty, if unknown. */
  user_id: string
  /** Microseconds that the request was delayed. */
  waited_us: number
  /** How many decisions the event represents. Those that passed are sampled; of many that are alike, in one second, the last event represents all that have none of their own. */
  weight: number
}

/** A page of decisions. */
export interface EventList {
  /** The events, newest first. */
  items: Event[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A request to explain. It need not have been made. */
export interface ExplainRequest {
  /** The text of an API key, which is checked like that of a client; or the id of one, which is taken as given. */
  api_key?: string
  /** The cost, overriding that of the rules. */
  cost?: number
  /** The headers: a text or a list of texts each. */
  headers?: Record<string, string | string[]>
  /** The address of the other end of the connection. */
  ip?: string
  /** The method. Default: GET. */
  method?: string
  /** The path. Default: /. */
  path?: string
  /** The tenant, taken as given. */
  tenant?: string
  /** The tier, overriding the known one. */
  tier?: string
  /** The user. It is taken as given, and headers are not used to identify the client. */
  user?: string
}

/** A recorded decision, and all that is known about it. */
export interface ExplainedDecision {
  /** What has changed since, of the rule, and of the tier, the tenant, the user and the API key of the client, newest first, at most 20 of each. People who are restricted to tenants get none. */
  changes: Change[]
  /** For a request that did not pass: when it could have passed, if no other had come. Missing, if never. */
  could_pass_at?: string
  /** What to tell the customer. It names no rules, users or addresses. */
  customer: string
  /** The decision, as it was recorded. */
  event: Event
  /** What would be decided about the same request now. Missing, if the record has too little of it. People who are restricted to tenants get neither its steps nor its rules. */
  now?: Explanation
  /** The revision that had last changed the rule when the decision was made. Missing, if it is not known. */
  rule_revision?: number
  /** Who used the same counter. Missing, if that is not known, or no counter decided. */
  sharing?: Sharing
  /** The same in sentences: when and where it was made, who the client was, what was asked, and what was decided. */
  steps: string[]
  /** What the record does not keep, and what follows from that. */
  unknown: string[]
}

/** A limit that applies to the request. */
export interface ExplainedLimit {
  /** Whether the limit lets the request pass. */
  allowed: boolean
  /** The path pattern that matched. */
  endpoint?: string
  /** The limit. */
  limit: string
  /** The size of the limit. */
  max: number
  /** The name of the limit. */
  name: string
  /** True for a penalty: remaining is then the number of violations until a ban. */
  penalty: boolean
  /** The units left. */
  remaining: number
  /** Seconds until all units are back. */
  reset_after: number
  /** Seconds until the request would pass; 0: now; null: never. */
  retry_after: number | null
  /** The rule. */
  rule: string
  /** Whether the rule is log_only and denies nothing. */
  shadow: boolean
}

/** Whether a rule applies to the request. */
export interface ExplainedRule {
  /** The rule of the same group that applies instead. */
  beaten_by?: string
  /** The path pattern that matched. */
  endpoint?: string
  /** The limits for this request, if the rule matches. */
  limits?: ExplainedRuleLimit[]
  /** Whether all conditions are met. */
  matched: boolean
  /** The first condition that is not met. */
  reason?: string
  /** The name of the rule. */
  rule: string
}

/** A limit of a rule, with the value for this client. */
export interface ExplainedRuleLimit {
  /** The key of the counter; empty if unlimited. */
  key?: string
  /** For how long nodes take units ahead of requests. Empty: not at all. */
  lease?: string
  /** The limit, or unlimited. */
  limit: string
  /** The name of the limit. */
  name: string
  /** How regions share the counter. Empty: each has its own. */
  regions?: 'central' | 'quota' | 'gossip'
  /** Where the limit comes from: api_key, user, tier NAME, or rule. */
  source: string
  /** Among how many counters the limit is divided. 0: it has one. */
  split?: number
}

/** The client. */
export interface ExplainedSubject {
  /** The address. */
  ip: string
  /** The id of the API key. */
  key: string
  /** How the client was identified. */
  source: 'given' | 'key' | 'jwt' | 'header' | 'ip'
  /** The tenant. */
  tenant: string
  /** The tier. */
  tier: string
  /** The user. Empty, if unknown. */
  user: string
}

/** The decision about a request, and the reasons for it. */
export interface Explanation {
  /** Whether the request would pass. */
  allowed: boolean
  /** The limits that apply, the one that decides first, and those of log_only rules last. */
  limits: ExplainedLimit[]
  /** The outcome. */
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The message to the client. */
  reason?: string
  /** Seconds until the request would pass; 0: now, or unknown; null: never. */
  retry_after: number | null
  /** The rule that decides. */
  rule?: string
  /** All rules, in the order of priority: why each applies or does not. Empty, if no rule is evaluated. */
  rules: ExplainedRule[]
  /** The same in sentences: who the client is and how it was identified; whether it is banned or exempt; each rule that applies, with its limits; and the decision. */
  steps: string[]
  /** The client. */
  subject: ExplainedSubject
}

/** A field that changed. */
export interface FieldDiff {
  /** The new value, as JSON. Missing, if the field is not set. */
  after?: string
  /** The old value, as JSON. Missing, if the field was not set. */
  before?: string
  /** The path of the field. */
  path: string
}

/** A problem with one field or parameter. */
export interface FieldProblem {
  /** The column, in characters, from 1. */
  column?: number
  /** The path in the body, or the name of the parameter. Missing, if it is about the whole. */
  field?: string
  /** A suggestion. */
  hint?: string
  /** The line in the body, or in the text of a candidate, from 1. */
  line?: number
  /** What is wrong. */
  message: string
}

/** What a search has found. */
export interface FoundAll {
  /** What was found, by kind. Kinds of which nothing was found are missing. */
  groups: FoundGroup[]
}

/** What a search has found of one kind. */
export interface FoundGroup {
  /** The items. */
  items: FoundItem[]
  /** The kind of the items. Seen are users, tenants and keys that are not in the catalog, and that have sent requests. */
  kind: 'rule' | 'tier' | 'user' | 'key' | 'tenant' | 'ip' | 'exemption' | 'ban' | 'seen'
  /** Whether there are more than limit. */
  more: boolean
}

/** Something that a search has found. */
export interface FoundItem {
  /** Its id; of an exemption or a ban, the subject, such as user:alice. */
  id: string
  /** What it is. */
  kind: 'rule' | 'tier' | 'user' | 'key' | 'tenant' | 'ip' | 'exemption' | 'ban'
  /** Whether it is in the catalog. A client that is not was seen in traffic. */
  known: boolean
  /** For a client that was seen in traffic: the last time, to a day. */
  last_seen_at?: string
  /** For a key or a tenant: its name. */
  name?: string
  /** For a key: the first characters of its text. */
  prefix?: string
  /** For an exemption or a ban: its reason. */
  reason?: string
  /** The tenant that it belongs to. */
  tenant?: string
  /** The tier in the catalog. */
  tier?: string
  /** For a key: its user. */
  user?: string
}

/** A subject that was found. */
export interface FoundSubject {
  /** The id of the user, API key or tenant; an address or a network. */
  id: string
  /** The kind of subject. */
  kind: 'user' | 'key' | 'tenant' | 'ip'
  /** Whether it is in the catalog. Others are limited all the same. */
  known: boolean
  /** For a key or a tenant: its name. */
  name?: string
  /** For a key: the first characters of its text. */
  prefix?: string
  /** The tenant that it belongs to. */
  tenant?: string
  /** The tier in the catalog. */
  tier?: string
  /** For a key: its user. */
  user?: string
}

/** The health of a node. */
export interface Health {
  /** The checks. */
  checks: Check[]
  /** Whether the node works, works with restrictions, or should get no traffic. */
  status: 'ok' | 'degraded' | 'not_ready'
}

/** An API key, without the hash of its secret. */
export interface Key {
  /** Whether the key is disabled: requests with it are rejected. */
  disabled?: boolean
  /** When the key expires. */
  expires?: string
  /** The part of the key between its prefix and its secret. Read-only. */
  id: string
  /** Limits that override those of the tier, by name. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** A name for people. */
  name?: string
  /** The first characters of the key, so that its owner recognizes it. Read-only. */
  prefix?: string
  /** The key that has replaced this one. Read-only. */
  replaced_by?: string
  /** The key that this one has replaced. Read-only. */
  replaces?: string
  /** When the key was revoked. Read-only. */
  revoked?: string
  /** Who revoked it. Read-only. */
  revoked_by?: string
  /** The tenant that the key belongs to. */
  tenant?: string
  /** The tier, overriding that of the user. */
  tier?: string
  /** The user that the key belongs to. */
  user?: string
}

/** An API key, as stored, and its use. */
export interface KeyRecord {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** When the key was last used, on any node, a few seconds late. Never, if it is missing. */
  last_used_at?: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The number of requests with it so far. */
  usage_total?: number
  /** The value. */
  value: Key
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** What nodes have leased of a limit since they were started. */
export interface Leased {
  /** The capacity of the counter that had most_used. */
  capacity: number
  /** Counters that are leased now. */
  counters: number
  /** Denials of counters that were leased, or that other nodes may have leased. */
  denied: number
  /** Of these, those while other nodes may have held units that they had taken ahead, so that they may have been too early: a bound, and 0 with one node. */
  denied_early: number
  /** Units that were taken ahead, not spent, and given back. */
  given_back: number
  /** Units that were taken ahead and are held now, as of the last term. */
  held: number
  /** Units that were taken ahead, not spent, and could not be given back in time: they stay used, at least until the store is back. */
  kept: number
  /** Units that were taken ahead. */
  lent: number
  /** The rule and its limit. The name other stands for limits that are not counted one by one. */
  limit: string
  /** The most units that the store has counted of a counter in its window, from all nodes: at most the capacity. */
  most_used: number
  /** The most units that other nodes may have held then: a bound, of less than half of the limit unless other regions share it. */
  others_most: number
  /** Units that were taken ahead and spent. */
  spent: number
}

/** Latency of decisions, in microseconds. */
export interface LiveLatency {
  /** The median. */
  p50: number
  /** The 95th percentile. */
  p95: number
  /** The 99th percentile. */
  p99: number
}

/** The clients with the most requests. */
export interface LiveTalkers {
  /** Addresses, truncated or hashed as configured. */
  addresses: Talkers
  /** API keys, by their ids. */
  keys: Talkers
  /** The length of the time in which requests were counted: between 10 and 20 seconds, or less after a start. */
  seconds: number
  /** Tenants. */
  tenants: Talkers
  /** Users. */
  users: Talkers
}

/** Changes that were made together. */
export interface LoggedRevision {
  /** Who made them. */
  actor: string
  /** When the changes were made. */
  at: string
  /** The first of them that match kind and id: at most 5. GET /changes?revision=42 returns all. */
  changes: Change[]
  /** The number of the revision. */
  revision: number
  /** How many changes the revision has. */
  total: number
}

/** Credentials to log in with. */
export interface Login {
  /** The text of the token. */
  token: string
}

/** A user, and the token of the request. */
export interface Me {
  /** Whether requests of the user are denied, by a block or a ban. */
  blocked: boolean
  /** Limits of the user that override those of the tier. */
  limits: SubjectOverride[]
  /** The tenant of the user. */
  tenant?: string
  /** The tier that applies. */
  tier?: string
  /** The name of the token. */
  token: string
  /** When the token expires. Never, if it is missing. */
  token_expires_at?: string
  /** The user. */
  user: string
}

/** A decision about a request of oneself. */
export interface MyDecision {
  /** For a request that did not pass: when it could have passed, if no other had come. Missing, if never. */
  could_pass_at?: string
  /** The same in plain words. */
  customer: string
  /** The id of the decision. */
  decision_id: string
  /** The size of the limit that decided. 0: there was none. */
  limit_value: number
  /** The method. */
  method: string
  /** The outcome. */
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The path, or what is recorded of it. */
  path: string
  /** When the decision was made. */
  time: string
}

/** The reason for a ban or an exemption, and when it ends. */
export interface NewEntry {
  /** The reason. The client may see it. */
  reason?: string
  /** When it ends. Never, if it is missing. */
  until?: string
}

/** An API key to create. */
export interface NewKey {
  /** When it expires. Never, if it is missing. */
  expires?: string
  /** Limits that override those of the tier, by name. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** A name for people. */
  name?: string
  /** The tenant that the key belongs to. */
  tenant?: string
  /** The tier, overriding that of the user. */
  tier?: string
  /** The user that the key belongs to, who must be in the catalog. */
  user?: string
}

/** A limit that overrides that of the tier. */
export interface NewOverride {
  /** The limit, or unlimited. */
  limit: string
  /** When it ends. Never, if it is missing. */
  until?: string
}

/** A token to create. */
export interface NewToken {
  /** When the token expires, instead of expires_in_seconds. */
  expires_at?: string
  /** How long the token is valid. Without this and expires_at it does not expire. */
  expires_in_seconds?: number
  /** The owner or the purpose. */
  name: string
  /** The role. With a user it may be missing. */
  role?: 'viewer' | 'operator' | 'admin' | 'user'
  /** The tenants that it is restricted to, at most 100. Missing: it is for all. Who is restricted to tenants creates tokens for some of these only. */
  tenants?: string[]
  /** The user that it is for, who must be in the catalog. It may then use the operations under /me only. A user has at most 10 tokens. */
  user?: string
}

/** A node that shares the catalog. */
export interface Node {
  /** Whether another node uses a newer revision. */
  behind: boolean
  /** The id of the node, which is unique. */
  id?: string
  /** The name of the node. */
  name: string
  /** Why it does not use the newest revision. */
  problem?: string
  /** The revision in use. */
  revision: number
  /** When it was last seen. */
  seen: string
  /** Whether it is the node that answers. */
  self: boolean
  /** When it started. */
  started?: string
  /** The state that it reports. */
  state?: NodeState
  /** The version of the program. */
  version: string
}

/** All nodes. */
export interface NodeList {
  /** The nodes seen within the last hour, ordered by name. A node that shuts down is removed at once. */
  items: Node[]
}

/** The request rate of a node. */
export interface NodeRate {
  /** The name of the node. */
  name: string
  /** Requests per second of these that were refused. */
  refused_per_second: number
  /** Requests per second that it decided. */
  requests_per_second: number
}

/** The state of a node, as the node reports it. */
export interface NodeState {
  /** The state of the circuit breakers of the store: open if the breaker of any server is. Only nodes of older versions report half_open. */
  breaker: 'closed' | 'open' | 'half_open' | 'none'
  /** The checks. */
  checks: Check[]
  /** Where counters are stored. */
  counters: 'memory' | 'redis'
  /** 99th percentile of latency, in microseconds. */
  p99_us: number
  /** Requests that did not pass, per second. */
  refused_per_second: number
  /** The name of its region. Empty: it has none, or is of an older version. */
  region?: string
  /** The number of nodes that share limits while the store is unreachable. */
  replicas: number
  /** Requests, per second. */
  requests_per_second: number
  /** The servers that have the counters, if there are several. */
  servers?: CounterServer[]
  /** The result. */
  status: 'ok' | 'degraded' | 'not_ready'
  /** The state of the store. */
  store: string
}

/** A point of a series. */
export interface Point {
  /** Decisions that are based on a remembered denial. */
  cached: number
  /** The number of events in the record. */
  events: number
  /** Median latency, in microseconds. */
  p50_us: number
  /** 95th percentile of latency, in microseconds. */
  p95_us: number
  /** 99th percentile of latency, in microseconds. */
  p99_us: number
  /** When the point starts. It ends where the next starts. */
  start: string
  /** The number of decisions. */
  total: number
}

/** What a rule would have done. Requests are estimated from a sample. */
export interface Preview {
  /** The subjects of which a request would have been denied. */
  denied_subjects: number
  /** The number of events that were replayed. */
  events: number
  /** The start of the time range. */
  from: string
  /** Requests that the rule would have matched. */
  matched: number
  /** Requests that the rule would not have matched. */
  not_matched: number
  /** Notes on how to read the numbers. */
  notes: string[] | null
  /** The number of events of this time, if not all were replayed. Then the numbers are estimates. */
  recorded?: number
  /** Matching requests that were denied at the time. */
  refused_now: number
  /** The number of requests that these events represent. */
  requests: number
  /** The same numbers over time. */
  series: PreviewPoint[] | null
  /** How sure the preview is: the shares of the requests that are known to match, are known not to match, and are unclear. */
  shares: Shares
  /** The number of separate counters. */
  subjects: number
  /** The numbers in words. It says that the rule matches no request only if that is known of all. */
  summary: string
  /** The end of the time range. */
  to: string
  /** The subjects that would have been denied most often. */
  top: PreviewSubject[] | null
  /** Requests whose events do not contain enough to tell whether the rule matches. */
  unclear: number
  /** Requests that the rule would have denied. */
  would_refuse: number
}

/** A point in time of a preview. */
export interface PreviewPoint {
  /** Requests that the rule would have matched. */
  matched: number
  /** When the point starts. */
  start: string
  /** Requests that the rule would have denied. */
  would_refuse: number
}

/** A subject with a counter of its own. */
export interface PreviewSubject {
  /** Requests that the rule would have matched. */
  requests: number
  /** The subject. */
  subject: string
  /** Requests that the rule would have denied. */
  would_refuse: number
}

/** An error, as in RFC 9457. */
export interface Problem {
  /** What is wrong, for people. */
  detail: string
  /** The fields that are invalid, if any. */
  errors?: FieldProblem[]
  /** The HTTP status. */
  status: number
  /** The name of the status. */
  title: string
  /** Always about:blank. */
  type: string
  /** For 409 and 412: the current version. */
  version?: number
}

/** A limit, and how much of it is used. */
export interface Quota {
  /** The action of the rule. */
  action: 'reject' | 'throttle' | 'log_only' | 'mark' | 'block' | 'allow'
  /** The algorithm. */
  algorithm?: string
  /** What the numbers are based on: counted, or a substitute. */
  basis: string
  /** What the rule counts by. */
  count_by: string[]
  /** The path, if the rule counts by endpoint. */
  endpoint?: string
  /** The limit, or unlimited. */
  limit: string
  /** The size of the limit. */
  max: number
  /** The name of the limit. */
  name: string
  /** True for the penalty of the rule: used is then the number of violations that count towards a ban, and retry_after the rest of a ban. */
  penalty: boolean
  /** For a bucket: units that come back per second. */
  refill_per_second?: number
  /** The units left. */
  remaining: number
  /** Seconds until all units are back. */
  reset_after: number
  /** Seconds until one unit would pass, at the latest; null: never. */
  retry_after: number | null
  /** The rule. */
  rule: string
  /** True if the rule is only tried out on this subject, and denies nothing. */
  shadow: boolean
  /** Where the limit comes from: api_key, user, tier NAME, or rule. */
  source: string
  /** What the rule counts by that only a request can tell. The numbers are then unknown. */
  unknown?: string
  /** The units used. */
  used: number
}

/** An exemption or a ban, as stored. */
export interface RecordEntry {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Entry
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** A page of API keys. */
export interface RecordListKeyRecord {
  /** The items. */
  items: KeyRecord[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A page of exemptions or bans. */
export interface RecordListRecordEntry {
  /** The items. */
  items: RecordEntry[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A page of tenants. */
export interface RecordListRecordTenant {
  /** The items. */
  items: RecordTenant[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A page of tiers. */
export interface RecordListRecordTier {
  /** The items. */
  items: RecordTier[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A page of users. */
export interface RecordListRecordUser {
  /** The items. */
  items: RecordUser[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A page of rules. */
export interface RecordListRuleRecord {
  /** The items. */
  items: RuleRecord[]
  /** The value of after for the next page. Empty on the last page. */
  next: string
}

/** A tenant, as stored. */
export interface RecordTenant {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Tenant
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** A tier, as stored. */
export interface RecordTier {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Tier
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** A user, as stored. */
export interface RecordUser {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: User
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** Denied requests of one client, rule or endpoint. */
export interface Refusals {
  /** Requests denied by a limit. */
  denied: number
  /** The client, path, rule or endpoint. */
  name: string
  /** Requests that did not pass, for any reason. */
  refused: number
}

/** What went wrong between regions. */
export interface RegionGossip {
  /** Batches of others that came again, and were not charged again. */
  duplicate_batches: number
  /** Units that other regions may never learn of. What a node had not told when it was killed is not among them: nobody can count that. */
  lost_units: number
  /** Batches of others that were refused. */
  refused_batches: number
}

/** A region. */
export interface RegionInfo {
  /** Whether a node that shares the database uses a newer revision. */
  behind: boolean
  /** The name of the region. */
  name: string
  /** How many of its nodes have reported to the database of this node within the last minute. 0: none does, or they are of an older version. */
  nodes: number
  /** The oldest revision of the rules that these nodes use; 0 if there are none. */
  revision: number
  /** Whether it is the region of this node. */
  self: boolean
  /** Its weight: it means something beside those of the others. */
  weight: number
}

/** A gossiped limit: what regions may admit beyond it, and what a node has measured. */
export interface RegionLimit {
  /** Units that this node has admitted. */
  admitted: number
  /** The most units beyond the limit that this node has seen. Changes of what was charged, as by metered costs, do not count, and of a cost above the credit as much as the credit. */
  beyond: number
  /** How many units all regions together may admit beyond the limit: (regions - 1) x credit. */
  bound: number
  /** The rule and its limit. Empty: further limits, together. */
  limit: string
  /** Whether that is measured: it is for fixed_window and sliding_window. Of others, beyond is 0. */
  measured: boolean
  /** Units that other regions have admitted, as this node was told. */
  received: number
  /** Requests that were decided by the share of this node. */
  shares: number
  /** Requests that were denied for want of credit, or of a share. */
  short: number
}

/** A link of a node to another region. */
export interface RegionLink {
  /** Whether it says that it is cut off from some region, or from its own store, so that the others apply their shares. */
  alone: boolean
  /** Of how many counters the region has to be told. */
  backlog: number
  /** Calls of central counters that are not answered. */
  calls: number
  /** Whether no node of this region hears from it, so that this region applies its share of gossiped limits. */
  cut: boolean
  /** How long the last batch took to be acknowledged, or takes, in microseconds. */
  lag_us: number
  /** The node that it is connected to, or was last. */
  peer?: string
  /** How many pings were answered on this connection. If none was, delay and skew are unknown. */
  pings: number
  /** Bytes of messages received, since this node started. */
  received_bytes: number
  /** How often the other side has refused a connection, since this node started. */
  refused: number
  /** The other region. */
  region: string
  /** How long a message there and back takes, in microseconds, smoothed. */
  round_trip_us: number
  /** Bytes of messages sent, since this node started. */
  sent_bytes: number
  /** Since when it is, or is not. */
  since: string
  /** By how much the clock of the store there is ahead of the clock of the store here, in microseconds. */
  skew_us: number
  /** Batches that were made and are not acknowledged. */
  unacknowledged: number
  /** Whether this node is connected to it. */
  up: boolean
  /** Where its nodes listen. */
  url: string
  /** Why it is not connected. */
  why?: string
}

/** The stream of a node of another region. */
export interface RegionStream {
  /** The node. */
  node: string
  /** How many pings it has answered. If none, delay and skew are unknown. */
  pings: number
  /** The region of the node. */
  region: string
  /** How long a message there and back takes, in microseconds, smoothed. */
  round_trip_us: number
  /** Since when it is connected. */
  since: string
  /** By how much the clock of the store there is ahead of the clock of the store here, in microseconds. */
  skew_us: number
}

/** How a node stands with other regions. */
export interface Regions {
  /** Whether this region is cut off from another one, and applies its share of gossiped limits, or from its own store, and decides them without the others. */
  alone: boolean
  /** The region that has the counters of central rules, if there is one. */
  central?: CentralRegion
  /** Gossiped counters of which this node has admitted something that has not recovered. */
  counters: number
  /** What went wrong between regions since this node started. */
  gossip: RegionGossip
  /** All regions, ordered by name. */
  items: RegionInfo[]
  /** The gossiped limits that this node has had to do with since it started, ordered by name: at most 1024, and one more for the rest. */
  limits: RegionLimit[]
  /** The links of this node to the other regions, ordered by region. */
  links: RegionLink[]
  /** The name of this node. */
  node: string
  /** Streams of other regions that this node has refused or ended since it started, by reason. Every reason is listed, if it listens. */
  refused: Record<string, number>
  /** The region of this node. Empty: there are no other regions, and the rest is empty. */
  region: string
  /** The streams that nodes of other regions have to this node, ordered by region and node. */
  streams: RegionStream[]
  /** Where this node has the weights of quotas that follow demand from: the configuration, because there is no database (fixed); the database (fresh); or nowhere, because it could not read them lately, and applies the lowest part (stale). */
  weights: 'fixed' | 'fresh' | 'stale'
}

/** A line of the answer of a replay: one of progress, report and problem. */
export interface ReplayLine {
  /** Why there is no result: the last line. */
  problem?: Problem
  /** How far the replay is, once a second. */
  progress?: ReplayProgress
  /** The result: the last line. */
  report?: ReplayReport
}

/** A point in time of a replay. */
export interface ReplayPoint {
  /** Those that the candidate denies. */
  denied_candidate: number
  /** Those that the live rules deny. */
  denied_live: number
  /** Those that only the candidate denies. */
  newly_denied: number
  /** Those that only the live rules deny. */
  newly_passed: number
  /** The requests. */
  requests: number
  /** When the point starts. */
  start: string
}

/** How far a replay is. */
export interface ReplayProgress {
  /** How many events it has read or replayed. */
  done: number
  /** How many it will replay; while it reads, at most. */
  of: number
  /** What it does. */
  step: 'reading' | 'replaying'
}

/** What would be decided otherwise. Numbers of requests are weighted, and denied is whatever does not pass. */
export interface ReplayReport {
  /** What the candidate does. Missing without one. */
  candidate?: ReplaySide
  /** How many were denied when they were recorded. */
  denied_then: number
  /** How many the live rules decide otherwise now than was decided then. */
  differently: number
  /** The endpoints with the most differences: paths without what looks like an id. */
  endpoints: ReplayRow[]
  /** The number of events that were replayed. */
  events: number
  /** When the first request was sent. Missing, if there is none. */
  from?: string
  /** What the live rules do. */
  live: ReplaySide
  /** Requests that only the candidate denies. */
  newly_denied: number
  /** Requests that only the live rules deny. */
  newly_passed: number
  /** Limitations of the replay. */
  notes: string[]
  /** The number of events of this time, if not all were replayed. Then the numbers are estimates. */
  recorded?: number
  /** The number of requests that these events represent. */
  requests: number
  /** The rules with the most differences. */
  rules: ReplayRow[]
  /** Whether the candidate is equal to the live rules. */
  same: boolean
  /** The same numbers over time. */
  series: ReplayPoint[]
  /** Seconds between points. */
  step_seconds: number
  /** The clients with the most differences. */
  subjects: ReplayRow[]
  /** The numbers in words. */
  summary: string
  /** The tiers with the most differences. */
  tiers: ReplayRow[]
  /** When the last request was sent. Missing, if there is none. */
  to?: string
  /** Requests of which too little is recorded to tell which rules apply. They are replayed all the same. */
  unclear: number
}

/** What a replay compares with the live rules. */
export interface ReplayRequest {
  /** Rules, tiers and other records as in a config file, in TOML. Empty: the live rules are compared with what was decided at the time. */
  candidate?: string
  /** The candidate has all rules and, of other kinds that it has any of, all records. Otherwise it has those that change, and the live ones stay that it does not have. */
  whole?: boolean
}

/** The figures of a rule, endpoint, tier or client in a replay. */
export interface ReplayRow {
  /** Those that the candidate denies. */
  denied_candidate: number
  /** Those that the live rules deny. */
  denied_live: number
  /** Of a rule of the candidate: how many clients it denies requests of. */
  denied_subjects?: number
  /** Its name. Of clients, it begins with user:, key:, ip: or tenant:. Empty, if that is not known. */
  name: string
  /** Those that only the candidate denies. */
  newly_denied: number
  /** Those that only the live rules deny. */
  newly_passed: number
  /** The requests; of a rule, those that it applies to. */
  requests: number
  /** The same of a rule of the candidate. */
  shadow_candidate?: number
  /** Those that pass, and that a live rule which is only tried out would have denied. */
  shadow_live?: number
}

/** What a rule set does in a replay. */
export interface ReplaySide {
  /** Requests that it denies. */
  denied: number
  /** How many different clients it denies requests of. */
  denied_subjects: number
  /** How long one of them waits at most. */
  longest_wait_seconds: number
  /** Requests that it holds and then lets pass. */
  throttled: number
  /** How long all of these wait together. */
  waited_seconds: number
}

/** Which counters to reset. */
export interface ResetSubject {
  /** Only reset counters of this rule. */
  rule?: string
}

/** Which changes of a revision to undo. */
export interface Revert {
  /** Undo objects that have changed since, too. */
  force?: boolean
  /** See kind. */
  id?: string
  /** Only the object of this kind with this id. Without both, everything that the revision changed. */
  kind?: string
}

/** A revision of the catalog. */
export interface Revision {
  /** The revision that the change made, or the one before if nothing changed. */
  revision: number
}

/** A page of revisions. */
export interface RevisionList {
  /** The revisions, newest first. */
  items: LoggedRevision[]
  /** The value of before for the next page. Empty on the last page. */
  next: string
}

/** How far a rule is rolled out. */
export interface Rollout {
  /** When it is taken back. */
  back_if?: string
  /** The rule. */
  rule: string
  /** For which part of clients the rule is in force now; 0%: for none. */
  share: string
  /** The number of the step that it is the time for, from 1; 0: the first has not begun. */
  step: number
  /** The steps. */
  steps: RolloutStep[]
  /** How it has ended before its last step. Missing: it goes on. */
  stopped?: RuleStopped
}

/** What a rollout has to do. */
export interface RolloutChange {
  /** stop: take it back, so that the rule is only tried out; resume: go on at the beginning of the step at which it was stopped; to: stay at a step. */
  do: 'stop' | 'resume' | 'to'
  /** Why it is stopped, for people. */
  reason?: string
  /** The step to stay at, if do is to. */
  share?: string
}

/** A step of a rollout. */
export interface RolloutStep {
  /** When the step begins. */
  begins: string
  /** For which part of clients the rule is in force. */
  share: string
}

/** A new API key, with its text, and the one that it replaces. */
export interface RotatedKey {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** The text of the key, which clients send. It is shown only once and not stored. Empty for a dry run. */
  key: string
  /** When that one expires. */
  old_expires: string
  /** The id of the key that it replaces. */
  old_id: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Key
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** How to rotate a key. */
export interface Rotation {
  /** How long the old key stays valid, at most 30 days. Default 86400, a day. 0: it expires at once. */
  grace_seconds?: number
}

/** A rule: which requests it matches, what it counts, how many it lets pass, and what it does with the rest. */
export interface Rule {
  /** What to do with requests over a limit: reject (deny), throttle (delay), log_only or mark (both let them pass; mark tells the application). Or block or allow, for every request that matches. Default reject. */
  action?: 'reject' | 'throttle' | 'log_only' | 'mark' | 'block' | 'allow'
  /** How many units a request takes. Default 1. */
  cost?: number | {
    /** The header with the number of units. */
    header?: string
    /** The highest number that is accepted from the header or the meter. */
    max?: number
    /** What is measured: request_bytes, response_bytes, response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost. */
    meter?: string
    /** What a request with a meter costs that the server fails to answer: what was measured, or nothing. Default charge. */
    on_error?: 'charge' | 'refund'
    /** What happens to an answer of a language model that uses more than was reserved: it ends as it would, or a stream is cut when there is no more to reserve. Default finish. */
    on_overrun?: 'finish' | 'cut'
    /** The number of units that are charged until the meter tells the cost. Default 1. */
    reserve?: number
    /** The number of units if the header is missing. Default 1. */
    units?: number
  }
  /** What has a counter of its own: global, tenant, user, api_key, ip, endpoint, method, header:NAME or claim:NAME. Default: one counter for all requests. */
  count_by?: string[]
  /** How many units of a counter a region may let pass before the others know of them, if regions is gossip. Default: a tenth of each limit. */
  credit?: number
  /** Whether the rule is in use. Default true. */
  enabled?: boolean
  /** For which part of clients the rule is in force, always the same ones. On the others it is tried out: it counts them, and records what it would do. Default: for all. */
  enforce?: string
  /** The group. Only the first rule of a group that matches applies. */
  group?: string
  /** The limits. */
  limits?: RuleLimit[]
  /** The conditions. All of them must be met; a rule without conditions matches every request. */
  match?: RuleMatch
  /** The longest time that a request may be delayed by throttle or by a leaky bucket. */
  max_delay?: string
  /** The name of the rule and of its counters: letters, digits, and . _ - between them. */
  name: string
  /** What to do with a request for which a region has no credit left, while the other regions cannot be reached: share (its share of the rest decides) or deny. Default share. */
  on_credit?: 'share' | 'deny'
  /** What to do with a request while counters cannot be reached: local, open or closed. Default local. */
  on_store_failure?: 'local' | 'open' | 'closed'
  /** A ban for clients that keep sending requests that are denied. */
  penalty?: RulePenalty
  /** The order of rules in a group: the lowest number comes first. */
  priority?: number
  /** How regions share the counters: central (one region has them), quota (each region has a part of each limit) or gossip (each region counts by itself, and tells the others). Default: each region counts by itself, and the limits hold in each. */
  regions?: 'central' | 'quota' | 'gossip'
  /** The rule that this one may take the place of. Until then it decides nothing: it counts, and what it would do is recorded. */
  replaces?: string
  /** The response to a request that is denied. */
  response?: RuleResponse
  /** In which steps the rule comes into force, in place of enforce. */
  rollout?: RuleRollout
  /** What the parts of regions depend on, if regions is quota: fixed (their weights) or follow (their demand). Default fixed. */
  weights?: 'fixed' | 'follow'
}

/** A named limit. API keys, users and tiers can override its value. */
export interface RuleLimit {
  /** The algorithm: token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log. */
  algorithm?: string
  /** How many requests may come at once (token_bucket), or wait (leaky_bucket). */
  burst?: number
  /** A limit that may take the place of this one. It counts by itself, and denies nothing: what it would do is recorded. It is about clients for whom no tier, user or API key has a value of its own. */
  candidate?: string
  /** Which counters the limit has, if not the first: one more for each candidate that has taken its place. */
  counter?: number
  /** For how long a node may take units ahead of requests, from 10ms to 10s and at most the window. Default: every request asks the store. */
  lease?: string
  /** The limit: a number per second, minute, hour, day, week, month or year, or per duration such as 90s. */
  limit: string
  /** The name of the limit. */
  name: string
  /** Among how many counters the limit is divided, from 2 to 64. Default: it has one. */
  split?: number
}

/** The conditions of a rule. A condition is met if any of its values matches. */
export interface RuleMatch {
  /** Headers and their values; * matches any value. */
  headers?: Record<string, string>
  /** Networks of the client. */
  ip_ranges?: string[]
  /** HTTP methods. */
  methods?: string[]
  /** Path patterns. */
  paths?: string[]
  /** Tiers of the client. */
  tiers?: string[]
}

/** An order of rules. */
export interface RuleOrder {
  /** The names of rules, in the order of priority. */
  names: string[]
}

/** A temporary ban for clients that keep sending requests that are denied. */
export interface RulePenalty {
  /** How long the ban lasts. */
  cooldown: string
  /** Factors by which the next bans are longer. */
  multipliers?: number[]
  /** The number of denied requests that leads to a ban. */
  threshold: number
  /** The time within which they are counted. */
  within: string
}

/** The request rate of a rule. */
export interface RuleRate {
  /** The name of the rule. */
  name: string
  /** Of these, requests that did not pass, per second. */
  refused_per_second: number
  /** Requests that the rule decided, per second. */
  requests_per_second: number
}

/** A rule, as stored. */
export interface RuleRecord {
  /** When it was created. */
  created_at?: string
  /** The id, as used in paths. */
  id: string
  /** The rule as a sentence. */
  reading: string
  /** When it was last changed. */
  updated_at?: string
  /** Who changed it last. */
  updated_by?: string
  /** The value. */
  value: Rule
  /** The version, for If-Match. 0: it is in a file. */
  version: number
}

/** The response to a request that is denied. */
export interface RuleResponse {
  /** The message. */
  message?: string
  /** How long the client is told to wait, in whole seconds, in place of the time until the request could pass. */
  retry_after?: string
  /** The HTTP status. Default 429, or 403 for block. */
  status?: number
  /** Whose clients understand the responses and their headers: openai, anthropic, or auto, which is the API that was requested. By default, those of HTTP. */
  style?: string
}

/** In which steps a rule comes into force, each for a larger part of clients, always the same ones. */
export interface RuleRollout {
  /** When the rollout is taken back: if the rule denies more than this part of the requests in a minute of those for whom it is in force, if these are at least 20. */
  back_if?: string
  /** How long a step lasts, at least 1m. */
  every: string
  /** When the first step begins. Before, the rule is tried out on all clients. Default: when the rule is stored; of a rule that has the same steps already, its start. */
  start?: string
  /** The parts of clients, each larger than the one before. The last one stays. */
  steps: string[] | null
  /** How the rollout has ended before its last step. It goes on with another start. */
  stopped?: RuleStopped
}

/** That a rollout does not go on. */
export interface RuleStopped {
  /** When it was stopped. */
  at: string
  /** Why, for people. */
  reason?: string
  /** The part of clients for whom the rule stays in force. Default: none, it was taken back. */
  share?: string
}

/** Decisions over time. */
export interface Series {
  /** The outcome, rule, tier, endpoint or region. */
  name: string
  /** The points, in order. All series have points at the same times. */
  points: Point[]
  /** True for the sum of all that are not listed. It has no name. */
  rest: boolean
  /** All points together. */
  whole: Point
}

/** A list of series. */
export interface SeriesList {
  /** The start of the time range. */
  from: string
  /** The series, that with the most decisions first, and the sum of the rest last. */
  items: Series[]
  /** Seconds between points; 0 if there are no series and no step was given. */
  step_seconds: number
  /** The end of the time range. */
  to: string
}

/** The current session, or the token of the request. */
export interface Session {
  /** The value of the header X-CSRF-Token, required with the session cookie for every method except GET and HEAD. Missing with a token, which needs none. */
  csrf?: string
  /** When the session ends. */
  expires_at?: string
  /** When the token expires. Never, if it is missing. */
  expires_token_at?: string
  /** The name of the token, which is the actor in the change log. */
  name: string
  /** The role. */
  role: 'viewer' | 'operator' | 'admin'
  /** The tenants that it is restricted to. Missing: it is for all. */
  tenants?: string[]
}

/** A setting of this node. */
export interface Setting {
  /** The description. */
  doc: string
  /** The environment variable. */
  env: string
  /** The name in the config file. */
  name: string
  /** Where the value comes from. */
  origin: string
  /** The value; secrets are masked. */
  value: string
}

/** All settings. */
export interface SettingList {
  /** All settings, including those that are not set. */
  items: Setting[]
}

/** What became of what a request had reserved under a rule. */
export interface Settlement {
  /** When it was settled. */
  at: string
  /** True if the reservation was cancelled: everything was given back. */
  cancelled: boolean
  /** True if some of what was used is an estimate, because it was not reported. */
  estimated: boolean
  /** Units that were reserved and not used. */
  given_back: number
  /** The meter of the rule. Empty, if it has none. */
  meter: string
  /** The language model. Empty, if there is none or it is unknown. */
  model: string
  /** Units that were used and not reserved. */
  overshoot: number
  /** Units that were charged before it was known what the request uses. */
  reserved: number
  /** The rule. */
  rule: string
  /** True if the rule is log_only. */
  shadow: boolean
  /** Units that were used. */
  used: number
}

/** A client that used a counter. */
export interface Sharer {
  /** How many requests did not pass. */
  denied: number
  /** The address, as it is recorded. */
  ip: string
  /** The id of the API key. */
  key: string
  /** When the last one came. */
  last?: string
  /** About how many requests passed: of those, a sample is recorded. */
  passed: number
  /** The tenant. */
  tenant: string
  /** The user. Empty, if unknown. */
  user: string
}

/** Shares of requests, from 0 to 1. */
export interface Shares {
  /** Of those that are known to match. */
  matched: number
  /** Of those that are known not to match. */
  not_matched: number
  /** Of those of which it is not known. */
  unclear: number
}

/** Who used the counter of a decision in its window, as far as it is recorded. */
export interface Sharing {
  /** False if there are more events than were read: the newest 1,000. */
  complete: boolean
  /** What has a counter of its own. */
  count_by: string[]
  /** The start of the time that is looked at: one window before the decision, or the start of its window. */
  from: string
  /** The number of further clients. */
  more: number
  /** Other clients, the last to come first, at most 10. */
  others: Sharer[]
  /** The client of the decision. */
  own: Sharer
  /** Its end, with the decision. */
  to: string
}

/** An identity provider that people sign in with. */
export interface SignInProvider {
  /** Its name, for people. */
  name: string
  /** Whether it was found. If not, that is retried, and tokens can be used. */
  ready: boolean
}

/** How one can sign in, beside a token. */
export interface SignInWays {
  /** The identity provider. Missing: there is none. */
  oidc?: SignInProvider
}

/** Decisions of a node in the last seconds. */
export interface Snapshot {
  /** The time of the snapshot. */
  at: string
  /** Latency of decisions in microseconds, without the time that requests were delayed. */
  latency_us: LiveLatency
  /** What nodes have leased since they were started, of the limits with the most units lent, at most 50, the first first. Missing, if they have leased nothing. */
  leases?: Leased[]
  /** The node. */
  node?: string
  /** The nodes that are shown, by name. */
  nodes: NodeRate[]
  /** How many nodes there are. If fewer are shown, the others have sent nothing for some seconds. */
  nodes_alive: number
  /** Requests per second by outcome. Every outcome is listed. */
  outcomes_per_second: Record<string, number>
  /** Why the other nodes are not shown. */
  problem?: string
  /** Requests that did not pass, per second. */
  refused_per_second: number
  /** Requests, per second. */
  requests_per_second: number
  /** The rules that decided the most requests, most first: at most 50. A rule named other stands for the rest. */
  rules: RuleRate[]
  /** The length of the time that rates and latency are about: the last 10 seconds, or less after a start. */
  seconds: number
  /** Requests that passed and that a log_only rule would have denied, per second. */
  shadow_refused_per_second: number
  /** The clients with the most requests. */
  talkers: LiveTalkers
  /** The units that requests have used under rules with a meter, at most 50, the most first. Missing, if there were none. */
  units?: UnitRate[]
}

/** The configuration and the health of a node. */
export interface Status {
  /** Where counters are stored. */
  counters: 'memory' | 'redis'
  /** The database of the catalog. */
  database: 'none' | 'sqlite' | 'postgres'
  /** The addresses that it listens on. */
  doors: Doors
  /** Whether the node serves the rate limit service of Envoy. */
  envoy: boolean
  /** The file with the rules, in file mode. */
  file?: string
  /** Its health. */
  health: Health
  /** Where the rules are stored. */
  mode: 'file' | 'database'
  /** The name of the node. */
  node: string
  /** The time of the node. */
  now: string
  /** Whether decisions are recorded. */
  record: boolean
  /** The name of its region. Empty: it has none. */
  region?: string
  /** The revision of the catalog in use; 0 in file mode. */
  revision: number
  /** The number of rules in use. */
  rules: number
  /** The version of the program. */
  version: string
}

/** A user, API key, tenant or address. */
export interface Subject {
  /** The ban that applies to it, which may be that of its network, tenant or user. */
  ban?: Entry
  /** For a user: set if the user is blocked. */
  blocked?: Blocked
  /** The exemption that applies to it, in the same way. */
  exemption?: Entry
  /** The id. */
  id: string
  /** The kind of subject. */
  kind: 'user' | 'key' | 'tenant' | 'ip'
  /** Whether it is in the catalog; an address is known if it is banned or exempt itself. */
  known: boolean
  /** When the last request was made. */
  last_used_at?: string
  /** For a key or a tenant: its name. */
  name?: string
  /** Limits that override those of its tier, ordered by name. */
  overrides: SubjectOverride[]
  /** The tenant that it belongs to. */
  tenant?: string
  /** The tier that applies, from whatever source. */
  tier?: string
  /** For a key: why it is rejected. */
  unusable?: string
  /** For a user or a key: the number of requests so far. */
  usage_total?: number
  /** For a key: its user. */
  user?: string
  /** The value of its record under /users, /keys or /tenants. */
  value?: unknown
  /** The version of that record. */
  version?: number
}

/** The subjects that were found. */
export interface SubjectList {
  /** The subjects that were found. */
  items: FoundSubject[]
}

/** A limit that overrides that of the tier. */
export interface SubjectOverride {
  /** The new limit. */
  limit: string
  /** The name of the limit. */
  limit_name: string
  /** When the override ends. Never, if it is missing. */
  until?: string
}

/** A client, and its requests. */
export interface Talker {
  /** The client. */
  name: string
  /** Of these, requests that did not pass. */
  refused: number
  /** Its requests. */
  requests: number
}

/** Clients of one kind with the most requests. */
export interface Talkers {
  /** The clients with the most requests that did not pass. */
  by_refused: Talker[]
  /** The clients with the most requests, most first. */
  by_requests: Talker[]
  /** The same, for requests that did not pass. */
  refused_off: number
  /** By how much the numbers of requests may be too low: 0, unless there were very many clients. */
  requests_off: number
}

/** A tenant. */
export interface Tenant {
  /** The id of the tenant. */
  id: string
  /** A name for people. */
  name?: string
  /** The tier of its users and keys that have no other. */
  tier?: string
}

/** A plan: values for named limits that its users share. */
export interface Tier {
  /** A name for people. */
  display_name?: string
  /** Values that override those of rules, by limit name, or unlimited. */
  limits?: Record<string, string>
  /** The name of the tier. */
  name: string
  /** The price, for people. */
  price?: string
}

/** A token, without its text. */
export interface Token {
  /** When it was created. */
  created_at: string
  /** Who created it. */
  created_by: string
  /** When it expires. Never, if it is missing. */
  expires_at?: string
  /** The id, which is the part of the text that is not secret. */
  id: string
  /** When it was last used, to the minute. Never, if it is missing. */
  last_used_at?: string
  /** The owner or the purpose: the actor in the change log. */
  name: string
  /** The role: viewer may read, operator may change the catalog, admin may also manage tokens; user may use the operations under /me only. */
  role: 'viewer' | 'operator' | 'admin' | 'user'
  /** The tenants that it is restricted to. Missing: it is for all. */
  tenants?: string[]
  /** With the role user: the user that it is for. */
  user?: string
}

/** All tokens. */
export interface TokenList {
  /** The tokens, oldest first. */
  items: Token[]
  /** Always empty: the list is complete. */
  next: string
}

/** Who or what was denied most often. */
export interface Top {
  /** Those with the most denied requests, most first. */
  items: Refusals[]
}

/** The units per second that requests have used under a rule with a meter. */
export interface UnitRate {
  /** The meter of the rule. */
  meter: string
  /** The name of the rule. The name other stands for those that are not counted one by one. */
  rule: string
  /** Units per second that requests have used, when they ended. */
  used_per_second: number
}

/** The limits of a subject, and how much of each is used. */
export interface Usage {
  /** The time of the response. */
  at: string
  /** The limits, ordered by the priority and the name of their rules. */
  items: Quota[]
}

/** A user. */
export interface User {
  /** Set if the user is blocked. */
  blocked?: Blocked
  /** The id of the user. */
  id: string
  /** Limits that override those of the tier, by name. */
  limits?: Record<string, string | {
    /** The limit. */
    limit: string
    /** When it ends. */
    until?: string
  }>
  /** The tenant that the user belongs to. */
  tenant?: string
  /** The tier. */
  tier?: string
}

/** How often a rule denied requests of a user. */
export interface Violation {
  /** Requests of the user that the rule denied. */
  denied: number
  /** The rule. */
  rule: string
  /** The user. */
  user: string
}

/** Users, and the rules that denied their requests. */
export interface ViolationList {
  /** The violations, most frequent first. */
  items: Violation[]
}
