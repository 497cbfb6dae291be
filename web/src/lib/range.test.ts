import { expect, it } from 'vitest'
import { spanOf, widened } from './range'

const span = (query: string) => spanOf(new URLSearchParams(query), '5m')

it('reads what a page shows of time from its query', () => {
  expect(span('').name).toBe('5m')
  expect(span('range=24h').seconds).toBe(86400)
  expect(span('from=600&to=1200')).toMatchObject({ name: '', from: 600, to: 1200, seconds: 600 })
  for (const bad of ['from=600', 'from=600&to=540', 'from=600&to=660', 'from=x&to=y', 'from=-5&to=600', 'range=nonsense']) expect(span(bad).name).toBe('5m')
})

it('widens a part of time to whole minutes', () => {
  expect(widened(61, 359)).toEqual({ from: 60, to: 360 })
  expect(widened(61, 62)).toEqual({ from: 60, to: 180 })
})
