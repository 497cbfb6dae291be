// Decisions by their ids, as people paste them.

import type { Sharer } from './types'

const id = /\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b/i

/** decisionIn returns the id of a decision that a text has, in lower case: people paste whole sentences. */
export const decisionIn = (text: string): string | undefined => id.exec(text)?.[0].toLowerCase()

/** linked splits a text before and after the ids in it, which are the odd parts. */
export const linked = (text: string): string[] => text.split(new RegExp(`(${id.source})`, 'i'))

/** nameOf returns what a client is known by, and its kind. */
export function nameOf(s: Sharer): { kind: 'user' | 'key' | 'ip'; id: string } | undefined {
  if (s.user) return { kind: 'user', id: s.user }
  if (s.key) return { kind: 'key', id: s.key }
  return s.ip ? { kind: 'ip', id: s.ip } : undefined
}
