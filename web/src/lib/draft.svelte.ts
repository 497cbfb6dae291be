// What is typed into a form stays until it is saved or thrown away, also while the form is
// closed, the server is away, or someone has to sign in again.

import { aborted, ApiError } from './api'
import type { FieldProblem } from './types'

export class Draft<T> {
  open = $state(false)
  busy = $state(false)
  /** kept: it was begun, left, and opened again. */
  kept = $state(false)
  error = $state.raw<unknown>(undefined)
  value = $state() as T
  /** The version that was seen by who fills in the form. */
  version = 0
  #of: string | undefined
  #make: () => T
  #start = ''

  constructor(make: () => T) {
    this.#make = make
    this.reset()
  }

  /** begin opens the form of something, with what is there, or with what was typed before. */
  begin(of = '', make: () => T = this.#make, version = 0) {
    this.kept = this.#of === of && this.dirty
    if (!this.kept) {
      this.#make = make
      this.#of = of
      this.version = version
      this.reset()
    }
    this.open = true
  }

  /** reset puts back what was there. */
  reset = () => {
    this.value = this.#make()
    this.#start = JSON.stringify(this.value)
    this.error = undefined
    this.kept = false
  }

  discard = () => {
    this.reset()
    this.open = false
  }

  get dirty(): boolean {
    return JSON.stringify(this.value) !== this.#start
  }

  get errors(): FieldProblem[] {
    return this.error instanceof ApiError ? this.error.errors : []
  }

  /** conflict: someone else has changed it meanwhile. */
  get conflict(): boolean {
    return this.error instanceof ApiError && this.error.stale
  }

  /** save has it saved, and closes the form if it was. It tells whether it was. */
  async save(call: (ifMatch: number | '*') => Promise<unknown>, force = false): Promise<boolean> {
    if (this.busy) return false
    this.busy = true
    try {
      await call(force ? '*' : this.version)
      this.#of = undefined
      this.discard()
      return true
    } catch (err) {
      if (!aborted(err)) this.error = err
      return false
    } finally {
      this.busy = false
    }
  }
}
