import { expect, it } from 'vitest'
import { noteOf, pageOf } from './found'
import type { FoundItem } from './types'

const item = (kind: FoundItem['kind'], id: string, more: Partial<FoundItem> = {}): FoundItem => ({ kind, id, known: true, ...more })

it('links to the page of what was found', () => {
  expect(pageOf(item('user', 'a/b?'))).toBe('#/subjects/user/a%2Fb%3F')
  expect(pageOf(item('key', 'k3jq8w2n'))).toBe('#/subjects/key/k3jq8w2n')
  expect(pageOf(item('ip', '192.0.2.0/24'))).toBe('#/subjects/ip/192.0.2.0%2F24')
  expect(pageOf(item('rule', 'search'))).toBe('#/rules/edit/search')
  expect(pageOf(item('tier', 'pro'))).toBe('#/tiers?q=pro')
  expect(pageOf(item('ban', 'ip:2001:db8::1'))).toBe('#/subjects/ip/2001%3Adb8%3A%3A1')
})

it('says what the id does not', () => {
  expect(noteOf(item('key', 'k3jq8w2n', { name: 'mobile app', prefix: 'stint_k3jq', user: 'alice' }))).toBe('mobile app · stint_k3jq… · alice')
  expect(noteOf(item('user', 'alma', { known: false, last_seen_at: '2026-03-04T11:00:00Z' }))).toBe('seen 2026-03-04')
})
