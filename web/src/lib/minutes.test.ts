import { expect, it } from 'vitest'
import { minutes } from './minutes'
import type { SeriesList } from './types'

const at = (text: string) => Date.parse(`2026-01-31T${text}Z`)
const point = (start: string, total: number, p99_us = 0) => ({ start: `2026-01-31T${start}Z`, total, events: total, cached: 0, p50_us: 0, p95_us: 0, p99_us })
const series: SeriesList = {
  from: '2026-01-31T12:00:00Z',
  to: '2026-01-31T12:03:40Z',
  step_seconds: 60,
  items: [
    { name: 'allowed', rest: false, whole: point('12:00:00', 0), points: [point('12:00:00', 60), point('12:01:00', 600, 20), point('12:02:00', 120, 10), point('12:03:00', 5)] },
    { name: 'denied', rest: false, whole: point('12:00:00', 0), points: [point('12:00:00', 0), point('12:01:00', 60, 30), point('12:02:00', 0), point('12:03:00', 0)] },
    { name: 'banned', rest: false, whole: point('12:00:00', 0), points: [] },
  ],
}
const whole = [point('12:01:00', 660, 22)]

it('draws a minute flat, and ends with a gap up to what is watched', () => {
  const drawn = minutes(series, whole, at('12:01:30'), at('12:03:20'))
  expect(drawn.map((p) => [new Date(p.at).toISOString().slice(11, 19), p.live?.requests_per_second ?? null])).toEqual([
    ['12:01:00', 11],
    ['12:01:59', 11],
    ['12:02:00', 2],
    ['12:02:59', 2],
    ['12:03:00', null],
  ])
  expect(drawn[0]!.live!.outcomes_per_second).toEqual({ allowed: 10, denied: 1 })
  expect(drawn[0]!.live!.latency_us.p99).toBe(22)
})

it('does not believe that a minute was empty which is not added up yet', () => {
  const drawn = minutes({ ...series, to: '2026-01-31T12:03:20Z' }, whole, at('12:01:30'), at('12:03:20'))
  expect(drawn.map((p) => p.live?.requests_per_second ?? null)).toEqual([11, 11, null])
})

it('ends where watching began, within a minute, too', () => {
  const drawn = minutes(series, whole, at('12:02:00'), at('12:02:40'))
  expect(drawn[drawn.length - 1]).toMatchObject({ at: at('12:02:39'), live: { requests_per_second: 2 } })
})

it('has no gap where there is none to have, and nothing of nothing', () => {
  expect(minutes(series, whole, at('12:02:00'), at('12:03:00')).every((p) => p.live)).toBe(true)
  expect(minutes(undefined, [], 0, at('12:03:00'))).toEqual([])
  expect(minutes({ ...series, items: [] }, whole, 0, at('12:03:00'))).toEqual([])
})
