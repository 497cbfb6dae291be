// Loading what a page shows: what was shown stays while it is loaded anew, and an answer
// that comes too late is dropped.

import { untrack } from 'svelte'
import { aborted } from './api'
import type { Page } from './shapes'

export class Loaded<T> {
  data = $state.raw<T | undefined>(undefined)
  error = $state.raw<unknown>(undefined)
  loading = $state(true)
  /** Counts up to have it loaded anew. */
  #again = $state(0)

  get again() {
    return this.#again
  }

  reload = () => {
    this.#again++
  }
}

/**
 * load calls a function while a component is made, whenever something has changed that the
 * function read before its first await, and every so many milliseconds while the page is seen.
 */
export function load<T>(ask: (signal: AbortSignal) => Promise<T> | undefined, o: { every?: number } = {}): Loaded<T> {
  const l = new Loaded<T>()
  $effect(() => {
    void l.again
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const run = async (asked: Promise<T> | undefined) => {
      if (!asked) {
        untrack(() => (l.loading = false))
        return
      }
      untrack(() => (l.loading = true))
      try {
        l.data = await asked
        l.error = undefined
      } catch (err) {
        if (aborted(err) || abort.signal.aborted) return
        l.error = err
      }
      if (abort.signal.aborted) return
      l.loading = false
      if (o.every) {
        const next = () => {
          timer = setTimeout(() => (document.hidden ? next() : void run(ask(abort.signal))), o.every)
        }
        next()
      }
    }
    void run(ask(abort.signal))
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  })
  return l
}

export class LoadedPages<T> {
  items = $state.raw<T[]>([])
  next = $state('')
  error = $state.raw<unknown>(undefined)
  loading = $state(true)
  #again = $state(0)
  /** @internal */
  fetch: ((after: string) => Promise<void>) | undefined

  get again() {
    return this.#again
  }

  reload = () => {
    this.#again++
  }

  /** more loads the next page, if there is one and none is on its way. */
  more = () => {
    if (this.next && !this.loading) void this.fetch?.(this.next)
  }
}

/** loadPages is load for lists that come in pages. */
export function loadPages<T>(ask: (after: string, signal: AbortSignal) => Promise<Page<T>>): LoadedPages<T> {
  const l = new LoadedPages<T>()
  $effect(() => {
    void l.again
    const abort = new AbortController()
    const take = async (asked: Promise<Page<T>>, before: T[]) => {
      untrack(() => (l.loading = true))
      try {
        const page = await asked
        if (abort.signal.aborted) return
        l.items = [...before, ...(page.items ?? [])]
        l.next = page.next ?? ''
        l.error = undefined
      } catch (err) {
        if (aborted(err) || abort.signal.aborted) return
        l.error = err
      }
      l.loading = false
    }
    l.fetch = (after) => take(ask(after, abort.signal), l.items)
    void take(ask('', abort.signal), [])
    return () => abort.abort()
  })
  return l
}
