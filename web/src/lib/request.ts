// A request to try, as it is typed, kept in the address, and sent.

import { lines } from './lines'

/** Texts, one for each field of the form. Headers are lines, Name: value. */
export interface Asked {
  method: string
  path: string
  ip: string
  user: string
  tenant: string
  tier: string
  api_key: string
  cost: string
  headers: string[]
}

const fields = ['method', 'path', 'ip', 'user', 'tenant', 'tier', 'api_key', 'cost'] as const

export function askedOf(query: URLSearchParams): Asked {
  const out: Asked = { method: 'GET', path: '/', ip: '', user: '', tenant: '', tier: '', api_key: '', cost: '', headers: lines(query.get('headers') ?? '') }
  for (const f of fields) out[f] = query.get(f) ?? out[f]
  return out
}

/** queryOf returns what the address of the page has. The text of an API key is a secret, which addresses do not keep; its id is not, and has no underscore. */
export function queryOf(a: Asked): Record<string, string> {
  return { ...Object.fromEntries(fields.map((f) => [f, a[f]])), api_key: a.api_key.includes('_') ? '' : a.api_key, headers: a.headers.join('\n') }
}

/** bodyOf returns what is sent, or which field cannot be. */
export function bodyOf(a: Asked): { body: Record<string, unknown>; errors: { field: string; message: string }[] } {
  const errors: { field: string; message: string }[] = []
  const body: Record<string, unknown> = {}
  for (const f of fields) if (a[f].trim() && f !== 'cost') body[f] = a[f].trim()
  if (a.cost.trim()) {
    const cost = Number(a.cost)
    if (Number.isInteger(cost)) body.cost = cost
    else errors.push({ field: 'cost', message: `"${a.cost}": want a whole number, such as 1` })
  }
  const headers: Record<string, string> = {}
  for (const line of a.headers) {
    const [, name, value] = /^\s*([^:\s]+)\s*:\s*(.*?)\s*$/.exec(line) ?? []
    if (name === undefined) errors.push({ field: 'headers', message: `"${line.trim()}": want Name: value` })
    else headers[name] = value ?? ''
  }
  if (Object.keys(headers).length) body.headers = headers
  return { body, errors }
}
