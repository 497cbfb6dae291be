package descriptor

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Config is the compiled limits of all domains. It never changes, and is safe for concurrent
// use.
type Config struct {
	trees       map[string]*Tree
	limits      []*Limit
	windows     windows
	differences []Difference
	ignored     []Difference
}

// Domain returns the descriptors of a domain, or nil if it does not exist.
func (c *Config) Domain(name string) *Tree { return c.trees[name] }

// Domains returns the names of the domains, sorted.
func (c *Config) Domains() []string { return slices.Sorted(maps.Keys(c.trees)) }

// Ignored returns what has no effect, neither here nor in envoyproxy/ratelimit, and is probably
// a mistake: fields in the wrong place, and all documents of a file but the first.
func (c *Config) Ignored() []Difference { return c.ignored }

// Limits returns all limits, in the order of their declaration.
func (c *Config) Limits() iter.Seq[*Limit] { return slices.Values(c.limits) }

// Tree holds the descriptors of a domain.
type Tree struct {
	domain      string
	root        level
	independent bool
}

// Independent reports whether the descriptors of one request are counted independently.
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

// node is a declared descriptor.
type node struct {
	key, value string
	kind       Match
	limit      *Limit // nil if it has none
	below      level

	valueToMetric bool
	shared        bool // all matches of the pattern share one counter
	order         int  // of a pattern among those of its level

	at   origin
	path string // in its file
}

// name returns the key and the value as in paths.
func (n *node) name() string { return string(appendName(nil, n.key, n.value)) }

// level holds sibling descriptors.
type level struct {
	exact    map[Entry]*node
	keys     map[string]*node     // those without a value
	values   map[string]*patterns // patterns of values, by key
	prefixes *patterns            // patterns of keys
	patterns int                  // how many patterns there are
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

// pattern returns the first pattern that the entry matches.
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

// add adds a descriptor.
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

// patterns are indexed by prefix, so their number hardly matters.
type patterns struct {
	lengths  []int // of the prefixes, shortest first
	byPrefix map[string][]*pattern
}

// count returns how many patterns there are. p may be nil.
func (p *patterns) count() (n int) {
	if p != nil {
		for _, list := range p.byPrefix {
			n += len(list)
		}
	}
	return n
}

// pattern is the text between the stars.
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

// find returns the first pattern that the text matches.
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

// fits reports whether the text after the prefix matches.
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
