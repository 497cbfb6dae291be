import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it, vi } from 'vitest'
import { router } from '../lib/router.svelte'
import TryIt from './TryIt.svelte'

let page: Record<string, unknown> | undefined
afterEach(async () => {
  if (page) await unmount(page)
  page = undefined
  vi.unstubAllGlobals()
})

/** says returns what the page says of a link to it. */
function says(query: string) {
  vi.stubGlobal('fetch', vi.fn(() => Promise.resolve(new Response('{"title": "away", "status": 503}', { status: 503, headers: { 'Content-Type': 'application/problem+json' } }))))
  router.route = { page: 'TryIt', title: 'Try it', params: {}, query: new URLSearchParams(query), section: '/try' }
  page = mount(TryIt, { target: document.body })
  flushSync()
  return document.body.textContent
}

it('says that tier and cost are those that were recorded', () => {
  expect(says('path=/a&tier=pro&cost=5&recorded=true')).toContain('The tier and cost are those of the recorded request.')
})

it('says it of the tier alone', () => {
  expect(says('path=/a&tier=pro&recorded=true')).toContain('The tier is that of the recorded request. Clear it')
})

it('says nothing of what was typed', () => {
  expect(says('path=/a&tier=pro&cost=5')).not.toContain('recorded request')
})

it.each([
  ['192.0.2.0/24', 'Only the network was recorded: 192.0.2.0/24.'],
  ['0123456789abcdef0123456789abcdef', 'Only a hash of it was recorded: 0123456789abcdef0123456789abcdef.'],
])('says why there is no address for %s', (ip, want) => {
  expect(says(`path=/a&recorded_ip=${encodeURIComponent(ip)}`)).toContain(want)
})
