// Names for parts of the generated types that many pages use.

import type { Problem, RecordTier, Rule, Session, Subject, User } from './types'

export type Role = Session['role']
export type SubjectKind = Subject['kind']
export type Action = NonNullable<Rule['action']>
export type OnFailure = NonNullable<Rule['on_store_failure']>
export type Cost = NonNullable<Rule['cost']>
export type Override = NonNullable<User['limits']>[string]

/** A record of the catalog, whatever its value is. */
export type Rec<T> = Omit<RecordTier, 'value'> & { value: T }

/** A page of a list. */
export interface Page<T> {
  items: T[]
  next: string
}

/** A field before and after a change. The API sends texts of JSON; forms compare values. */
export interface Difference {
  path: string
  before?: unknown
  after?: unknown
}

/** A problem of the API, or one that the page found itself. */
export type Trouble = Pick<Problem, 'title' | 'status'> & Partial<Problem>

// Node alone is a type of the DOM.
export type { Node as NodeInfo } from './types'
