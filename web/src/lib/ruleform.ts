// A rule as a form holds it, and back. Numbers are texts, so that nothing that is typed is
// lost; what is no number goes to the server as it is, which says what is wrong with it.

import type { Action, Difference } from './shapes'
import type { Rule } from './types'

export interface LimitDraft {
  name: string
  limit: string
  algorithm: string
  burst: string
  lease: string
  split: string
  candidate: string
  /** Which counters the limit has: the form keeps it. */
  counter: string
}

/** emptyLimit is a row for a limit in which nothing was typed yet. */
export const emptyLimit = (): LimitDraft => ({ name: '', limit: '', algorithm: '', burst: '', lease: '', split: '', candidate: '', counter: '' })

export interface Draft {
  name: string
  match: { paths: string[]; methods: string[]; tiers: string[]; ip_ranges: string[]; headers: { name: string; value: string }[] }
  count_by: string[]
  limits: LimitDraft[]
  cost: { units: string; header: string; max: string }
  action: string
  max_delay: string
  priority: string
  group: string
  enforce: string
  replaces: string
  rollout: { on: boolean; steps: string; every: string; start: string; back_if: string; stopped?: unknown }
  penalty: { on: boolean; threshold: string; within: string; cooldown: string; multipliers: string }
  on_store_failure: string
  regions: string
  credit: string
  on_credit: string
  weights: string
  response: { status: string; message: string }
  enabled: boolean
  /** Fields that the rule gives although they have their default. */
  given: string[]
}

export const actions: { value: Action; label: string; says: string }[] = [
  { value: 'reject', label: 'Reject', says: 'Requests over a limit are denied.' },
  { value: 'throttle', label: 'Throttle', says: 'Requests over a limit are delayed until they can pass, and denied if that takes too long.' },
  { value: 'mark', label: 'Mark', says: 'Requests over the limit pass, with a header that tells the application by how much they are over.' },
  { value: 'log_only', label: 'Shadow (log_only)', says: 'Requests over a limit pass, and are recorded as requests that would have been denied.' },
  { value: 'block', label: 'Block', says: 'All matching requests are denied. Nothing is counted.' },
  { value: 'allow', label: 'Allow', says: 'All matching requests pass. Nothing is counted.' },
]

export const regionModes: { value: string; label: string; says: string }[] = [
  { value: '', label: 'Each by itself', says: 'The limits hold in each region, whatever is used in others.' },
  { value: 'central', label: 'Central', says: 'One region has the counters, and all others ask it.' },
  { value: 'quota', label: 'Quota', says: 'Each region has a part of each limit.' },
  { value: 'gossip', label: 'Gossip', says: 'Each region counts by itself, and tells the others what it has let pass.' },
]

/** counts tells whether rules with this action have limits. */
export const counts = (action: string) => action !== 'block' && action !== 'allow'

const text = (v: unknown) => (v === undefined || v === null ? '' : String(v))
const texts = (v: unknown) => (Array.isArray(v) ? v.map(text) : [])
const table = (v: unknown) => (v && typeof v === 'object' && !Array.isArray(v) ? (v as Record<string, unknown>) : {})

const defaults: Record<string, unknown> = { action: 'reject', on_store_failure: 'local', on_credit: 'share', weights: 'fixed', enabled: true }

export function fromRule(rule: unknown): Draft {
  const r = table(rule)
  const match = table(r.match)
  const cost = typeof r.cost === 'object' ? table(r.cost) : { units: r.cost }
  const penalty = table(r.penalty)
  const response = table(r.response)
  const rollout = table(r.rollout)
  return {
    name: text(r.name),
    match: {
      paths: texts(match.paths),
      methods: texts(match.methods),
      tiers: texts(match.tiers),
      ip_ranges: texts(match.ip_ranges),
      headers: Object.entries(table(match.headers)).map(([name, value]) => ({ name, value: text(value) })),
    },
    count_by: texts(r.count_by),
    limits: (Array.isArray(r.limits) ? r.limits : []).map(table).map((l) => ({
      name: text(l.name),
      limit: text(l.limit),
      algorithm: text(l.algorithm),
      burst: text(l.burst),
      lease: text(l.lease),
      split: text(l.split),
      candidate: text(l.candidate),
      counter: text(l.counter),
    })),
    cost: { units: text(cost.units), header: text(cost.header), max: text(cost.max) },
    action: text(r.action) || 'reject',
    max_delay: text(r.max_delay),
    priority: text(r.priority),
    group: text(r.group),
    replaces: text(r.replaces),
    enforce: text(r.enforce),
    rollout: {
      on: r.rollout !== undefined && r.rollout !== null,
      steps: texts(rollout.steps).join(', '),
      every: text(rollout.every),
      start: text(rollout.start),
      back_if: text(rollout.back_if),
      stopped: rollout.stopped,
    },
    penalty: {
      on: r.penalty !== undefined && r.penalty !== null,
      threshold: text(penalty.threshold),
      within: text(penalty.within),
      cooldown: text(penalty.cooldown),
      multipliers: texts(penalty.multipliers).join(', '),
    },
    on_store_failure: text(r.on_store_failure) || 'local',
    regions: text(r.regions),
    credit: text(r.credit),
    on_credit: text(r.on_credit) || 'share',
    weights: text(r.weights) || 'fixed',
    response: { status: text(response.status), message: text(response.message) },
    enabled: r.enabled !== false,
    given: Object.keys(defaults).filter((k) => r[k] === defaults[k]),
  }
}

/** number returns what was typed as a number, if it is one. */
function number(typed: string): number | string | undefined {
  const t = typed.trim()
  if (t === '') return undefined
  const n = Number(t)
  return /^[+-]?\d+$/.test(t) && Number.isSafeInteger(n) ? n : t
}

/** some drops what is not given, and is nothing if that is all. */
function some(v: Record<string, unknown>): Record<string, unknown> | undefined {
  const left = Object.entries(v).filter(([, x]) => x !== undefined && x !== '' && !(Array.isArray(x) && x.length === 0))
  return left.length ? Object.fromEntries(left) : undefined
}

/** typed tells whether a row for a limit has anything: one that has not is not there yet. */
export const typed = (l: LimitDraft) => Object.values(l).some((v) => v !== '')

export function toRule(d: Draft): Rule {
  const counting = counts(d.action)
  const cost = some({ units: number(d.cost.units), header: d.cost.header.trim(), max: number(d.cost.max) })
  const named = d.match.headers.filter((h) => h.name.trim() || h.value)
  const keep = (name: string, value: unknown) => (value === defaults[name] && !d.given.includes(name) ? undefined : value)
  const rule = some({
    name: d.name.trim(),
    match: some({
      paths: d.match.paths,
      methods: d.match.methods,
      tiers: d.match.tiers,
      ip_ranges: d.match.ip_ranges,
      headers: named.length ? Object.fromEntries(named.map((h) => [h.name.trim(), h.value])) : undefined,
    }),
    count_by: d.count_by,
    limits: d.limits
      .filter(typed)
      .map((l) => ({ name: l.name.trim(), limit: l.limit.trim(), ...some({ algorithm: l.algorithm, burst: number(l.burst), lease: l.lease.trim(), split: number(l.split), candidate: l.candidate.trim(), counter: number(l.counter) }) })),
    cost: cost && Object.keys(cost).join() === 'units' ? cost.units : cost,
    action: keep('action', d.action),
    max_delay: d.max_delay.trim(),
    priority: number(d.priority),
    group: d.group.trim(),
    replaces: d.replaces.trim(),
    enforce: d.enforce.trim(),
    rollout:
      d.rollout.on && counting
        ? { steps: d.rollout.steps.split(/[\s,]+/).filter(Boolean), every: d.rollout.every.trim(), ...some({ start: d.rollout.start.trim(), back_if: d.rollout.back_if.trim(), stopped: d.rollout.stopped }) }
        : undefined,
    penalty:
      d.penalty.on && counting
        ? {
            threshold: number(d.penalty.threshold) ?? 0,
            within: d.penalty.within.trim(),
            cooldown: d.penalty.cooldown.trim(),
            ...some({
              multipliers: d.penalty.multipliers
                .split(/[\s,]+/)
                .filter(Boolean)
                .map(number),
            }),
          }
        : undefined,
    on_store_failure: keep('on_store_failure', d.on_store_failure),
    regions: d.regions,
    credit: number(d.credit),
    on_credit: keep('on_credit', d.on_credit),
    weights: keep('weights', d.weights),
    response: some({ status: number(d.response.status), message: d.response.message }),
    enabled: keep('enabled', d.enabled),
  })
  return { name: '', ...rule } as Rule
}

/** write writes a rule for people to edit. */
export const write = (rule: unknown) => JSON.stringify(rule, null, 2)

/** canonical is a text that two rules share if they mean the same. */
export function canonical(rule: unknown): string {
  const clean = (v: unknown, key = ''): unknown => {
    if (Array.isArray(v)) return v.length ? v.map((x) => clean(x)) : undefined
    if (v && typeof v === 'object') {
      const all = Object.entries(v)
        .map(([k, x]) => [k, clean(x, k)] as const)
        .filter(([, x]) => x !== undefined)
        .sort(([a], [b]) => (a < b ? -1 : 1))
      return all.length ? Object.fromEntries(all) : undefined
    }
    return v === '' || v === null || (key in defaults && v === defaults[key]) || (['priority', 'burst', 'split', 'counter'].includes(key) && v === 0) ? undefined : v
  }
  return JSON.stringify(clean(rule) ?? {})
}

/** strange returns where a rule has something that the form has no place for, or ''. */
export function strange(rule: unknown): string {
  if (!rule || typeof rule !== 'object' || Array.isArray(rule)) return 'the whole: it is no table'
  const there = JSON.parse(canonical(rule)) as unknown
  const back = JSON.parse(canonical(toRule(fromRule(rule)))) as unknown
  return differs(there, back, '')
}

function differs(a: unknown, b: unknown, path: string): string {
  if (JSON.stringify(a) === JSON.stringify(b)) return ''
  if (a && b && typeof a === 'object' && typeof b === 'object' && Array.isArray(a) === Array.isArray(b)) {
    for (const k of new Set([...Object.keys(a), ...Object.keys(b)])) {
      const at = Array.isArray(a) ? `${path}[${k}]` : path ? `${path}.${k}` : k
      const found = differs((a as Record<string, unknown>)[k], (b as Record<string, unknown>)[k], at)
      if (found) return found
    }
  }
  return path
}

/** compare lists the top fields in which two rules differ. */
export function compare(before: Rule, after: Rule): Difference[] {
  const a = before as unknown as Record<string, unknown>
  const b = after as unknown as Record<string, unknown>
  return [...new Set([...Object.keys(a), ...Object.keys(b)])]
    .filter((k) => canonical({ [k]: a[k] }) !== canonical({ [k]: b[k] }))
    .map((path) => ({ path, before: a[path], after: b[path] }))
}

/** merge puts what was changed from base to mine on top of theirs; clashes were changed by both. */
export function merge(base: Rule, mine: Rule, theirs: Rule): { rule: Rule; clashes: string[] } {
  const rule: Record<string, unknown> = { ...theirs }
  const other = new Set(compare(base, theirs).map((f) => f.path))
  const clashes: string[] = []
  for (const f of compare(base, mine)) {
    if (other.has(f.path) && compare(mine, theirs).some((x) => x.path === f.path)) clashes.push(f.path)
    if (f.after === undefined) delete rule[f.path]
    else rule[f.path] = f.after
  }
  return { rule: rule as unknown as Rule, clashes }
}
