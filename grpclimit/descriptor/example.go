package descriptor

import "strings"

// Example returns a descriptor that the limit applies to, with the value wherever a client could have sent any. Own
// reports whether it has a counter that no other value shares. There is none, and entries is nil, if other descriptors
// match whatever this one would.
func (l *Limit) Example(value string) (entries []Entry, own bool) {
	for _, n := range l.chain {
		e := Entry{n.key, n.value}
		switch n.kind {
		case Exact, Nothing:
		case KeyAlone:
			e.Value = value
		case ValuePattern:
			e.Value = strings.ReplaceAll(n.value, "*", value)
		case KeyPattern:
			e = Entry{strings.TrimSuffix(n.key, "*") + value, value}
		}
		entries, own = append(entries, e), own || n.kind != Exact && !n.shared
	}
	if l.tree.Find(entries) != l {
		return nil, false
	}
	return entries, own
}

// Domain returns the name of the domain that has the limit.
func (l *Limit) Domain() string { return l.tree.domain }
