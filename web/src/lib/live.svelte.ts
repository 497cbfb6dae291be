// The last 15 minutes of all nodes, or of one, a point a second, kept while the dashboard
// is open: pages come and go, and what they show does not begin anew.

import { SvelteMap } from 'svelte/reactivity'
import { stream, type StreamState } from './stream'
import type { Snapshot } from './types'

const keep = 15 * 60
const keepRules = 60

export interface RuleRate {
  requests: number
  refused: number
  /** Refusals of the last minute, oldest first, and requests. */
  refusedTrail: number[]
  requestsTrail: number[]
}

class LiveState {
  state = $state<StreamState>('connecting')
  last = $state.raw<Snapshot | null>(null)
  history = $state.raw<Snapshot[]>([])
  rules = new SvelteMap<string, RuleRate>()
  /** The node that is shown. Empty: all of them. */
  node = ''
  #stop: (() => void) | undefined

  start() {
    this.#stop ??= stream('/live/stream', {
      query: { node: this.node || undefined },
      on: { live: (s: Snapshot) => this.take(s) },
      state: (s) => (this.state = s),
    })
  }

  stop() {
    this.#stop?.()
    this.#stop = undefined
    this.last = null
    this.history = []
    this.rules.clear()
  }

  /** choose shows another node, or all, from now on. */
  choose(node: string) {
    if (node === this.node) return
    this.node = node
    if (!this.#stop) return
    this.stop()
    this.start()
  }

  take(s: Snapshot) {
    this.last = s
    this.history = [...this.history.slice(1 - keep), s]
    const now = new Map((s.rules ?? []).map((r) => [r.name, r]))
    for (const name of now.keys()) {
      if (!this.rules.has(name)) this.rules.set(name, { requests: 0, refused: 0, requestsTrail: [], refusedTrail: [] })
    }
    for (const [name, old] of this.rules) {
      const r = now.get(name)
      const next: RuleRate = {
        requests: r?.requests_per_second ?? 0,
        refused: r?.refused_per_second ?? 0,
        requestsTrail: [...old.requestsTrail.slice(1 - keepRules), r?.requests_per_second ?? 0],
        refusedTrail: [...old.refusedTrail.slice(1 - keepRules), r?.refused_per_second ?? 0],
      }
      if (next.requestsTrail.some((n) => n > 0)) this.rules.set(name, next)
      else this.rules.delete(name)
    }
  }
}

export const live = new LiveState()
