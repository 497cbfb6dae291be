// The small pieces of the pages of subjects, tiers, keys, nodes and changes.

import { describe, expect, it } from 'vitest'
import { fieldsOf, linkOf } from './changes'
import { limitNames, limitsOf, plainOf, rowProblem, rowsOf, usesOf } from './limits'
import { filled, mergePatch } from './merge'
import { newest, troubleOf } from './nodes'
import { askedOf, bodyOf, queryOf } from './request'
import { guess, over, subjectOf } from './subjects'
import { fromLocal, spanOf, spanned, toLocal } from './until'
import type { NodeInfo } from './shapes'
import type { Change, Rule } from './types'

const now = Date.parse('2026-11-15T12:00:00Z')

describe('limits', () => {
  it('are edited as rows', () => {
    const limits = { hourly: '10/1h', daily: { limit: '20/day', until: '2026-12-01T00:00:00Z' } }
    expect(limitsOf(rowsOf(limits))).toEqual(limits)
    expect(rowsOf(undefined)).toEqual([])
    expect(limitsOf([{ name: ' ', limit: '', until: '' }])).toBeUndefined()
    expect(plainOf(rowsOf(limits))).toEqual({ hourly: '10/1h', daily: '20/day' })
  })
  it('have one row each, with a name', () => {
    const rows = ['a', 'b', 'a ', ''].map((name) => ({ name, limit: '1/1s', until: '' }))
    expect(rows.map((_, i) => rowProblem(rows, i) !== undefined)).toEqual([false, false, true, true])
    expect(rowProblem([{ name: '', limit: '', until: '' }], 0)).toBeUndefined()
  })
  it('matter to rules that name them', () => {
    const rules: Rule[] = [
      { name: 'search', limits: [{ name: 'hourly', limit: '1/1h' }, { name: 'burst', limit: '1/1s' }] },
      { name: 'export', match: { tiers: ['gold'] }, limits: [{ name: 'daily', limit: '1/day' }] },
      { name: 'login', limits: [{ name: 'burst', limit: '1/1s' }] },
    ]
    expect(usesOf({ name: 'gold', limits: { hourly: 'unlimited' } }, rules)).toEqual([
      { rule: 'search', limits: ['hourly'], named: false },
      { rule: 'export', limits: [], named: true },
    ])
    expect(limitNames(rules)).toEqual(['burst', 'daily', 'hourly'])
  })
})

describe('mergePatch', () => {
  it.each([
    ['nothing', { a: 1 }, { a: 1 }, {}],
    ['a change', { a: 1, b: 'x' }, { a: 2, b: 'x' }, { a: 2 }],
    ['what is gone', { a: 1, b: 'x', c: 'y' }, { a: 1, b: '', c: undefined }, { b: null, c: null }],
    ['what was never there', { a: 1 }, { a: 1, b: '', c: undefined }, {}],
    ['inside', { l: { a: '1', b: '2' } }, { l: { a: '1', c: '3' } }, { l: { b: null, c: '3' } }],
    ['a text in place of a table', { l: { a: { limit: '1' } } }, { l: { a: '1' } }, { l: { a: '1' } }],
    ['lists whole', { l: [1, 2] }, { l: [1] }, { l: [1] }],
    ['false', { on: true }, { on: false }, { on: false }],
  ])('has %s', (_, before, after, want) => expect(mergePatch(before, after)).toEqual(want))
  it('leaves out what is not filled in', () => expect(filled({ a: '', b: undefined, c: 0, d: false })).toEqual({ c: 0, d: false }))
})

describe('until', () => {
  it('goes through the clock of the reader and back', () => {
    expect(fromLocal(toLocal('2026-12-01T10:30:00Z'))).toBe('2026-12-01T10:30:00Z')
    expect([toLocal(''), toLocal('soon'), fromLocal(''), fromLocal('soon')]).toEqual(['', '', '', ''])
  })
  it('begins now', () => {
    expect(spanned('3600', now)).toBe('2026-11-15T13:00:00Z')
    expect(spanned('')).toBe('')
  })
  it('is shown as the span that was chosen', () => {
    expect(['', '3600', '7776000'].map((s) => spanOf(spanned(s, now), now + 900))).toEqual(['', '3600', '7776000'])
    expect([spanOf(spanned('3600', now), now + 60_000), spanOf('2026-11-15T12:00:01Z', now), spanOf('soon', now)]).toEqual(['at', 'at', 'at'])
  })
  it('is over at its time', () => {
    expect([over(undefined, now), over('2026-11-15T12:00:00Z', now), over('2026-11-15T12:00:01Z', now)]).toEqual([false, true, false])
  })
})

describe('subjects', () => {
  it('are one of four', () => {
    expect(subjectOf({ ip: '192.0.2.0/24' })).toEqual({ kind: 'ip', id: '192.0.2.0/24' })
    expect(subjectOf({ tenant: 'acme', reason: 'x' })).toEqual({ kind: 'tenant', id: 'acme' })
  })
  it.each([['192.0.2.1', 'ip'], ['192.0', 'ip'], ['2001:db8::/32', 'ip'], ['alice', 'user'], ['cafe', 'user'], ['42', 'user'], ['a.b@example.com', 'user']])('guess that %s is a %s', (text, kind) => expect(guess(text)).toBe(kind))
})

describe('a request to try', () => {
  it('is kept in the address, but for the text of a key', () => {
    const a = { ...askedOf(new URLSearchParams('user=alice&headers=X-A: 1%0AX-B: 2&cost=3')), api_key: 'stint_k1_secret' }
    expect(a).toMatchObject({ method: 'GET', path: '/', user: 'alice', headers: ['X-A: 1', 'X-B: 2'] })
    expect(queryOf(a)).toMatchObject({ api_key: '', headers: 'X-A: 1\nX-B: 2', cost: '3' })
    expect(queryOf({ ...a, api_key: 'k1' }).api_key).toBe('k1')
    expect(askedOf(new URLSearchParams(queryOf({ ...a, api_key: '' })))).toEqual({ ...a, api_key: '' })
  })
  it('is sent without what is empty', () => {
    const a = askedOf(new URLSearchParams('path=/x&cost=2'))
    expect(bodyOf({ ...a, headers: ['X-A:  b: c '] })).toEqual({ body: { method: 'GET', path: '/x', cost: 2, headers: { 'X-A': 'b: c' } }, errors: [] })
  })
  it('names what cannot be sent', () => {
    const a = askedOf(new URLSearchParams())
    expect(bodyOf({ ...a, cost: '1.5', headers: ['no colon'] }).errors.map((e) => e.field)).toEqual(['cost', 'headers'])
  })
})

describe('nodes', () => {
  const node = (o: Partial<NodeInfo>): NodeInfo => ({ id: 'n', name: 'n', version: '1', started: '', seen: '2026-11-15T11:59:59Z', revision: 4, self: false, behind: false, ...o })
  it.each<[string, Partial<NodeInfo>, RegExp[]]>([
    ['well', {}, []],
    ['silent', { seen: '2026-11-15T11:50:00Z', behind: true }, [/No report for 10 min/]],
    ['behind', { behind: true }, [/newest revision yet/]],
    ['refusing', { behind: true, problem: 'no tier.' }, [/no tier\.$/]],
    ['without its store', { state: { checks: [], status: 'degraded', breaker: 'open', counters: 'redis', store: 'away', replicas: 1, requests_per_second: 0, refused_per_second: 0, p99_us: 0 } }, [/store/]],
    ['not ready', { state: { checks: [], status: 'not_ready', breaker: 'none', counters: 'memory', store: 'ok', replicas: 0, requests_per_second: 0, refused_per_second: 0, p99_us: 0 } }, [/not ready/]],
  ])('are %s', (_, o, want) => {
    const found = troubleOf(node(o), now)
    expect(found.length).toBe(want.length)
    want.forEach((w, i) => expect(found[i]).toMatch(w))
  })
  it('know the newest revision', () => expect(newest([node({ revision: 3 }), node({ revision: 9 })], 5)).toBe(9))
})

describe('changes', () => {
  const change = (o: Partial<Change>): Change => ({ fields: [], revision: 1, place: 0, at: '', actor: 'a', kind: 'rule', id: 'x', action: 'update', ...o })
  it('tell every field of what was made or deleted', () => {
    expect(fieldsOf(change({ action: 'create', after: { id: 'x', n: 1 } }))).toEqual([
      { path: 'id', before: undefined, after: 'x' },
      { path: 'n', before: undefined, after: 1 },
    ])
    expect(fieldsOf(change({ fields: [{ path: 'a', before: '1', after: '2' }] }))).toHaveLength(1)
  })
  it.each([
    [{ kind: 'rule', id: 'a b' }, '#/rules/edit/a%20b'],
    [{ kind: 'ban', id: 'ip:2001:db8::/32' }, '#/subjects/ip/2001%3Adb8%3A%3A%2F32'],
    [{ kind: 'api_key', id: 'k1' }, '#/subjects/key/k1'],
    [{ kind: 'other', id: 'x' }, ''],
  ])('lead to what was changed: %o', (c, want) => expect(linkOf(c)).toBe(want))
})
