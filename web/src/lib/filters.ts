// Filters are in the address of a page, so that it can be bookmarked, and sent to others.

import { router } from './router.svelte'

type Values = Record<string, string | number | boolean | undefined>

/** picked returns those of the names that the address has. */
export function picked(names: readonly string[], query: URLSearchParams = router.route.query): Record<string, string> {
  const out: Record<string, string> = {}
  for (const n of names) {
    const v = query.get(n)
    if (v) out[n] = v
  }
  return out
}

/** setFilter changes some of the query, and leaves the rest. */
export function setFilter(change: Values) {
  router.setQuery({ ...Object.fromEntries(router.route.query), ...change })
}
