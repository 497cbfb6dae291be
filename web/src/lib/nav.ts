// The entries of the navigation, and their shortcuts: g, and then the letter.

import type { IconName } from '../components/Icon.svelte'
import type { Role } from './shapes'

export interface Entry {
  section: string
  label: string
  icon: IconName
  key: string
  /** Only for those who have this role. */
  role?: Role
  /** Only where Envoy is served. */
  envoy?: boolean
  /** Only where there are regions. */
  regions?: boolean
  /** Not for those who are restricted to tenants. */
  whole?: boolean
}

export const navigation: { title: string; entries: Entry[] }[] = [
  {
    title: 'Watch',
    entries: [
      { section: '/', label: 'Overview', icon: 'overview', key: 'o', whole: true },
      { section: '/events', label: 'Events', icon: 'events', key: 'e' },
      { section: '/usage', label: 'Usage', icon: 'usage', key: 'u' },
      { section: '/nodes', label: 'Nodes', icon: 'nodes', key: 'n', whole: true },
      { section: '/regions', label: 'Regions', icon: 'regions', key: 'l', regions: true, whole: true },
      { section: '/envoy', label: 'Envoy', icon: 'envoy', key: 'v', envoy: true, whole: true },
    ],
  },
  {
    title: 'Control',
    entries: [
      { section: '/rules', label: 'Rules', icon: 'rules', key: 'r' },
      { section: '/tiers', label: 'Tiers', icon: 'tiers', key: 't' },
      { section: '/subjects', label: 'Subjects', icon: 'subjects', key: 's' },
      { section: '/keys', label: 'API keys', icon: 'keys', key: 'k' },
      { section: '/access', label: 'Exemptions & bans', icon: 'access', key: 'x', whole: true },
      { section: '/try', label: 'Try it', icon: 'try', key: 'y', whole: true },
      { section: '/what-if', label: 'What if', icon: 'whatif', key: 'h', whole: true },
    ],
  },
  {
    title: 'System',
    entries: [
      { section: '/changes', label: 'Change log', icon: 'changes', key: 'c', whole: true },
      { section: '/tokens', label: 'Admin tokens', icon: 'tokens', key: 'a', role: 'admin' },
      { section: '/settings', label: 'Settings', icon: 'settings', key: 'i', role: 'admin', whole: true },
    ],
  },
]
