// Merge patches, as RFC 7396 has them: only what is different is sent, so that what another
// has changed meanwhile elsewhere in the same thing stays.

type Fields = Record<string, unknown>

function isFields(v: unknown): v is Fields {
  return typeof v === 'object' && v !== null && !Array.isArray(v)
}

/** mergePatch returns what makes the one value the other. What is undefined or empty text is not there. */
export function mergePatch(before: object, after: object): Fields {
  const out: Fields = {}
  const was = before as Fields
  const is = after as Fields
  const gone = (v: unknown) => v === undefined || v === null || v === ''
  for (const name of new Set([...Object.keys(was), ...Object.keys(is)])) {
    const a = was[name]
    const b = is[name]
    if (gone(b)) {
      if (!gone(a)) out[name] = null
    } else if (isFields(a) && isFields(b)) {
      const inner = mergePatch(a, b)
      if (Object.keys(inner).length) out[name] = inner
    } else if (JSON.stringify(a) !== JSON.stringify(b)) {
      out[name] = b
    }
  }
  return out
}

/** filled returns a value without what is undefined or empty text. */
export function filled<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined && v !== '')) as T
}
