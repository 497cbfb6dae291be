// The state of nodes, in words.

import { seconds } from './format'
import type { NodeInfo } from './shapes'

export const words: Record<'status' | 'breaker', Record<string, string>> = {
  status: { ok: 'ok', degraded: 'degraded', not_ready: 'not ready' },
  breaker: {
    closed: 'closed: the store is in use',
    open: 'open: the store, or one of its servers, is not used, and the node decides by its share',
    half_open: 'half open: testing the store',
  },
}

/** silent is how long a node that lives is never silent, in seconds. */
const silent = 30

/** newest returns the newest revision that anyone serves. */
export function newest(nodes: NodeInfo[], own: number): number {
  return nodes.reduce((n, x) => Math.max(n, x.revision), own)
}

/** troubleOf says what is wrong with a node, in sentences; nothing, if all is well. */
export function troubleOf(n: NodeInfo, now: number): string[] {
  const out: string[] = []
  const quiet = (now - Date.parse(n.seen)) / 1000
  if (!n.self && quiet > silent) out.push(`No report for ${seconds(quiet)}: it may be down, or cannot reach the database.`)
  if (n.problem) out.push(`It cannot use the newest revision: ${n.problem}.`.replace(/\.\.$/, '.'))
  else if (n.behind && quiet <= silent) out.push('It does not use the newest revision yet.')
  if (n.state?.breaker === 'open') out.push('It does not use its store, or one of its servers, and decides by its share of the limits: see the checks.')
  if (n.state?.status === 'not_ready') out.push('It is not ready and should get no traffic.')
  else if (n.state?.status === 'degraded' && n.state.breaker !== 'open') out.push('It is degraded: see the checks.')
  return out
}
