// What the page needs of OpenAPI 3.1 documents. References stay within their document.

export interface Schema {
  $ref?: string
  type?: string | string[]
  format?: string
  description?: string
  enum?: unknown[]
  const?: unknown
  default?: unknown
  examples?: unknown[]
  example?: unknown
  minimum?: number
  maximum?: number
  minLength?: number
  maxLength?: number
  maxItems?: number
  pattern?: string
  items?: Schema
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: boolean | Schema
  anyOf?: Schema[]
  oneOf?: Schema[]
  allOf?: Schema[]
}

export interface Parameter {
  $ref?: string
  name: string
  in: 'path' | 'query' | 'header' | 'cookie'
  description?: string
  required?: boolean
  schema?: Schema
  example?: unknown
}

interface Media {
  schema?: Schema
  example?: unknown
  examples?: Record<string, { value?: unknown }>
}

interface Answer {
  $ref?: string
  description?: string
  headers?: Record<string, { $ref?: string; description?: string; schema?: Schema }>
  content?: Record<string, Media>
}

interface Call {
  operationId?: string
  tags?: string[]
  summary?: string
  description?: string
  parameters?: Parameter[]
  requestBody?: { $ref?: string; description?: string; required?: boolean; content?: Record<string, Media> }
  responses?: Record<string, Answer>
  'x-stint-role'?: string
  'x-stint-scoped'?: boolean
}

export interface Document {
  info: { title: string; description?: string; version: string }
  servers?: { url: string }[]
  tags?: { name: string; description?: string }[]
  paths: Record<string, Record<string, Call | Parameter[]>>
  components?: Record<string, Record<string, unknown>>
}

/** An operation, as the page shows it. */
export interface Operation extends Call {
  id: string
  method: string
  path: string
  tag: string
  /** Lower case: what a search looks through. */
  words: string
}

/** resolve follows a reference. */
export function resolve<T extends { $ref?: string }>(d: Document, v: T): T {
  let at: unknown = v
  for (let n = 0; n < 10; n++) {
    const ref = (at as { $ref?: string } | undefined)?.$ref
    if (!ref) return at as T
    at = ref
      .replace(/^#\//, '')
      .split('/')
      .reduce<unknown>((o, name) => (o as Record<string, unknown> | undefined)?.[name.replaceAll('~1', '/').replaceAll('~0', '~')], d)
  }
  return at as T
}

/** nameOf returns the name of the schema that a reference leads to. */
export const nameOf = (s: Schema): string => s.$ref?.split('/').pop() ?? ''

const methods = ['get', 'post', 'put', 'patch', 'delete']

/** operationsOf returns all operations, in the order of the tags. */
export function operationsOf(d: Document, prefix: string): Operation[] {
  const out: Operation[] = []
  for (const [path, item] of Object.entries(d.paths)) {
    for (const method of methods) {
      const call = item[method] as Call | undefined
      if (!call) continue
      const shared = (item.parameters as Parameter[] | undefined) ?? []
      const parameters = [...shared, ...(call.parameters ?? [])].map((p) => resolve(d, p))
      const tag = call.tags?.[0] ?? 'Operations'
      const names = parameters.map((p) => `${p.name} ${p.description ?? ''}`).join(' ')
      const words = [method, path, call.operationId, call.summary, call.description, tag, names].join(' ').toLowerCase()
      out.push({ ...call, parameters, id: prefix + (call.operationId ?? method + path), method: method.toUpperCase(), path, tag, words })
    }
  }
  const order = (d.tags ?? []).map((t) => t.name)
  const place = (tag: string) => (order.includes(tag) ? order.indexOf(tag) : order.length)
  return out.map((op, i) => ({ op, i })).sort((a, b) => place(a.op.tag) - place(b.op.tag) || a.i - b.i).map((x) => x.op)
}

/** found tells whether an operation has all words of a search. */
export const found = (op: Operation, search: string): boolean =>
  search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => op.words.includes(word))

/** exampleOf returns an example of a schema: its own, or one made of those of its parts. */
export function exampleOf(d: Document, schema: Schema | undefined, depth = 0): unknown {
  if (!schema || depth > 8) return undefined
  const s = resolve(d, schema)
  if (s.examples?.length) return s.examples[0]
  if (s.example !== undefined) return s.example
  if (s.const !== undefined) return s.const
  if (s.default !== undefined) return s.default
  if (s.enum?.length) return s.enum[0]
  const one = s.oneOf?.[0] ?? s.anyOf?.[0]
  if (one) return exampleOf(d, one, depth + 1)
  if (s.allOf) return Object.assign({}, ...s.allOf.map((part) => exampleOf(d, part, depth + 1)))
  if (s.properties) {
    const out: Record<string, unknown> = {}
    for (const [name, p] of Object.entries(s.properties)) {
      const v = exampleOf(d, p, depth + 1)
      if (v !== undefined) out[name] = v
    }
    return out
  }
  const type = Array.isArray(s.type) ? s.type[0] : s.type
  if (type === 'array') {
    const item = exampleOf(d, s.items, depth + 1)
    return item === undefined ? [] : [item]
  }
  return { string: 'text', integer: 1, number: 1, boolean: true, object: {} }[type ?? '']
}

/** exampleIn returns the example of a body. */
export function exampleIn(d: Document, media: Media | undefined): unknown {
  if (!media) return undefined
  if (media.example !== undefined) return media.example
  const first = Object.values(media.examples ?? {})[0]
  return first?.value ?? exampleOf(d, media.schema)
}

/** typeOf describes a type in words. */
export function typeOf(d: Document, schema: Schema): string {
  if (schema.$ref) return nameOf(schema)
  const s = resolve(d, schema)
  const some = s.oneOf ?? s.anyOf
  if (some) return some.map((x) => typeOf(d, x)).join(' or ')
  const types = Array.isArray(s.type) ? s.type : s.type ? [s.type] : []
  const words = types.map((t) => {
    if (t === 'array' && s.items) return 'list of ' + typeOf(d, s.items)
    if (t === 'object' && s.additionalProperties && typeof s.additionalProperties === 'object') return 'map of ' + typeOf(d, s.additionalProperties)
    if (t === 'string' && s.format) return { 'date-time': 'time', binary: 'bytes' }[s.format] ?? s.format
    return t
  })
  return words.join(' or ') || 'any value'
}

/** limitsOf describes what a value must be. */
export function limitsOf(s: Schema): string[] {
  const out: string[] = []
  if (s.enum) out.push('one of ' + s.enum.map(String).join(', '))
  if (s.minimum !== undefined) out.push('at least ' + s.minimum)
  if (s.maximum !== undefined) out.push('at most ' + s.maximum)
  if (s.minLength !== undefined) out.push(`at least ${s.minLength} characters`)
  if (s.maxLength !== undefined) out.push(`at most ${s.maxLength} characters`)
  if (s.maxItems !== undefined) out.push(`at most ${s.maxItems} items`)
  if (s.default !== undefined) out.push('default ' + JSON.stringify(s.default))
  return out
}

/** partsOf returns what a schema consists of: its properties, or those of its items or values. */
export function partsOf(d: Document, schema: Schema): Schema | undefined {
  const s = resolve(d, schema)
  if (s.properties) return s
  if (s.items) return partsOf(d, s.items)
  if (s.additionalProperties && typeof s.additionalProperties === 'object') return partsOf(d, s.additionalProperties)
  const some = [...(s.oneOf ?? []), ...(s.anyOf ?? []), ...(s.allOf ?? [])]
  return some.map((x) => partsOf(d, x)).find((x) => x)
}

/** quoted writes a text for a shell. */
const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`

/** curl returns a command that makes the call with its examples. */
export function curl(d: Document, op: Operation, base: string): string {
  let path = op.path
  const headers: string[] = []
  if (op['x-stint-role'] !== 'anyone') headers.push('"Authorization: Bearer $STINT_TOKEN"')
  const query = new URLSearchParams()
  for (const p of op.parameters ?? []) {
    const value = p.example ?? exampleOf(d, p.schema)
    if (p.in === 'path') path = path.replace(`{${p.name}}`, encodeURIComponent(String(value)))
    else if (p.name === 'If-Match') headers.push(quoted('If-Match: *'))
    else if (p.name === 'Idempotency-Key') headers.push('"Idempotency-Key: $(uuidgen)"')
    else if (p.required && p.in === 'query') query.set(p.name, String(value))
    else if (p.required && p.in === 'header') headers.push(quoted(`${p.name}: ${String(value)}`))
  }
  const [kind, media] = Object.entries(op.requestBody?.content ?? {})[0] ?? []
  const body = exampleIn(d, media)
  if (kind && body !== undefined) headers.push(quoted('Content-Type: ' + kind))
  const text = query.toString()
  const parts = [`curl -s${op.method === 'GET' ? '' : ' -X ' + op.method} ${quoted(base + path + (text && '?' + text))}`, ...headers.map((h) => '-H ' + h)]
  if (kind && body !== undefined) parts.push('-d ' + quoted(JSON.stringify(body)))
  return parts.join(' \\\n  ')
}
