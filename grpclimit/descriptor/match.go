package descriptor

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Config is what descriptors are limited by. It never changes, and may be used by many
// at once.
type Config struct {
	trees       map[string]*Tree
	limits      []*Limit
	windows     windows
	differences []Difference
}

// Domain returns the descriptors of a domain, or nil if there is no such domain.
func (c *Config) Domain(name string) *Tree { return c.trees[name] }

// Domains returns the names of the domains, sorted.
func (c *Config) Domains() []string { return slices.Sorted(maps.Keys(c.trees)) }

// Limits returns all limits, in the order of their declaration.
func (c *Config) Limits() iter.Seq[*Limit] { return slices.Values(c.limits) }

// Tree is the descriptors of a domain.
type Tree struct {
	domain      string
	root        level
	independent bool
}

// Independent says whether the descriptors of one request count each for itself.
func (t *Tree) Independent() bool { return t.independent }

// Find returns the limit of a descriptor, or nil if it has none.
func (t *Tree) Find(entries []Entry) *Limit {
	l := &t.root
	var n *node
	for i := range entries {
		if n = l.match(&entries[i]); n == nil {
			return nil
		}
		l = &n.below
	}
	if n == nil {
		return nil
	}
	return n.limit
}

// node is a descriptor as it was declared.
type node struct {
	key, value string
	kind       Match
	limit      *Limit // nil if it has none
	below      level

	valueToMetric bool
	shared        bool // all that fit the pattern are counted as one
	order         int  // of a pattern: its place among those of its level

	at   origin
	path string // in its file
}

// name returns the key and the value as they are written in paths.
func (n *node) name() string {
	if n.value == "" {
		return n.key
	}
	return n.key + "_" + n.value
}

// level is the descriptors that stand beside each other.
type level struct {
	exact    map[Entry]*node
	keys     map[string]*node     // without a value
	values   map[string]*patterns // of values, by key
	prefixes *patterns            // of keys
	patterns int                  // how many there are
}

func (l *level) match(e *Entry) *node {
	if e.Value != "" {
		if n := l.exact[*e]; n != nil {
			return n
		}
	}
	if l.patterns > 0 {
		if p := l.pattern(e); p != nil {
			return p.node
		}
	}
	return l.keys[e.Key]
}

// pattern returns the first pattern that an entry fits.
func (l *level) pattern(e *Entry) *pattern {
	var first *pattern
	if p := l.values[e.Key]; p != nil && e.Value != "" {
		first = p.find(e.Value)
	}
	if l.prefixes != nil {
		if p := l.prefixes.find(e.Key); p != nil && (first == nil || p.node.order < first.node.order) {
			return p
		}
	}
	return first
}

// add has the level hold a descriptor that it does not have.
func (l *level) add(n *node) {
	put := func(p **patterns, text []string) {
		if *p == nil {
			*p = &patterns{byPrefix: map[string][]*pattern{}}
		}
		n.order = l.patterns
		(*p).add(&pattern{prefix: text[0], inner: text[1 : len(text)-1], suffix: text[len(text)-1], node: n})
		l.patterns++
	}
	switch n.kind {
	case Exact:
		if l.exact == nil {
			l.exact = map[Entry]*node{}
		}
		l.exact[Entry{n.key, n.value}] = n
	case KeyPattern:
		put(&l.prefixes, []string{strings.TrimSuffix(n.key, "*"), ""})
	case ValuePattern:
		if l.values == nil {
			l.values = map[string]*patterns{}
		}
		p := l.values[n.key]
		put(&p, strings.Split(n.value, "*"))
		l.values[n.key] = p
	default:
		if l.keys == nil {
			l.keys = map[string]*node{}
		}
		l.keys[n.key] = n
	}
}

// kindOf returns how a descriptor is matched.
func kindOf(key, value string) Match {
	switch {
	case strings.Contains(value, "*"):
		return ValuePattern
	case value != "":
		return Exact
	case strings.HasSuffix(key, "*"):
		return KeyPattern
	default:
		return KeyAlone
	}
}

// patterns are found by what they begin with, so it hardly matters how many there are.
type patterns struct {
	lengths  []int // that beginnings have, shortest first
	byPrefix map[string][]*pattern
}

// pattern is the texts between the stars.
type pattern struct {
	prefix, suffix string
	inner          []string
	node           *node
}

func (p *patterns) add(n *pattern) {
	if i, found := slices.BinarySearch(p.lengths, len(n.prefix)); !found {
		p.lengths = slices.Insert(p.lengths, i, len(n.prefix))
	}
	p.byPrefix[n.prefix] = append(p.byPrefix[n.prefix], n)
}

// find returns the first that the text fits.
func (p *patterns) find(text string) *pattern {
	var first *pattern
	for _, n := range p.lengths {
		if n > len(text) {
			break
		}
		for _, candidate := range p.byPrefix[text[:n]] {
			if first != nil && first.node.order < candidate.node.order {
				break
			}
			if candidate.fits(text[n:]) {
				first = candidate
				break
			}
		}
	}
	return first
}

// fits says whether what follows the prefix does.
func (p *pattern) fits(text string) bool {
	text, ok := strings.CutSuffix(text, p.suffix)
	if !ok {
		return false
	}
	for _, inner := range p.inner {
		i := strings.Index(text, inner)
		if i < 0 {
			return false
		}
		text = text[i+len(inner):]
	}
	return true
}
