import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import FindAnything from './FindAnything.svelte'

let shown: Record<string, unknown> | undefined
let asked: string[] = []

beforeEach(() => {
  vi.useFakeTimers()
  asked = []
  location.hash = ''
  vi.stubGlobal('fetch', async (url: string) => {
    asked.push(url)
    const body = url.includes('q=no')
      ? { groups: [] }
      : {
          groups: [
            { kind: 'user', items: [{ kind: 'user', id: 'alan', known: true }, { kind: 'user', id: 'al%', known: true }], more: true },
            { kind: 'seen', items: [{ kind: 'tenant', id: 'albany', known: false }], more: false },
          ],
        }
    return new Response(JSON.stringify(body))
  })
  shown = mount(FindAnything, { target: document.body })
  flushSync()
})
afterEach(async () => {
  if (shown) await unmount(shown)
  vi.unstubAllGlobals()
  vi.useRealTimers()
})

const field = () => document.querySelector<HTMLInputElement>('[data-find]')!
const press = (key: string) => {
  field().dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))
  flushSync()
}
async function type(text: string) {
  field().focus()
  field().value = text
  field().dispatchEvent(new Event('input', { bubbles: true }))
  await vi.advanceTimersByTimeAsync(200)
  flushSync()
}
const chosen = () => document.querySelector('[aria-selected="true"]')?.textContent?.replace(/\s+/g, ' ').trim()

it('asks once typing pauses, and chooses with arrows and Enter', async () => {
  await type('a')
  await type('al%')
  expect(asked.at(-1)).toBe('/admin/v1/search?q=al%25&limit=6')
  expect([...document.querySelectorAll('[role=group]')].map((g) => g.getAttribute('aria-label'))).toEqual(['Users', 'Seen in traffic, not in the catalog'])
  expect(chosen()).toBe('alan')
  press('ArrowDown')
  expect(chosen()).toBe('al%')
  expect(field().getAttribute('aria-activedescendant')).toBe(document.querySelector('[aria-selected="true"]')!.id)
  press('ArrowUp')
  press('ArrowUp')
  expect(chosen()).toBe('tenant albany')
  press('Enter')
  expect(location.hash).toBe('#/subjects/tenant/albany')
  expect(field().value).toBe('')
})

it('says that nothing was found, and clears with Escape', async () => {
  await type('no one')
  expect(document.querySelector('[role=status]')?.textContent).toContain('Nothing was found')
  press('Enter')
  expect(location.hash).toBe('')
  press('Escape')
  expect(field().value).toBe('')
})

it('shows someone who is in no list', async () => {
  await type('nobody')
  expect(chosen()).toBe('Show the user nobody')
  press('Enter')
  expect(location.hash).toBe('#/subjects/user/nobody')
})

it('explains a decision whose id is pasted, without a search', async () => {
  await type('decision ID 0199A3C4-7b1e-7c55-9a41-3f2b7a6c1d00')
  expect(asked).toEqual([])
  expect(chosen()).toBe('Explain the decision 0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00')
  press('Enter')
  expect(location.hash).toBe('#/events/0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00')
})
