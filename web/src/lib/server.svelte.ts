// The state of the server, which every page may have to know: whether rules are in a file,
// whether there is a record, what is degraded.

import { get } from './api'
import type { Status } from './types'

class Server {
  status = $state.raw<Status | undefined>(undefined)
  error = $state.raw<unknown>(undefined)

  /** readOnly: rules and the like are in a file, and only there can they be changed. */
  get readOnly() {
    return this.status?.mode === 'file'
  }

  refresh = async () => {
    try {
      this.status = await get<Status>('/status')
      this.error = undefined
    } catch (err) {
      this.error = err
    }
  }

  start(): () => void {
    void this.refresh()
    const timer = setInterval(() => {
      if (!document.hidden) void this.refresh()
    }, 1000) // health is to be seen within two seconds
    return () => clearInterval(timer)
  }
}

export const server = new Server()
