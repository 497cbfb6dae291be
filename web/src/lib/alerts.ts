// What alerts say, for people.

import type { Alert } from './types'

const clients = { user: 'user', tenant: 'tenant', key: 'API key', ip: 'address' }
const conditions: Record<string, string> = { store_away: 'the store is away', node_missing: 'a node is missing', bound_passed: 'a bound of regions is passed', unhealthy: 'another health check fails' }

/** conditionOf says when an alert fires. */
export function conditionOf(a: Alert): string {
  if (a.kind === 'rule') return `${a.rule ? `the rule ${a.rule}` : 'any rule'} denies more than ${a.percent} % of its requests for ${a.for ?? '5m'}`
  if (a.kind === 'client') return `${a.by === 'ip' ? 'an' : a.by === 'key' ? 'an' : 'a'} ${clients[a.by ?? 'user']} is denied more than ${a.denials} times${a.rule ? ` by the rule ${a.rule}` : ''} in ${a.within ?? '10m'}`
  if (a.kind === 'rollout') return `the rollout of ${a.rule ? `the rule ${a.rule}` : 'a rule'} is taken back`
  const when = a.when?.length ? a.when : Object.keys(conditions)
  return `${when.map((w) => conditions[w] ?? w).join(', or ')}, for ${a.for ?? '1m'}`
}
