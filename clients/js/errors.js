// Errors. That a request does not pass is none: it is a verdict.

/** A call that has failed. */
export class StintError extends Error {
  /** The call, such as check. @type {string} */
  call
  /** How many seconds the server wants the caller to wait, if it says so. @type {number | undefined} */
  retryAfter

  /** @param {string} call @param {string} message @param {number} [retryAfter] @param {unknown} [cause] */
  constructor(call, message, retryAfter, cause) {
    super(`stint: ${call}: ${message}`, { cause })
    this.name = new.target.name
    this.call = call
    this.retryAfter = retryAfter
  }
}

/** The server has rejected the call, or could not carry it out. */
export class CallError extends StintError {
  /** @type {number} */
  status
  /** @type {import('./types.js').Problem | undefined} */
  problem
  /** What the server says. @type {string} */
  detail

  /** @param {string} call @param {number} status @param {import('./types.js').Problem} [problem] @param {number} [retryAfter] */
  constructor(call, status, problem, retryAfter) {
    const detail = problem?.detail ?? ''
    super(call, `the server answered ${status}: ${detail || problem?.title || 'no reason'}`, retryAfter)
    this.status = status
    this.problem = problem
    this.detail = detail
  }

  /** The field that is wrong, such as path or requests[1].user, if the server has named one. @returns {string | undefined} */
  get field() {
    return this.status === 400 ? /^((?:[\w[\].-]|"[^"]*")+): /.exec(this.detail)?.[1] : undefined
  }
}

/** There is no answer of the server: it is away, too slow, or something else has answered in its place. */
export class UnreachableError extends StintError {}
