// Subjects: the names of their kinds, and what kind a text may be.

import { href } from './router.svelte'
import type { SubjectKind } from './shapes'
import type { Entry, Quota } from './types'

export const kinds: { value: SubjectKind; label: string; many: string; example: string }[] = [
  { value: 'user', label: 'User', many: 'Users', example: 'alice' },
  { value: 'key', label: 'API key', many: 'API keys', example: '4mqyx7bn2kcd6wvr' },
  { value: 'tenant', label: 'Tenant', many: 'Tenants', example: 'acme' },
  { value: 'ip', label: 'Address', many: 'Addresses', example: '192.0.2.1 or 192.0.2.0/24' },
]

export function kindOf(name: string | undefined) {
  return kinds.find((k) => k.value === name)
}

/** subjectOf returns whom an exemption or a ban is about. */
export function subjectOf(e: Entry): { kind: SubjectKind; id: string } {
  for (const { value } of kinds) if (e[value]) return { kind: value, id: e[value] }
  return { kind: 'user', id: '' }
}

/** over tells whether a time has passed. */
export function over(until: string | undefined, now = Date.now()): boolean {
  return !!until && Date.parse(until) <= now
}

/** guess returns what a text probably names: an address, or a user. */
export function guess(text: string): SubjectKind {
  return /^[\da-f.:]+(\/\d*)?$/i.test(text) && /[.:]/.test(text) ? 'ip' : 'user'
}

/** addressOf tells what the record has of an address: all of it, its network, or a hash. */
export function addressOf(text: string): 'address' | 'network' | 'hash' {
  if (!/^\d{1,3}(\.\d{1,3}){3}(\/\d{1,2})?$/.test(text) && !/^[\da-f]*:[\da-f:.]*(\/\d{1,3})?$/i.test(text)) return 'hash'
  return text.includes('/') ? 'network' : 'address'
}

/** subjectPage returns the page of a subject. There is none of the hash of an address, only its events. */
export function subjectPage(kind: string, id: string): string {
  return kind === 'ip' && id && addressOf(id) === 'hash' ? href('/events', { ip: id }) : href('/subjects', kind, id)
}

/** mostUsed returns the few quotas of which the largest share is used, in the order in which they come. */
export function mostUsed(quotas: Quota[], few: number): Quota[] {
  if (quotas.length <= few) return quotas
  const share = (q: Quota) => (q.max > 0 ? q.used / q.max : 0)
  const most = new Set([...quotas].sort((a, b) => share(b) - share(a)).slice(0, few))
  return quotas.filter((q) => most.has(q))
}

/** identifiedBy says how a client was identified. */
export const identifiedBy: Record<string, string> = {
  '': '', given: 'the program that asked', key: 'an API key', jwt: 'a token', header: 'a header of a trusted proxy', ip: 'the address alone',
}
