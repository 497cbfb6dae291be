// Until when something holds: permanently, for a while, or until a time of the clock on the wall.

export const spans = [
  { value: '', label: 'Permanently' },
  { value: '3600', label: 'For 1 hour' },
  { value: '86400', label: 'For 1 day' },
  { value: '604800', label: 'For 7 days' },
  { value: '2592000', label: 'For 30 days' },
  { value: '7776000', label: 'For 90 days' },
  { value: 'at', label: 'Until a time' },
]

/** spanned returns when a span that begins now is over. */
export function spanned(span: string, now = Date.now()): string {
  return span ? new Date(now + Number(span) * 1000).toISOString().replace(/\.\d+/, '') : ''
}

/** spanOf returns the span that begins about now and ends then, or "at" if there is none. */
export function spanOf(until: string, now = Date.now()): string {
  if (!until) return ''
  const left = (Date.parse(until) - now) / 1000
  return spans.find((s) => Math.abs(Number(s.value) - left) < 5)?.value || 'at'
}

/** toLocal writes a time as an input of the type datetime-local has it, in the zone of the reader. */
export function toLocal(at: string | null | undefined): string {
  const t = at ? new Date(at) : undefined
  if (!t || Number.isNaN(t.getTime())) return ''
  return new Date(t.getTime() - t.getTimezoneOffset() * 60_000).toISOString().slice(0, 16)
}

/** fromLocal reads it; what is no time is nothing. */
export function fromLocal(text: string): string {
  const t = new Date(text)
  return text && !Number.isNaN(t.getTime()) ? t.toISOString().replace(/\.\d+/, '') : ''
}
