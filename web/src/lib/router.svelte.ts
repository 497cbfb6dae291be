// Routes are in the hash, so that the server has one page.

export interface Route {
  /** The name of the page, which is that of its file in src/pages. */
  page: string
  title: string
  params: Record<string, string>
  query: URLSearchParams
  /** The entry of the navigation that it belongs to. */
  section: string
}

interface Pattern {
  path: string
  page: string
  title: string
}

// What is first wins: /rules/new before /rules/:name.
const patterns: Pattern[] = [
  { path: '/', page: 'Overview', title: 'Overview' },
  { path: '/rules', page: 'Rules', title: 'Rules' },
  { path: '/rules/new', page: 'RuleEditor', title: 'New rule' },
  { path: '/rules/edit/:name', page: 'RuleEditor', title: 'Rule' },
  { path: '/subjects', page: 'Subjects', title: 'Subjects' },
  { path: '/subjects/:kind/:id', page: 'Subject', title: 'Subject' },
  { path: '/keys', page: 'Keys', title: 'API keys' },
  { path: '/tiers', page: 'Tiers', title: 'Tiers' },
  { path: '/access', page: 'Access', title: 'Exemptions and bans' },
  { path: '/events', page: 'Events', title: 'Events' },
  { path: '/events/:id', page: 'Decision', title: 'Decision' },
  { path: '/usage', page: 'Usage', title: 'Usage' },
  { path: '/nodes', page: 'Nodes', title: 'Nodes' },
  { path: '/regions', page: 'Regions', title: 'Regions' },
  { path: '/envoy', page: 'Envoy', title: 'Envoy' },
  { path: '/changes', page: 'Changes', title: 'Change log' },
  { path: '/try', page: 'TryIt', title: 'Try it' },
  { path: '/what-if', page: 'WhatIf', title: 'What if' },
  { path: '/tokens', page: 'Tokens', title: 'Admin tokens' },
  { path: '/settings', page: 'Settings', title: 'Settings' },
]

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}

/** parse reads a hash such as #/events?user=alice. */
export function parse(hash: string): Route {
  const [before = '', after = ''] = hash.replace(/^#/, '').split(/\?(.*)/s)
  const given = before.split('/').filter(Boolean)
  const query = new URLSearchParams(after)
  for (const p of patterns) {
    const want = p.path.split('/').filter(Boolean)
    if (want.length !== given.length) continue
    const params: Record<string, string> = {}
    const fits = want.every((w, i) => {
      if (!w.startsWith(':')) return w === given[i]
      params[w.slice(1)] = decode(given[i]!)
      return true
    })
    if (fits) return { page: p.page, title: p.title, params, query, section: '/' + (want[0] ?? '') }
  }
  return { page: '', title: 'Not found', params: {}, query, section: '' }
}

/** href makes a link: href('/subjects', 'user', 'alice'), href('/events', {rule: 'search'}). */
export function href(to: string, ...rest: (string | Record<string, string | number | boolean | undefined>)[]): string {
  let out = '#' + to
  const q = new URLSearchParams()
  for (const r of rest) {
    if (typeof r === 'string') out += (out.endsWith('/') ? '' : '/') + encodeURIComponent(r)
    else for (const [k, v] of Object.entries(r)) if (v !== undefined && v !== '') q.set(k, String(v))
  }
  const text = q.toString()
  return out + (text && '?' + text)
}

class Router {
  route = $state.raw<Route>(parse(typeof location === 'undefined' ? '' : location.hash))
  /** Asked before a page with unsaved work is left; returns whether to go. */
  #guard: (() => boolean) | undefined
  #shown = ''

  start(): () => void {
    this.#shown = location.hash
    const changed = () => {
      if (location.hash === this.#shown) return
      if (this.#guard && !this.#guard()) {
        history.replaceState(null, '', this.#shown || '#/')
        return
      }
      this.#guard = undefined
      this.#shown = location.hash
      this.route = parse(location.hash)
    }
    window.addEventListener('hashchange', changed)
    return () => window.removeEventListener('hashchange', changed)
  }

  go(hash: string) {
    location.hash = hash
  }

  /** setQuery changes the query of the page that is shown, without a new step in history. */
  setQuery(query: Record<string, string | number | boolean | undefined>) {
    const before = location.hash.split('?')[0] || '#/'
    history.replaceState(null, '', href(before.slice(1), query))
    this.#shown = location.hash
    this.route = parse(location.hash)
  }

  /** guard has the function asked before the page is left, until the one it returns is called. */
  guard(ask: () => boolean): () => void {
    this.#guard = ask
    return () => {
      if (this.#guard === ask) this.#guard = undefined
    }
  }
}

export const router = new Router()
