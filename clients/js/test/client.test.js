import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readFile, readdir } from 'node:fs/promises'
import { test } from 'node:test'
import { CallError, Client, denial, UnreachableError } from '../stint.js'
import { client, falsely, one, patience, problem, start, tokens, until } from './world.js'

const alice = { path: '/', user: 'alice' }
const remaining = async (c) => (await c.usage({ user: 'alice' }))[0].remaining

test('checks', async () => {
  const c = client((await start()).url)
  const peek = await c.check({ ...alice, peek: true })
  assert.deepEqual([peek.remaining, peek.failure], [3, undefined])
  for (const left of [2, 1, 0]) {
    const v = await c.check(alice)
    assert.deepEqual([v.allowed, v.outcome, v.rule, v.limit, v.remaining], [true, 'allowed', 'users', 3, left])
  }
  const v = await c.check(alice)
  assert.deepEqual([v.allowed, v.outcome, v.status, v.remaining, v.limits[0].name], [false, 'denied', 429, 0, 'hourly'])
  assert.equal(v.headers['X-RateLimit-Limit'], '3')
  const { status, headers, body } = denial(v)
  assert.deepEqual([status, headers['Content-Type']], [429, 'application/problem+json'])
  assert.ok(v.retry_after > 0 && Number(headers['Retry-After']) > 0 && body.includes('quota-exceeded'))
  assert.throws(() => denial(peek), /may pass/)
  assert.equal((await c.check({ path: '/', user: 'bob', cost: 4 })).retry_after, null)
  assert.deepEqual(c.stats, { undecided: 0, unsettled: 0, unreachable: false })
})

test('checks several', async () => {
  const c = client((await start()).url)
  const got = await c.checkBatch([...Array(5).fill(alice), { path: '/' + 'x'.repeat(9000) }])
  assert.equal(got.filter((v) => v.allowed).length, 3)
  assert.deepEqual([got[5].allowed, got[5].status, got[5].failure.status], [false, 414, 414])
  await assert.rejects(c.checkBatch([alice, { path: '/', cost: 0 }]), { field: 'requests[1].cost' })
})

test('names the field of bad input', async () => {
  const c = client((await start()).url)
  for (const [ask, field] of [
    [{ path: 'search' }, 'path'], [{ path: '/', ip: 'nowhere' }, 'ip'], [{ path: '/', method: 'get' }, 'method'], [{ path: '/', cost: 1.5 }, 'cost'],
    [{ path: '/', headers: { X: 1 } }, 'headers.X'], [{ path: '/', users: 'alice' }, '"users"'], [{}, 'path'],
  ]) {
    await assert.rejects(c.check(ask), (error) => {
      assert.deepEqual([error.constructor, error.status, error.field], [CallError, 400, field], error.message)
      return true
    })
  }
  await assert.rejects(c.cancel({ ticket: 'AAAA' }), /ticket/)
  for (const [name, value] of Object.entries({ url: 'localhost:8080', timeout: 0, failMode: 'ajar', token: 'a b', breakerFailures: 0 })) {
    assert.throws(() => new Client({ url: 'http://127.0.0.1:1', [name]: value }), new RegExp(`^TypeError: ${name}: `))
  }
  assert.equal(c.stats.undecided, 0)
})

test('takes, and shows usage', async () => {
  const c = client((await start()).url)
  const ask = { subject: 'user:42', name: 'mails', limit: '10/1h fixed_window', cost: 4 }
  for (const allowed of [true, true, false]) assert.equal((await c.take(ask)).allowed, allowed)
  const both = await c.take(ask, { subject: 'user:43', limit: '10/1h fixed_window' })
  assert.deepEqual([both.allowed, both.limits[1].remaining], [false, 10])
  await c.check(alice)
  assert.equal(await remaining(c), 2)
  await assert.rejects(c.usage({}), /want one of user/)
})

test('reserves, extends and settles', async () => {
  const c = client((await start(tokens)).url)
  const r = await c.reserve({ ...alice, usage: { 'llm.total_tokens': 200 }, expires_in: 60 })
  assert.ok(r.allowed && r.ticket)
  assert.deepEqual([await r.extend({ cost: 100 }), await r.extend({ cost: 10000 }), await remaining(c)], [true, false, 700])
  const used = { ticket: r.ticket, usage: { 'llm.total_tokens': 250 }, model: 'large' }
  assert.deepEqual([(await c.commit(used)).repeated, (await c.commit(used)).repeated, await remaining(c)], [false, true, 750])
  const all = await c.reserveBatch(Array(2).fill({ ...alice, cost: 400 }))
  assert.deepEqual(all.map((r) => r.allowed).sort(), [false, true])
  const { ticket } = all.find((r) => r.allowed)
  const [more, bad] = await c.extendBatch([{ ticket, cost: 1 }, { ticket: 'AAAA' }])
  assert.deepEqual([more.allowed, bad.status], [true, 400])
  const cancelled = await c.cancelBatch([{ ticket: more.ticket }, { ticket: 'AAAA' }])
  assert.deepEqual([cancelled[0].repeated, cancelled[1].status], [false, 400])
  const committed = await c.commitBatch([{ ticket: more.ticket, cost: 9 }, { ticket: 'AAAA', cost: 1 }])
  assert.deepEqual([committed[0].repeated, committed[1].status, await remaining(c)], [true, 400, 750])
})

test('settles at the end of the work', async () => {
  const c = client((await start(tokens)).url)
  const ask = { ...alice, cost: 100 }
  assert.equal(await c.reserving(ask, (r) => { r.use({ cost: 30 }); return 'done' }), 'done')
  assert.equal(await remaining(c), 970)
  await c.reserving(ask, () => {}) // nothing is said: nothing was used
  assert.equal(await remaining(c), 970)
  for (const used of [0, 20]) {
    await assert.rejects(c.reserving(ask, async (r) => {
      if (used) r.use({ usage: { 'llm.total_tokens': used } })
      throw new Error('the work has failed')
    }), /the work/)
    assert.equal(await remaining(c), 970 - used)
  }
  await assert.rejects(c.reserving(ask, (r) => r.use({ cost: -1 })), { field: 'cost' })
  const r = await c.reserve(ask)
  r.use({ cost: 0 })
  await r[Symbol.asyncDispose]() // what await using does
  assert.equal(await r.settle(), undefined)
  const denied = await c.reserve({ ...alice, cost: 5000 })
  assert.deepEqual([denied.allowed, denied.ticket, await denied.settle()], [false, undefined, undefined])
})

test('sends a token', async () => {
  const { url } = await start(one + '[server.http]\ntokens = ["0123456789abcdef"]\n')
  assert.equal((await client(url, { token: '0123456789abcdef' }).check(alice)).remaining, 2)
  for (const token of [undefined, 'another-0123456789']) {
    await assert.rejects(client(url, { token }).check(alice), (error) => error.status === 401 && !String(error).includes('another'))
  }
})

test('goes on without the server, and back to it', async () => {
  const server = await start(), told = []
  const c = client(server.url, { breakerInterval: 50, onFailure: (call, error) => told.push([call, error]) })
  await c.check(alice)
  await server.kill()
  const v = await c.check(alice)
  assert.deepEqual([v.allowed, v.outcome, v.limits, v.decision_id, v.failure.constructor], [true, 'allowed', [], '', UnreachableError])
  const closed = await client(server.url, { failMode: 'closed' }).check(alice)
  assert.deepEqual([closed.allowed, closed.outcome, closed.status, denial(closed).headers['Retry-After']], [false, 'unavailable', 503, '1'])
  await assert.rejects(client(server.url, { failMode: 'error' }).check(alice), UnreachableError)
  const r = await c.reserve(alice)
  assert.ok(r.allowed && r.ticket === undefined && r.verdict.failure)
  assert.ok((await c.take({ subject: 'x', limit: '1/1h' })).allowed)
  assert.deepEqual((await c.checkBatch([alice, alice])).map((v) => v.allowed), [true, true])
  await c.check(alice)
  await until(() => c.stats.unreachable, 'the breaker has not opened')
  assert.match(String((await c.check(alice)).failure), /has not answered for a while/)
  assert.deepEqual([c.stats.undecided, told.length, told[0][0]], [6, 6, 'check'])
  await server.restart()
  await until(async () => !(await c.check(alice)).failure, 'the server is not asked again')
  assert.ok(!c.stats.unreachable)
})

test('does not wait for a server that is paused', async () => {
  const server = await start()
  const c = client(server.url, { timeout: 100, breakerInterval: 50 })
  await until(async () => !(await c.check(alice)).failure, 'it answers in time') // once it is warm
  await server.pause()
  const said = []
  await until(async () => { said.push(String((await c.check(alice)).failure)); return c.stats.unreachable }, 'the breaker has not opened')
  assert.match(said.join(), /no answer in time/)
  const began = performance.now()
  for (let i = 0; i < 200; i++) await c.check(alice) // would wait for 20 s
  assert.ok(performance.now() - began < 10_000)
  await server.resume()
  await until(async () => !(await c.check(alice)).failure, 'the server is not asked again')
})

test('knows that a rule that throttles is not a server that is away', async () => {
  const { url } = await start('[[rules]]\nname = "slow"\nmatch = { paths = ["/slow"] }\naction = "throttle"\nmax_delay = "30s"\nlimits = [{ name = "slow", limit = "1/10s burst=30 leaky_bucket" }]\n')
  let probes = 0
  const c = client(url, { timeout: 800, breakerFailures: 2, fetch: async (to, init) => {
    try {
      return await fetch(to, init)
    } finally {
      probes += init.body.includes('peek')
    }
  } })
  for (let i = 0; i < 4; i++) await c.check({ path: '/slow' })
  assert.ok(c.stats.undecided >= 2)
  await until(() => probes > 0, 'nobody asks whether it is there')
  assert.ok(!c.stats.unreachable)
})

test('checks a thousand at once', async () => {
  const c = client((await start(one.replace('3/', '300/'))).url)
  const got = await Promise.all(Array.from({ length: 1000 }, () => c.check(alice)))
  assert.deepEqual([got.filter((v) => v.allowed).length, c.stats.undecided], [300, 0])
})

test('sends a commit again until it is answered', async () => {
  const server = await start(tokens)
  const c = client(server.url, { settleTimeout: patience })
  const r = await c.reserve({ ...alice, cost: 100 })
  await server.pause()
  const resumed = new Promise((resolve) => setTimeout(() => resolve(server.resume()), 1200)) // the first attempt is over by then
  r.use({ cost: 40 })
  await r.settle()
  await resumed
  assert.deepEqual([await remaining(c), c.stats.unsettled], [960, 0])
})

test('gives a commit up', async () => {
  const server = await start(tokens), told = []
  const c = client(server.url, { settleTimeout: 300, onFailure: (call) => { told.push(call); throw new Error('of the one who watches') } })
  const r = await c.reserve({ ...alice, cost: 100 })
  await server.kill()
  await assert.rejects(r.settle(), UnreachableError)
  r.use({ cost: 5 })
  await r[Symbol.asyncDispose]() // throws nothing
  assert.deepEqual([c.stats.unsettled, told], [2, ['cancel', 'commit']])
})

test('waits as long as the server says', async (t) => {
  const receipt = { decision_id: 'x', repeated: false, limits: [] }
  const server = await falsely(t, problem(503, 'later', { 'Retry-After': '1' }), null, [502, '<html>', { 'Content-Type': 'text/html' }], [200, receipt])
  await client(server.url, { settleTimeout: patience }).commit({ ticket: 'x', cost: 1 })
  assert.equal(server.calls.length, 4)
  assert.ok(server.calls[1].at - server.calls[0].at >= 999)
  const late = await falsely(t, problem(503, 'later', { 'Retry-After': '60' }))
  await assert.rejects(client(late.url).cancel({ ticket: 'x' }), /503: later/)
  assert.equal(late.calls.length, 1) // it does not wait for what is too late
})

test('sends what may have been counted once', async (t) => {
  const server = await falsely(t, null)
  const c = client(server.url)
  await c.check(alice)
  await c.reserve(alice)
  await c.extend({ ticket: 'x' })
  await c.take({ subject: 'x', limit: '1/1h' })
  assert.deepEqual([server.calls.length, c.stats.undecided], [4, 4])
})

test('does not let pass what the server could not decide', async (t) => {
  for (const answer of [problem(503, 'no database', { 'Retry-After': '1' }), problem(500, 'no database')]) {
    const v = await client((await falsely(t, answer)).url).check(alice)
    assert.deepEqual([v.allowed, v.outcome, v.reason], [false, 'unavailable', 'no database'])
  }
  const taken = await client((await falsely(t, problem(503, 'no store'))).url).take({ subject: 'x', limit: '1/1h' })
  assert.ok(taken.allowed && taken.failure)
})

test('takes for an answer only what is one', async (t) => {
  const whole = { allowed: true, outcome: 'later', retry_after: 0, decision_id: 'x', limits: [], later: 1 }
  assert.equal((await client((await falsely(t, [200, whole])).url).check(alice)).failure, undefined)
  for (const answer of [null, [200, '<html>'], [200, []], [200, { allowed: true }], [200, { ...whole, allowed: 'yes' }], [502, '<html>'], [429, 'slow down'], [200]]) {
    const v = await client((await falsely(t, answer)).url, { failMode: 'closed', timeout: answer?.length === 1 ? 100 : patience }).check(alice)
    assert.deepEqual([v.allowed, v.failure?.constructor], [false, UnreachableError], JSON.stringify(answer))
  }
  for (const status of [302, 404]) {
    await assert.rejects(client((await falsely(t, [status, '', { Location: '/' }])).url).check(alice), { name: 'CallError', status })
  }
})

test('leaves what a process that ends has reserved', async () => {
  const server = await start(tokens)
  const program = `
    import { Client } from ${JSON.stringify(new URL('../stint.js', import.meta.url).href)}
    await new Client({ url: ${JSON.stringify(server.url)}, timeout: ${patience} }).reserving({ path: '/', user: 'alice', cost: 100 }, (r) => {
      process.stdout.write(r.ticket, () => process.exit(1))
      return new Promise(() => {})
    })`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] })
  let ticket = ''
  for await (const data of child.stdout) ticket += data
  const c = client(server.url)
  assert.equal(await remaining(c), 900) // it stays charged, and whoever has the ticket can settle it
  await c.commit({ ticket, cost: 60 })
  assert.equal(await remaining(c), 940)
})

test('needs nothing but the language and fetch', async () => {
  const dir = new URL('..', import.meta.url)
  for (const file of (await readdir(dir)).filter((name) => name.endsWith('.js'))) {
    for (const [, from] of (await readFile(new URL(file, dir), 'utf8')).matchAll(/^(?:import|export) .* from '(.*)'$/gm)) assert.match(from, /^\.\//, file)
  }
})
