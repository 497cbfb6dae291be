// The log of changes, as people read it.

import { exact } from './format'
import { href } from './router.svelte'
import type { Difference } from './shapes'
import type { Change, LoggedRevision } from './types'

export const kindNames: Record<string, string> = {
  rule: 'Rule',
  tier: 'Tier',
  tenant: 'Tenant',
  user: 'User',
  api_key: 'API key',
  exemption: 'Exemption',
  ban: 'Ban',
  token: 'Admin token',
  history: 'History',
  counters: 'Counters',
}

/** linkOf returns the page of what was changed, if it has one. */
export function linkOf(c: { kind: string; id: string }): string {
  switch (c.kind) {
    case 'rule':
      return href('/rules/edit', c.id)
    case 'tier':
      return href('/tiers', { q: c.id })
    case 'user':
    case 'tenant':
      return href('/subjects', c.kind, c.id)
    case 'api_key':
      return href('/subjects', 'key', c.id)
    case 'ban':
    case 'exemption': {
      const [kind = '', ...id] = c.id.split(':')
      return href('/subjects', kind, id.join(':'))
    }
    case 'token':
      return href('/tokens')
    case 'counters': {
      const [, kind = '', id = ''] = /^(user|key|tenant|ip):(\S+)$/.exec(c.id) ?? []
      return kind ? href('/subjects', kind, id) : ''
    }
    default:
      return ''
  }
}

/** canUndo reports whether a change can be undone. */
export function canUndo(c: { kind: string }): boolean {
  return !['token', 'history', 'counters'].includes(c.kind)
}

/** fieldsOf returns what differs. Of what was made or deleted that is every field. */
export function fieldsOf(c: Change): Difference[] {
  if (c.fields.length) return c.fields
  const before = (c.before ?? {}) as Record<string, unknown>
  const after = (c.after ?? {}) as Record<string, unknown>
  if (typeof before !== 'object' || typeof after !== 'object') return [{ path: '', before: c.before, after: c.after }]
  return [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .map((path) => ({ path, before: before[path], after: after[path] }))
    .filter((f) => JSON.stringify(f.before) !== JSON.stringify(f.after))
}

/**
 * bound returns the time of a date that was typed as a filter: its start, or for the end of a
 * range that of the next day. A whole time stays as it is.
 */
export function bound(text: string | undefined, end = false): string | undefined {
  if (!text || !/^\d{4}-\d\d-\d\d$/.test(text)) return text
  const at = new Date(text + 'T00:00:00Z')
  if (isNaN(at.getTime())) return text
  if (end) at.setUTCDate(at.getUTCDate() + 1)
  return at.toISOString().replace('.000', '')
}

/** summary says what a revision with several changes has changed. */
export function summary(r: LoggedRevision): string {
  const named = r.changes.map((c) => `${(kindNames[c.kind] ?? c.kind).toLowerCase().replace('api', 'API')} ${c.id}`).join(', ')
  return r.total > r.changes.length ? `${named} and ${exact(r.total - r.changes.length)} more` : named
}
