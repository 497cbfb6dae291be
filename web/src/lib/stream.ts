// Server-sent events, with reconnecting also where a browser gives up, as after a 503.

import { address } from './api'

export type StreamState = 'connecting' | 'open' | 'waiting'

export interface StreamOptions {
  query?: Record<string, string | number | boolean | undefined>
  /** What to do with each kind of event. */
  on: Record<string, (data: never) => void>
  state?: (s: StreamState) => void
}

const first = 1000
const most = 30_000
const hiddenFor = 60_000

/**
 * stream listens until the function that it returns is called. While no one has seen the
 * page for a minute it lets go of the connection, of which a browser has few.
 */
export function stream(to: string, o: StreamOptions): () => void {
  let source: EventSource | undefined
  let timer: ReturnType<typeof setTimeout> | undefined
  let wait = first
  let done = false

  const open = () => {
    clearTimeout(timer)
    source?.close()
    if (done) return
    o.state?.('connecting')
    source = new EventSource(address(to, o.query))
    source.onopen = () => {
      wait = first
      o.state?.('open')
    }
    source.onerror = () => {
      o.state?.('waiting')
      if (source?.readyState !== EventSource.CLOSED) return // it tries again itself
      timer = setTimeout(open, wait * (0.75 + Math.random() / 2))
      wait = Math.min(wait * 2, most)
    }
    for (const [name, take] of Object.entries(o.on)) {
      source.addEventListener(name, (e) => {
        let data: unknown
        try {
          data = JSON.parse((e as MessageEvent<string>).data)
        } catch {
          return // cut off
        }
        take(data as never)
      })
    }
  }

  const visibility = () => {
    clearTimeout(timer)
    if (!document.hidden) {
      if (!source || source.readyState === EventSource.CLOSED) open()
      return
    }
    timer = setTimeout(() => {
      source?.close()
      source = undefined
      o.state?.('waiting')
    }, hiddenFor)
  }

  document.addEventListener('visibilitychange', visibility)
  open()
  return () => {
    done = true
    clearTimeout(timer)
    document.removeEventListener('visibilitychange', visibility)
    source?.close()
  }
}
