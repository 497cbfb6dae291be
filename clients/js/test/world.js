// Servers for the tests: real ones, which a test in Go starts (go test ./internal/e2e -run TestJavaScriptClient), and false ones.

import { createServer } from 'node:http'
import { Client } from '../stint.js'

export const patience = 20_000

export const one = `
[[rules]]
name     = "users"
count_by = ["user"]
limits   = [{ name = "hourly", limit = "3/1000h fixed_window" }]
`
export const tokens = `
[[rules]]
name     = "tokens"
count_by = ["user"]
cost     = { meter = "llm.total_tokens", reserve = 10 }
limits   = [{ name = "tokens", limit = "1000/1000h fixed_window" }]
`

const control = process.env.STINT_CONTROL
if (!control) throw new Error('these tests need servers: run go test ./internal/e2e -run TestJavaScriptClient')

async function ask(what, body) {
  const answer = await fetch(`${control}/${what}`, { method: 'POST', body })
  if (!answer.ok) throw new Error(`${what}: ${await answer.text()}`)
  return answer.json()
}

/** start starts a stint. */
export async function start(config = one) {
  const address = await ask('start', config)
  const does = (what) => () => ask(what, address)
  return { url: `http://${address}`, kill: does('kill'), pause: does('pause'), resume: does('resume'), restart: does('restart') }
}

/** client makes a client that waits long, since the machine may be busy. */
export function client(url, options = {}) {
  return new Client({ url, timeout: patience, ...options })
}

/** until waits until a condition holds. */
export async function until(check, what) {
  for (const end = Date.now() + patience; !(await check());) {
    if (Date.now() > end) throw new Error(what)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

/**
 * falsely starts a server that answers each call with the next of these, the last one again and again, and keeps what it
 * was sent: a status, a body and headers; null closes the connection without an answer.
 */
export async function falsely(t, ...answers) {
  const calls = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (data) => (body += data)).on('end', () => {
      calls.push({ at: performance.now(), method: request.method, url: request.url, headers: request.headers, body })
      const answer = answers.length > 1 ? answers.shift() : answers[0]
      if (!answer) return request.socket.destroy()
      const [status, text, headers] = answer
      response.writeHead(status, { 'Content-Type': 'application/json', ...headers })
      if (text === undefined) response.write('{') // and nothing more
      else response.end(typeof text === 'string' ? text : JSON.stringify(text))
    })
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => { server.close(); server.closeAllConnections() })
  return { url: `http://127.0.0.1:${server.address().port}`, calls }
}

export function problem(status, detail, headers = {}) {
  return [status, { type: 'about:blank', title: 'No', status, detail }, { 'Content-Type': 'application/problem+json', ...headers }]
}
