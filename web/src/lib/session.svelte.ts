// Who is signed in.

import { ApiError, call, get, leave, remember, whenSignedOut } from './api'
import type { Role } from './shapes'
import type { Session } from './types'

const ranks: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 }

class SessionState {
  value = $state.raw<Session | null>(null)
  /** ended: someone was signed in, and the page still has what was typed. */
  phase = $state<'asking' | 'out' | 'in' | 'ended' | 'failed'>('asking')
  error = $state.raw<unknown>(null)

  async start() {
    whenSignedOut(() => {
      if (this.phase === 'in') this.phase = 'ended'
    })
    this.phase = 'asking'
    try {
      this.#take(await get<Session>('/session'))
    } catch (err) {
      this.error = err
      this.phase = err instanceof ApiError && err.status === 401 ? 'out' : 'failed'
    }
  }

  async signIn(token: string) {
    this.#take(await call<Session>('POST', '/session', { body: { token } }))
  }

  async signOut() {
    let next = ''
    try {
      next = await leave()
    } catch (err) {
      if (!(err instanceof ApiError && err.status === 401)) throw err
    }
    remember(null)
    this.value = null
    if (next) location.assign(next)
    else this.phase = 'out'
  }

  /** guest tells whether who is signed in is restricted to tenants. */
  get guest(): boolean {
    return !!this.value?.tenants?.length
  }

  /** can tells whether the role of who is signed in includes another. */
  can(role: Role): boolean {
    return !!this.value && ranks[this.value.role] >= ranks[role]
  }

  #take(session: Session) {
    remember(session)
    this.value = session
    this.phase = 'in'
  }
}

export const session = new SessionState()
