// Generated from httplimit/openapi.json by clients/generate.py. Do not edit.

/** A request. If none of user, tenant, api_key and tier is given, the headers and ip say who is asking, as in a real request. */
export type Check = {
  /** In upper case. */
  method?: string
  /** Begins with a slash. A query is ignored. */
  path: string
  /** The client's address, or the address of a trusted proxy whose headers give the client's. */
  ip?: string
  user?: string
  tenant?: string
  /** The id of the key, without its secret. */
  api_key?: string
  tier?: string
  headers?: Record<string, string | string[]>
  /** In place of what rules say. */
  cost?: number
  /** Return what would be decided, and count nothing. */
  peek?: boolean
}

export type Batch = {
  requests: Check[]
}

export type Verdict = {
  allowed: boolean
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The rule that decided, if there is one. */
  rule?: string
  /** The capacity of the binding limit, which is the first of limits. This and the next two are missing if no limit was counted. */
  limit?: number
  /** What remains of the binding limit. */
  remaining?: number
  /** Seconds until the whole limit is available again. */
  reset_after?: number
  /** Seconds until the request could pass: 0 if it may pass now, null if waiting does not help. */
  retry_after: number | null
  /** The HTTP status for the client, if the request is denied. */
  status?: number
  /** The reason for the client to read, if the request is denied. */
  reason?: string
  /** Which limits of mark rules a request that may pass is over, and by how much, as a list of structured fields: for the header Stint-Over of the request that is passed on. */
  over?: string
  /** Why the token of a request that may pass was not accepted, if on_bad_token is anonymous: do not use it. */
  unaccepted?: string
  decision_id: string
  /** All limits that applied, the binding one first, and those that deny nothing last. */
  limits: Limit[]
}

export type Verdicts = {
  verdicts: (Verdict | Problem)[]
}

export type Limit = {
  rule: string
  /** The path of the rule that matched, if the rule has paths. */
  endpoint?: string
  name: string
  /** The limit, as in rules. */
  limit: string
  cost: number
  allowed: boolean
  /** The most that can remain. This and the next two are missing if it could not be counted. */
  max?: number
  remaining?: number
  /** Seconds until the whole limit is available again. */
  reset_after?: number
  /** Seconds until this cost could pass: 0 if it may pass now, null if it never can. */
  retry_after: number | null
  /** Where the decision comes from, if not from the store's count. */
  basis?: 'leased' | 'remembered' | 'local' | 'open' | 'closed'
  /** This is the rule's penalty: remaining is the number of violations until a ban. */
  penalty?: boolean
  /** The limit denies nothing: that of a log_only or mark rule, for example. */
  shadow: boolean
}

export type Ask = {
  /** Who is counted. 1 to 4096 bytes. */
  subject: string
  /** What is counted. */
  name?: string
  /** Such as 100/1m. */
  limit: string
  /** 0 takes nothing, and shows the state. */
  cost?: number
}

export type Take = Ask | {
  asks: Ask[]
}

export type Taken = {
  /** Whether all were charged. Otherwise none was. */
  allowed: boolean
  /** Seconds until all could pass, if there are no other calls; null if they never can. */
  retry_after: number | null
  /** Seconds to hold a request that is allowed, so that requests are evenly spaced. Only for leaky_bucket; otherwise 0. */
  delay: number
  limits: ({
    subject: string
    name: string
    limit: string
    cost: number
    allowed: boolean
    max?: number
    remaining?: number
    /** Seconds until the whole limit is available again. */
    reset_after?: number
    /** Seconds until this cost could pass, or null if it never can. */
    retry_after: number | null
    basis?: 'leased' | 'remembered' | 'local' | 'open' | 'closed'
  })[]
}

/** A request, as in Check. */
export type Reserve = {
  /** In upper case. */
  method?: string
  /** Begins with a slash. A query is ignored. */
  path: string
  /** The client's address, or the address of a trusted proxy whose headers give the client's. */
  ip?: string
  user?: string
  tenant?: string
  /** The id of the key, without its secret. */
  api_key?: string
  tier?: string
  headers?: Record<string, string | string[]>
  /** How many units to reserve, in place of what rules say. If rules that apply have a meter, it is for their limits, and the others cost what they say. */
  cost?: number
  /** How many units to reserve. Meters that are not here cost what their rules say. By meter: request_bytes, response_bytes, response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost. Either this or cost, not both. */
  usage?: Record<string, number>
  /** How many seconds the ticket is valid. */
  expires_in?: number
}

/** What was used: either cost or usage is required. */
export type Commit = {
  /** The ticket of a reservation, as it was given: an opaque text. */
  ticket: string
  /** How many units were used of the limits of rules with a meter or, if none of them has one, of all limits. */
  cost?: number
  /** How many units were used. What is not here stays as it was reserved. By meter: request_bytes, response_bytes, response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost. Either this or cost, not both. */
  usage?: Record<string, number>
  /** The language model, or whatever else the usage is recorded by: at most 128 bytes without control characters. It changes no limit. */
  model?: string
}

export type Cancel = {
  /** The ticket of a reservation, as it was given: an opaque text. */
  ticket: string
}

export type Extend = {
  /** The ticket of a reservation, as it was given: an opaque text. */
  ticket: string
  /** How many more units to reserve. 0 or none reserves no more. */
  cost?: number
  /** How many more units to reserve. By meter: request_bytes, response_bytes, response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost. Either this or cost, not both. */
  usage?: Record<string, number>
  /** How many seconds the ticket is valid. */
  expires_in?: number
}

/** A verdict, and the ticket of a request that may pass. There is none if nothing was counted: then there is nothing to settle. */
export type Reserved = {
  allowed: boolean
  outcome: 'allowed' | 'throttled' | 'exempt' | 'denied' | 'banned' | 'blocked' | 'unauthorized' | 'unavailable'
  /** The rule that decided, if there is one. */
  rule?: string
  /** The capacity of the binding limit, which is the first of limits. This and the next two are missing if no limit was counted. */
  limit?: number
  /** What remains of the binding limit. */
  remaining?: number
  /** Seconds until the whole limit is available again. */
  reset_after?: number
  /** Seconds until the request could pass: 0 if it may pass now, null if waiting does not help. */
  retry_after: number | null
  /** The HTTP status for the client, if the request is denied. */
  status?: number
  /** The reason for the client to read, if the request is denied. */
  reason?: string
  /** Which limits of mark rules a request that may pass is over, and by how much, as a list of structured fields: for the header Stint-Over of the request that is passed on. */
  over?: string
  /** Why the token of a request that may pass was not accepted, if on_bad_token is anonymous: do not use it. */
  unaccepted?: string
  decision_id: string
  /** All limits that applied, the binding one first, and those that deny nothing last. */
  limits: Limit[]
  /** The ticket of a reservation, as it was given: an opaque text. */
  ticket?: string
  /** How many seconds the ticket is valid. */
  expires_in?: number
}

export type Settled = {
  rule: string
  name: string
  /** The meter of the rule, if it has one. */
  meter?: string
  /** The limit, as it was when it was reserved. */
  limit: string
  /** How many units are or were reserved. */
  reserved: number
  /** How many units are charged now. Those above reserved are the overshoot. It is missing in an extension, and if the reservation had been settled before. */
  used?: number
  /** The most that can remain. This and the next two are missing if it could not be counted. */
  max?: number
  remaining?: number
  /** Seconds until the whole limit is available again. */
  reset_after?: number
  /** The limit denies nothing: that of a log_only or mark rule, for example. */
  shadow: boolean
}

export type Receipt = {
  /** Of the verdict on the request. */
  decision_id: string
  /** It had been settled before, and nothing was changed now. */
  repeated: boolean
  limits: Settled[]
}

export type Extension = {
  /** Whether more was reserved: of all limits, or of none. */
  allowed: boolean
  /** Seconds until it could be reserved: 0 if it was, null if waiting does not help. */
  retry_after: number | null
  /** The ticket to use from now on, in place of the one before. */
  ticket: string
  /** How many seconds it is valid. */
  expires_in: number
  /** The limits of which more was asked. */
  limits: Settled[]
}

export type ReserveBatch = {
  requests: Reserve[]
}

export type Reservations = {
  verdicts: (Reserved | Problem)[]
}

export type CommitBatch = {
  requests: Commit[]
}

export type Receipts = {
  receipts: (Receipt | Problem)[]
}

export type CancelBatch = {
  requests: Cancel[]
}

export type ExtendBatch = {
  requests: Extend[]
}

export type Extensions = {
  extensions: (Extension | Problem)[]
}

export type Usage = {
  limits: Limit[]
}

/** RFC 9457. */
export type Problem = {
  type: string
  title: string
  status: number
  detail?: string
  'violated-policies'?: string[]
  /** Seconds to wait, or null if waiting does not help. */
  retry_after?: number | null
  decision_id?: string
}
