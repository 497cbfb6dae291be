import { describe, expect, it } from 'vitest'
import adminText from '../../../internal/control/admin/openapi.json?raw'
import decisionsText from '../../../httplimit/openapi.json?raw'
import { curl, exampleIn, exampleOf, found, operationsOf, partsOf, resolve, typeOf, type Document } from './openapi'

const admin = JSON.parse(adminText) as Document
const decisions = JSON.parse(decisionsText) as Document

describe('the documents', () => {
  const all = operationsOf(admin, '')
  const one = (id: string) => all.find((op) => op.id === id)!
  it('have operations with ids of their own, in the order of the tags', () => {
    expect(all.length).toBeGreaterThan(80)
    expect(new Set(all.map((op) => op.id)).size).toBe(all.length)
    const tags = admin.tags!.map((t) => t.name)
    const places = all.map((op) => tags.indexOf(op.tag))
    expect(places).toEqual([...places].sort((a, b) => a - b))
    expect(operationsOf(decisions, 'x-').map((op) => op.path)).toContain('/v1/check')
  })
  it('are searched by all words', () => {
    expect(all.filter((op) => found(op, 'rotate key')).map((op) => op.id)).toEqual(['rotateMyKey', 'rotateKey'])
    expect(all.filter((op) => found(op, '')).length).toBe(all.length)
    expect(all.filter((op) => found(op, 'xyzzy'))).toEqual([])
  })
  it('make commands that a shell reads', () => {
    const text = curl(admin, one('patchRule'), 'http://127.0.0.1:9090/admin/v1')
    expect(text).toContain("curl -s -X PATCH 'http://127.0.0.1:9090/admin/v1/rules/search'")
    expect(text).toContain("-H 'If-Match: *'")
    expect(text).toContain('-H "Authorization: Bearer $STINT_TOKEN"')
    expect(text).toContain('-H "Idempotency-Key: $(uuidgen)"')
    expect(text).toContain("-d '{")
    expect(curl(admin, one('getOpenAPI'), '')).toBe("curl -s '/openapi.json'")
  })
  it('have an example and fields of every body', () => {
    for (const d of [admin, decisions]) {
      for (const op of operationsOf(d, '')) {
        const body = op.requestBody && Object.values(resolve(d, op.requestBody).content ?? {})[0]
        if (body) expect(exampleIn(d, body), op.path).toBeDefined()
        if (body?.schema) expect(typeOf(d, body.schema), op.path).not.toBe('any value')
      }
    }
    expect(Object.keys(partsOf(admin, one('createKey').requestBody!.content!['application/json']!.schema!)!.properties!)).toContain('expires')
  })
})

describe('schemas', () => {
  const d: Document = { info: { title: '', version: '' }, paths: {}, components: { schemas: { Node: { type: 'object', properties: { next: { $ref: '#/components/schemas/Node' }, n: { type: 'integer', examples: [7] } } } } } }
  const node = { $ref: '#/components/schemas/Node' }
  it('may contain themselves', () => {
    expect((exampleOf(d, node) as { n: number }).n).toBe(7)
    expect(typeOf(d, { type: ['array', 'null'], items: node })).toBe('list of Node or null')
  })
  it('quotes for the shell', () => {
    const call = { id: 'x', method: 'POST', path: '/x', tag: '', words: '', requestBody: { content: { 'application/json': { example: { a: "it's" } } } } }
    expect(curl(d, call, 'http://x')).toContain(`-d '{"a":"it'\\''s"}'`)
  })
})
