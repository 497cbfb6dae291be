import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it, vi } from 'vitest'
import { server } from '../lib/server.svelte'
import type { Advice, Status } from '../lib/types'
import RuleAdvice from './RuleAdvice.svelte'

let shown: Record<string, unknown> | undefined
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = undefined
  server.status = undefined
  vi.unstubAllGlobals()
})

const advice = {
  rule: 'search', count_by: ['user'], from: '', to: '', one_in: 1000, verdict: 'never_binds', summary: 'The limits never bind.', requests: 400, unclear: 0, clients: 40,
  limits: [
    { name: 'hourly', limit: '1000/1h', p50: 4, p95: 7, p99: 11, max: 60, suggested: '60/1h' },
    { name: 'spaced', limit: '5/1s leaky_bucket', p50: -1, p95: -1, p99: -1, max: -1 },
  ],
  denies: { denied: 0, denied_clients: 0, top: [] },
  suggestion: { rule: { name: 'search', limits: [{ name: 'hourly', limit: '60/1h' }] }, toml: '[[rules]]\n', denied: 7, denied_clients: 1, top: [{ subject: 'user:scraper', requests: 100, would_refuse: 7 }] },
  notes: ['Fewer than 1000 clients were seen.'],
} as Advice

function show(record: boolean, onuse?: () => void) {
  const fetch = vi.fn((_: string) => Promise.resolve(new Response(JSON.stringify(advice), { headers: { 'Content-Type': 'application/json' } })))
  vi.stubGlobal('fetch', fetch)
  server.status = { record } as Status
  shown = mount(RuleAdvice, { target: document.body, props: { rule: 'search', onuse } })
  flushSync()
  return fetch
}
const button = (label: string) => [...document.querySelectorAll('button')].find((b) => b.textContent === label)

it('asks when it is told to, and shows what is used beside what is suggested', async () => {
  const used = vi.fn()
  const fetch = show(true, used)
  expect(fetch).not.toHaveBeenCalled()
  button('Ask for advice')!.click()
  await vi.waitFor(() => expect(document.querySelector('table')).not.toBeNull())
  expect(fetch.mock.calls[0]![0]).toMatch(/\/rules\/search\/advice\?from=.*&clients=1000$/)
  const text = document.body.textContent
  for (const want of ['Never binds', 'The limits never bind.', 'hourly: the most', '1000/1h', '60/1h', 'user:scraper', 'Fewer than 1000']) expect(text).toContain(want)
  button('Use these limits')!.click()
  expect(used).toHaveBeenCalledWith([{ name: 'hourly', limit: '60/1h' }])
})

it('has nothing to use for those who may not change rules', async () => {
  show(true)
  button('Ask for advice')!.click()
  await vi.waitFor(() => expect(document.body.textContent).toContain('Never binds'))
  expect(button('Use these limits')).toBeUndefined()
})

it('says that nothing is recorded', () => {
  expect(show(false)).not.toHaveBeenCalled()
  expect(button('Ask for advice')).toBeUndefined()
  expect(document.body.textContent).toContain('Decisions are not recorded.')
})
