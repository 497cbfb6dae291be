// The breaker, which finds out whether the server is there, and keeps calls from waiting while it is not.

/**
 * Opens and closes by probes alone, which are made beside the calls.
 *
 * Calls that fail lead to a probe, and do not open it themselves: a rule that throttles holds an answer longer than some
 * calls wait, and whoever sends such requests must not get everyone past their limits.
 */
export class Breaker {
  open = false
  #failures
  #interval
  #row = 0 // failures since the last answer
  #probing = false
  #next = 0 // when to probe again while it is open

  /** @param {number} failures @param {number} interval in milliseconds */
  constructor(failures, interval) {
    this.#failures = failures
    this.#interval = interval
  }

  /** Notes that a call was answered. */
  answered() {
    this.#row = 0
  }

  /** Notes that a call was not answered. If it returns true, probe now. */
  failed() {
    this.#row++
    return this.#begin(!this.open && this.#row >= this.#failures)
  }

  /** Reports whether to probe now, while it is open. */
  due() {
    return this.#begin(performance.now() >= this.#next)
  }

  /** Notes what a probe has found. @param {boolean} there */
  probed(there) {
    this.open = !there
    this.#row = 0
    this.#probing = false
    this.#next = performance.now() + this.#interval * (0.5 + Math.random())
  }

  /** @param {boolean} wanted */
  #begin(wanted) {
    const begin = wanted && !this.#probing
    this.#probing ||= begin
    return begin
  }
}
