// The client of the admin API. Every failure is an ApiError that says what to do.

import type { Page, Rec, Trouble } from './shapes'
import type { Entry, FieldProblem, Key, KeyRecord, Rule, RuleRecord, Session, Tenant, Tier, User } from './types'

export class ApiError extends Error {
  readonly status: number
  readonly problem: Trouble

  constructor(problem: Trouble) {
    super(problem.detail || problem.title)
    this.name = 'ApiError'
    this.status = problem.status
    this.problem = problem
  }

  /** Whether someone else has changed it since it was read. */
  get stale(): boolean {
    return this.status === 412
  }

  /** What fields are to blame for. */
  get errors(): FieldProblem[] {
    return this.problem.errors ?? []
  }
}

/** aborted tells whether an error is only that no one wants the answer any more. */
export function aborted(err: unknown): boolean {
  return err instanceof DOMException && err.name === 'AbortError'
}

/** problemOf returns what went wrong, whatever was thrown. */
export function problemOf(err: unknown): Trouble {
  if (err instanceof ApiError) return err.problem
  return { title: 'An error in this page', status: -1, detail: err instanceof Error ? err.message : String(err) }
}

type Query = Record<string, string | number | boolean | undefined | null>

export interface Request {
  query?: Query
  body?: unknown
  /** The version that is to be changed, or "*" for whatever is there. */
  ifMatch?: number | '*'
  dryRun?: boolean
  signal?: AbortSignal
}

export const base = '/admin/v1'

/** path joins segments, each of which may hold any character. */
export function path(...segments: string[]): string {
  return segments.map((s) => '/' + encodeURIComponent(s)).join('')
}

/** address returns where a call goes; also for links and streams. */
export function address(to: string, query: Query = {}): string {
  const q = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '') q.set(name, String(value))
  }
  const text = q.toString()
  return base + to + (text && '?' + text)
}

// The token against forged requests is kept here and nowhere else.
let csrf = ''
let onSignedOut = () => {}

/** remember takes what a session needs for writing. */
export function remember(session: Session | null) {
  csrf = session?.csrf ?? ''
}

/** whenSignedOut is called when the server no longer knows who is asking. */
export function whenSignedOut(call: () => void) {
  onSignedOut = call
}

export async function call<T>(method: string, to: string, r: Request = {}): Promise<T> {
  const { text } = await exchange(method, to, r)
  return (text ? JSON.parse(text) : undefined) as T
}

/** leave ends the session, and returns where to sign out at the identity provider, if there is such a place. */
export async function leave(): Promise<string> {
  const { answer } = await exchange('DELETE', '/session', {})
  return answer.headers.get('Location') ?? ''
}

/**
 * lines calls an operation that answers with one object of JSON per line, as they come. An answer that breaks off is an error, but for
 * what was told before.
 */
export async function* lines<T>(method: string, to: string, r: Request = {}): AsyncGenerator<T> {
  const answer = await send(method, to, r)
  if (!answer.ok) refuse(to, answer, await read(() => answer.text()))
  const reader = answer.body!.getReader()
  const decoder = new TextDecoder()
  try {
    for (let rest = ''; ; ) {
      const { done, value } = await read(() => reader.read())
      const all = (rest + decoder.decode(value, { stream: !done })).split('\n')
      rest = all.pop()!
      for (const line of all) if (line) yield JSON.parse(line) as T
      if (done) return
    }
  } finally {
    await reader.cancel().catch(() => {}) // it may be at its end
  }
}

async function exchange(method: string, to: string, r: Request): Promise<{ answer: Response; text: string }> {
  const answer = await send(method, to, r)
  const text = await read(() => answer.text())
  if (!answer.ok) refuse(to, answer, text)
  return { answer, text }
}

/** read calls what depends on the connection. */
async function read<T>(from: () => Promise<T>): Promise<T> {
  try {
    return await from()
  } catch (err) {
    if (aborted(err)) throw err
    throw new ApiError({
      title: 'The server does not answer',
      status: 0,
      detail: 'The server does not answer. It may be restarting, or the connection is lost. Your input is not lost: try again in a moment.',
    })
  }
}

/** refuse throws what the server says is wrong. */
function refuse(to: string, answer: Response, text: string): never {
  if (answer.status === 401 && to !== '/session') onSignedOut()
  throw new ApiError(readProblem(answer, text))
}

function send(method: string, to: string, r: Request): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' }
  if (r.body !== undefined) headers['Content-Type'] = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
  if (method !== 'GET' && csrf) headers['X-CSRF-Token'] = csrf
  if (r.ifMatch !== undefined) headers['If-Match'] = r.ifMatch === '*' ? '*' : `"${r.ifMatch}"`
  return read(() =>
    fetch(address(to, { ...r.query, dry_run: r.dryRun || undefined }), {
      method,
      headers,
      body: r.body === undefined ? undefined : typeof r.body === 'string' ? r.body : JSON.stringify(r.body),
      signal: r.signal,
      credentials: 'same-origin',
      cache: 'no-store',
    }),
  )
}

function readProblem(answer: Response, text: string): Trouble {
  try {
    const p = JSON.parse(text) as Partial<Trouble>
    if (p && typeof p === 'object' && typeof p.title === 'string') return { ...p, title: p.title, status: answer.status }
  } catch {
    // It is no problem of ours, such as that of a proxy in between.
  }
  return { title: answer.statusText || 'The server rejected the request', status: answer.status, detail: `The server answered ${answer.status} without saying why.` }
}

export const get = <T>(to: string, query?: Query, signal?: AbortSignal) => call<T>('GET', to, { query, signal })
export const getText = async (to: string, query?: Query, signal?: AbortSignal) => (await exchange('GET', to, { query, signal })).text
export const post = <T>(to: string, body?: unknown, r: Request = {}) => call<T>('POST', to, { ...r, body })
export const put = <T>(to: string, body: unknown, r: Request = {}) => call<T>('PUT', to, { ...r, body })
export const patch = <T>(to: string, body: unknown, r: Request = {}) => call<T>('PATCH', to, { ...r, body })
export const del = (to: string, r: Request = {}) => call<void>('DELETE', to, r)

/** resource returns the calls that all kinds of records have. */
function resource<T, R extends Rec<T> = Rec<T>>(kind: string) {
  return {
    list: (query: Query = {}, signal?: AbortSignal) => get<Page<R>>('/' + kind, query, signal),
    get: (id: string, signal?: AbortSignal) => get<R>(path(kind, id), undefined, signal),
    create: (value: T, r?: Request) => post<R>('/' + kind, value, r),
    put: (id: string, value: T, ifMatch: number | '*', r?: Request) => put<R>(path(kind, id), value, { ...r, ifMatch }),
    patch: (id: string, change: unknown, ifMatch: number | '*', r?: Request) => patch<R>(path(kind, id), change, { ...r, ifMatch }),
    delete: (id: string, ifMatch: number | '*', r?: Request) => del(path(kind, id), { ...r, ifMatch }),
  }
}

export const rules = resource<Rule, RuleRecord>('rules')
export const tiers = resource<Tier>('tiers')
export const users = resource<User>('users')
export const tenants = resource<Tenant>('tenants')
export const keys = resource<Key, KeyRecord>('keys')
export const exemptions = resource<Entry>('exemptions')
export const bans = resource<Entry>('bans')
