/* @ts-self-types="./middleware.d.ts" */
// Limits whole applications: those of Express and Connect, and handlers of Request and Response, as in Deno, Bun, Hono and workers.

import { denial, refusal } from './answers.js'

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
export function describe(request) {
  /** @type {Record<string, string | string[]>} */
  const headers = {}
  for (const [name, value] of Object.entries(request.headers)) if (value !== undefined) headers[name] = value
  return { method: request.method, path: pathOf(request.originalUrl ?? request.url ?? '/'), ip: request.socket.remoteAddress?.replace(/%.*$/, ''), headers }
}

/** pathOf returns the path of a request target, which may be a whole URL. @param {string} target */
function pathOf(target) {
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').replace(/[?#].*$/s, '')
  return path.startsWith('/') ? path : '/' + path
}

/**
 * express returns middleware for Express, Connect and http.createServer. It passes on the requests that may pass, with the
 * verdict as request.stint, and answers the others. A function that describes requests can say the user, whom the
 * application knows.
 * @param {Client} client @param {(request: any) => Check} [as]
 * @returns {(request: any, response: any, next: (error?: unknown) => void) => Promise<void>}
 */
export function express(client, as = describe) {
  return async (/** @type {NodeRequest} */ request, /** @type {NodeResponse} */ response, next) => {
    let answer
    try {
      const verdict = await client.check(as(request))
      if (verdict.allowed) {
        request.stint = verdict
        if (verdict.unaccepted !== undefined) delete request.headers.authorization // it has a token that was not accepted
        delete request.headers['stint-over'] // of the client
        if (verdict.over !== undefined) request.headers['stint-over'] = verdict.over
        for (const [name, value] of Object.entries(verdict.headers)) response.setHeader(name, value)
      } else answer = denial(verdict)
    } catch (error) {
      try {
        answer = refusal(error)
      } catch {
        return next(error)
      }
    }
    if (!answer) return next()
    response.statusCode = answer.status
    for (const [name, value] of Object.entries(answer.headers)) response.setHeader(name, value)
    response.end(request.method === 'HEAD' ? undefined : answer.body)
  }
}

/**
 * handler wraps a handler of requests, whose further arguments are passed on. It answers requests that do not pass. The
 * address of the peer is not in a Request: a function says it, such as (request, info) => info.remoteAddr.hostname in Deno.
 * @template {unknown[]} Rest
 * @param {Client} client
 * @param {(request: Request, ...rest: Rest) => Response | Promise<Response>} next
 * @param {{ ip?: (request: Request, ...rest: Rest) => string | undefined, describe?: (request: Request, ...rest: Rest) => Check }} [options]
 * @returns {(request: Request, ...rest: Rest) => Promise<Response>}
 */
export function handler(client, next, options = {}) {
  const as = options.describe ?? ((request, ...rest) => ({
    method: request.method, path: pathOf(request.url), ip: options.ip?.(request, ...rest), headers: Object.fromEntries(request.headers),
  }))
  return async (request, ...rest) => {
    let answer, verdict
    try {
      verdict = await client.check(as(request, ...rest))
      answer = verdict.allowed ? undefined : denial(verdict)
    } catch (error) {
      answer = refusal(error)
    }
    if (answer || !verdict) return new Response(request.method === 'HEAD' ? null : answer?.body, { status: answer?.status, headers: answer?.headers })
    if (verdict.unaccepted !== undefined || verdict.over !== undefined || request.headers.has('Stint-Over')) {
      request = new Request(request)
      if (verdict.unaccepted !== undefined) request.headers.delete('Authorization') // the token was not accepted
      request.headers.delete('Stint-Over') // of the client
      if (verdict.over !== undefined) request.headers.set('Stint-Over', verdict.over)
    }
    const response = await next(request, ...rest)
    const headers = new Headers(response.headers)
    for (const [name, value] of Object.entries(verdict.headers)) headers.set(name, value)
    return new Response(response.body, { status: response.status, statusText: response.statusText, headers })
  }
}
