import { expect, it } from 'vitest'
import { bound, summary } from './changes'
import type { Change, LoggedRevision } from './types'

it('makes times of dates', () => {
  expect(bound('2026-02-28')).toBe('2026-02-28T00:00:00Z')
  expect(bound('2026-02-28', true)).toBe('2026-03-01T00:00:00Z')
  expect(bound('2026-02-28T12:00:00Z', true)).toBe('2026-02-28T12:00:00Z')
  expect(bound('')).toBe('')
  expect(bound(undefined)).toBe(undefined)
  expect(bound('2026-13-01')).toBe('2026-13-01') // which the server rejects
})

it('says what was changed together', () => {
  const change = (kind: Change['kind'], id: string) => ({ kind, id }) as Change
  const r = (total: number, changes: Change[]) => ({ revision: 1, at: '', actor: '', total, changes }) as LoggedRevision
  expect(summary(r(2, [change('rule', 'search'), change('api_key', 'k1')]))).toBe('rule search, API key k1')
  expect(summary(r(1202, [change('user', 'a'), change('user', 'b')]))).toBe('user a, user b and 1,200 more')
})
