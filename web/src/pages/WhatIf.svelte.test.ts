import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { router } from '../lib/router.svelte'
import { server } from '../lib/server.svelte'
import { keptRule } from '../lib/whatif'
import type { ReplayLine, ReplayReport, Status } from '../lib/types'
import WhatIf from './WhatIf.svelte'

let page: Record<string, unknown> | undefined
beforeEach(() => {
  sessionStorage.clear()
  server.status = { record: true } as Status
})
afterEach(async () => {
  if (page) await unmount(page)
  page = undefined
  server.status = undefined
  vi.unstubAllGlobals()
})

const row = { requests: 300, denied_live: 0, denied_candidate: 200, newly_denied: 200, newly_passed: 0 }
const report: ReplayReport = {
  summary: 'Of 600 requests, the live rules deny 0 (0 %), and the candidate 200 (33 %).', events: 600, requests: 600, denied_then: 0, differently: 0, unclear: 0, newly_denied: 200, newly_passed: 0,
  live: { denied: 0, throttled: 0, waited_seconds: 0, longest_wait_seconds: 0, denied_subjects: 0 }, candidate: { denied: 200, throttled: 3, waited_seconds: 6, longest_wait_seconds: 2.5, denied_subjects: 1 },
  rules: [{ name: 'search', ...row, denied_subjects: 1 }], endpoints: [{ name: '/search', ...row }], tiers: [{ name: '', ...row }], subjects: [{ name: 'user:dora', ...row }], series: [], step_seconds: 60, notes: ['Counters are empty at the start.'], same: false,
}

/** sent are the bodies of replays, and open the replay that is not at its end. */
let sent: { candidate: string; whole: boolean }[] = []
let open: ReadableStreamDefaultController<Uint8Array> | undefined
const line = (l: ReplayLine) => open!.enqueue(new TextEncoder().encode(JSON.stringify(l) + '\n'))

/** show opens a link to the page. A replay is answered with lines, or with a problem; without either, it stays open. */
async function show(query: string, lines?: ReplayLine[], problem?: object) {
  sent = []
  vi.stubGlobal(
    'fetch',
    vi.fn((to: string, how: RequestInit) => {
      const json = (v: unknown, status = 200) => Promise.resolve(new Response(JSON.stringify(v), { status, headers: { 'Content-Type': 'application/json' } }))
      if (to.startsWith('/admin/v1/export')) return Promise.resolve(new Response('[[rules]]\nname = "search"\n\n[[bans]]\nuser = "eve"\n'))
      if (to.startsWith('/admin/v1/rules/search')) return json({ id: 'search', value: { name: 'search', count_by: ['user'] } })
      if (to.startsWith('/admin/v1/rules')) return json({ items: [{ id: 'search', value: { name: 'search' } }], next: '' })
      sent.push(JSON.parse(how.body as string) as (typeof sent)[0])
      if (problem) return json(problem, 422)
      const body = new ReadableStream<Uint8Array>({ start: (c) => void (open = c) })
      how.signal?.addEventListener('abort', () => open!.error(new DOMException('left', 'AbortError')))
      if (lines) (lines.forEach(line), open!.close())
      return Promise.resolve(new Response(body))
    }),
  )
  router.route = { page: 'WhatIf', title: 'What if', params: {}, query: new URLSearchParams(query), section: '/what-if' }
  page = mount(WhatIf, { target: document.body })
  await vi.waitFor(() => (flushSync(), expect(server.status?.record === false || field()).toBeTruthy()))
}
const field = () => document.querySelector<HTMLTextAreaElement>('textarea')
const says = () => document.body.textContent ?? ''
const button = (name: string) => [...document.querySelectorAll('button')].find((b) => b.textContent?.trim() === name)
async function click(name: string) {
  button(name)!.click()
  await vi.waitFor(() => flushSync())
}
const until = (text: string) => vi.waitFor(() => (flushSync(), expect(says()).toContain(text)))
function type(text: string) {
  field()!.value = text
  field()!.dispatchEvent(new Event('input', { bubbles: true }))
  flushSync()
}

it('begins with the live rules, without what is not compared', async () => {
  await show('')
  expect(field()!.value).toBe('[[rules]]\nname = "search"\n')
  expect(says()).toContain('Live rules that are not in the text are left out.')
  expect(says()).toContain('What would other rules have decided?')
})

it('begins with the unsaved changes of a rule', async () => {
  sessionStorage.setItem(keptRule('search'), JSON.stringify({ text: '{"name":"search","priority":7}', at: 1, version: 1 }))
  await show('rule=search')
  expect(field()!.value).toBe('[[rules]]\nname = "search"\npriority = 7\n')
  expect(says()).toContain('with your unsaved changes')
  expect(says()).toContain('stay as they are')
})

it('shows what would be decided otherwise', async () => {
  await show('rule=search', [{ report }])
  type('[[rules]]\nname = "search"\npriority = 1\n')
  await click('Run')
  await until(report.summary)
  expect(sent).toEqual([{ candidate: '[[rules]]\nname = "search"\npriority = 1\n', whole: false }])
  for (const text of ['Newly denied', 'held by the candidate: 6 s in all, 2.5 s at most', 'Counters are empty at the start.', 'the editor of search', 'stint apply -f candidate.toml']) expect(says()).toContain(text)
  await click('Subjects')
  expect([...document.querySelectorAll('a')].find((a) => a.textContent === 'user:dora')?.getAttribute('href')).toBe('#/subjects/user/dora')
  await click('Tiers')
  expect(says()).toContain('no tier')
  type('x')
  expect(says()).toContain('an earlier candidate or time')
})

it('keeps what was edited, and starts over', async () => {
  await show('')
  type('[[rules]]\nname = "other"\n')
  await unmount(page!)
  page = undefined
  await show('')
  expect(field()!.value).toBe('[[rules]]\nname = "other"\n')
  await click('Start over')
  await vi.waitFor(() => (flushSync(), expect(field()?.value).toBe('[[rules]]\nname = "search"\n')))
})

it('leads to the place of a problem', async () => {
  await show('', undefined, { title: 'Unprocessable Entity', status: 422, detail: 'wrong', errors: [{ field: 'candidate.rules[0].name', message: 'too long', line: 2, column: 8 }, { field: 'rule "login"', message: 'can never count' }] })
  await click('Run')
  await until('Line 2, column 8')
  expect(says()).toContain('too long')
  expect(says()).toContain('rule "login": can never count')
  expect(field()!.getAttribute('aria-invalid')).toBe('true')
  expect(document.getElementById(field()!.getAttribute('aria-describedby')!.split(' ')[0]!)!.textContent).toContain('too long')
  expect([field()!.selectionStart, document.activeElement]).toEqual([17, field()])
})

it('says how far a slow replay is, and can be cancelled', async () => {
  await show('')
  await click('Run')
  await until('Looking at the record.')
  line({ progress: { step: 'reading', done: 20_000, of: 100_000 } })
  await until('Reading recorded events: 20,000, at most 100,000.')
  line({ progress: { step: 'replaying', done: 100, of: 48_210 } })
  await until('Replaying events: 100 of 48,210.')
  expect(document.querySelector('progress')!.value).toBe(100)
  await click('Cancel')
  expect(document.querySelector('progress')).toBeNull()
  expect(button('Run')!.disabled).toBe(false)
})

it.each<[string, ReplayLine[], string]>([
  ['no requests', [{ report: { ...report, requests: 0, summary: 'No requests were recorded in this time.' } }], 'Nothing to replay'],
  ['equal rules', [{ report: { ...report, same: true } }], 'The candidate is equal to the live rules'],
  ['too many events', [{ report: { ...report, recorded: 1_000_000 } }], 'There are 1,000,000 events in this time, of which 600 were replayed.'],
  ['no candidate', [{ report: { ...report, candidate: undefined, differently: 4 } }], 'Decided otherwise then'],
  ['a replay that fails midway', [{ progress: { step: 'replaying', done: 1, of: 2 } }, { problem: { type: 'about:blank', title: 'Service Unavailable', status: 503, detail: 'the replay took longer than 1m0s: choose a shorter time' } }], 'choose a shorter time'],
  ['a replay that breaks off', [{ progress: { step: 'replaying', done: 1, of: 2 } }], 'The connection was lost before the replay was at its end.'],
])('says so of %s', async (_, lines, want) => {
  await show('', lines)
  await click('Run')
  await until(want)
})

it('says that there is no record', async () => {
  server.status = { record: false } as Status
  await show('')
  expect(says()).toContain('There is no record')
  expect(field()).toBeNull()
})
