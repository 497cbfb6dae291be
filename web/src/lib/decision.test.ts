import { expect, it } from 'vitest'
import { decisionIn, linked, nameOf } from './decision'

const one = '0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00'

it.each([
  [one, one],
  [`  ${one.toUpperCase()} `, one],
  [`I was denied, your answer said decision ID ${one}.`, one],
  [`{"decision_id":"${one}"}`, one],
  ['b5f7a8e2-4c1d-4f6a-9b3e-2d1c0a9f8e7d', undefined], // a UUID of another kind
  [one.slice(0, -1), undefined],
  [one + '0', undefined],
  ['alice', undefined],
])('finds the id in %s', (text, want) => expect(decisionIn(text)).toBe(want))

it('splits a text at its ids', () => {
  expect(linked(`see ${one} and ${one}`)).toEqual(['see ', one, ' and ', one, ''])
  expect(linked('none')).toEqual(['none'])
})

it('names a client by the best that is known of it', () => {
  const s = { user: '', tenant: '', key: '', ip: '', passed: 0, denied: 1 }
  expect(nameOf({ ...s, user: 'bob', key: 'k', ip: '::1' })).toEqual({ kind: 'user', id: 'bob' })
  expect(nameOf({ ...s, key: 'k', ip: '::1' })).toEqual({ kind: 'key', id: 'k' })
  expect(nameOf({ ...s, ip: '::1' })).toEqual({ kind: 'ip', id: '::1' })
  expect(nameOf(s)).toBeUndefined()
})
