// The theme is the one of the system, unless someone has chosen another here.

export type Choice = 'system' | 'light' | 'dark'

const key = 'stint.theme'

function remembered(): Choice {
  try {
    const found = localStorage.getItem(key)
    return found === 'light' || found === 'dark' ? found : 'system'
  } catch {
    return 'system' // storage is turned off
  }
}

class Theme {
  choice = $state<Choice>('system')
  dark = $state(false)
  #system: MediaQueryList | undefined

  start() {
    this.#system = matchMedia('(prefers-color-scheme: dark)')
    this.#system.addEventListener('change', () => this.#apply())
    this.choice = remembered()
    this.#apply()
  }

  choose(choice: Choice) {
    this.choice = choice
    try {
      if (choice === 'system') localStorage.removeItem(key)
      else localStorage.setItem(key, choice)
    } catch {
      // It holds until the page is left.
    }
    this.#apply()
  }

  #apply() {
    this.dark = this.choice === 'dark' || (this.choice === 'system' && !!this.#system?.matches)
    document.documentElement.dataset.theme = this.dark ? 'dark' : 'light'
  }
}

export const theme = new Theme()
