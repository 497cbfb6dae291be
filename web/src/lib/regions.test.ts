import { describe, expect, it } from 'vitest'
import { bytes, delayOf, gossipedOf, sharedOf, skewOf, stateOf, troublesOf } from './regions'
import type { RegionLimit, RegionLink, Regions, Rule } from './types'

const link: RegionLink = {
  region: 'us', url: 'http://us:1', up: true, since: '2026-01-31T12:00:00Z', cut: false, alone: false, pings: 3, round_trip_us: 81_000, skew_us: 0, lag_us: 0,
  backlog: 0, unacknowledged: 0, calls: 0, sent_bytes: 0, received_bytes: 0, refused: 0,
}
const limit: RegionLimit = { limit: 'search:hourly', bound: 50, beyond: 7, measured: true, admitted: 90_000, received: 60_000, short: 0, shares: 0 }
const well = { region: 'eu', node: 'n', weights: 'fresh', alone: false, links: [link], limits: [limit], central: { region: 'us', up: true } } as Regions

describe('a link', () => {
  it.each<[string, Partial<RegionLink>]>([
    ['up', {}],
    ['down', { up: false }],
    ['cut off', { up: false, cut: true }],
    ['alone', { alone: true }],
    ['clocks differ', { skew_us: -1_000_001 }],
    ['up', { skew_us: 9_000_000, pings: 0 }],
  ])('is %s', (word, with_) => expect(stateOf({ ...link, ...with_ }).word).toBe(word))
  it('has a delay and a skew once a ping was answered', () => {
    expect([delayOf(link), skewOf(link)]).toEqual(['81 ms', 'none'])
    expect(skewOf({ ...link, skew_us: 2500 })).toBe('2.5 ms ahead')
    expect(skewOf({ ...link, skew_us: -2500 })).toBe('2.5 ms behind')
    expect([delayOf({ ...link, pings: 0 }), skewOf({ ...link, pings: 0 })]).toEqual(['–', '–'])
  })
  it('has bytes', () => expect([bytes(0), bytes(950), bytes(12_400), bytes(3_100_000)]).toEqual(['0 B', '950 B', '12.4 kB', '3.1 MB']))
})

describe('troubles', () => {
  it('are none if all is well', () => expect(troublesOf(well)).toEqual([]))
  it.each<[string, Partial<Regions>]>([
    ['The central region us does not decide', { central: { region: 'us', up: false, reason: 'failures' } }],
    ['This region is cut off from us', { links: [{ ...link, up: false, cut: true }] }],
    ['Region us is cut off from another', { links: [{ ...link, alone: true }] }],
    ['This node is not connected to us', { links: [{ ...link, up: false }] }],
    ['The clocks of the stores here and in us differ by 2 s', { links: [{ ...link, skew_us: -2e6 }] }],
    ['The weights of quotas', { weights: 'stale' }],
    ['51 units beyond the limit search:hourly', { limits: [{ ...limit, beyond: 51 }] }],
  ])('%s', (text, with_) => {
    const got = troublesOf({ ...well, ...with_ })
    expect(got).toHaveLength(1)
    expect(got[0]).toContain(text)
  })
})

describe('a gossiped rule', () => {
  const rule: Rule = { name: 'search', regions: 'gossip', limits: [{ name: 'burst', limit: '5/1s' }, { name: 'hourly', limit: '500/1h' }] }
  it('has what was declared beside what was measured', () => {
    expect(gossipedOf(rule, [limit, { ...limit, limit: 'other:hourly' }])).toEqual([
      {
        name: 'hourly',
        beyond: false,
        facts: [
          { name: 'Declared', value: 'At most 50 units beyond the limit, by all regions together.' },
          { name: 'Most measured', value: '7 units beyond the limit' },
          { name: 'Admitted here', value: '90k, and 60k by other regions', title: '90,000 and 60,000' },
          { name: 'Denied for want of credit', value: '' },
          { name: 'Decided by share', value: '' },
        ],
      },
    ])
  })
  it('says that it is not measured', () => expect(gossipedOf(rule, [{ ...limit, beyond: 0, measured: false }])[0]?.facts[1]?.value).toBe('of windows only'))
  it('says that the bound was passed', () => expect(gossipedOf(rule, [{ ...limit, beyond: 51 }])[0]?.beyond).toBe(true))
  it('has nothing to show before anything was counted, or if it is not gossiped', () => {
    expect(gossipedOf(rule)).toEqual([])
    expect(gossipedOf({ ...rule, regions: 'quota' }, [limit])).toEqual([])
  })
})

describe('sharedOf', () => {
  const regions = { weights: 'fixed', items: [{ name: 'eu', weight: 40, self: true }, { name: 'us', weight: 60, self: false }], central: { region: 'us', up: false } } as Regions
  const rule: Rule = { name: 'search', limits: [{ name: 'burst', limit: '5/1s' }] }
  const said = (of: Rule, r: Regions) => sharedOf(of, r).map((f) => f.value).join(' ')

  it('says what holds, and what decides now', () => {
    expect(said({ ...rule, regions: 'central' }, regions)).toContain('Each region by itself: us cannot be reached.')
    expect(said({ ...rule, regions: 'central' }, { ...regions, central: { region: 'us', up: true } })).toContain('The region us.')
    expect(said({ ...rule, regions: 'central' }, { ...regions, central: undefined })).toContain('This region, which is the central one.')
    expect(said({ ...rule, regions: 'quota' }, regions)).toContain('40 %, by its weight')
    expect(said({ ...rule, regions: 'quota', weights: 'follow' }, { ...regions, weights: 'stale' })).toContain('the lowest part')
    expect(sharedOf({ ...rule, regions: 'gossip' }, regions)).toEqual([])
  })
})
