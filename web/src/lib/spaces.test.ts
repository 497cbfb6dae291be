import { parse, type AST } from 'svelte/compiler'
import { expect, it } from 'vitest'

// Svelte drops spaces at the start and the end of every block and element. Where text goes on before or after it, words would
// run together: such a space has to stand outside, or be {' '} or &nbsp;.
const files = import.meta.glob<string>('../**/*.svelte', { query: '?raw', import: 'default', eager: true })

type Node = AST.Fragment['nodes'][number]
const inline = new Set(['a', 'abbr', 'code', 'em', 'kbd', 'q', 'span', 'strong', 'time'])
const isInline = (n: Node | undefined) => !!n && (n.type === 'ExpressionTag' || n.type === 'HtmlTag' || (n.type === 'Text' && n.raw.trim() !== '') || (n.type === 'RegularElement' && inline.has(n.name)))
const ends = (n: Node | undefined) => isInline(n) && !(n!.type === 'Text' && /\s$/.test((n as AST.Text).raw))
const begins = (n: Node | undefined) => isInline(n) && !(n!.type === 'Text' && /^\s/.test((n as AST.Text).raw))

/** lost returns the places of a text where a space is dropped between words. */
function lost(source: string): string[] {
  const out: string[] = []
  const at = (n: { start: number }) => `line ${source.slice(0, n.start).split('\n').length}: ${source.slice(Math.max(0, n.start - 30), n.start + 30).replace(/\s+/g, ' ')}`
  const inside = (n: Node): AST.Fragment[] =>
    n.type === 'IfBlock' ? [n.consequent, ...(n.alternate ? [n.alternate] : [])]
    : n.type === 'EachBlock' ? [n.body, ...(n.fallback ? [n.fallback] : [])]
    : 'fragment' in n && n.fragment ? [n.fragment]
    : 'body' in n && n.body && 'nodes' in n.body ? [n.body as AST.Fragment] : []
  const walk = (nodes: Node[]) => {
    nodes.forEach((n, i) => {
      const flows = n.type === 'IfBlock' || n.type === 'EachBlock' || n.type === 'KeyBlock' || (n.type === 'RegularElement' && inline.has(n.name))
      for (const f of inside(n)) {
        const [first, last] = [f.nodes[0], f.nodes.at(-1)]
        if (flows && first?.type === 'Text' && /^\s/.test(first.raw) && ends(nodes[i - 1]) && (isInline(first) || isInline(f.nodes[1]))) out.push(at(first))
        if (flows && last?.type === 'Text' && /\s$/.test(last.raw) && begins(nodes[i + 1]) && (isInline(last) || isInline(f.nodes.at(-2)))) out.push(at({ start: last.end }))
        walk(f.nodes)
      }
    })
  }
  walk(parse(source, { modern: true }).fragment.nodes)
  return out
}

it.each([
  ['Read{#if a} it{/if}', 1],
  ['{#if a}Read {/if}it', 1],
  ['{a}<strong> it</strong>', 1],
  ['Read {#if a}it{/if}', 0],
  ['Read{#if a}&nbsp;it{/if}', 0],
  ['<p>\n  {#if a}\n    Read\n  {/if}\n  {#if b}it{/if}\n</p>', 0],
])('finds lost spaces in %s', (text, want) => expect(lost(text)).toHaveLength(want))

it.each(Object.keys(files))('loses no space in %s', (file) => expect(lost(files[file]!)).toEqual([]))
