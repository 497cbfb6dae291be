// What a search has found, as people read it.

import { linkOf } from './changes'
import { subjectPage } from './subjects'
import type { FoundGroup, FoundItem } from './types'

export const groupNames: Record<FoundGroup['kind'], string> = {
  user: 'Users',
  tenant: 'Tenants',
  key: 'API keys',
  rule: 'Rules',
  tier: 'Tiers',
  ip: 'Addresses',
  exemption: 'Exemptions',
  ban: 'Bans',
  seen: 'Seen in traffic, not in the catalog',
}

/** pageOf returns the page of what was found. */
export function pageOf(i: FoundItem): string {
  return i.kind === 'key' || i.kind === 'ip' ? subjectPage(i.kind, i.id) : linkOf(i)
}

/** noteOf says what the id does not. */
export function noteOf(i: FoundItem): string {
  const parts = [i.name, i.prefix && i.prefix + '…', i.user, i.tenant, i.tier, i.reason]
  if (i.last_seen_at) parts.push('seen ' + i.last_seen_at.slice(0, 10))
  return parts.filter(Boolean).join(' · ')
}
