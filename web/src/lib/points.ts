/**
 * alone returns where a series has a value between two gaps. No line goes through it, so it
 * would not be seen. Nothing of nothing is not worth a point.
 */
export function alone(values: readonly (number | null | undefined)[]): number[] {
  const none = (v: number | null | undefined) => v === null || v === undefined
  return values.flatMap((v, i) => (!none(v) && v !== 0 && none(values[i - 1]) && none(values[i + 1]) ? [i] : []))
}
