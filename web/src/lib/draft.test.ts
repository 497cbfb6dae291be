import { describe, expect, it } from 'vitest'
import { ApiError } from './api'
import { Draft } from './draft.svelte'

const make = () => ({ name: '', rows: [] as string[] })

describe('Draft', () => {
  it('keeps what was typed while the form is closed', () => {
    const d = new Draft(make)
    d.begin()
    d.value.name = 'gold'
    d.open = false
    d.begin()
    expect(d.value.name).toBe('gold')
    expect(d.kept).toBe(true)
    d.reset()
    expect(d.value.name).toBe('')
    expect(d.kept).toBe(false)
  })
  it('begins anew for something else', () => {
    const d = new Draft(make)
    d.begin('a', () => ({ name: 'a', rows: [] }), 3)
    d.value.rows.push('x')
    expect(d.dirty).toBe(true)
    d.begin('b', () => ({ name: 'b', rows: [] }), 7)
    expect(d.value).toEqual({ name: 'b', rows: [] })
    expect(d.version).toBe(7)
    expect(d.dirty).toBe(false)
  })
  it('takes what is there now if nothing was typed', () => {
    const d = new Draft(make)
    d.begin('a', () => ({ name: 'old', rows: [] }), 1)
    d.open = false
    d.begin('a', () => ({ name: 'new', rows: [] }), 2)
    expect(d.value.name).toBe('new')
    expect(d.version).toBe(2)
  })
  it('loses nothing if it cannot be saved', async () => {
    const d = new Draft(make)
    d.begin('', make, 4)
    d.value.name = 'gold'
    const conflict = new ApiError({ title: 'Precondition Failed', status: 412, version: 5, errors: [{ field: 'name', message: 'no' }] })
    expect(await d.save(() => Promise.reject(conflict))).toBe(false)
    expect([d.open, d.busy, d.conflict, d.value.name, d.errors[0]?.field]).toEqual([true, false, true, 'gold', 'name'])
    const seen: unknown[] = []
    expect(await d.save(async (ifMatch) => seen.push(ifMatch), true)).toBe(true)
    expect(seen).toEqual(['*'])
    expect([d.open, d.value.name, d.error]).toEqual([false, '', undefined])
  })
  it('sends the version that was seen, and once at a time', async () => {
    const d = new Draft(make)
    d.begin('a', make, 4)
    const seen: unknown[] = []
    let done = () => {}
    const first = d.save((v) => (seen.push(v), new Promise<void>((ok) => (done = ok))))
    expect(await d.save(async (v) => seen.push(v))).toBe(false)
    done()
    expect(await first).toBe(true)
    expect(seen).toEqual([4])
  })
})
