/* @ts-self-types="./stint.d.ts" */
// A client of Stint, a distributed rate limiter, by fetch alone: for Node, Deno, Bun, workers and browsers.

import { denial, passedOn, unmade } from './answers.js'
import { Breaker } from './breaker.js'
import { CallError, StintError, UnreachableError } from './errors.js'
import { Reservation } from './reservation.js'

export { CallError, StintError, UnreachableError, Reservation, denial }

/** @typedef {import('./types.js').Check} Check */
/** @typedef {import('./types.js').Reserve} Reserve */
/** @typedef {import('./types.js').Commit} Commit */
/** @typedef {import('./types.js').Cancel} Cancel */
/** @typedef {import('./types.js').Extend} Extend */
/** @typedef {import('./types.js').Ask} Ask */
/** @typedef {import('./types.js').Limit} Limit */
/** @typedef {import('./types.js').Receipt} Receipt */
/** @typedef {import('./types.js').Problem} Problem */
/**
 * What a client adds to an answer: why the server has not decided it, if it has not. Then it is what failMode says.
 * @typedef {{ failure?: StintError }} Failure
 */
/**
 * The rate limit headers for the client who has sent the request. A batch has none.
 * @typedef {{ headers: Record<string, string> }} ForClient
 */
/** @typedef {import('./types.js').Verdict & ForClient & Failure} Verdict */
/** @typedef {import('./types.js').Reserved & ForClient & Failure} Reserved */
/** @typedef {import('./types.js').Taken & Failure} Taken */
/**
 * One that the server has not decided has the ticket of before, and expires_in is 0, since it is as valid as it was.
 * @typedef {import('./types.js').Extension & Failure} Extension
 */
/** @typedef {'open' | 'closed' | 'error'} FailMode */
/**
 * @typedef {object} Options
 * @property {string} url of the server, such as http://localhost:8080
 * @property {string} [token] one of server.http.tokens, if the server has some
 * @property {number} [timeout] how many milliseconds a decision may take, 100 by default. A rule that throttles holds the answer for up to its max_delay: the timeout must be longer
 * @property {number} [settleTimeout] for how many milliseconds commit, cancel and usage are sent again, 5000 by default
 * @property {FailMode} [failMode] what happens to a request that the server has not decided: open (it passes; the default), closed (it does not), or error (the call throws)
 * @property {(call: string, error: StintError) => void} [onFailure] is called for each call that was decided or given up without the server
 * @property {number} [breakerFailures] after so many decisions in a row without an answer, 5 by default, the server is probed; if it does not answer, it is not asked again before a probe is answered
 * @property {number} [breakerInterval] how many milliseconds are between probes, about 500 by default
 * @property {typeof globalThis.fetch} [fetch] sends the calls
 */
/**
 * @template T
 * @typedef {object} Call
 * @property {string} name
 * @property {string} path
 * @property {string} [body]
 * @property {(data: any, headers: Headers) => T} read
 * @property {(mode: 'open' | 'closed', error: StintError) => T} [without]
 * @property {boolean} [strict] a server that cannot decide has said that the request must not pass
 */

const attempt = 1000 // how long one attempt of a call that is repeated waits for an answer, in milliseconds
const firstWait = 100, longestWait = 10_000

/**
 * Asks the decision API of a server.
 *
 * Check, reserve, extend and take are sent once, since one whose answer was lost may have been counted. They are decided by
 * failMode if there is no answer within timeout. Commit and cancel are applied once however often they arrive, so they are
 * sent again, for up to settleTimeout.
 */
export class Client {
  #url
  #headers
  #timeout
  #settleTimeout
  #failMode
  #onFailure
  #fetch
  #breaker
  #undecided = 0
  #unsettled = 0

  /** @param {Options} options */
  constructor(options) {
    const { url, token, timeout = 100, settleTimeout = 5000, failMode = 'open', breakerFailures = 5, breakerInterval = 500 } = options
    const parsed = URL.canParse(url) ? new URL(url) : undefined
    if (!parsed || !/^https?:$/.test(parsed.protocol) || parsed.search || parsed.hash || parsed.username) {
      throw new TypeError('url: want the URL of a server, such as http://localhost:8080')
    }
    for (const [name, value] of Object.entries({ timeout, settleTimeout, breakerFailures, breakerInterval })) {
      if (!(value > 0)) throw new TypeError(`${name}: want a number above 0, found ${value}`)
    }
    if (!['open', 'closed', 'error'].includes(failMode)) throw new TypeError(`failMode: want open, closed or error, found ${failMode}`)
    if (token !== undefined && !/^[!-~]+$/.test(token)) throw new TypeError('token: want printable ASCII without spaces')
    this.#url = parsed.href.replace(/\/+$/, '')
    /** @type {Record<string, string>} */
    this.#headers = { 'Content-Type': 'application/json', ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }) }
    this.#timeout = timeout
    this.#settleTimeout = settleTimeout
    this.#failMode = failMode
    this.#onFailure = options.onFailure
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis)
    this.#breaker = new Breaker(breakerFailures, breakerInterval)
  }

  /**
   * What the client has had to do without the server: calls that were decided without it, settlements that have not reached it,
   * and whether it does not answer now, and is not asked.
   */
  get stats() {
    return { undecided: this.#undecided, unsettled: this.#unsettled, unreachable: this.#breaker.open }
  }

  /** Decides a request. That it does not pass is not an error. @param {Check} ask @returns {Promise<Verdict>} */
  check(ask) {
    return this.#decide({
      ...post('check', ask), read: (data, headers) => ({ ...verdict(data), headers: passedOn(headers) }), without: unmade, strict: true,
    })
  }

  /** Decides up to 1,000 requests, each by itself. One that could not be decided does not pass, and has a failure. @param {Check[]} asks @returns {Promise<Verdict[]>} */
  checkBatch(asks) {
    return this.#decide(verdicts('check', asks))
  }

  /** Decides a request, and reserves what it may cost. Settle it, use it with `await using`, or call reserving instead. @param {Reserve} ask @returns {Promise<Reservation>} */
  async reserve(ask) {
    return new Reservation(this, await this.#decide({
      ...post('reserve', ask), read: (data, headers) => ({ ...verdict(data), headers: passedOn(headers) }), without: unmade, strict: true,
    }))
  }

  /** Reserves for up to 1,000 requests, each by itself. One that could not be decided does not pass. @param {Reserve[]} asks @returns {Promise<Reservation[]>} */
  async reserveBatch(asks) {
    return (await this.#decide(verdicts('reserve', asks))).map((v) => new Reservation(this, v))
  }

  /**
   * Reserves, does the work, and settles: what `use` has said is committed, also if the work throws, and if it has said
   * nothing, it is cancelled. A settlement that does not reach the server throws nothing, since the work is done: onFailure
   * and stats tell.
   * @template T
   * @param {Reserve} ask @param {(reservation: Reservation) => T | Promise<T>} work
   * @returns {Promise<T>}
   */
  async reserving(ask, work) {
    const reservation = await this.reserve(ask)
    let result
    try {
      result = await work(reservation)
    } catch (error) {
      await reservation.settle().catch(() => {}) // the error of the work says more
      throw error
    }
    await reservation[Symbol.asyncDispose]()
    return result
  }

  /** Settles a reservation by what was used. @param {Commit} used @returns {Promise<Receipt>} */
  commit(used) {
    return this.#settle({ ...post('commit', used), read: receipt })
  }

  /** Settles up to 1,000 reservations. One that fails has an error in its place. @param {Commit[]} used @returns {Promise<(Receipt | CallError)[]>} */
  commitBatch(used) {
    return this.#settle(batch('commit', used, 'receipts', receipt))
  }

  /** Gives a reservation back. @param {Cancel} unused @returns {Promise<Receipt>} */
  cancel(unused) {
    return this.#settle({ ...post('cancel', unused), read: receipt })
  }

  /** Gives up to 1,000 reservations back. One that fails has an error in its place. @param {Cancel[]} unused @returns {Promise<(Receipt | CallError)[]>} */
  cancelBatch(unused) {
    return this.#settle(batch('cancel', unused, 'receipts', receipt))
  }

  /** Reserves more. Use the ticket of the extension from then on, whether it is allowed or not. @param {Extend} more @returns {Promise<Extension>} */
  extend(more) {
    return this.#decide({ ...post('extend', more), read: extension, without: (mode, error) => unextended(more, mode, error) })
  }

  /** Extends up to 1,000 reservations. One that fails has an error in its place. @param {Extend[]} more @returns {Promise<(Extension | CallError)[]>} */
  extendBatch(more) {
    return this.#decide({
      ...batch('extend', more, 'extensions', extension), without: (mode, error) => more.map((m) => unextended(m, mode, error)),
    })
  }

  /** Takes from counters that the call names, without rules: from all of them, or from none. @param {Ask[]} asks @returns {Promise<Taken>} */
  take(...asks) {
    return this.#decide({
      ...post('take', asks.length === 1 ? asks[0] : { asks }),
      read: (data) => whole(data, { allowed: 'boolean', delay: 'number', limits: 'object' }),
      without: (mode, failure) => ({ allowed: mode === 'open', retry_after: mode === 'open' ? 0 : 1, delay: 0, limits: [], failure }),
    })
  }

  /** Returns the limits of a subject, and what remains of them. @param {{ user?: string, tenant?: string, api_key?: string, ip?: string }} who @returns {Promise<Limit[]>} */
  usage(who) {
    const query = new URLSearchParams(Object.entries(who).filter(([, value]) => value !== undefined))
    return this.#repeat({ name: 'usage', path: `usage?${query}`, read: (data) => items(data, 'limits') })
  }

  /** @template T @param {Call<T>} call @returns {Promise<T>} */
  async #decide(call) {
    if (this.#breaker.open) {
      if (this.#breaker.due()) void this.#probe()
      return this.#without(call, new UnreachableError(call.name, `${this.#url} has not answered for a while`))
    }
    try {
      const out = await this.#ask(call, this.#timeout)
      this.#breaker.answered()
      return out
    } catch (error) {
      if (error instanceof UnreachableError) {
        if (this.#breaker.failed()) void this.#probe()
        return this.#without(call, error)
      }
      if (!(error instanceof CallError)) throw error
      this.#breaker.answered()
      if (error.status < 500) throw error
      return this.#without(call, error)
    }
  }

  /** Decides a call without the server. @template T @param {Call<T>} call @param {StintError} error @returns {T} */
  #without(call, error) {
    this.#undecided++
    this.#tell(call.name, error)
    if (this.#failMode === 'error' || !call.without) throw error
    return call.without(call.strict && error instanceof CallError ? 'closed' : this.#failMode, error)
  }

  /** @param {string} call @param {StintError} error */
  #tell(call, error) {
    try {
      this.#onFailure?.(call, error)
    } catch {
      // whoever only watches must not fail requests
    }
  }

  /** Probes the server, so that no caller waits for it. */
  async #probe() {
    let there = true
    try {
      await this.#ask({ ...post('check', { path: '/', peek: true }), read: (data) => data }, this.#timeout)
    } catch (error) {
      there = error instanceof CallError
    }
    this.#breaker.probed(there)
  }

  /** @template T @param {Call<T>} call @returns {Promise<T>} */
  async #settle(call) {
    try {
      return await this.#repeat(call)
    } catch (error) {
      if (error instanceof UnreachableError || (error instanceof CallError && error.status >= 500)) {
        this.#unsettled++
        this.#tell(call.name, error)
      }
      throw error
    }
  }

  /** @template T @param {Call<T>} call @returns {Promise<T>} */
  async #repeat(call) {
    const end = performance.now() + this.#settleTimeout
    for (let wait = firstWait; ; wait = Math.min(2 * wait, longestWait)) {
      try {
        return await this.#ask(call, Math.max(1, Math.min(attempt, end - performance.now())))
      } catch (error) {
        if (!(error instanceof StintError) || (error instanceof CallError && error.status < 500)) throw error
        // Not less than the server wants, and not all at once.
        const pause = Math.max(wait * (0.5 + Math.random() / 2), (error.retryAfter ?? 0) * 1000 * (1 + Math.random() / 10))
        if (performance.now() + pause >= end) throw error
        await new Promise((resolve) => setTimeout(resolve, pause))
      }
    }
  }

  /** Sends a call, and reads the answer. @template T @param {Call<T>} call @param {number} timeout @returns {Promise<T>} */
  async #ask(call, timeout) {
    const ending = new AbortController()
    const timer = setTimeout(() => ending.abort(), timeout)
    let response, text
    try {
      response = await this.#fetch(`${this.#url}/v1/${call.path}`, {
        method: call.body === undefined ? 'GET' : 'POST', headers: this.#headers, body: call.body, signal: ending.signal, redirect: 'manual',
      })
      text = await response.text()
    } catch (error) {
      throw new UnreachableError(call.name, `${this.#url}: ${ending.signal.aborted ? 'no answer in time' : reason(error)}`, undefined, error)
    } finally {
      clearTimeout(timer)
    }
    const says = response.status === 200 || response.headers.get('Content-Type')?.includes('problem+json')
    let data
    try {
      data = says ? JSON.parse(text) : undefined
      if (response.status === 200) return call.read(data, response.headers)
    } catch (error) {
      throw new UnreachableError(call.name, `the answer is not one of Stint: ${reason(error)}`, undefined, error)
    }
    const after = response.headers.get('Retry-After') ?? ''
    const wait = /^\d{1,5}$/.test(after) ? Number(after) : undefined
    if (data === undefined && (response.status >= 500 || response.status === 408 || response.status === 429)) { // of a proxy that is between
      throw new UnreachableError(call.name, `${this.#url} answered ${response.status}, which was not Stint`, wait)
    }
    throw new CallError(call.name, response.status, data, wait)
  }
}

/** @param {unknown} error */
function reason(error) {
  const cause = error instanceof Error ? error.cause : undefined // what fetch of Node has
  return cause instanceof Error && cause.message ? cause.message : error instanceof Error ? error.message : String(error)
}

/** @param {string} name @param {unknown} body @returns {{ name: string, path: string, body: string }} */
function post(name, body) {
  return { name, path: name, body: JSON.stringify(body) }
}

/** whole checks that an object of an answer has what it always has. @param {any} data @param {Record<string, string>} fields @returns {any} */
function whole(data, fields) {
  for (const [name, kind] of Object.entries(fields)) {
    if (typeof data?.[name] !== kind) throw new TypeError(`${name}: want a ${kind}, found ${typeof data?.[name]}`)
  }
  return data
}

/** @param {any} data */
const verdict = (data) => whole(data, { allowed: 'boolean', outcome: 'string', decision_id: 'string', limits: 'object' })
/** @param {any} data @returns {Receipt} */
const receipt = (data) => whole(data, { decision_id: 'string', repeated: 'boolean', limits: 'object' })
/** @param {any} data @returns {Extension} */
const extension = (data) => whole(data, { allowed: 'boolean', ticket: 'string', limits: 'object' })

/** @param {any} data @param {string} key @param {number} [want] @returns {any[]} */
function items(data, key, want) {
  const list = data?.[key]
  if (!Array.isArray(list) || (want !== undefined && list.length !== want)) throw new TypeError(`${key}: want a list of ${want ?? 'objects'}`)
  return list
}

/**
 * batch returns a call about several. A problem in place of an answer becomes an error.
 * @template T
 * @param {string} name @param {unknown[]} requests @param {string} key @param {(data: any) => T} read
 * @returns {Call<(T | CallError)[]>}
 */
function batch(name, requests, key, read) {
  return {
    name: `${name}/batch`, path: `${name}/batch`, body: JSON.stringify({ requests }),
    read: (data) => items(data, key, requests.length).map((item) =>
      typeof item?.type === 'string' && typeof item.title === 'string' ? new CallError(name, item.status, item, item.retry_after ?? undefined) : read(item)),
  }
}

/** @param {string} name @param {unknown[]} asks @returns {Call<Verdict[]>} */
function verdicts(name, asks) {
  const call = batch(name, asks, 'verdicts', (data) => ({ ...verdict(data), headers: {} }))
  return {
    ...call, strict: true,
    read: (data, headers) => call.read(data, headers).map((v) => (v instanceof CallError ? unmade('closed', v) : v)),
    without: (mode, error) => asks.map(() => unmade(mode, error)),
  }
}

/** @param {Extend} more @param {'open' | 'closed'} mode @param {StintError} failure @returns {Extension} */
function unextended(more, mode, failure) {
  return { allowed: mode === 'open', retry_after: mode === 'open' ? 0 : 1, ticket: more.ticket, expires_in: 0, limits: [], failure }
}
