/** @typedef {import('./stint.js').Client} Client */
/** @typedef {import('./stint.js').Check} Check */
/** @typedef {import('./stint.js').Verdict} Verdict */
/**
 * What it uses of a request of Node.
 * @typedef {{ method?: string, url?: string, originalUrl?: string, headers: Record<string, string | string[] | undefined>, socket: { remoteAddress?: string }, stint?: Verdict }} NodeRequest
 */
/**
 * What it uses of a response of Node.
 * @typedef {{ statusCode: number, setHeader(name: string, value: string): unknown, end(body?: string): unknown }} NodeResponse
 */
/**
 * describe describes a request of Node by its method, path, peer and headers: these say who is asking, as they do to Stint's gateway.
 * @param {NodeRequest} request
 * @returns {Check}
 */
export function describe(request: NodeRequest): Check;
/**
 * express returns middleware for Express, Connect and http.createServer. It passes on the requests that may pass, with the
 * verdict as request.stint, and answers the others. A function that describes requests can say the user, whom the
 * application knows.
 * @param {Client} client @param {(request: any) => Check} [as]
 * @returns {(request: any, response: any, next: (error?: unknown) => void) => Promise<void>}
 */
export function express(client: Client, as?: (request: any) => Check): (request: any, response: any, next: (error?: unknown) => void) => Promise<void>;
/**
 * handler wraps a handler of requests, whose further arguments are passed on. It answers requests that do not pass. The
 * address of the peer is not in a Request: a function says it, such as (request, info) => info.remoteAddr.hostname in Deno.
 * @template {unknown[]} Rest
 * @param {Client} client
 * @param {(request: Request, ...rest: Rest) => Response | Promise<Response>} next
 * @param {{ ip?: (request: Request, ...rest: Rest) => string | undefined, describe?: (request: Request, ...rest: Rest) => Check }} [options]
 * @returns {(request: Request, ...rest: Rest) => Promise<Response>}
 */
export function handler<Rest extends unknown[]>(client: Client, next: (request: Request, ...rest: Rest) => Response | Promise<Response>, options?: {
    ip?: (request: Request, ...rest: Rest) => string | undefined;
    describe?: (request: Request, ...rest: Rest) => Check;
}): (request: Request, ...rest: Rest) => Promise<Response>;
export type Client = import("./stint.js").Client;
export type Check = import("./stint.js").Check;
export type Verdict = import("./stint.js").Verdict;
/**
 * What it uses of a request of Node.
 */
export type NodeRequest = {
    method?: string;
    url?: string;
    originalUrl?: string;
    headers: Record<string, string | string[] | undefined>;
    socket: {
        remoteAddress?: string;
    };
    stint?: Verdict;
};
/**
 * What it uses of a response of Node.
 */
export type NodeResponse = {
    statusCode: number;
    setHeader(name: string, value: string): unknown;
    end(body?: string): unknown;
};
