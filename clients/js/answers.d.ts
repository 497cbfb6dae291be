/** @param {Headers} headers @returns {Record<string, string>} */
export function passedOn(headers: Headers): Record<string, string>;
/**
 * unmade returns a verdict that the server has not made.
 * @param {'open' | 'closed'} mode @param {StintError} failure
 * @returns {import('./types.js').Verdict & { headers: Record<string, string>, failure: StintError }}
 */
export function unmade(mode: "open" | "closed", failure: StintError): import("./types.js").Verdict & {
    headers: Record<string, string>;
    failure: StintError;
};
/**
 * denial returns the status, the headers and the body to answer a request that does not pass.
 * @param {import('./types.js').Verdict & { headers?: Record<string, string> }} verdict
 * @returns {{ status: number, headers: Record<string, string>, body: string }}
 */
export function denial(verdict: import("./types.js").Verdict & {
    headers?: Record<string, string>;
}): {
    status: number;
    headers: Record<string, string>;
    body: string;
};
/**
 * refusal returns how to answer a request of which the server has not understood the description, such as one with a path
 * that is too long. Other errors are thrown again: they are not the client's.
 * @param {unknown} error
 * @returns {{ status: number, headers: Record<string, string>, body: string }}
 */
export function refusal(error: unknown): {
    status: number;
    headers: Record<string, string>;
    body: string;
};
export type StintError = import("./errors.js").StintError;
