import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it } from 'vitest'
import { algorithmOf } from '../lib/leases'
import { live } from '../lib/live.svelte'
import type { Leased, Rule, Snapshot } from '../lib/types'
import RuleLeases from './RuleLeases.svelte'

let panel: Record<string, unknown> | undefined
afterEach(async () => {
  if (panel) await unmount(panel)
  panel = undefined
  live.last = null
})

const rule = {
  name: 'search',
  limits: [
    { name: 'hourly', limit: '1000/1h' },
    { name: 'burst', limit: '10/1s token_bucket burst=20', lease: '100ms' },
  ],
} as Rule

const none: Leased = { limit: '', counters: 0, held: 0, lent: 0, spent: 0, given_back: 0, kept: 0, denied: 0, denied_early: 0, others_most: 0, most_used: 0, capacity: 0 }
const hourly = { ...none, limit: 'search:hourly', held: 340, lent: 90000, spent: 88000, given_back: 1660, denied: 70, denied_early: 9, others_most: 25, most_used: 998, capacity: 1000 }

/** show returns what is shown, by limit: names and values. */
function show(leases?: Leased[]): Record<string, Record<string, string>> {
  live.last = { node: 'node-7', nodes: [{ name: 'node-7' }], leases } as Snapshot
  panel ??= mount(RuleLeases, { target: document.body, props: { rule } })
  flushSync()
  const texts = (in_: Element, what: string) => [...in_.querySelectorAll(what)].map((e) => e.textContent?.trim() ?? '')
  return Object.fromEntries(
    [...document.querySelectorAll('section section')].map((s) => {
      const values = texts(s, 'dd')
      return [texts(s, 'h3')[0], Object.fromEntries(texts(s, 'dt').map((name, i) => [name, values[i]]))]
    }),
  )
}

it('shows what is declared beside what was measured', () => {
  const shown = show([{ ...none, limit: 'search:burst', lent: 12, spent: 8, kept: 4, denied: 1, denied_early: 1, others_most: 1, most_used: 20, capacity: 20 }, { ...none, limit: 'search-2:hourly' }, hourly])
  expect(Object.keys(shown)).toEqual(['hourly', 'burst'])
  expect(shown.hourly).toEqual({
    Declared: 'Nothing passes beyond the limit.',
    'Most used in a window': '998 of 1,000 (99.8 %), as Redis has counted',
    'Units taken ahead': '90k: 88k spent, 1.7k given back, 340 held now',
    'Perhaps denied early': '9 of 70 denials, while other nodes may have held at most 25 units',
  })
  expect(shown.burst).toEqual({
    Declared: 'Beyond the limit, at most what it gives back in 100ms.',
    'Most used at once': '20 of 20 (100 %), as Redis has counted',
    'Units taken ahead': '12: 8 spent, 0 given back, 0 held now, 4 lost, because Redis could not be reached',
    'Perhaps denied early': '1 of 1 denial, while other nodes may have held at most 1 unit',
  })
  expect(document.body.textContent).toContain('node-7, since its start')
})

it('is not there for a rule without leases', () => {
  expect(show()).toEqual({})
  expect(show([{ ...hourly, limit: 'search-2:hourly' }, { ...hourly, limit: 'other' }])).toEqual({})
  expect(document.querySelector('h2')).toBeNull()
  expect(Object.keys(show([hourly]))).toEqual(['hourly']) // as soon as there is one
})

it('shows a limit that the rule had before, without what it declared, last', () => {
  const shown = show([{ ...none, limit: 'search:daily', lent: 1, capacity: 10 }, hourly])
  expect(Object.keys(shown)).toEqual(['hourly', 'daily'])
  expect(shown.daily?.Declared).toBeUndefined()
  expect(shown.daily?.['Perhaps denied early']).toBe('nothing')
})

it('knows the algorithm of a limit', () => {
  const of = (limit: string, algorithm?: string) => algorithmOf({ name: 'a', limit, algorithm })
  expect(of('10/1m')).toBe('sliding_window')
  expect(of('10/month tz=Europe/Berlin anchor=15')).toBe('fixed_window')
  expect(of('10/day')).toBe('fixed_window')
  expect(of('10/day sliding_log')).toBe('sliding_log')
  expect(of('10/1s burst=20 token_bucket')).toBe('token_bucket')
  expect(of('10/1s', 'leaky_bucket')).toBe('leaky_bucket')
})
