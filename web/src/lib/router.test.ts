import { afterEach, expect, it, vi } from 'vitest'
import { href, parse, router } from './router.svelte'

it.each([
  ['', 'Overview', {}],
  ['#/', 'Overview', {}],
  ['#/rules', 'Rules', {}],
  ['#/rules/', 'Rules', {}],
  ['#/rules/new', 'RuleEditor', {}],
  ['#/rules/edit/new', 'RuleEditor', { name: 'new' }],
  ['#/subjects/ip/192.0.2.0%2F24', 'Subject', { kind: 'ip', id: '192.0.2.0/24' }],
  ['#/subjects/user/100%', 'Subject', { kind: 'user', id: '100%' }],
  ['#/nowhere', '', {}],
])('%s is %s', (hash, page, params) => {
  expect(parse(hash)).toMatchObject({ page, params })
})

it('reads the query', () => {
  expect(parse('#/events?user=a%26b&rule=x?y').query.get('user')).toBe('a&b')
  expect(parse('#/events?user=a%26b&rule=x?y').query.get('rule')).toBe('x?y')
})

it('makes links that it reads back', () => {
  const to = href('/subjects', 'key', 'a/b?c#d', { tab: 'usage', empty: '', none: undefined })
  expect(to).toBe('#/subjects/key/a%2Fb%3Fc%23d?tab=usage')
  expect(parse(to).params.id).toBe('a/b?c#d')
})

let stop: (() => void) | undefined
afterEach(() => {
  stop?.()
  stop = undefined
})

async function goTo(hash: string) {
  const changed = new Promise((done) => window.addEventListener('hashchange', done, { once: true }))
  router.go(hash)
  await changed
}

it('stays where there is unsaved work', async () => {
  stop = router.start()
  await goTo('#/rules/new')
  const ask = vi.fn(() => false)
  const release = router.guard(ask)
  await goTo('#/rules')
  expect(ask).toHaveBeenCalledOnce()
  expect(router.route.page).toBe('RuleEditor')
  expect(location.hash).toBe('#/rules/new')
  release()
  await goTo('#/rules')
  expect(router.route.page).toBe('Rules')
})
