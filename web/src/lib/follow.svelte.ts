// Decisions as they are made. What comes in is shown a few times a second, and while it is
// paused it waits; of both only the newest are kept.

import type { Event } from './types'

const keep = 2000

export class Follow {
  rows = $state.raw<Event[]>([])
  paused = $state(false)
  /** How many wait. */
  waiting = $state(0)
  /** How many were too many to be told. */
  skipped = $state(0)
  #next: Event[] = []

  take = (e: Event) => {
    this.#next.push(e)
    if (this.#next.length > keep) this.#next = this.#next.slice(-keep)
  }

  /** settle has a decision tell what became of its reservation. */
  settle = (e: Event) => {
    const known = (all: Event[]) => all.map((o) => (o.decision_id === e.decision_id ? e : o))
    this.#next = known(this.#next)
    if (this.rows.some((o) => o.decision_id === e.decision_id)) this.rows = known(this.rows)
  }

  skip = (s: { n: number }) => {
    this.skipped += s.n
  }

  /** show puts what has come on top. */
  show = () => {
    if (this.paused) {
      this.waiting = this.#next.length
      return
    }
    this.waiting = 0
    if (this.#next.length === 0) return
    this.rows = [...this.#next.reverse(), ...this.rows].slice(0, keep)
    this.#next = []
  }

  toggle = () => {
    this.paused = !this.paused
    this.show()
  }

  clear = () => {
    this.#next = []
    this.rows = []
    this.waiting = this.skipped = 0
  }
}
