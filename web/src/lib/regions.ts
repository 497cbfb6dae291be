// How a node stands with other regions, in words.

import { count, exact, micros, plural } from './format'
import type { RegionLimit, RegionLink, Regions, Rule } from './types'
import type { Fact } from '../components/Facts.svelte'

/** mostSkew is by how much the clocks of two regions' stores may differ, in microseconds. */
const mostSkew = 1_000_000

export interface LinkState {
  word: string
  color: string
}

/** stateOf says in a word how this node stands with another region. */
export function stateOf(l: RegionLink): LinkState {
  if (l.cut) return { word: 'cut off', color: '--danger' }
  if (!l.up) return { word: 'down', color: '--warn' }
  if (l.alone) return { word: 'alone', color: '--warn' }
  return skewed(l) ? { word: 'clocks differ', color: '--warn' } : { word: 'up', color: '--ok' }
}

function skewed(l: RegionLink): boolean {
  return l.pings > 0 && Math.abs(l.skew_us) > mostSkew
}

/** skewOf says which clock is ahead. */
export function skewOf(l: { pings: number; skew_us: number }): string {
  if (l.pings === 0) return '–'
  const by = micros(Math.abs(l.skew_us))
  return l.skew_us === 0 ? 'none' : l.skew_us > 0 ? `${by} ahead` : `${by} behind`
}

/** delayOf is how long a message there and back takes. */
export function delayOf(l: { pings: number; round_trip_us: number }): string {
  return l.pings === 0 ? '–' : micros(l.round_trip_us)
}

/** bytes: 950 B, 12.4 kB. */
export function bytes(n: number): string {
  const text = count(n)
  return /\d$/.test(text) ? `${text} B` : `${text.slice(0, -1)} ${text.slice(-1)}B`
}

/** isBeyond reports whether more was measured than all regions may admit. */
export function isBeyond(l: RegionLimit): boolean {
  return l.beyond > l.bound
}

/** troublesOf says what is wrong between regions, in sentences; nothing, if all is well. */
export function troublesOf(r: Regions): string[] {
  const out: string[] = []
  if (r.central && !r.central.up) out.push(`The central region ${r.central.region} does not decide, and this node applies its share of central limits: ${r.central.reason ?? ''}.`)
  for (const l of r.links) {
    if (l.cut) out.push(`This region is cut off from ${l.region}, and applies its share of gossiped limits.`)
    else if (l.alone) out.push(`Region ${l.region} is cut off from another, or from its store, and the regions that reach each other apply their shares of gossiped limits.`)
    else if (!l.up) out.push(`This node is not connected to ${l.region}.`)
    else if (skewed(l)) out.push(`The clocks of the stores here and in ${l.region} differ by ${micros(Math.abs(l.skew_us))}: set both by NTP.`)
  }
  if (r.weights === 'stale') out.push('The weights of quotas that follow demand cannot be read from the database, and this node applies the lowest part.')
  for (const l of r.limits.filter(isBeyond)) out.push(`${plural(l.beyond, 'unit')} beyond the limit ${l.limit || 'of others'} were measured, more than the ${exact(l.bound)} that regions may admit.`)
  return out
}

/**
 * sharedOf says what holds for a rule whose counters are central, or whose limits are divided: these never admit more than they declare,
 * since one store decides each part.
 */
export function sharedOf(rule: Rule, r: Regions): Fact[] {
  if (rule.regions === 'central') {
    const c = r.central
    return [
      { name: 'Declared', value: 'Never beyond the limit while the central region decides. A region that cannot reach it admits at most its share of what remained.' },
      { name: 'Decides now', value: !c ? 'This region, which is the central one.' : c.up ? `The region ${c.region}.` : `Each region by itself: ${c.region} cannot be reached.` },
    ]
  }
  if (rule.regions !== 'quota') return []
  const all = r.items.reduce((sum, i) => sum + i.weight, 0)
  const own = r.items.find((i) => i.self)
  const follow = rule.weights === 'follow'
  return [
    { name: 'Declared', value: 'Never beyond the limit: each region has a part of it, and the parts add up to it.' },
    { name: 'Part of this region', value: own && !follow ? `${exact(Math.round((100 * own.weight) / all))} %, by its weight` : '' },
    { name: 'Weights', value: follow ? { fixed: 'Fixed, since there is no database.', fresh: 'They follow demand.', stale: 'Those of the database cannot be read: this node applies the lowest part.' }[r.weights] : '' },
  ]
}

export interface GossipedLimit {
  name: string
  beyond: boolean
  facts: Fact[]
}

/** gossipedOf returns what a node has measured of a gossiped rule's limits, in the order of the rule. */
export function gossipedOf(rule: Rule, all: RegionLimit[] = []): GossipedLimit[] {
  if (rule.regions !== 'gossip') return []
  return (rule.limits ?? []).flatMap(({ name }) => {
    const l = all.find((x) => x.limit === `${rule.name}:${name}`)
    return l ? [{ name, beyond: isBeyond(l), facts: factsOf(l) }] : []
  })
}

/** mostOf says how far beyond the limit a counter was. It is measured for windows. */
function mostOf(l: RegionLimit): string {
  if (!l.measured) return 'of windows only'
  return l.beyond > 0 ? `${plural(l.beyond, 'unit')} beyond the limit` : 'nothing beyond the limit'
}

function factsOf(l: RegionLimit): Fact[] {
  return [
    { name: 'Declared', value: `At most ${plural(l.bound, 'unit')} beyond the limit, by all regions together.` },
    { name: 'Most measured', value: mostOf(l) },
    { name: 'Admitted here', value: `${count(l.admitted)}, and ${count(l.received)} by other regions`, title: `${exact(l.admitted)} and ${exact(l.received)}` },
    { name: 'Denied for want of credit', value: l.short > 0 ? exact(l.short) : '' },
    { name: 'Decided by share', value: l.shares > 0 ? exact(l.shares) : '' },
  ]
}
