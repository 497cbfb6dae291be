// What TypeScript makes of the types. It is compiled, and not run.

import { CallError, Client, type Verdict } from 'stint-client'
import { express, handler } from 'stint-client/middleware'

const client = new Client({ url: 'http://localhost:8080', failMode: 'closed', onFailure: (call, error) => console.log(call.length, error.retryAfter) })

export async function use(): Promise<string> {
  const verdict: Verdict = await client.check({ path: '/', user: 'alice', headers: { 'X-App': ['mobile'] } })
  const wait: number | null = verdict.retry_after
  if (verdict.outcome === 'denied') return `${verdict.limits[0].name} ${wait} ${verdict.headers['Retry-After']}`
  if (verdict.failure instanceof CallError) return verdict.failure.detail
  await using reservation = await client.reserve({ path: '/', usage: { 'llm.total_tokens': 500 } })
  reservation.use({ usage: { 'llm.total_tokens': 400 }, model: 'large' })
  const done: number = await client.reserving({ path: '/' }, async (r) => (r.allowed ? 1 : 0))
  for (const receipt of await client.commitBatch([])) if (!(receipt instanceof CallError)) return String(receipt.repeated + String(done))
  // @ts-expect-error a path is required
  await client.check({ user: 'alice' })
  // @ts-expect-error there is no such field
  await client.check({ path: '/', usr: 'alice' })
  // @ts-expect-error there is no such mode
  new Client({ url: '', failMode: 'ajar' })
  // @ts-expect-error there is no such outcome
  return verdict.outcome === 'rejected' ? '' : ''
}

export const served = handler(client, (request: Request, info: { ip: string }) => new Response(info.ip), { ip: (_, info) => info.ip })
export const limit = express(client)
