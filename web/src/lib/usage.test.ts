import { describe, expect, it } from 'vitest'
import { rangeOf } from './range'
import type { Consumption } from './types'
import { periodOf, usageKindOf, usageOver } from './usage'

const row = (period: string, used: number) => ({ period, used, reserved: 2 * used, overshoot: 1 }) as Consumption

describe('usage', () => {
  it('has a point for every period', () => {
    const [from, to] = [Date.parse('2026-10-31T10:20:00Z') / 1000, Date.parse('2026-10-31T12:20:00Z') / 1000]
    const over = usageOver([row('2026-10-31T12:00Z', 7), row('2026-10-31T10:00Z', 3)], from, to, 3600)
    expect(over.times.map((t) => new Date(t * 1000).toISOString().slice(11, 16))).toEqual(['10:00', '11:00', '12:00'])
    expect([over.used, over.reserved, over.overshoot]).toEqual([
      [3, 0, 7],
      [6, 0, 14],
      [1, 0, 1],
    ])
  })
  it('has days for long ranges', () => {
    const from = Date.parse('2026-10-30T10:20:00Z') / 1000
    expect(usageOver([row('2026-10-31', 7)], from, from + 2 * 86400, 86400).used).toEqual([0, 7, 0])
    expect([periodOf(rangeOf('7d')).by, periodOf(rangeOf('30d')).by]).toEqual(['hour', 'day'])
  })
  it('is by tenant, unless it is asked for something else', () => expect([usageKindOf('model').label, usageKindOf('x').label, usageKindOf(null).label]).toEqual(['Model', 'Tenant', 'Tenant']))
})
