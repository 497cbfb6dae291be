import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it } from 'vitest'
import { emptyLimit, fromRule, toRule, type Draft } from '../lib/ruleform'
import type { FieldProblem, Rule } from '../lib/types'
import RuleForm from './RuleForm.svelte'

let form: Record<string, unknown> | undefined
afterEach(async () => {
  if (form) await unmount(form)
  form = undefined
})

function show(rule: Rule, problems: FieldProblem[] = [], change: (d: Draft) => void = () => {}) {
  const draft = $state(fromRule(rule))
  change(draft)
  form = mount(RuleForm, { target: document.body, props: { draft, problems } })
  flushSync()
}

/** control returns what a label is for. */
function control(label: string): HTMLInputElement {
  const found = [...document.querySelectorAll('label')].find((l) => l.textContent?.trim() === label)
  const it = found && (document.getElementById(found.htmlFor) ?? found.querySelector('input'))
  if (!it) throw new Error(`there is no control ${label}`)
  return it as HTMLInputElement
}

const says = (label: string) => {
  const ids = control(label).getAttribute('aria-describedby')?.split(' ') ?? []
  return ids.map((id) => document.getElementById(id)?.textContent).join(' ')
}

const rule: Rule = {
  name: 'search',
  match: { paths: ['/a', 'b'], headers: { 'X-Beta': '*' } },
  limits: [
    { name: 'hourly', limit: '100/1h' },
    { name: 'burst', limit: 'ten' },
  ],
  penalty: { threshold: 3, within: '1h', cooldown: '1m' },
}

it('shows problems at their fields', () => {
  show(rule, [
    { field: 'match.paths[1]', message: 'want a slash first' },
    { field: 'limits[1].limit', message: 'want MAX/WINDOW', hint: 'such as 10/1m' },
    { field: 'limits[0].lease', message: 'want from 10ms to 10s' },
    { field: 'limits[1].split', message: 'want from 2 to 64' },
    { field: 'penalty.within', message: 'too long' },
    { field: 'priority', message: 'want a whole number' },
  ])
  expect(control('Limit 2').getAttribute('aria-invalid')).toBe('true')
  expect(says('Limit 2')).toContain('want MAX/WINDOW; such as 10/1m')
  expect(control('Limit 1').hasAttribute('aria-invalid')).toBe(false)
  expect(says('Lease 1')).toContain('want from 10ms to 10s')
  expect(says('Split 2')).toContain('want from 2 to 64')
  expect(control('Split 1').hasAttribute('aria-invalid')).toBe(false)
  expect(says('Paths')).toContain('line 2: want a slash first')
  expect(says('A denial counts for')).toContain('too long')
  expect(says('Priority')).toContain('want a whole number')
})

it('shows and edits the lease and the split of a limit', () => {
  let draft: Draft | undefined
  show({ name: 'a', limits: [{ name: 'b', limit: '100/1m', lease: '100ms', split: 8 }] }, [], (d) => (draft = d))
  expect([control('Lease 1').value, control('Split 1').value]).toEqual(['100ms', '8'])
  for (const [label, value] of [['Lease 1', '1s'], ['Split 1', '4']] as const) {
    control(label).value = value
    control(label).dispatchEvent(new Event('input', { bubbles: true }))
  }
  flushSync()
  expect(toRule(draft!).limits).toEqual([{ name: 'b', limit: '100/1m', lease: '1s', split: 4 }])
})

it('shows and edits how regions share the counters', () => {
  let draft: Draft | undefined
  show({ name: 'a', limits: [{ name: 'b', limit: '100/1m' }], regions: 'gossip', credit: 5, on_credit: 'deny' }, [{ field: 'credit', message: 'want at most 4' }], (d) => (draft = d))
  expect([control('Regions').value, control('Credit').value, control('Without credit').value]).toEqual(['gossip', '5', 'deny'])
  expect(says('Credit')).toContain('want at most 4')
  expect(() => control('Weights')).toThrow()
  control('Credit').value = ''
  control('Credit').dispatchEvent(new Event('input', { bubbles: true }))
  Object.assign(draft!, { regions: 'quota', on_credit: 'share', weights: 'follow' })
  flushSync()
  expect(() => control('Credit')).toThrow()
  expect([control('Regions').value, control('Weights').value]).toEqual(['quota', 'follow'])
  expect(toRule(draft!)).toEqual({ name: 'a', limits: [{ name: 'b', limit: '100/1m' }], regions: 'quota', weights: 'follow' })
})

it('finds the row of a limit also if one before it is still empty', () => {
  show({ ...rule, limits: [{ name: 'b', limit: 'ten' }] }, [{ field: 'limits[0].limit', message: 'want MAX/WINDOW' }], (d) =>
    d.limits.unshift(emptyLimit()),
  )
  expect(control('Limit 1').hasAttribute('aria-invalid')).toBe(false)
  expect(control('Limit 2').getAttribute('aria-invalid')).toBe('true')
})

it('hides what an action does not have', () => {
  show({ name: 'a', action: 'block' })
  expect(() => control('Cost')).toThrow()
  expect(() => control('Shadow')).toThrow()
  expect(toRule(fromRule({ name: 'a', action: 'block' }))).toEqual({ name: 'a', action: 'block' })
})

it('shows what is wrong with a header to count by at its line, and not at the boxes', () => {
  show({ ...rule, count_by: ['user', 'header:bad name', 'ip', 'claim:'] }, [
    { field: 'count_by[3]', message: 'want a name' },
    { field: 'count_by', message: 'too many' },
  ])
  expect(says('Headers and claims to count by')).toContain('line 2: want a name')
  expect(says('Headers and claims to count by')).not.toContain('too many')
  const boxes = [...document.querySelectorAll('legend')].find((l) => l.textContent === 'Count by')!.closest('div')!
  expect(boxes.textContent).toContain('too many')
  expect(boxes.textContent).not.toContain('want a name')
})
