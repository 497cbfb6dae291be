import { beforeEach, describe, expect, it } from 'vitest'
import { editedCandidate, forgetCandidate, keepCandidate, keptRule, offsetOf, onlyRules, pageOf, placed, toml, unsaved } from './whatif'

beforeEach(() => sessionStorage.clear())

it('writes rules as the server does', () => {
  const rule = {
    name: 'search',
    match: { paths: ['/a', '/b'], headers: { 'X-App': 'a"b', 'x y': '*' } },
    count_by: ['user'],
    limits: [
      { name: 'hourly', limit: '100/1h', lease: undefined },
      { name: 'burst', limit: '10/1s', split: 4 },
    ],
    cost: 2,
    enabled: false,
    penalty: null,
    response: { message: 'Slow\ndown\x7f' },
    rollout: {},
  }
  expect(toml(rule)).toBe(`[[rules]]
name = "search"
match = { paths = ["/a", "/b"], headers = { X-App = "a\\"b", "x y" = "*" } }
count_by = ["user"]
limits = [
  { name = "hourly", limit = "100/1h" },
  { name = "burst", limit = "10/1s", split = 4 },
]
cost = 2
enabled = false
response = { message = "Slow\\ndown\\u007f" }
rollout = {}
`)
  expect(toml({ name: 'a', match: { paths: ['/a'] }, limits: [{ name: 'x', limit: '1/1s' }] })).toContain('limits = [{ name = "x", limit = "1/1s" }]')
  expect(toml({ name: 'a', count_by: Array.from({ length: 12 }, (_, i) => `header:X-${i}`) })).toContain('count_by = [\n  "header:X-0",\n')
})

it('takes rules and tiers of an export', () => {
  const rules = '[[rules]]\nname = "a"\nmatch = { paths = ["/[[tenants]]"] }\nlimits = [\n  { name = "x", limit = "1/1s" },\n  { name = "y", limit = "1/1m" },\n]\n'
  expect(onlyRules(`${rules}\n[[tiers]]\nname = "gold"\n\n[[tenants]]\nid = "acme"\n\n[[bans]]\nuser = "eve"\n\n[[exemptions]]\nuser = "bob"\n`)).toBe(`${rules}\n[[tiers]]\nname = "gold"\n`)
  expect(onlyRules('[[tenants]]\nid = "acme"\n')).toBe('')
})

it('keeps what was edited of its source', () => {
  keepCandidate({ source: 'search', text: 'x', whole: false })
  expect(editedCandidate('search')).toEqual({ source: 'search', text: 'x', whole: false })
  expect(editedCandidate('')).toBeUndefined()
  forgetCandidate()
  expect(editedCandidate('search')).toBeUndefined()
})

it('takes unsaved changes over from the editor', () => {
  expect(unsaved('search')).toBeUndefined()
  sessionStorage.setItem(keptRule('search'), JSON.stringify({ text: '{"name":"search","priority":3}', at: 1, version: 2 }))
  sessionStorage.setItem(keptRule(), JSON.stringify({ text: '{"name":', at: 1, version: 0 }))
  expect(unsaved('search')).toEqual({ name: 'search', priority: 3 })
  expect(unsaved()).toBeUndefined()
  sessionStorage.setItem(keptRule('search'), 'x')
  expect(unsaved('search')).toBeUndefined()
})

describe('problems', () => {
  it('are of the text, or of something else', () => {
    const [whole, field, caused, parameter] = [
      { field: 'candidate', message: 'a', line: 2, column: 3 },
      { field: 'candidate.rules[0].name', message: 'b', line: 1, column: 1 },
      { field: 'rule "search"', message: 'c' },
      { field: 'from', message: 'd' },
    ]
    expect(placed([whole!, field!, caused!, parameter!])).toEqual({ own: [{ ...whole, field: '' }, { ...field, field: 'rules[0].name' }], others: [caused, parameter] })
  })
  it.each([
    [1, 1, 0],
    [2, 3, 6],
    [2, 99, 7],
    [3, 2, 10],
    [9, 1, 11],
  ])('are at line %i, column %i', (line, column, want) => expect(offsetOf('abc\ndef\n😀x', line, column)).toBe(want))
})

it.each([
  ['rules', 'a b', '#/rules/edit/a%20b'],
  ['tiers', 'gold', '#/tiers?q=gold'],
  ['tiers', '', undefined],
  ['subjects', 'user:a:b', '#/subjects/user/a%3Ab'],
  ['subjects', 'ip:0123456789abcdef0123456789abcdef', '#/events?ip=0123456789abcdef0123456789abcdef'],
  ['endpoints', '/orders/{id}/items', '#/events?path=%2Forders%2F&range=24h'],
  ['endpoints', '/v1/**', '#/events?path=%2Fv1%2F&range=24h'],
] as const)('%s %s lead somewhere', (kind, name, want) => expect(pageOf(kind, name, { range: '24h' })).toBe(want))
