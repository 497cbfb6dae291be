// Ranges of time that charts show, and how coarse their points are.

export interface Range {
  name: string
  label: string
  seconds: number
  /** Of a point, in seconds: a step that the record can answer. */
  step: number
}

export const ranges: Range[] = [
  { name: '5m', label: '5 minutes', seconds: 300, step: 1 },
  { name: '15m', label: '15 minutes', seconds: 900, step: 1 },
  { name: '1h', label: '1 hour', seconds: 3600, step: 60 },
  { name: '6h', label: '6 hours', seconds: 6 * 3600, step: 300 },
  { name: '24h', label: '24 hours', seconds: 86400, step: 900 },
  { name: '7d', label: '7 days', seconds: 7 * 86400, step: 3600 },
  { name: '30d', label: '30 days', seconds: 30 * 86400, step: 6 * 3600 },
  { name: '90d', label: '90 days', seconds: 90 * 86400, step: 86400 },
]

/** A range that ends now, or one between two times, in seconds since 1970. */
export interface Span extends Range {
  from?: number
  to?: number
}

/** The shortest range between two times: the record adds up minutes. */
export const shortest = 120

/** spanOf reads what a page shows of time from its query: from and to, or the name of a range. */
export function spanOf(query: URLSearchParams, fallback = '1h'): Span {
  const [from, to] = [Number(query.get('from')), Number(query.get('to'))]
  if (!(from > 0) || !(to - from >= shortest)) return rangeOf(query.get('range'), fallback)
  return { name: '', label: 'chosen time', seconds: to - from, step: 0, from, to }
}

/** widened returns a part of time as whole minutes, at least the shortest range. */
export function widened(from: number, to: number): { from: number; to: number } {
  const start = Math.floor(from / 60) * 60
  return { from: start, to: Math.max(Math.ceil(to / 60) * 60, start + shortest) }
}

export function rangeOf(name: string | null | undefined, fallback = '1h'): Range {
  return ranges.find((r) => r.name === name) ?? ranges.find((r) => r.name === fallback)!
}
