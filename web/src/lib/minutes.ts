// The record's minutes before a page began to watch, for a chart that has a point a second.

import type { Point as SeriesPoint, SeriesList, Snapshot } from './types'

/** What a chart draws of an instant. */
export type Sample = Pick<Snapshot, 'at' | 'requests_per_second' | 'shadow_refused_per_second' | 'outcomes_per_second' | 'latency_us'>

/** A point of a chart: null is a time of which nothing is known. */
export interface Point {
  at: number
  live: Sample | null
  /** It is of the record, which does not tell what only would have been refused. */
  recorded?: boolean
}

/** How long after its end a minute may not be added up yet, in milliseconds. */
export const settling = 30_000

/**
 * minutes returns the minutes of a series of outcomes that lie between two times, in
 * milliseconds. A minute has one rate, and is flat. What is not told yet, up to the second
 * time, is a gap: a line over it would tell of a rise that no one has seen. Latencies are
 * those of the whole: of outcomes apart, they cannot be added up.
 */
export function minutes(series: SeriesList | null | undefined, whole: SeriesPoint[], since: number, until: number): Point[] {
  const items = series?.items ?? []
  const told = Date.parse(series?.to ?? '') - settling
  const starts = (items.find((i) => i.points.length)?.points ?? []).map((p) => Date.parse(p.start)).filter((t) => t >= since - 60_000 && t < until - 1000 && t + 60_000 <= told)
  const out = starts.flatMap((start): Point[] => {
    const found = items.flatMap((i) => i.points.filter((p) => Date.parse(p.start) === start).map((p) => ({ name: i.name, p })))
    const all = whole.find((p) => Date.parse(p.start) === start)
    const live: Sample = {
      at: new Date(start).toISOString(),
      requests_per_second: found.reduce((n, f) => n + f.p.total, 0) / 60,
      shadow_refused_per_second: 0,
      outcomes_per_second: Object.fromEntries(found.map((f) => [f.name, f.p.total / 60])),
      latency_us: { p50: all?.p50_us ?? 0, p95: all?.p95_us ?? 0, p99: all?.p99_us ?? 0 },
    }
    return [
      { at: start, live, recorded: true },
      { at: Math.min(start + 59_000, until - 1000), live, recorded: true },
    ]
  })
  const end = out[out.length - 1]
  return end && end.at + 2000 < until ? [...out, { at: end.at + 1000, live: null }] : out
}
