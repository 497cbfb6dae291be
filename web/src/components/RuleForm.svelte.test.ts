import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it } from 'vitest'
import { fromRule, toRule, type Draft } from '../lib/ruleform'
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
    { field: 'penalty.within', message: 'too long' },
    { field: 'priority', message: 'want a whole number' },
  ])
  expect(control('Limit 2').getAttribute('aria-invalid')).toBe('true')
  expect(says('Limit 2')).toContain('want MAX/WINDOW; such as 10/1m')
  expect(control('Limit 1').hasAttribute('aria-invalid')).toBe(false)
  expect(says('Paths')).toContain('line 2: want a slash first')
  expect(says('A denial counts for')).toContain('too long')
  expect(says('Priority')).toContain('want a whole number')
})

it('finds the row of a limit also if one before it is still empty', () => {
  show({ ...rule, limits: [{ name: 'b', limit: 'ten' }] }, [{ field: 'limits[0].limit', message: 'want MAX/WINDOW' }], (d) =>
    d.limits.unshift({ name: '', limit: '', algorithm: '', burst: '' }),
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
