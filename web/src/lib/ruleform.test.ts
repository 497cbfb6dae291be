import { describe, expect, it } from 'vitest'
import { canonical, compare, emptyLimit, fromRule, merge, strange, toRule } from './ruleform'
import type { Rule } from './types'

const whole: Rule = {
  name: 'queries',
  match: { paths: ['/graphql', '/api/**'], methods: ['POST'], tiers: ['free'], ip_ranges: ['10.0.0.0/8'], headers: { 'X-Beta': '*' } },
  count_by: ['user', 'header:X-Project', 'endpoint'],
  limits: [
    { name: 'points', limit: '5000/1h', lease: '100ms', split: 8 },
    { name: 'burst', limit: '10/1s', algorithm: 'token_bucket', burst: 20 },
  ],
  cost: { units: 5, header: 'X-Cost', max: 100 },
  action: 'throttle',
  max_delay: '3s',
  priority: -10,
  group: 'per-user',
  enforce: '12.5%',
  penalty: { threshold: 3, within: '1h', cooldown: '1m', multipliers: [1, 5, 30] },
  on_store_failure: 'closed',
  regions: 'gossip',
  credit: 50,
  on_credit: 'deny',
  response: { status: 503, message: 'Later.' },
  enabled: false,
}

describe('form and JSON', () => {
  it.each<[string, Rule]>([
    ['whole', whole],
    ['least', { name: 'a', limits: [{ name: 'b', limit: '1/1s' }] }],
    ['a cost that is a number', { name: 'a', limits: [{ name: 'b', limit: '10/1s' }], cost: 10 }],
    ['defaults that are given', { name: 'a', limits: [{ name: 'b', limit: '1/1s' }], action: 'reject', on_store_failure: 'local', enabled: true }],
    ['a quota', { name: 'a', limits: [{ name: 'b', limit: '10/1s' }], regions: 'quota', weights: 'follow' }],
    ['defaults of regions that are given', { name: 'a', limits: [{ name: 'b', limit: '10/1s' }], regions: 'gossip', on_credit: 'share' }],
    ['a rollout', { name: 'a', limits: [{ name: 'b', limit: '10/1s' }], rollout: { steps: ['1%', '100%'], every: '1h', start: '2026-11-20T08:00:00Z', back_if: 'denied > 2%', stopped: { at: '2026-11-20T09:00:00Z', share: '1%' } } }],
    ['block', { name: 'a', match: { ip_ranges: ['198.51.100.0/24'] }, action: 'block', response: { status: 403 } }],
  ])('%s goes there and back unchanged', (_, rule) => {
    expect(toRule(fromRule(rule))).toEqual(rule)
    expect(Object.keys(toRule(fromRule(rule)))).toEqual(Object.keys(rule))
    expect(strange(rule)).toBe('')
  })

  it('keeps what is no number for the server to judge', () => {
    const d = fromRule(whole)
    d.priority = 'first'
    d.limits[1]!.burst = '9007199254740993'
    expect(toRule(d).priority).toBe('first')
    expect(toRule(d).limits![1]!.burst).toBe('9007199254740993')
    d.credit = 'some'
    expect(toRule(d).credit).toBe('some')
    d.limits[0]!.split = 'many'
    d.limits[0]!.lease = '1 fortnight '
    expect(toRule(d).limits![0]).toEqual({ name: 'points', limit: '5000/1h', lease: '1 fortnight', split: 'many' })
  })

  it('drops rows in which nothing was typed', () => {
    const d = fromRule({ name: 'a', limits: [{ name: 'b', limit: '1/1s' }] })
    d.limits.push(emptyLimit())
    d.match.headers.push({ name: '', value: '' })
    expect(toRule(d)).toEqual({ name: 'a', limits: [{ name: 'b', limit: '1/1s' }] })
  })

  it.each([
    [{ name: 'a', actoin: 'block' }, 'actoin'],
    [{ name: 'a', match: { path: ['/x'] } }, 'match'],
    [{ name: 'a', limits: 'all' }, 'limits'],
    [{ name: 'a', limits: [{ name: 'b', limit: '1/1s', brust: 2 }] }, 'limits[0].brust'],
    [[], 'the whole: it is no table'],
  ])('%j has something that the form has no place for', (rule, at) => {
    expect(strange(rule)).toBe(at)
  })

  it('is the same whatever default is given', () => {
    expect(canonical({ name: 'a', enabled: true, action: 'reject', match: {}, count_by: [] })).toBe(canonical({ name: 'a' }))
    expect(canonical({ name: 'a', limits: [{ name: 'b', limit: '1/1s', lease: '', split: 0 }] })).toBe(canonical({ name: 'a', limits: [{ name: 'b', limit: '1/1s' }] }))
    expect(canonical({ name: 'a', enabled: false })).not.toBe(canonical({ name: 'a' }))
  })
})

describe('conflicts', () => {
  const base: Rule = { name: 'a', limits: [{ name: 'b', limit: '1/1s' }], priority: 1, group: 'g' }

  it('puts both changes together', () => {
    const { rule, clashes } = merge(base, { ...base, priority: 2 }, { ...base, limits: [{ name: 'b', limit: '9/1s' }] })
    expect(rule).toEqual({ ...base, priority: 2, limits: [{ name: 'b', limit: '9/1s' }] })
    expect(clashes).toEqual([])
  })

  it('tells what both have changed, and takes mine', () => {
    const { rule, clashes } = merge(base, { ...base, priority: 2 }, { ...base, priority: 3 })
    expect(rule.priority).toBe(2)
    expect(clashes).toEqual(['priority'])
  })

  it('drops what was dropped', () => {
    const { group: _, ...without } = base
    expect(merge(base, without, { ...base, priority: 7 }).rule).toEqual({ ...without, priority: 7 })
  })

  it('lists what differs', () => {
    expect(compare(base, { ...base, priority: 2 })).toEqual([{ path: 'priority', before: 1, after: 2 }])
  })
})
