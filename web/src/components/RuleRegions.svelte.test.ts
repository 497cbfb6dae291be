import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it } from 'vitest'
import { server } from '../lib/server.svelte'
import type { Rule, Status } from '../lib/types'
import RuleRegions from './RuleRegions.svelte'

let shown: Record<string, unknown> | undefined
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = undefined
  server.status = undefined
})

const limits = [{ name: 'hourly', limit: '1000/1h' }]

it.each<[string, string | undefined, Rule, string]>([
  ['a rule of a region', 'eu-west', { name: 'a', limits }, 'It counts in each region by itself: what is used in others does not count in eu-west.'],
  ['a rule that regions share', 'eu-west', { name: 'a', limits, regions: 'gossip' }, ''],
  ['a rule that counts nothing', 'eu-west', { name: 'a', action: 'block' }, ''],
  ['a rule without regions', undefined, { name: 'a', limits }, ''],
])('%s', (_, region, rule, want) => {
  server.status = { region } as Status
  shown = mount(RuleRegions, { target: document.body, props: { rule } })
  flushSync()
  expect(document.body.textContent?.trim()).toBe(want)
})
