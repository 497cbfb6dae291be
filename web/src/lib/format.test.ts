import { describe, expect, it } from 'vitest'
import { after, count, down, exact, micros, percent, plural, rate, seconds, when } from './format'

describe('numbers', () => {
  it.each([
    [0, '0'],
    [0.25, '0.3'],
    [12.6, '13'],
    [999.7, '1k'],
    [950, '950'],
    [1000, '1k'],
    [12_431, '12.4k'],
    [99_960, '100k'],
    [999_960, '1M'],
    [3_140_000, '3.1M'],
    [2e9, '2G'],
    [-5300, '\u22125.3k'],
    [NaN, '–'],
    [null, '–'],
  ])('count %s is %s', (n, want) => expect(count(n)).toBe(want))

  it('exact, rates, shares', () => {
    expect(exact(1_234_567)).toBe('1,234,567')
    expect(count(down(499_937))).toBe('499k')
    expect(count(down(19_486))).toBe('19.4k')
    expect(count(down(500_000))).toBe('500k')
    expect(down(0)).toBe(0)
    expect(rate(12_431)).toBe('12.4k/s')
    expect(rate(0.01)).toBe('<0.1/s')
    expect(percent(1, 3)).toBe('33 %')
    expect(percent(1, 10_000)).toBe('<0.1 %')
    expect(percent(9999, 10_000)).toBe('99.9 %')
    expect(percent(0, 0)).toBe('–')
    expect(plural(1, 'rule')).toBe('1 rule')
    expect(plural(12_000, 'match', 'matches')).toBe('12,000 matches')
  })
})

describe('times', () => {
  it.each([
    [850, '850 µs'],
    [3000, '3 ms'],
    [3400, '3.4 ms'],
    [999.7, '1 ms'],
    [10_000, '10 ms'],
    [20_000, '20 ms'],
    [41_200, '41 ms'],
    [100_000, '100 ms'],
    [999_700, '1 s'],
    [1_200_000, '1.2 s'],
  ])('%s µs is %s', (us, want) => expect(micros(us)).toBe(want))

  it.each([
    [0.04, '40 ms'],
    [0.9997, '1 s'],
    [1.5, '1.5 s'],
    [10, '10 s'],
    [59, '59 s'],
    [100, '100 s'],
    [240, '4 min'],
    [100 * 60, '100 min'],
    [3 * 3600, '3 h'],
    [2 * 86400, '2 days'],
    [1000 * 86400, '3 years'],
  ])('%s s is %s', (s, want) => expect(seconds(s)).toBe(want))

  it('says when', () => {
    const now = Date.parse('2026-01-31T12:00:00Z')
    expect(when('2026-01-31T11:56:00Z', now)).toBe('4 min ago')
    expect(when('2026-02-02T12:00:00Z', now)).toBe('in 2 days')
    expect(when('2026-01-31T12:00:01Z', now)).toBe('just now')
    expect(when('0001-01-01T00:00:00Z', now)).toBe('never')
    expect(when('', now)).toBe('never')
    expect(after(240)).toBe('in 4 min')
    expect(after(15.2 * 86400)).toBe('in 16 days')
    expect(after(1.01)).toBe('in 1.1 s')
    expect(after(0)).toBe('now')
    expect(after(null)).toBe('never')
  })
})
