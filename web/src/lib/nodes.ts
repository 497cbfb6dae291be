// How nodes are, in words.

import { seconds } from './format'
import type { NodeInfo } from './shapes'

export const words: Record<'status' | 'breaker', Record<string, string>> = {
  status: { ok: 'as it should be', degraded: 'degraded', not_ready: 'not ready' },
  breaker: {
    closed: 'closed: the store is asked',
    open: 'open: the store is not asked, and the node decides by its share',
    half_open: 'half open: the store is tried again',
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
  if (!n.self && quiet > silent) out.push(`It has said nothing for ${seconds(quiet)}: it may be gone, or cannot reach the database.`)
  if (n.problem) out.push(`It does not take the newest revision: ${n.problem}.`.replace(/\.\.$/, '.'))
  else if (n.behind && quiet <= silent) out.push('It does not serve the newest revision yet.')
  if (n.state?.breaker === 'open') out.push('It cannot reach its store, and decides by its share of the limits.')
  if (n.state?.status === 'not_ready') out.push('It is not ready, and should not be asked.')
  else if (n.state?.status === 'degraded' && n.state.breaker !== 'open') out.push('It works, but not as it should: the checks say why.')
  return out
}
