// What requests have used, over time.

import type { Range } from './range'
import type { Consumption } from './types'

/** What usage can be shown by. */
export const usageKinds = [
  { value: 'tenant', label: 'Tenant', none: 'no tenant' },
  { value: 'user', label: 'User', none: 'no user' },
  { value: 'key', label: 'API key', none: 'no key' },
  { value: 'model', label: 'Model', none: 'no model' },
  { value: 'rule', label: 'Rule', none: 'no rule' },
] as const
export type UsageKind = (typeof usageKinds)[number]['value']

export function usageKindOf(name: string | null | undefined) {
  return usageKinds.find((k) => k.value === name) ?? usageKinds[0]
}

/** periodOf is what points of a range are: hours, which are kept for 90 days, or days. */
export function periodOf(range: Range): { by: 'hour' | 'day'; seconds: number } {
  return range.seconds <= 7 * 86400 ? { by: 'hour', seconds: 3600 } : { by: 'day', seconds: 86400 }
}

/** usageOver has a point for every period from one time to another, in seconds, also if nothing was used in it. */
export function usageOver(rows: Consumption[], from: number, to: number, step: number) {
  const known = new Map(rows.map((r) => [Date.parse(r.period) / 1000, r]))
  const times: number[] = []
  for (let t = Math.floor(from / step) * step; t < to; t += step) times.push(t)
  const of = (value: (r: Consumption) => number) => times.map((t) => (known.has(t) ? value(known.get(t)!) : 0))
  return { times, used: of((r) => r.used), reserved: of((r) => r.reserved), overshoot: of((r) => r.overshoot) }
}
