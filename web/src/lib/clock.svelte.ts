// One clock for all relative times.

class Clock {
  now = $state(Date.now())

  start(): () => void {
    const timer = setInterval(() => (this.now = Date.now()), 1000)
    return () => clearInterval(timer)
  }
}

export const clock = new Clock()
