// Subjects: the names of their kinds, and what kind a text may be.

import type { SubjectKind } from './shapes'
import type { Entry } from './types'

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
