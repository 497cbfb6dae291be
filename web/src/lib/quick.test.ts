import { expect, it } from 'vitest'
import { again, because, pressing, raised, said, wishes } from './quick'
import type { Event, FoundItem, Quota } from './types'

it.each([
  ['40/1m', '80/1m'],
  ['20/1s burst=40 token_bucket', '40/1s burst=80 token_bucket'],
  ['500000/month tz=Europe/Berlin', '1000000/month tz=Europe/Berlin'],
  ['9007199254740993/1h', '18014398509481986/1h'],
  ['unlimited', 'unlimited'],
])('raises %s to %s', (limit, want) => expect(raised(limit)).toBe(want))

const quota = (name: string, max: number, remaining: number, more: Partial<Quota> = {}) => ({ name, max, remaining, penalty: false, ...more }) as Quota

it('raises the limit that is asked for, or the one of which the least is left', () => {
  const all = [quota('month', 1000, 900), quota('hour', 10, 1), quota('login', 3, 0, { penalty: true }), quota('other', 10, 0, { unknown: 'endpoint' }), quota('free', 0, 0)]
  expect(pressing(all, 'month')?.name).toBe('month')
  expect(pressing(all)?.name).toBe('hour')
  expect(pressing(all, 'nothing')?.name).toBe('hour')
  expect(pressing([])).toBeUndefined()
})

it.each([
  ['alice', { name: 'alice' }],
  [' ban 192.0.2.1 ', { verb: 'ban', name: '192.0.2.1' }],
  ['RAISE alice smith', { verb: 'raise', name: 'alice smith' }],
  ['ban', { name: 'ban' }],
  ['banal', { name: 'banal' }],
])('reads %s', (text, want) => expect(said(text)).toEqual(want))

const item = (kind: FoundItem['kind'], id: string): FoundItem => ({ kind, id, known: true })

it('offers to ban only whom the text names in full', () => {
  const found = [item('user', 'alice'), item('user', 'alice2'), item('rule', 'alice')]
  expect(wishes('alic', found, 'user')).toEqual([])
  expect(wishes('Alice', found, 'user')).toEqual([{ what: 'raise', kind: 'user', id: 'alice' }, { what: 'ban', kind: 'user', id: 'alice' }])
  expect(wishes('192.0.2.1', [item('ip', '192.0.2.1')], 'ip')).toEqual([{ what: 'ban', kind: 'ip', id: '192.0.2.1' }])
  expect(wishes('search', [item('rule', 'search')], 'user')).toEqual([])
})

it('shows anyone who could be limited', () => {
  expect(wishes('zoe', [], 'user')).toEqual([{ what: 'show', kind: 'user', id: 'zoe' }])
  expect(wishes('no one', [], 'user')).toEqual([])
})

const event = { time: '2026-01-31T12:00:00Z', method: 'GET', path: '/v1/search/a', endpoint: '/v1/**', rule: 'search', limit_name: 'hourly', limit_value: 1000, count: 1000, retry_after_us: 5e6, outcome: 'denied' } as Event

it('says why a request was denied', () => {
  expect(because(event)).toBe('A request to GET /v1/search/a was over a limit of the rule search: hourly lets pass 1,000, and 1,000 were used.')
  expect(because({ ...event, retry_after_us: -1 })).toMatch(/can never pass: it costs more/)
  expect(because({ ...event, outcome: 'blocked' })).toBe('A request to GET /v1/search/a was blocked by the rule search.')
  expect(because({ ...event, outcome: 'banned', rule: '' })).toBe('A request to GET /v1/search/a was denied, because the client was banned.')
  expect(because({ ...event, outcome: 'unauthorized', method: '', path: '', endpoint: '' })).toBe('A request had an invalid key or token.')
})

it('says when it could pass', () => {
  const at = Date.parse(event.time)
  expect(again(event, at + 1000)).toBe('It could pass in 4 s.')
  expect(again(event, at + 6000)).toBe('By now it could pass.')
  expect(again({ ...event, retry_after_us: -1 }, at)).toBe('')
})
