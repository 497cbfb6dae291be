import { expect, it } from 'vitest'
import { alone } from './points'

it.each([
  ['the only point', [7], [0]],
  ['one between gaps', [null, 5, null, 3, 4, null, 9], [1, 6]],
  ['a line', [1, 2, 3], []],
  ['nothing', [0, null, null], []],
])('shows %s', (_, values, want) => expect(alone(values)).toEqual(want))
