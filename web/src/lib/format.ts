// Numbers and times for people. The exact value belongs in a title.

const minus = '\u2212'

/** trim cuts the zeros behind a point: 1.0 is 1, and 10 stays 10. */
function trim(n: number, digits: number): string {
  return digits ? n.toFixed(digits).replace(/\.?0+$/, '') : n.toFixed(0)
}

/** count: 950, 12.4k, 3.1M. */
export function count(n: number | null | undefined): string {
  if (n === null || n === undefined || !Number.isFinite(n)) return '–'
  if (n < 0) return minus + count(-n)
  if (n < 999.5) return Number.isInteger(n) ? String(n) : n < 10 ? trim(n, 1) : String(Math.round(n))
  for (const [size, unit] of [
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ] as const) {
    // 999,950 is 1M and not 1000k.
    if (n >= size * 0.99995 || size === 1e3) {
      const v = n / size
      return (v >= 99.95 ? String(Math.round(v)) : trim(v, 1)) + unit
    }
  }
  return String(n)
}

/** down keeps three digits, and rounds down: of 499,937 that are left, 499k are, and not 500k. */
export function down(n: number): number {
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(n, 1))) - 2)
  return Math.floor(n / unit) * unit
}

/** exact: 12,431. */
export function exact(n: number | null | undefined): string {
  if (n === null || n === undefined || !Number.isFinite(n)) return '–'
  return new Intl.NumberFormat('en', { maximumFractionDigits: 3 }).format(n)
}

/** rate: 12.4k/s, 0.2/s. */
export function rate(perSecond: number | null | undefined): string {
  if (perSecond === null || perSecond === undefined) return '–'
  if (perSecond > 0 && perSecond < 0.05) return '<0.1/s'
  return count(perSecond) + '/s'
}

/** percent: 12 %, 0.4 %, <0.1 %. */
export function percent(part: number, whole: number): string {
  if (!(whole > 0)) return '–'
  const p = (100 * part) / whole
  if (p === 0) return '0 %'
  if (p < 0.1) return '<0.1 %'
  if (p < 10) return trim(p, 1) + ' %'
  return (p < 100 ? Math.min(99.9, p) : p).toFixed(p > 99 && p < 100 ? 1 : 0) + ' %'
}

/** micros: 850 µs, 3 ms, 1.2 s. */
export function micros(us: number | null | undefined): string {
  if (us === null || us === undefined) return '–'
  if (us < 999.5) return `${Math.round(us)} µs`
  if (us < 999_500) return `${trim(us / 1e3, us < 1e4 ? 1 : 0)} ms`
  return seconds(us / 1e6)
}

/** seconds: 40 ms, 1.5 s, 4 min, 3 h, 2 days. */
export function seconds(s: number, round = Math.round): string {
  if (s < 0) return minus + seconds(-s)
  if (s === 0) return '0 s'
  if (s < 0.9995) return `${Math.max(1, round(s * 1000))} ms`
  if (s < 9.95) return `${trim(round(s * 10) / 10, 1)} s`
  if (s < 120) return `${round(s)} s`
  if (s < 2 * 3600) return `${round(s / 60)} min`
  if (s < 48 * 3600) return `${round(s / 3600)} h`
  const days = round(s / 86400)
  return days < 730 ? `${days} days` : `${Math.round(days / 365)} years`
}

/** after: "now", "in 4 min"; null is never. It rounds up: who waits that long has waited long enough. */
export function after(s: number | null | undefined): string {
  if (s === undefined) return '–'
  if (s === null) return 'never'
  return s <= 0 ? 'now' : `in ${seconds(s, Math.ceil)}`
}

/** when says how far a time is from now: "4 min ago", "in 2 days". Zero times are never. */
export function when(at: string | Date | undefined | null, now: number = Date.now()): string {
  if (!at) return 'never'
  const t = new Date(at).getTime()
  if (!Number.isFinite(t)) return String(at)
  if (t < -6e13) return 'never'
  const s = (t - now) / 1000
  if (Math.abs(s) < 5) return 'just now'
  return s > 0 ? `in ${seconds(Math.round(s))}` : `${seconds(Math.round(-s))} ago`
}

const full = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })
const time = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' })

/** dateTime is in the zone of the reader: 15 Nov 2026, 17:42:03. */
export function dateTime(at: string | number | Date | undefined | null): string {
  if (at === undefined || at === null || at === '') return 'never'
  const d = new Date(at)
  return Number.isFinite(d.getTime()) ? full.format(d) : String(at)
}

/** clock: 17:42:03. */
export function clock(at: string | number | Date): string {
  const d = new Date(at)
  return Number.isFinite(d.getTime()) ? time.format(d) : String(at)
}

/** plural: "1 rule", "12,400 rules". */
export function plural(n: number, one: string, many: string = one + 's'): string {
  return `${exact(n)} ${n === 1 ? one : many}`
}

/** json writes a value for people to compare. */
export function json(v: unknown): string {
  return v === undefined ? '–' : typeof v === 'string' ? v : (JSON.stringify(v, null, typeof v === 'object' ? 2 : 0) ?? '–')
}
