// What leases of a limit promise, and what a node has measured, in words.

import { count, exact, percent, plural } from './format'
import type { Leased, Rule, RuleLimit } from './types'
import type { Fact } from '../components/Facts.svelte'

/** A limit as rules have it. The term of its lease may be missing. */
type LeasedLimit = RuleLimit & { lease?: string }

export interface LimitLeases {
  name: string
  facts: Fact[]
}

/** leasesOf returns what a node has leased of a rule's limits, in the order of the rule; of limits that it had before, last. */
export function leasesOf(rule: Rule, all: Leased[] = []): LimitLeases[] {
  const limits = (rule.limits ?? []) as LeasedLimit[]
  const known = limits.map((l) => l.name)
  const names = all.filter((l) => l.limit.startsWith(rule.name + ':')).map((l) => l.limit.slice(rule.name.length + 1))
  const ordered = [...known.filter((n) => names.includes(n)), ...names.filter((n) => !known.includes(n))]
  return ordered.map((name) => ({ name, facts: factsOf(limits.find((l) => l.name === name), all.find((l) => l.limit === `${rule.name}:${name}`)!) }))
}

const inWindows = ['fixed_window', 'sliding_window']

/** algorithmOf returns what counts a limit: without a name, periods of the calendar and lengths have their own. */
export function algorithmOf(l: RuleLimit): string {
  const [value = '', ...words] = l.limit.trim().split(/\s+/)
  return l.algorithm || words.find((w) => !w.includes('=')) || (/\/(day|week|month|year)$/.test(value) ? 'fixed_window' : 'sliding_window')
}

function factsOf(limit: LeasedLimit | undefined, l: Leased): Fact[] {
  const windows = !!limit && inWindows.includes(algorithmOf(limit))
  const declared = windows ? 'Nothing passes beyond the limit.' : `Beyond the limit, at most what it gives back in ${limit?.lease ?? 'one term'}.`
  const used = `${exact(l.most_used)} of ${exact(l.capacity)} (${percent(l.most_used, l.capacity)}), as Redis has counted`
  const units = [`${count(l.spent)} spent`, `${count(l.given_back)} given back`, `${count(l.held)} held now`]
  if (l.kept > 0) units.push(`${count(l.kept)} lost, because Redis could not be reached`)
  const early = `${exact(l.denied_early)} of ${plural(l.denied, 'denial')}, while other nodes may have held at most ${plural(l.others_most, 'unit')}`
  return [
    { name: 'Declared', value: limit && declared },
    { name: windows ? 'Most used in a window' : 'Most used at once', value: used },
    { name: 'Units taken ahead', value: `${count(l.lent)}: ${units.join(', ')}`, title: exact(l.lent) },
    { name: 'Perhaps denied early', value: l.denied_early > 0 ? early : 'nothing' },
  ]
}
