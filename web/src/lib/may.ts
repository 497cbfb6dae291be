// Who may change what, and why not.

import { server } from './server.svelte'
import { session } from './session.svelte'
import type { Role } from './shapes'

/**
 * mayNot says why something cannot be done, or nothing. What is stored cannot be changed here if it is in a file. Who is
 * restricted to tenants changes only what is their own.
 */
export function mayNot(role: Role = 'operator', stored = true, own = false): string {
  if (!session.can(role)) return `This needs the role ${role}; yours is ${session.value?.role ?? 'none'}.`
  if (session.guest && !own) return 'This is about all tenants, and you are restricted to ' + session.value?.tenants?.join(', ') + '.'
  if (stored && server.readOnly) return `These are in the file ${server.status?.file ?? 'of the configuration'}: change them there.`
  return ''
}
