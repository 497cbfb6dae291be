import assert from 'node:assert/strict'
import { createServer, request } from 'node:http'
import { test } from 'node:test'
import { express, handler } from '../middleware.js'
import { client, start } from './world.js'

const rules = `
[identity]
trusted_proxies = ["127.0.0.1"]
user_header     = "X-User-ID"

[[rules]]
name     = "secret"
match    = { paths = ["/secret/**"] }
action   = "block"

[[rules]]
name     = "users"
match    = { paths = ["/a b/**"] }
count_by = ["user"]
limits   = [{ name = "hourly", limit = "2/1000h fixed_window" }]
`

test('limits a server of Node', async (t) => {
  const limit = express(client((await start(rules)).url))
  let served = 0
  const server = createServer((request, response) => limit(request, response, (error) => {
    response.statusCode = error ? 500 : 200
    response.end(error ? String(error) : request.stint.outcome)
    served++
  }))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => { server.close(); server.closeAllConnections() })
  // fetch would make //secret and /x/../secret another path.
  const ask = (path, method = 'GET', user = 'alice') => new Promise((resolve, reject) => {
    request({ port: server.address().port, host: '127.0.0.1', path, method, headers: { 'X-User-ID': user } }, (response) => {
      let body = ''
      response.on('data', (data) => (body += data)).on('end', () => resolve({ status: response.statusCode, headers: response.headers, body }))
    }).on('error', reject).end()
  })
  for (const left of ['1', '0']) {
    const { status, headers, body } = await ask('/a%20b/%E4?q=1')
    assert.deepEqual([status, headers['x-ratelimit-remaining'], body], [200, left, 'allowed'])
  }
  const denied = await ask('/a%20b/')
  assert.deepEqual([denied.status, denied.headers['content-type']], [429, 'application/problem+json'])
  assert.ok(denied.body.includes('used up') && Number(denied.headers['retry-after']) > 0)
  assert.equal((await ask('/a%20b/', 'HEAD')).status, 429)
  assert.equal((await ask('/a%20b/', 'GET', 'bob')).status, 200)
  for (const path of ['/secret/x', '//secret/x', '/x/../secret/x', '/%73ecret/x', 'http://other/secret/x']) assert.equal((await ask(path)).status, 403, path)
  assert.equal((await ask('/' + 'x'.repeat(9000))).status, 400)
  assert.equal(served, 3)
})

test('wraps a handler', async () => {
  const c = client((await start(rules)).url)
  const limited = handler(c, (request, info) => new Response(`served ${info.peer}`, { headers: { 'X-App': '1' } }), { ip: (_, info) => info.peer })
  const ask = (path, init) => limited(new Request('http://app' + path, { headers: { 'X-User-ID': 'alice' }, ...init }), { peer: '127.0.0.1' })
  const first = await ask('/a%20b/?q=1')
  assert.deepEqual([first.status, await first.text(), first.headers.get('X-RateLimit-Remaining'), first.headers.get('X-App')], [200, 'served 127.0.0.1', '1', '1'])
  await ask('/a%20b/')
  const denied = await ask('/a%20b/')
  assert.deepEqual([denied.status, denied.headers.get('Content-Type')], [429, 'application/problem+json'])
  assert.ok((await denied.text()).includes('used up'))
  assert.equal(await (await ask('/a%20b/', { method: 'HEAD' })).text(), '')
  assert.equal((await ask('/' + 'x'.repeat(9000))).status, 400)
  const named = handler(c, () => new Response('served'), { describe: () => ({ path: '/a b/', user: 'carol' }) })
  assert.equal((await named(new Request('http://app/'))).status, 200)
})

test('takes a token that was not accepted out of the request', async () => {
  const accepts = { check: async () => ({ allowed: true, outcome: 'allowed', unaccepted: 'expired', headers: {}, limits: [] }) }
  const limited = handler(accepts, (request) => new Response(request.headers.get('Authorization')))
  assert.equal(await (await limited(new Request('http://app/', { headers: { Authorization: 'Bearer x' } }))).text(), '')
  const request = { url: '/', method: 'GET', headers: { authorization: 'Bearer x' }, socket: {} }
  await express(accepts)(request, { setHeader() {} }, () => {})
  assert.deepEqual([request.headers, request.stint.unaccepted], [{}, 'expired'])
})
