// Named limits as people edit them, and what rules make of them.

import type { Override } from './shapes'
import type { Rule, Tier } from './types'

export interface LimitRow {
  name: string
  limit: string
  until: string
}

export function rowsOf(limits: Record<string, Override> | undefined): LimitRow[] {
  return Object.entries(limits ?? {}).map(([name, o]) => (typeof o === 'string' ? { name, limit: o, until: '' } : { name, limit: o.limit, until: o.until ?? '' }))
}

/** limitsOf returns what rows say. Rows without anything do not count. */
export function limitsOf(rows: LimitRow[]): Record<string, Override> | undefined {
  const out: Record<string, Override> = {}
  for (const r of rows) {
    const name = r.name.trim()
    const limit = r.limit.trim()
    if (name || limit) out[name] = r.until ? { limit, until: r.until } : limit
  }
  return Object.keys(out).length ? out : undefined
}

/** plainOf is limitsOf for tiers, whose limits have no end. */
export function plainOf(rows: LimitRow[]): Record<string, string> | undefined {
  return limitsOf(rows.map((r) => ({ ...r, until: '' }))) as Record<string, string> | undefined
}

/** rowProblem says what is wrong with a row that the server would never see. */
export function rowProblem(rows: LimitRow[], i: number): string | undefined {
  const name = rows[i]!.name.trim()
  if (!name) return rows[i]!.limit.trim() ? 'Enter the name of a limit in a rule.' : undefined
  return rows.findIndex((r) => r.name.trim() === name) < i ? `There is already a row for ${name}.` : undefined
}

export interface Use {
  rule: string
  /** The limits of the rule that the tier has a value for. */
  limits: string[]
  /** The rule is only for some tiers, and this is one of them. */
  named: boolean
}

/** usesOf returns which rules a tier makes a difference to. */
export function usesOf(tier: Tier, rules: Rule[]): Use[] {
  return rules
    .map((r) => ({
      rule: r.name,
      limits: (r.limits ?? []).map((l) => l.name).filter((n) => tier.limits?.[n] !== undefined),
      named: (r.match?.tiers ?? []).includes(tier.name),
    }))
    .filter((u) => u.named || u.limits.length > 0)
}

/** limitNames returns the names that limits of rules have. */
export function limitNames(rules: Rule[]): string[] {
  return [...new Set(rules.flatMap((r) => (r.limits ?? []).map((l) => l.name)))].sort()
}
