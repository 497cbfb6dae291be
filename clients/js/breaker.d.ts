/**
 * Opens and closes by probes alone, which are made beside the calls.
 *
 * Calls that fail lead to a probe, and do not open it themselves: a rule that throttles holds an answer longer than some
 * calls wait, and whoever sends such requests must not get everyone past their limits.
 */
export class Breaker {
    /** @param {number} failures @param {number} interval in milliseconds */
    constructor(failures: number, interval: number);
    open: boolean;
    /** Notes that a call was answered. */
    answered(): void;
    /** Notes that a call was not answered. If it returns true, probe now. */
    failed(): boolean;
    /** Reports whether to probe now, while it is open. */
    due(): boolean;
    /** Notes what a probe has found. @param {boolean} there */
    probed(there: boolean): void;
    #private;
}
