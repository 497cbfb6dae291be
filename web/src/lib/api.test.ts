import { afterEach, expect, it, vi } from 'vitest'
import { address, ApiError, call, lines, path, post, remember, rules, whenSignedOut } from './api'

function answer(status: number, body: unknown, type = 'application/json') {
  const fetched = vi.fn((_to: string, _how: RequestInit) => Promise.resolve(new Response(typeof body === 'string' ? body : JSON.stringify(body), { status, headers: { 'Content-Type': type } })))
  vi.stubGlobal('fetch', fetched)
  return fetched
}

afterEach(() => {
  vi.unstubAllGlobals()
  remember(null)
  whenSignedOut(() => {})
})

async function failure(asked: Promise<unknown>): Promise<ApiError> {
  const err = await asked.then(
    () => undefined,
    (e: unknown) => e,
  )
  expect(err).toBeInstanceOf(ApiError)
  return err as ApiError
}

it('escapes what it is given', () => {
  expect(path('bans', 'ip:192.0.2.0/24')).toBe('/bans/ip%3A192.0.2.0%2F24')
  expect(address('/events', { user: 'a&b', rule: '', to: undefined })).toBe('/admin/v1/events?user=a%26b')
})

it('sends the version and the token against forgery with what writes', async () => {
  const fetched = answer(200, { id: 'a', version: 8 })
  remember({ name: 'first', role: 'admin', csrf: 'secret', expires_at: '' })
  await rules.put('a', { name: 'a' }, 7)
  const [to, how] = fetched.mock.calls[0]!
  expect(to).toBe('/admin/v1/rules/a')
  expect(how.headers).toMatchObject({ 'If-Match': '"7"', 'X-CSRF-Token': 'secret' })
  await rules.get('a')
  expect(fetched.mock.calls[1]![1].headers).not.toHaveProperty('X-CSRF-Token')
})

it('reads problems', async () => {
  answer(422, { title: 'Unprocessable Entity', status: 422, detail: 'no', errors: [{ field: 'name', message: 'missing' }] }, 'application/problem+json')
  const err = await failure(post('/rules', {}))
  expect(err.status).toBe(422)
  expect(err.message).toBe('no')
  expect(err.errors).toEqual([{ field: 'name', message: 'missing' }])
})

it('says something also of what is no problem of ours', async () => {
  answer(502, '<html>Bad Gateway</html>', 'text/html')
  expect((await failure(call('GET', '/status'))).message).toContain('502')
})

it('says that the server is away', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
  expect((await failure(call('GET', '/status'))).status).toBe(0)
})

it('tells when the session has ended, but not when a sign-in fails', async () => {
  const ended = vi.fn()
  whenSignedOut(ended)
  answer(401, { title: 'Unauthorized', status: 401 })
  await failure(call('POST', '/session', { body: {} }))
  expect(ended).not.toHaveBeenCalled()
  await failure(call('GET', '/rules'))
  expect(ended).toHaveBeenCalledOnce()
})

/** pieces answers with a body that comes in pieces. */
function pieces(...parts: (string | Error)[]) {
  const encode = new TextEncoder()
  const body = new ReadableStream<Uint8Array>({
    pull(c) {
      const next = parts.shift()
      if (next === undefined) c.close()
      else if (typeof next === 'string') c.enqueue(encode.encode(next))
      else c.error(next)
    },
  })
  vi.stubGlobal('fetch', vi.fn(() => Promise.resolve(new Response(body, { status: 200 }))))
}

it('reads lines as they come', async () => {
  pieces('{"n":1}\n{"n"', ':2}\n\n{"n":3}', '\n')
  const got: unknown[] = []
  for await (const line of lines('POST', '/replay', { body: {} })) got.push(line)
  expect(got).toEqual([{ n: 1 }, { n: 2 }, { n: 3 }])
})

it('says that lines have broken off, after those that came', async () => {
  pieces('{"n":1}\n', new TypeError('network'))
  const got: unknown[] = []
  const err = await failure(
    (async () => {
      for await (const line of lines('POST', '/replay')) got.push(line)
    })(),
  )
  expect([got, err.status]).toEqual([[{ n: 1 }], 0])
})

it('has the problem of lines that never came', async () => {
  answer(422, { title: 'Unprocessable Entity', status: 422, detail: 'no', errors: [{ field: 'candidate', message: 'no', line: 3, column: 1 }] }, 'application/problem+json')
  const err = await failure(lines('POST', '/replay').next())
  expect(err.errors[0]).toMatchObject({ line: 3 })
})
