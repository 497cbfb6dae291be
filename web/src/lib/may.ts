// Who may change what, and why not.

import { server } from './server.svelte'
import { session } from './session.svelte'
import type { Role } from './shapes'

/** mayNot says why something cannot be done, or nothing. What is stored cannot be changed here if it is in a file. */
export function mayNot(role: Role = 'operator', stored = true): string {
  if (!session.can(role)) return `This needs the role ${role}; yours is ${session.value?.role ?? 'none'}.`
  if (stored && server.readOnly) return `These are in the file ${server.status?.file ?? 'of the configuration'}: change them there.`
  return ''
}
