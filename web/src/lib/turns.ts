/**
 * turns has calls made one after another. Several that each keep a processor of the server busy would make each other late, and what is
 * asked for first would not be shown first.
 */
export function turns() {
  let last: Promise<unknown> = Promise.resolve()
  return <T>(call: () => Promise<T>): Promise<T> => {
    const made = last.then(call, call)
    last = made
    return made
  }
}
