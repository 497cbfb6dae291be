import { expect, it } from 'vitest'
import { at, below, rest, under } from './problems'

const problems = [
  { field: 'limits[0].limit', message: '"x": want MAX/WINDOW', hint: 'did you mean "1/1m"?' },
  { field: 'limits[10].limit', message: 'missing' },
  { field: 'match.methods[1]', message: 'want upper case' },
  { field: '', message: 'it can never apply' },
]

it('places a problem at its field', () => {
  expect(at(problems, 'limits[0].limit')).toBe('"x": want MAX/WINDOW; did you mean "1/1m"?')
  expect(at(problems, 'limits[1].limit')).toBeUndefined()
  expect(at(problems, 'limits')).toBeUndefined()
})

it('says where in a list it is', () => {
  expect(under(problems, 'match.methods')).toBe('line 2: want upper case')
  expect(under(problems, 'match.method')).toBeUndefined()
})

it('does not take one name for the beginning of another', () => {
  expect(below('limits[10].limit', 'limits[1]')).toBe(false)
  expect(below('match.paths_more', 'match.paths')).toBe(false)
  expect(below('match', 'match')).toBe(true)
})

it('leaves none out', () => {
  expect(rest(problems, { at: ['limits[0].limit'], under: ['match'] }).map((p) => p.message)).toEqual(['missing', 'it can never apply'])
})
