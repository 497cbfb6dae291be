import { afterEach, expect, it, vi } from 'vitest'
import { rank, ranked } from './top'
import type { Event } from './types'

const event = (outcome: string, more: Partial<Event>) => ({ outcome, user_id: '', ip: '192.0.2.1', rule: 'search', weight: 1, ...more }) as Event
const events = [event('denied', { weight: 3 }), event('banned', {}), event('allowed', { weight: 50 }), event('denied', { user_id: 'bob', ip: '192.0.2.2' })]
const span = { from: 'a', to: 'b', limit: 8 }
afterEach(() => vi.unstubAllGlobals())

/** answers has the API answer by the path and the kind that is asked for. */
function answers(all: Record<string, unknown>): string[] {
  const asked: string[] = []
  vi.stubGlobal('fetch', async (url: string) => {
    const u = new URL(url, 'http://x')
    const what = u.pathname.split('/').at(-1)! + (u.searchParams.has('by') ? ' ' + u.searchParams.get('by') : '')
    asked.push(what)
    return new Response(JSON.stringify({ items: all[what] ?? [] }))
  })
  return asked
}

it('adds up what was denied, with its weight', () => {
  expect(ranked(events, 'ip', 8)).toEqual([{ name: '192.0.2.1', denied: 3, refused: 4 }, { name: '192.0.2.2', denied: 1, refused: 1 }])
  expect(ranked(events, 'user', 8)).toEqual([{ name: 'bob', denied: 1, refused: 1 }])
  expect(ranked(events, 'rule', 8)).toEqual([{ name: 'search', denied: 4, refused: 5 }])
  expect(ranked(events, 'ip', 1)).toHaveLength(1)
})

it('shows the first kind of which any was denied', async () => {
  answers({ 'top ip': [{ name: '192.0.2.1', denied: 2, refused: 2 }] })
  expect(await rank(['user', 'ip'], span, true, new AbortController().signal)).toMatchObject({ by: 'ip', recent: false })
})

it('looks at events if nothing is added up yet, and only if they could be of that time', async () => {
  const asked = answers({ events: [event('denied', {})] })
  expect(await rank(['user', 'ip'], span, true, new AbortController().signal)).toEqual({ by: 'ip', recent: true, items: [{ name: '192.0.2.1', denied: 1, refused: 1 }] })
  expect(asked).toEqual(['top user', 'top ip', 'events'])
  expect(await rank(['user'], span, false, new AbortController().signal)).toEqual({ by: 'user', recent: false, items: [] })
  expect(asked.slice(3)).toEqual(['top user'])
})
