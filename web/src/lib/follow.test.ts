import { describe, expect, it } from 'vitest'
import { Follow } from './follow.svelte'
import type { Event } from './types'

const event = (id: number) => ({ decision_id: String(id) }) as Event
const ids = (f: Follow) => f.rows.map((e) => Number(e.decision_id))

describe('Follow', () => {
  it('puts the newest on top', () => {
    const f = new Follow()
    f.take(event(1))
    f.take(event(2))
    expect(ids(f)).toEqual([])
    f.show()
    f.take(event(3))
    f.show()
    expect(ids(f)).toEqual([3, 2, 1])
  })
  it('has a decision tell what became of its reservation, shown or waiting', () => {
    const f = new Follow()
    f.take(event(1))
    f.show()
    f.take(event(2))
    for (const id of [1, 2, 3]) f.settle({ ...event(id), settled: [] })
    f.show()
    expect(f.rows.map((e) => [Number(e.decision_id), e.settled])).toEqual([[2, []], [1, []]])
  })
  it('waits while it is paused', () => {
    const f = new Follow()
    f.toggle()
    f.take(event(1))
    f.take(event(2))
    f.show()
    expect([f.waiting, ids(f)]).toEqual([2, []])
    f.toggle()
    expect([f.waiting, ids(f)]).toEqual([0, [2, 1]])
  })
  it('keeps the newest, shown or waiting', () => {
    const f = new Follow()
    for (let i = 1; i <= 1500; i++) f.take(event(i))
    f.show()
    f.toggle()
    for (let i = 1501; i <= 5000; i++) f.take(event(i))
    f.show()
    expect(f.waiting).toBe(2000)
    f.toggle()
    expect([f.rows.length, ids(f)[0], ids(f)[1999]]).toEqual([2000, 5000, 3001])
  })
  it('counts what was left out, until it is cleared', () => {
    const f = new Follow()
    f.skip({ n: 3 })
    f.skip({ n: 4 })
    f.take(event(1))
    expect(f.skipped).toBe(7)
    f.clear()
    f.show()
    expect([f.skipped, f.rows.length]).toEqual([0, 0])
  })
})
