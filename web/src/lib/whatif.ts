// What would other rules have decided: the candidate as text, and where it comes from.

import { href } from './router.svelte'
import { subjectPage } from './subjects'
import type { FieldProblem } from './types'

/** keptRule is under which name the unsaved changes of a rule are kept in this tab; without a name, a new rule. */
export const keptRule = (name?: string) => `stint.rule:${name ?? ''}`

const keptCandidate = 'stint.what-if'

/** A candidate that was edited. */
export interface Candidate {
  /** Where it comes from: a rule, new, or all rules. */
  source: string
  text: string
  whole: boolean
}

/** forgetCandidate has the page begin anew. */
export function forgetCandidate() {
  try {
    sessionStorage.removeItem(keptCandidate)
  } catch {
    // Storage is turned off.
  }
}

export function keepCandidate(c: Candidate) {
  try {
    sessionStorage.setItem(keptCandidate, JSON.stringify(c))
  } catch {
    // It is kept in the page alone.
  }
}

/** editedCandidate returns what was edited of a source in this tab. */
export function editedCandidate(source: string): Candidate | undefined {
  const found = stored<Candidate>(keptCandidate)
  return found?.source === source ? found : undefined
}

/** unsaved returns the unsaved changes of a rule, if there are some that can be read. */
export function unsaved(name?: string): unknown {
  const found = stored<{ text: string }>(keptRule(name))
  try {
    return found ? JSON.parse(found.text) : undefined
  } catch {
    return undefined // it is half typed
  }
}

function stored<T>(name: string): T | undefined {
  try {
    return (JSON.parse(sessionStorage.getItem(name) ?? 'null') as T | null) ?? undefined
  } catch {
    return undefined
  }
}

/** toml writes a rule in the form in which the server exports it. */
export function toml(rule: unknown): string {
  const lines = Object.entries(rule as object).flatMap(([name, v]) => {
    if (v === undefined || v === null) return []
    const long = Array.isArray(v) && v.length > 1 && (v.every((x) => typeof x === 'object') || inline(v).length > 100)
    return [`${key(name)} = ${long ? '[\n' + v.map((x) => `  ${inline(x)},\n`).join('') + ']' : inline(v)}`]
  })
  return ['[[rules]]', ...lines].join('\n') + '\n'
}

const key = (name: string) => (/^[\w-]+$/.test(name) ? name : inline(name))

function inline(v: unknown): string {
  if (Array.isArray(v)) return `[${v.map(inline).join(', ')}]`
  if (v && typeof v === 'object') {
    const members = Object.entries(v).filter(([, x]) => x !== undefined && x !== null)
    return members.length ? `{ ${members.map(([name, x]) => `${key(name)} = ${inline(x)}`).join(', ')} }` : '{}'
  }
  // Strings of JSON are strings of TOML, but for one character.
  return JSON.stringify(v).replaceAll('\x7f', '\\u007f')
}

/** onlyRules returns the rules and tiers of an export, which is what is compared. */
export function onlyRules(exported: string): string {
  const parts = exported.split(/^(?=\[)/m).filter((part) => /^\[\[(rules|tiers)\]\]/.test(part))
  return parts.length ? parts.join('').trimEnd() + '\n' : ''
}

/** placed returns the problems of the candidate, with paths in its text, and the others. */
export function placed(errors: FieldProblem[]): { own: FieldProblem[]; others: FieldProblem[] } {
  const own = errors.filter((p) => p.line && /^candidate(\.|$)/.test(p.field ?? ''))
  return { own: own.map((p) => ({ ...p, field: p.field?.replace(/^candidate\.?/, '') })), others: errors.filter((p) => !own.includes(p)) }
}

/** offsetOf returns where a line and a column of characters are in a text, both from 1. */
export function offsetOf(text: string, line: number, column: number): number {
  const lines = text.split('\n')
  const before = lines.slice(0, line - 1).reduce((sum, l) => sum + l.length + 1, 0)
  return Math.min(text.length, before + [...(lines[line - 1] ?? '')].slice(0, column - 1).join('').length)
}

export type Kind = 'rules' | 'endpoints' | 'tiers' | 'subjects'

export const kinds: { id: Kind; label: string; one: string; none: string }[] = [
  { id: 'rules', label: 'Rules', one: 'Rule', none: 'No rule applied to any request.' },
  { id: 'endpoints', label: 'Endpoints', one: 'Endpoint', none: 'No endpoints are recorded.' },
  { id: 'tiers', label: 'Tiers', one: 'Tier', none: 'No tiers are recorded.' },
  { id: 'subjects', label: 'Subjects', one: 'Subject', none: 'No subjects are recorded.' },
]

/** pageOf returns where a row of a table leads, if anywhere. */
export function pageOf(kind: Kind, name: string, during: { from?: string; to?: string; range?: string }): string | undefined {
  if (!name) return undefined
  switch (kind) {
    case 'rules':
      return href('/rules/edit', name)
    case 'tiers':
      return href('/tiers', { q: name })
    case 'endpoints':
      // Up to the first part that is not told.
      return href('/events', { path: name.split('{')[0]!.replace(/\*\*$/, ''), ...during })
    case 'subjects': {
      const at = name.indexOf(':')
      return subjectPage(name.slice(0, at), name.slice(at + 1))
    }
  }
}
