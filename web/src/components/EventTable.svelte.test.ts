import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it } from 'vitest'
import type { Event, Settlement } from '../lib/types'
import EventTable from './EventTable.svelte'

let table: Record<string, unknown> | undefined
afterEach(async () => {
  if (table) await unmount(table)
  table = undefined
})

const event = {
  decision_id: '0199a3c4', time: '2026-01-31T12:00:00Z', outcome: 'allowed', method: 'POST', endpoint: '/chat', rule: 'tokens', limit_name: 'hour', tier: '',
  user_id: 'alice', tenant_id: '', key_id: '', ip: '', cost: 1000, count: 1, limit_value: 2, status: 0, retry_after_us: 0, waited_us: 0, latency_us: 1, weight: 1,
} as Event
const one: Settlement = { rule: 'tokens', meter: 'llm.total_tokens', shadow: false, at: '2026-01-31T12:00:04Z', reserved: 1000, used: 730, given_back: 270, overshoot: 0, model: 'gpt-5', estimated: false, cancelled: false }

/** settled returns what the dialog of an event says of its reservation, by heading. */
function settled(all?: Settlement[]): Record<string, Record<string, string>> {
  table = mount(EventTable, { target: document.body, props: { label: 'Events', rows: [{ ...event, settled: all }] } })
  flushSync()
  document.querySelector<HTMLButtonElement>('button[aria-label^="Details"]')!.click()
  flushSync()
  const texts = (in_: Element, what: string) => [...in_.querySelectorAll(what)].map((e) => e.textContent?.trim() ?? '')
  return Object.fromEntries(
    [...document.querySelectorAll('dialog section')].map((s) => {
      const values = texts(s, 'dd')
      const { When: _, ...facts } = Object.fromEntries(texts(s, 'dt').map((name, i) => [name, values[i]]))
      return [texts(s, 'h3')[0], facts]
    }),
  )
}

it('shows what became of a reservation, by rule', () => {
  expect(
    settled([
      one,
      { ...one, rule: 'month', used: 1500, given_back: 0, overshoot: 500, estimated: true },
      { ...one, rule: 'trial', meter: '', model: '', shadow: true, used: 0, given_back: 1000, cancelled: true },
    ]),
  ).toEqual({
    'Settled by tokens': { Meter: 'llm.total_tokens', Model: 'gpt-5', Reserved: '1,000', Used: '730', 'Given back': '270' },
    'Settled by month': { Meter: 'llm.total_tokens', Model: 'gpt-5', Reserved: '1,000', Used: '1,500, estimated', Overshoot: '500' },
    'Settled by trial (log_only)': { Reserved: '1,000', Used: 'nothing: it was cancelled', 'Given back': '1,000' },
  })
})

it('shows nothing of a reservation that is not settled', () => {
  expect(settled()).toEqual({})
})

/** tried returns the link that tries the request of an event again. */
function tried(e: Partial<Event>): URLSearchParams {
  table = mount(EventTable, { target: document.body, props: { label: 'Events', rows: [{ ...event, ...e }] } })
  flushSync()
  document.querySelector<HTMLButtonElement>('button[aria-label^="Details"]')!.click()
  flushSync()
  const link = [...document.querySelectorAll('dialog a')].find((a) => a.textContent?.startsWith('Try '))
  return new URLSearchParams(link?.getAttribute('href')?.split('?')[1])
}

it('tries the request that was made, not the pattern of the rule', () => {
  const q = tried({ method: 'PUT', path: '/v1/chats/a b', endpoint: '/v1/**' })
  expect([q.get('method'), q.get('path'), q.get('user')]).toEqual(['PUT', '/v1/chats/a b', 'alice'])
})

it('tries no pattern in place of a path that is not recorded', () => {
  const q = tried({ path: '', endpoint: '/v1/**' })
  expect([q.get('path'), q.get('pattern')]).toEqual([null, '/v1/**'])
})

it('tries it with the key that it had', () => {
  expect(tried({ path: '/chat', key_id: 'k3jq8w2n' }).get('api_key')).toBe('k3jq8w2n')
})

it('tries it from its address, at its cost', () => {
  const q = tried({ path: '/chat', ip: '192.0.2.1', cost: 1000 })
  expect([q.get('ip'), q.get('recorded_ip'), q.get('cost'), q.get('recorded')]).toEqual(['192.0.2.1', null, '1000', 'true'])
})

it('tries it at no cost of its own if it cost 1', () => {
  expect(tried({ path: '/chat', cost: 1 }).get('cost')).toBe(null)
})

it.each(['192.0.2.0/24', '2001:db8::/48', '0123456789abcdef0123456789abcdef'])('tries it from no address if only %s was recorded', (ip) => {
  const q = tried({ path: '/chat', ip })
  expect([q.get('ip'), q.get('recorded_ip')]).toEqual([null, ip])
})

it.each([
  ['192.0.2.1', '#/subjects/ip/192.0.2.1'],
  ['192.0.2.0/24', '#/subjects/ip/192.0.2.0%2F24'],
  ['0123456789abcdef0123456789abcdef', '#/events?ip=0123456789abcdef0123456789abcdef'],
])('leads from %s to what there is of it', (ip, to) => {
  tried({ user_id: '', ip })
  const links = [...document.querySelectorAll('a')].filter((a) => a.textContent === ip)
  expect(links.map((a) => a.getAttribute('href'))).toEqual([to, to]) // in the table and in the dialog
})

it('tries a pattern that is a path', () => {
  expect(tried({ path: '', endpoint: '/chat' }).get('path')).toBe('/chat')
})
