/** A call that has failed. */
export class StintError extends Error {
    /** @param {string} call @param {string} message @param {number} [retryAfter] @param {unknown} [cause] */
    constructor(call: string, message: string, retryAfter?: number, cause?: unknown);
    /** The call, such as check. @type {string} */
    call: string;
    /** How many seconds the server wants the caller to wait, if it says so. @type {number | undefined} */
    retryAfter: number | undefined;
}
/** The server has rejected the call, or could not carry it out. */
export class CallError extends StintError {
    /** @param {string} call @param {number} status @param {import('./types.js').Problem} [problem] @param {number} [retryAfter] */
    constructor(call: string, status: number, problem?: import("./types.js").Problem, retryAfter?: number);
    /** @type {number} */
    status: number;
    /** @type {import('./types.js').Problem | undefined} */
    problem: import("./types.js").Problem | undefined;
    /** What the server says. @type {string} */
    detail: string;
    /** The field that is wrong, such as path or requests[1].user, if the server has named one. @returns {string | undefined} */
    get field(): string | undefined;
}
/** There is no answer of the server: it is away, too slow, or something else has answered in its place. */
export class UnreachableError extends StintError {
}
