/** What was reserved for a request. At the end of its block, `await using` settles it as Client.reserving does. */
export class Reservation {
    /** @param {import('./stint.js').Client} client @param {import('./stint.js').Reserved} verdict */
    constructor(client: import("./stint.js").Client, verdict: import("./stint.js").Reserved);
    /** The verdict on the request. @type {import('./stint.js').Reserved} */
    verdict: import("./stint.js").Reserved;
    /** The ticket that settles it, or undefined if there is nothing to settle. @type {string | undefined} */
    ticket: string | undefined;
    /** Whether the request may pass. */
    get allowed(): boolean;
    /** Says what was used so far, in all: either a cost, or a usage by meter. It replaces what was said before. @param {{ cost?: number, usage?: Record<string, number>, model?: string }} used */
    use(used: {
        cost?: number;
        usage?: Record<string, number>;
        model?: string;
    }): void;
    /** Reserves more, and reports whether that is allowed. @param {{ cost?: number, usage?: Record<string, number>, expires_in?: number }} more @returns {Promise<boolean>} */
    extend(more: {
        cost?: number;
        usage?: Record<string, number>;
        expires_in?: number;
    }): Promise<boolean>;
    /** Commits what use has said, or cancels. It returns undefined if there is nothing to settle. @returns {Promise<import('./types.js').Receipt | undefined>} */
    settle(): Promise<import("./types.js").Receipt | undefined>;
    [Symbol.asyncDispose](): Promise<void>;
    #private;
}
