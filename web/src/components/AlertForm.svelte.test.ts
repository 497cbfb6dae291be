import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it, vi } from 'vitest'
import { Draft } from '../lib/draft.svelte'
import type { Rec } from '../lib/shapes'
import type { Alert, FieldProblem, Webhook } from '../lib/types'
import AlertForm, { alertDraft, alertOf, saveAlert } from './AlertForm.svelte'
import { saveWebhook, webhookDraft } from './WebhookForm.svelte'

let form: Record<string, unknown> | undefined
afterEach(async () => {
  if (form) await unmount(form)
  form = undefined
  vi.unstubAllGlobals()
})

/** answers has the server answer, and returns what it was sent. */
function answers(status: number, body: unknown) {
  const sent: unknown[] = []
  vi.stubGlobal(
    'fetch',
    vi.fn((_: string, init: RequestInit) => {
      sent.push(JSON.parse(init.body as string))
      return Promise.resolve(new Response(JSON.stringify(body), { status, headers: { 'Content-Type': status < 400 ? 'application/json' : 'application/problem+json' } }))
    }),
  )
  return sent
}

const recorded = <T,>(id: string, value: T) => ({ id, version: 1, value }) as Rec<T>

it('shows at the conditions that there are none', async () => {
  const errors: FieldProblem[] = [{ field: 'when', message: 'is empty' }]
  const sent = answers(422, { title: 'Unprocessable Entity', status: 422, detail: 'when: is empty', errors })
  const draft = new Draft(() => alertDraft())
  draft.begin()
  Object.assign(draft.value, { name: 'none', kind: 'health', when: [] })
  form = mount(AlertForm, { target: document.body, props: { draft, webhooks: [], rules: [], onsaved: () => {} } })
  flushSync()
  document.querySelector('form')!.dispatchEvent(new SubmitEvent('submit', { cancelable: true, bubbles: true }))
  await vi.waitFor(() => expect(draft.errors).toEqual(errors))
  flushSync()
  expect(sent).toEqual([{ name: 'none', kind: 'health', when: [] }])
  const fields = [...document.querySelectorAll('fieldset')].find((f) => f.querySelector('legend')?.textContent === 'Conditions')!
  expect(document.getElementById(fields.getAttribute('aria-describedby')!)?.textContent).toBe('is empty')
  expect(fields.querySelector('input')!.getAttribute('aria-invalid')).toBe('true')
  expect(document.body.textContent).toContain('Correct the marked fields')
})

it('changes how often it is told again, and which minutes count', async () => {
  const sent = answers(200, {})
  const was: Alert = { name: 'search', kind: 'rule', percent: 20, repeat: '1h', min_requests: 50 }
  const d = alertDraft(recorded('search', was))
  expect([d.repeat, d.minRequests, alertOf(d)]).toEqual(['1h', '50', was])
  await saveAlert(Object.assign(d, { repeat: '30m', minRequests: '' }), 1)
  await saveAlert(Object.assign(d, { minRequests: 'many' }), 1)
  await saveAlert(Object.assign(d, { kind: 'client' }), 1)
  expect(sent).toEqual([
    { repeat: '30m', min_requests: null },
    { repeat: '30m', min_requests: 'many' },
    { kind: 'client', repeat: '30m', percent: null, min_requests: null, by: 'user', denials: 1000 },
  ])
})

it('changes how long a webhook is tried', async () => {
  const sent = answers(200, {})
  const d = webhookDraft(recorded<Webhook>('ops', { name: 'ops', url: 'https://example.com', retry_for: '2h' }))
  expect(d.retryFor).toBe('2h')
  await saveWebhook(Object.assign(d, { retryFor: '10m' }), 1)
  await saveWebhook(Object.assign(d, { retryFor: ' ' }), 1)
  expect(sent).toMatchObject([{ retry_for: '10m' }, { retry_for: null }])
})
