// Where problems belong: those that a field is to blame for stand at the field, the others
// above the form, and none is left out.

import type { FieldProblem } from './types'

/** text is a problem in one line. */
export function text(p: FieldProblem): string {
  return p.hint ? `${p.message}; ${p.hint}` : p.message
}

/** below tells whether a path is another or lies in it: limits[0].limit is below limits. A problem without a path is about the whole. */
export function below(path: string | undefined, top: string): boolean {
  if (path === undefined) return false
  return path === top || path.startsWith(top + '.') || path.startsWith(top + '[')
}

/** at returns what is wrong with exactly this field, or undefined. */
export function at(problems: FieldProblem[], path: string): string | undefined {
  return join(problems.filter((p) => p.field === path))
}

/** under returns what is wrong with this field or anything in it, or undefined. */
export function under(problems: FieldProblem[], path: string): string | undefined {
  return join(
    problems.filter((p) => below(p.field, path)),
    path,
  )
}

/** rest returns the problems that no field of the form shows. */
export function rest(problems: FieldProblem[], shown: { at?: string[]; under?: string[] }): FieldProblem[] {
  return problems.filter((p) => !(p.field !== undefined && shown.at?.includes(p.field)) && !shown.under?.some((u) => below(p.field, u)))
}

function join(found: FieldProblem[], top?: string): string | undefined {
  if (found.length === 0) return undefined
  return found
    .map((p) => {
      // Of a list, people see lines.
      const within = top === undefined ? '' : (p.field ?? '').slice(top.length).replace(/^\[(\d+)\]/, (_, n) => `line ${Number(n) + 1}`)
      return (within ? within.replace(/^\./, '') + ': ' : '') + text(p)
    })
    .join('\n')
}
