// Answers that a client makes itself while there is no server, and answers to those whose requests do not pass.

import { CallError } from './errors.js'

/** @typedef {import('./errors.js').StintError} StintError */

const registry = 'https://iana.org/assignments/http-problem-types#'
/** @type {Record<string, [string, string]>} */
const problems = {
  denied: [registry + 'quota-exceeded', 'Request cannot be satisfied as assigned quota has been exceeded'],
  banned: [registry + 'abnormal-usage-detected', 'Request cannot be satisfied due to abnormal request pattern detected'],
  unavailable: [registry + 'temporary-reduced-capacity', 'Request cannot be satisfied due to temporary server capacity constraints'],
}
/** @type {Record<number, string>} */
const phrases = { 400: 'Bad Request', 401: 'Unauthorized', 403: 'Forbidden', 404: 'Not Found', 429: 'Too Many Requests', 500: 'Internal Server Error', 503: 'Service Unavailable' }

/** The headers of an answer that are for the client who has sent the request. */
const passed = ['X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset', 'X-RateLimit-Cost', 'RateLimit-Policy', 'RateLimit', 'Retry-After']

/** @param {Headers} headers @returns {Record<string, string>} */
export function passedOn(headers) {
  /** @type {Record<string, string>} */
  const out = {}
  for (const name of passed) {
    const value = headers.get(name)
    if (value !== null) out[name] = value
  }
  return out
}

/**
 * unmade returns a verdict that the server has not made.
 * @param {'open' | 'closed'} mode @param {StintError} failure
 * @returns {import('./types.js').Verdict & { headers: Record<string, string>, failure: StintError }}
 */
export function unmade(mode, failure) {
  if (mode === 'open') return { allowed: true, outcome: 'allowed', retry_after: 0, decision_id: '', limits: [], headers: {}, failure }
  const rejected = failure instanceof CallError
  const wait = rejected ? failure.retryAfter ?? null : failure.retryAfter ?? 1
  return {
    allowed: false, outcome: 'unavailable', retry_after: wait, decision_id: '', limits: [], failure,
    status: rejected ? failure.status : 503,
    reason: (rejected && failure.detail) || 'Requests cannot be checked at the moment.',
    headers: wait === null ? {} : { 'Retry-After': String(Math.ceil(wait)) },
  }
}

const json = { 'Content-Type': 'application/problem+json', 'X-Content-Type-Options': 'nosniff' }

/**
 * denial returns the status, the headers and the body to answer a request that does not pass.
 * @param {import('./types.js').Verdict & { headers?: Record<string, string> }} verdict
 * @returns {{ status: number, headers: Record<string, string>, body: string }}
 */
export function denial(verdict) {
  if (verdict.allowed) throw new TypeError('verdict: the request may pass: only one that may not has a denial')
  const status = verdict.status ?? 429
  const [type, title] = problems[verdict.outcome] ?? ['about:blank', phrases[status] ?? 'Denied']
  return {
    status,
    headers: { ...verdict.headers, ...json, ...(status === 401 ? { 'WWW-Authenticate': 'Bearer' } : {}) },
    body: JSON.stringify({ type, title, status, detail: verdict.reason, retry_after: verdict.retry_after, decision_id: verdict.decision_id || undefined }),
  }
}

/**
 * refusal returns how to answer a request of which the server has not understood the description, such as one with a path
 * that is too long. Other errors are thrown again: they are not the client's.
 * @param {unknown} error
 * @returns {{ status: number, headers: Record<string, string>, body: string }}
 */
export function refusal(error) {
  if (!(error instanceof CallError) || (![400, 413, 414].includes(error.status))) throw error
  return { status: 400, headers: { ...json }, body: JSON.stringify({ type: 'about:blank', title: 'Bad Request', status: 400, detail: error.detail }) }
}
