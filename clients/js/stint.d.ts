/**
 * Asks the decision API of a server.
 *
 * Check, reserve, extend and take are sent once, since one whose answer was lost may have been counted. They are decided by
 * failMode if there is no answer within timeout. Commit and cancel are applied once however often they arrive, so they are
 * sent again, for up to settleTimeout.
 */
export class Client {
    /** @param {Options} options */
    constructor(options: Options);
    /**
     * What the client has had to do without the server: calls that were decided without it, settlements that have not reached it,
     * and whether it does not answer now, and is not asked.
     */
    get stats(): {
        undecided: number;
        unsettled: number;
        unreachable: boolean;
    };
    /** Decides a request. That it does not pass is not an error. @param {Check} ask @returns {Promise<Verdict>} */
    check(ask: Check): Promise<Verdict>;
    /** Decides up to 1,000 requests, each by itself. One that could not be decided does not pass, and has a failure. @param {Check[]} asks @returns {Promise<Verdict[]>} */
    checkBatch(asks: Check[]): Promise<Verdict[]>;
    /** Decides a request, and reserves what it may cost. Settle it, use it with `await using`, or call reserving instead. @param {Reserve} ask @returns {Promise<Reservation>} */
    reserve(ask: Reserve): Promise<Reservation>;
    /** Reserves for up to 1,000 requests, each by itself. One that could not be decided does not pass. @param {Reserve[]} asks @returns {Promise<Reservation[]>} */
    reserveBatch(asks: Reserve[]): Promise<Reservation[]>;
    /**
     * Reserves, does the work, and settles: what `use` has said is committed, also if the work throws, and if it has said
     * nothing, it is cancelled. A settlement that does not reach the server throws nothing, since the work is done: onFailure
     * and stats tell.
     * @template T
     * @param {Reserve} ask @param {(reservation: Reservation) => T | Promise<T>} work
     * @returns {Promise<T>}
     */
    reserving<T>(ask: Reserve, work: (reservation: Reservation) => T | Promise<T>): Promise<T>;
    /** Settles a reservation by what was used. @param {Commit} used @returns {Promise<Receipt>} */
    commit(used: Commit): Promise<Receipt>;
    /** Settles up to 1,000 reservations. One that fails has an error in its place. @param {Commit[]} used @returns {Promise<(Receipt | CallError)[]>} */
    commitBatch(used: Commit[]): Promise<(Receipt | CallError)[]>;
    /** Gives a reservation back. @param {Cancel} unused @returns {Promise<Receipt>} */
    cancel(unused: Cancel): Promise<Receipt>;
    /** Gives up to 1,000 reservations back. One that fails has an error in its place. @param {Cancel[]} unused @returns {Promise<(Receipt | CallError)[]>} */
    cancelBatch(unused: Cancel[]): Promise<(Receipt | CallError)[]>;
    /** Reserves more. Use the ticket of the extension from then on, whether it is allowed or not. @param {Extend} more @returns {Promise<Extension>} */
    extend(more: Extend): Promise<Extension>;
    /** Extends up to 1,000 reservations. One that fails has an error in its place. @param {Extend[]} more @returns {Promise<(Extension | CallError)[]>} */
    extendBatch(more: Extend[]): Promise<(Extension | CallError)[]>;
    /** Takes from counters that the call names, without rules: from all of them, or from none. @param {Ask[]} asks @returns {Promise<Taken>} */
    take(...asks: Ask[]): Promise<Taken>;
    /** Returns the limits of a subject, and what remains of them. @param {{ user?: string, tenant?: string, api_key?: string, ip?: string }} who @returns {Promise<Limit[]>} */
    usage(who: {
        user?: string;
        tenant?: string;
        api_key?: string;
        ip?: string;
    }): Promise<Limit[]>;
    #private;
}
export type Check = import("./types.js").Check;
export type Reserve = import("./types.js").Reserve;
export type Commit = import("./types.js").Commit;
export type Cancel = import("./types.js").Cancel;
export type Extend = import("./types.js").Extend;
export type Ask = import("./types.js").Ask;
export type Limit = import("./types.js").Limit;
export type Receipt = import("./types.js").Receipt;
export type Problem = import("./types.js").Problem;
/**
 * What a client adds to an answer: why the server has not decided it, if it has not. Then it is what failMode says.
 */
export type Failure = {
    failure?: StintError;
};
/**
 * The rate limit headers for the client who has sent the request. A batch has none.
 */
export type ForClient = {
    headers: Record<string, string>;
};
export type Verdict = import("./types.js").Verdict & ForClient & Failure;
export type Reserved = import("./types.js").Reserved & ForClient & Failure;
export type Taken = import("./types.js").Taken & Failure;
/**
 * One that the server has not decided has the ticket of before, and expires_in is 0, since it is as valid as it was.
 */
export type Extension = import("./types.js").Extension & Failure;
export type FailMode = "open" | "closed" | "error";
export type Options = {
    /**
     * of the server, such as http://localhost:8080
     */
    url: string;
    /**
     * one of server.http.tokens, if the server has some
     */
    token?: string | undefined;
    /**
     * how many milliseconds a decision may take, 100 by default. A rule that throttles holds the answer for up to its max_delay: the timeout must be longer
     */
    timeout?: number | undefined;
    /**
     * for how many milliseconds commit, cancel and usage are sent again, 5000 by default
     */
    settleTimeout?: number | undefined;
    /**
     * what happens to a request that the server has not decided: open (it passes; the default), closed (it does not), or error (the call throws)
     */
    failMode?: FailMode | undefined;
    /**
     * is called for each call that was decided or given up without the server
     */
    onFailure?: ((call: string, error: StintError) => void) | undefined;
    /**
     * after so many decisions in a row without an answer, 5 by default, the server is probed; if it does not answer, it is not asked again before a probe is answered
     */
    breakerFailures?: number | undefined;
    /**
     * how many milliseconds are between probes, about 500 by default
     */
    breakerInterval?: number | undefined;
    /**
     * sends the calls
     */
    fetch?: typeof fetch | undefined;
};
export type Call<T> = {
    name: string;
    path: string;
    body?: string | undefined;
    read: (data: any, headers: Headers) => T;
    without?: ((mode: "open" | "closed", error: StintError) => T) | undefined;
    /**
     * a server that cannot decide has said that the request must not pass
     */
    strict?: boolean | undefined;
};
import { CallError } from './errors.js';
import { StintError } from './errors.js';
import { UnreachableError } from './errors.js';
import { Reservation } from './reservation.js';
import { denial } from './answers.js';
export { CallError, StintError, UnreachableError, Reservation, denial };
