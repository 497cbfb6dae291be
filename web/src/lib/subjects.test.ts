import { expect, test } from 'vitest'
import { addressOf, mostUsed, subjectPage } from './subjects'
import type { Quota } from './types'

const quota = (name: string, used: number, max: number) => ({ name, used, max }) as Quota

test('mostUsed', () => {
  const quotas = [quota('a', 1, 100), quota('b', 0, 10), quota('c', 9, 10), quota('unlimited', 50, -1), quota('d', 30, 100)]
  expect(mostUsed(quotas, 5)).toBe(quotas)
  expect(mostUsed(quotas, 2).map((q) => q.name)).toEqual(['c', 'd'])
  expect(mostUsed(quotas, 3).map((q) => q.name)).toEqual(['a', 'c', 'd'])
  expect(mostUsed([], 3)).toEqual([])
})

test.each([
  ['192.0.2.1', 'address'],
  ['2001:db8::1', 'address'],
  ['::ffff:192.0.2.1', 'address'],
  ['::', 'address'],
  ['192.0.2.0/24', 'network'],
  ['2001:db8::/48', 'network'],
  ['0123456789abcdef0123456789abcdef', 'hash'],
  ['01234567890123456789012345678901', 'hash'],
])('the record has of %s the %s', (text, what) => expect(addressOf(text)).toBe(what))

test('subjectPage', () => {
  expect(subjectPage('user', '0123456789abcdef0123456789abcdef')).toBe('#/subjects/user/0123456789abcdef0123456789abcdef')
  expect(subjectPage('ip', '0123456789abcdef0123456789abcdef')).toBe('#/events?ip=0123456789abcdef0123456789abcdef')
})
