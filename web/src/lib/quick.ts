// What an operator in a hurry does to a client: ban it for a day, or raise a limit of it.

import { ApiError, del, get, path, put } from './api'
import { decisionIn } from './decision'
import { after, dateTime } from './format'
import { outcome } from './outcomes'
import type { SubjectKind } from './shapes'
import { over } from './subjects'
import { toasts } from './toast.svelte'
import type { Event, FoundItem, Quota, Subject } from './types'
import { spanned } from './until'

export const day = '86400'

/** raised returns a limit of twice the size, in the same window: so its usage stays. */
export function raised(limit: string): string {
  const twice = (text: string) => String(BigInt(text) * 2n)
  return limit.replace(/^\d+/, twice).replace(/(?<=\bburst=)\d+/, twice)
}

/** canRaise tells whether a limit of a client has a size that is known. */
export const canRaise = (q: Quota) => !q.penalty && !q.unknown && q.max > 0

/** pressing returns the limit that a client is held back by: the one with this name, or else the one of which the least is left. */
export function pressing(quotas: Quota[], name = ''): Quota | undefined {
  const left = (q: Quota) => q.remaining / q.max
  const all = quotas.filter(canRaise)
  return all.find((q) => q.name === name) ?? all.sort((a, b) => left(a) - left(b))[0]
}

/** banForADay bans a client, and offers to take it back. It replaces no ban that there is. */
export async function banForADay(kind: SubjectKind, id: string) {
  const here = path('subjects', kind, id)
  try {
    const now = await get<Subject>(here)
    if (now.ban && !over(now.ban.until)) {
      toasts.error(`${now.id} is banned already${now.ban.until ? `, until ${dateTime(now.ban.until)}` : ', permanently'}.`)
      return
    }
    await put(here + '/ban', { until: spanned(day) })
    toasts.ok(`${now.id} is banned for 1 day.`, async () => {
      await del(here + '/ban')
      toasts.ok(`${now.id} is no longer banned.`)
    })
  } catch (err) {
    toasts.error(`${id} was not banned: ${err instanceof ApiError || err instanceof Error ? err.message : String(err)}`)
  }
}

/** What can be done from the search, to whom. */
export interface Wish {
  what: 'ban' | 'raise' | 'show' | 'explain'
  kind: SubjectKind
  id: string
}

const kindsOf: Partial<Record<FoundItem['kind'], SubjectKind>> = { user: 'user', key: 'key', tenant: 'tenant', ip: 'ip' }

/** said returns what a text asks for: it may begin with what to do, as in "ban 192.0.2.1". */
export function said(text: string): { verb?: 'ban' | 'raise'; name: string } {
  const [, verb, name] = /^\s*(ban|raise)\s+(\S.*)$/i.exec(text) ?? []
  return verb && name ? { verb: verb.toLowerCase() as 'ban' | 'raise', name: name.trim() } : { name: text.trim() }
}

/**
 * wishes returns what a search can do, with what it has found. Only whoever is named in full can be banned: results change while
 * one types.
 */
export function wishes(name: string, found: FoundItem[], guess: SubjectKind): Wish[] {
  const decision = decisionIn(name)
  if (decision) return [{ what: 'explain', kind: guess, id: decision }]
  const exact = found.flatMap((i) => {
    const kind = kindsOf[i.kind]
    return kind && i.id.toLowerCase() === name.toLowerCase() ? [{ kind, id: i.id }] : []
  })
  const out = exact.flatMap(({ kind, id }): Wish[] => [...(kind === 'user' || kind === 'key' ? [{ what: 'raise' as const, kind, id }] : []), { what: 'ban', kind, id }])
  // Who is not in the catalog, and was not seen until now, may be limited already.
  return out.length || found.length || !name || /\s/.test(name) ? out : [{ what: 'show', kind: guess, id: name }]
}

/** because says in one sentence why a request did not pass. */
export function because(e: Event): string {
  const request = [e.method, e.path || e.endpoint].filter(Boolean).join(' ')
  const of = request ? ` to ${request}` : ''
  const by = e.rule ? `the rule ${e.rule}` : ''
  switch (e.outcome) {
    case 'denied':
      return (
        `A request${of} was over a limit of ${by || 'a rule'}: ${e.limit_value > 0 ? `${e.limit_name || 'it'} lets pass ${e.limit_value.toLocaleString('en')}, and ${e.count.toLocaleString('en')} were used` : 'it passes nothing'}.` +
        (e.retry_after_us < 0 ? ' It can never pass: it costs more than the limit.' : '')
      )
    case 'blocked':
      return `A request${of} was blocked${by ? ` by ${by}` : ''}.`
    case 'banned':
      return `A request${of} was denied, because the client was banned${by ? ` after violations of ${by}` : ''}.`
    default:
      return `A request${of} ${outcome(e.outcome).says}.`
  }
}

/** again says when the client could try again. */
export function again(e: Event, now: number): string {
  if (e.retry_after_us <= 0) return ''
  const left = (Date.parse(e.time) + e.retry_after_us / 1000 - now) / 1000
  return left <= 0 ? 'By now it could pass.' : `It could pass ${after(left)}.`
}
