package rule

import (
	"hash/maphash"
	"strings"
)

// tree finds the entries whose path matches that of a request. It consists of tables
// rather than nodes that point to each other, because the tables of ten thousand rules
// still fit into the processor's cache.
type tree struct {
	nodes []node // the first is the root
	all   []candidate
	more  []*index // the first is nil
	edges []edge   // a hash table; its size is a power of two, and half of it is empty
	text  string   // all segments
	seed  maphash.Seed
}

// node is a place in the tree.
type node struct {
	wild int32 // the node after any one segment, or 0
	rest int32 // the node after any number of segments, or 0
	// Entries whose paths end here: all[from:to], and more[more] if there are many.
	from, to, more int32
}

// edge leads from a node to the next, by a literal segment.
type edge struct {
	from, to int32 // to is 0 if there is no edge
	at, size int32 // of the segment in the text
}

// step is an edge while the tree is built.
type step struct {
	from    int32
	segment string
}

// newTree builds the tree of entries that have paths. If their case is folded, it is for
// paths whose case is folded, too.
func newTree(entries []*entry, folded bool) *tree {
	t := &tree{nodes: make([]node, 1, 2*len(entries)+1), more: make([]*index, 1), seed: maphash.MakeSeed()}
	steps := make(map[step]int32, 2*len(entries))
	ends := make([]int32, len(entries)) // the nodes at which paths end
	for i, e := range entries {
		path := e.path
		if folded {
			path = path.folded()
		}
		ends[i] = t.add(path, steps)
	}
	t.connect(steps)
	lists := make([][]candidate, len(t.nodes))
	for i, e := range entries {
		lists[ends[i]] = append(lists[ends[i]], candidate{e.conditions, e})
	}
	t.all = make([]candidate, 0, len(entries))
	for i, list := range lists {
		b := bucket{list: list}
		b.sort()
		n := &t.nodes[i]
		n.from = int32(len(t.all))
		t.all = append(t.all, b.list...)
		n.to = int32(len(t.all))
		if b.more != nil {
			n.more = int32(len(t.more))
			t.more = append(t.more, b.more)
		}
	}
	return t
}

// add returns the node at which a path ends, and adds the nodes that lead there.
func (t *tree) add(p pattern, steps map[step]int32) int32 {
	grow := func() int32 {
		t.nodes = append(t.nodes, node{})
		return int32(len(t.nodes) - 1)
	}
	at := int32(0)
	for _, s := range p.segments {
		next := t.nodes[at].wild
		if !s.wild {
			next = steps[step{at, s.text}]
		}
		if next == 0 {
			next = grow()
			if s.wild {
				t.nodes[at].wild = next
			} else {
				steps[step{at, s.text}] = next
			}
		}
		at = next
	}
	if !p.rest {
		return at
	}
	if t.nodes[at].rest == 0 {
		next := grow()
		t.nodes[at].rest = next
	}
	return t.nodes[at].rest
}

// connect fills the table of edges.
func (t *tree) connect(steps map[step]int32) {
	size := 2
	for size < 2*len(steps) {
		size *= 2
	}
	t.edges = make([]edge, size)
	var text strings.Builder
	for s, to := range steps {
		i := t.place(s.from, s.segment)
		for t.edges[i].to != 0 {
			i = (i + 1) % size
		}
		t.edges[i] = edge{from: s.from, to: to, at: int32(text.Len()), size: int32(len(s.segment))}
		text.WriteString(s.segment)
	}
	t.text = text.String()
}

// place returns where the search for an edge begins.
func (t *tree) place(from int32, segment string) int {
	const odd = 0x9E3779B97F4A7C15
	h := maphash.String(t.seed, segment) ^ uint64(from)*odd
	return int(h & uint64(len(t.edges)-1))
}

// next returns the node after a segment, or 0.
func (t *tree) next(from int32, segment string) int32 {
	for i := t.place(from, segment); ; i = (i + 1) & (len(t.edges) - 1) {
		switch e := &t.edges[i]; {
		case e.to == 0:
			return 0
		case e.from == from && int(e.size) == len(segment) && t.text[e.at:e.at+e.size] == segment:
			return e.to
		}
	}
}

// collect appends the matching entries from a node on. The path is empty, or a slash, a
// segment, and the rest. No node is visited twice.
func (t *tree) collect(dst []Hit, at int32, path string, a *Attrs) []Hit {
	n := &t.nodes[at]
	if n.rest != 0 {
		dst = t.here(dst, &t.nodes[n.rest], a)
	}
	if path == "" {
		return t.here(dst, n, a)
	}
	segment, rest := cutSegment(path)
	if next := t.next(at, segment); next != 0 {
		dst = t.collect(dst, next, rest, a)
	}
	if n.wild != 0 {
		dst = t.collect(dst, n.wild, rest, a)
	}
	return dst
}

// here appends the matching entries whose paths end at a node.
func (t *tree) here(dst []Hit, n *node, a *Attrs) []Hit {
	dst = appendMet(dst, t.all[n.from:n.to], a)
	if n.more != 0 {
		dst = t.more[n.more].collect(dst, a)
	}
	return dst
}
