// Writes src/lib/types.ts from the OpenAPI document of the admin API, or, with --check,
// fails if the file is stale. A library that does this for any document brings twenty
// packages; this document uses few of the words that OpenAPI has.

import { readFileSync, writeFileSync } from 'node:fs'

const from = new URL('../internal/control/admin/openapi.json', import.meta.url)
const to = new URL('src/lib/types.ts', import.meta.url)
const { schemas } = JSON.parse(readFileSync(from, 'utf8')).components

const basic = { string: 'string', integer: 'number', number: 'number', boolean: 'boolean', null: 'null' }

/** typeOf returns a schema as a type of TypeScript. */
function typeOf(schema, indent) {
  if (schema.$ref) return schema.$ref.split('/').at(-1)
  if (schema.enum) return schema.enum.map((value) => `'${value}'`).join(' | ')
  if (schema.oneOf) return schema.oneOf.map((s) => typeOf(s, indent)).join(' | ')
  return [schema.type ?? 'unknown'].flat().map((type) => {
    if (type === 'array') {
      const item = typeOf(schema.items, indent)
      return (item.includes(' ') ? `(${item})` : item) + '[]'
    }
    if (type !== 'object') return basic[type] ?? 'unknown'
    if (schema.properties) return membersOf(schema, indent)
    return `Record<string, ${typeof schema.additionalProperties === 'object' ? typeOf(schema.additionalProperties, indent) : 'unknown'}>`
  }).join(' | ')
}

/** membersOf returns the members of an object, in braces. */
function membersOf(schema, indent = '') {
  const inside = indent + '  '
  const lines = Object.entries(schema.properties).map(([name, s]) => {
    const doc = s.description ? `${inside}/** ${s.description.replaceAll('*/', '* /')} */\n` : ''
    return `${doc}${inside}${name}${schema.required?.includes(name) ? '' : '?'}: ${typeOf(s, inside)}\n`
  })
  return `{\n${lines.join('')}${indent}}`
}

const text = [
  '// Generated from internal/control/admin/openapi.json by npm run types. Do not edit.\n',
  ...Object.entries(schemas).map(([name, s]) => `/** ${s.description} */\nexport interface ${name} ${membersOf(s)}\n`),
].join('\n')

if (!process.argv.includes('--check')) writeFileSync(to, text)
else if (readFileSync(to, 'utf8') !== text) {
  console.error('src/lib/types.ts is stale: run npm run types')
  process.exit(1)
}
