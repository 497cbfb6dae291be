import { CallError } from './errors.js'

/** What was reserved for a request. At the end of its block, `await using` settles it as Client.reserving does. */
export class Reservation {
  /** The verdict on the request. @type {import('./stint.js').Reserved} */
  verdict
  /** The ticket that settles it, or undefined if there is nothing to settle. @type {string | undefined} */
  ticket
  #client
  /** @type {{ cost?: number, usage?: Record<string, number>, model?: string } | undefined} */
  #used
  #settled = false

  /** @param {import('./stint.js').Client} client @param {import('./stint.js').Reserved} verdict */
  constructor(client, verdict) {
    this.#client = client
    this.verdict = verdict
    this.ticket = verdict.ticket
  }

  /** Whether the request may pass. */
  get allowed() {
    return this.verdict.allowed
  }

  /** Says what was used so far, in all: either a cost, or a usage by meter. It replaces what was said before. @param {{ cost?: number, usage?: Record<string, number>, model?: string }} used */
  use(used) {
    this.#used = used
  }

  /** Reserves more, and reports whether that is allowed. @param {{ cost?: number, usage?: Record<string, number>, expires_in?: number }} more @returns {Promise<boolean>} */
  async extend(more) {
    if (this.ticket === undefined) return this.allowed
    const extension = await this.#client.extend({ ...more, ticket: this.ticket })
    this.ticket = extension.ticket
    return extension.allowed
  }

  /** Commits what use has said, or cancels. It returns undefined if there is nothing to settle. @returns {Promise<import('./types.js').Receipt | undefined>} */
  async settle() {
    if (this.ticket === undefined || this.#settled) return undefined
    const { ticket } = this
    const receipt = this.#used === undefined ? await this.#client.cancel({ ticket }) : await this.#client.commit({ ...this.#used, ticket })
    this.#settled = true
    return receipt
  }

  async [Symbol.asyncDispose]() {
    try {
      await this.settle()
    } catch (error) {
      if (error instanceof CallError && error.status < 500) throw error
    }
  }
}
