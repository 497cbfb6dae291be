import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it, vi } from 'vitest'
import { server } from '../lib/server.svelte'
import type { Regions, Rule, Status } from '../lib/types'
import RuleBounds from './RuleBounds.svelte'

let shown: Record<string, unknown> | undefined
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = undefined
  server.status = undefined
  vi.unstubAllGlobals()
})

const rule: Rule = { name: 'search', regions: 'gossip', limits: [{ name: 'hourly', limit: '1000/1h' }] }
const regions = { node: 'node-7', weights: 'fixed', items: [{ name: 'eu-west', weight: 40, self: true }, { name: 'us-east', weight: 60 }], limits: [{ limit: 'search:hourly', bound: 200, beyond: 201, measured: true, admitted: 1, received: 2, short: 3, shares: 0 }] } as Regions

/** show mounts it, and returns how often the server was asked. */
function show(of: Rule) {
  const fetch = vi.fn(() => Promise.resolve(new Response(JSON.stringify(regions), { headers: { 'Content-Type': 'application/json' } })))
  vi.stubGlobal('fetch', fetch)
  server.status = { region: 'eu-west' } as Status
  shown = mount(RuleBounds, { target: document.body, props: { rule: of } })
  flushSync()
  return fetch
}

it('shows what is declared beside what was measured', async () => {
  show(rule)
  await vi.waitFor(() => expect(document.querySelector('h3')).not.toBeNull())
  const text = document.body.textContent
  for (const want of ['node-7, since its start', 'beyond the bound', 'At most 200 units beyond the limit', '201 units beyond the limit']) expect(text).toContain(want)
})

it('shows the bound of a rule whose limits are divided', async () => {
  show({ ...rule, regions: 'quota' })
  await vi.waitFor(() => expect(document.body.textContent).toContain('Never beyond the limit'))
})

it('asks nothing for a rule that counts in its own region', () => {
  const { regions: _, ...alone } = rule
  expect(show(alone)).not.toHaveBeenCalled()
  expect(document.body.textContent?.trim()).toBe('')
})
