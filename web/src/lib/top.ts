// Who was denied most. The record adds up whole minutes: until it has, the last events tell.

import { get } from './api'
import { outcome } from './outcomes'
import type { Page, SubjectKind } from './shapes'
import type { Event, Top } from './types'

export type TopKind = SubjectKind | 'path' | 'rule'
export type TopItem = NonNullable<Top['items']>[number]

export interface Ranked {
  by: TopKind
  items: TopItem[]
  /** They are only of the last minutes, which are not added up yet. */
  recent: boolean
}

const nameOf: Record<TopKind, (e: Event) => string> = { user: (e) => e.user_id, key: (e) => e.key_id, tenant: (e) => e.tenant_id, ip: (e) => e.ip, path: (e) => e.path, rule: (e) => e.rule }

/** ranked adds up events. */
export function ranked(events: Event[], by: TopKind, limit: number): TopItem[] {
  const sums = new Map<string, TopItem>()
  for (const e of events) {
    const name = nameOf[by](e)
    if (!name || !outcome(e.outcome).refused) continue
    const sum = sums.get(name) ?? { name, denied: 0, refused: 0 }
    sum.refused += e.weight
    if (e.outcome === 'denied') sum.denied += e.weight
    sums.set(name, sum)
  }
  return [...sums.values()].sort((a, b) => b.denied - a.denied || b.refused - a.refused || (a.name < b.name ? -1 : 1)).slice(0, limit)
}

/**
 * rank asks for the first of these kinds of which any was denied. If none was, and the time goes on until now, it looks at the
 * events that are not added up yet.
 */
export async function rank(kinds: TopKind[], span: { from: string; to: string; limit: number }, untilNow: boolean, signal: AbortSignal): Promise<Ranked> {
  for (const by of kinds) {
    const { items } = await get<Top>('/top', { by, ...span }, signal)
    if (items?.length) return { by, items, recent: false }
  }
  if (untilNow) {
    const { items: events } = await get<Page<Event>>('/events', { from: new Date(Date.now() - 3 * 60_000).toISOString(), limit: 1000 }, signal)
    for (const by of kinds) {
      const items = ranked(events, by, span.limit)
      if (items.length) return { by, items, recent: true }
    }
  }
  return { by: kinds[0]!, items: [], recent: false }
}
