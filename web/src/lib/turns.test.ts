import { expect, test } from 'vitest'
import { turns } from './turns'

test('calls are made one after another, whatever becomes of those before', async () => {
  const turn = turns()
  const said: string[] = []
  const call = (name: string, fails = false) =>
    turn(async () => {
      said.push(`${name} begins`)
      await new Promise((resolve) => setTimeout(resolve))
      said.push(`${name} ends`)
      if (fails) throw new Error(name)
      return name
    })
  const all = await Promise.allSettled([call('a'), call('b', true), call('c')])
  expect(all.map((p) => p.status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
  expect(said).toEqual(['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends'])
})
