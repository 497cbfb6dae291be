// The outcomes of decisions: their names and colours.

export interface Outcome {
  name: string
  label: string
  /** A variable of app.css. */
  color: string
  refused: boolean
  says: string
}

export const outcomes: Outcome[] = [
  { name: 'allowed', label: 'Allowed', color: '--allowed', refused: false, says: 'passed all limits' },
  { name: 'exempt', label: 'Exempt', color: '--exempt', refused: false, says: 'passed without being counted' },
  { name: 'throttled', label: 'Throttled', color: '--throttled', refused: false, says: 'was delayed, and then passed' },
  { name: 'denied', label: 'Denied', color: '--denied', refused: true, says: 'was over a limit' },
  { name: 'banned', label: 'Banned', color: '--banned', refused: true, says: 'came from a banned client' },
  { name: 'blocked', label: 'Blocked', color: '--blocked', refused: true, says: 'was blocked by a rule' },
  { name: 'unauthorized', label: 'Unauthorized', color: '--unauthorized', refused: true, says: 'had an invalid key or token' },
  { name: 'unavailable', label: 'Unavailable', color: '--unavailable', refused: true, says: 'could not be counted' },
]

const byName = new Map(outcomes.map((o) => [o.name, o]))

export function outcome(name: string): Outcome {
  return byName.get(name) ?? { name, label: name, color: '--s6', refused: false, says: '' }
}
