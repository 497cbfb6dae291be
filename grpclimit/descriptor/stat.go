package descriptor

// AppendPath appends the name of a descriptor, as [Limit.Path] would be if it were
// declared with its values.
func AppendPath(b []byte, domain string, entries []Entry) []byte {
	b = append(b, domain...)
	for i := range entries {
		b = appendName(append(b, '.'), entries[i].Key, entries[i].Value)
	}
	return b
}

func appendName(b []byte, key, value string) []byte {
	b = append(b, key...)
	if value != "" {
		b = append(append(b, '_'), value...)
	}
	return b
}

// StatVaries says whether [Limit.AppendStat] depends on the entries.
func (l *Limit) StatVaries() bool { return l.varies }

// AppendStat appends the name under which hits of a descriptor are counted: the path of
// its limit or, with detailed_metric, value_to_metric or a pattern of keys, what of the
// entries the rules of envoyproxy/ratelimit put in its place.
func (l *Limit) AppendStat(b []byte, entries []Entry) []byte {
	if !l.varies || len(entries) != len(l.chain) {
		return append(b, l.Path...)
	}
	b = append(b, l.tree.domain...)
	for i := range entries {
		e := &entries[i]
		b = append(b, '.')
		if l.detailed && l.Shared == nil {
			b = append(append(append(b, e.Key...), '_'), e.Value...) // also if it is empty
		} else {
			b = appendName(b, e.Key, l.statValue(i, e))
		}
	}
	return b
}

// statValue returns what the name has for the value of an entry.
func (l *Limit) statValue(i int, e *Entry) string {
	n := l.chain[i]
	switch {
	case n.shared:
		return n.pattern()
	case l.detailed, n.valueToMetric, n.kind == Exact:
		return e.Value
	default:
		return n.pattern()
	}
}

// pattern returns the pattern, or nothing if there is none.
func (n *node) pattern() string {
	if n.kind == KeyPattern {
		return n.key
	}
	return n.value
}

// statVaries is what StatVaries returns.
func (l *Limit) statVaries() bool {
	for _, n := range l.chain {
		open := n.kind == KeyAlone || n.kind == ValuePattern && !n.shared
		if n.kind == KeyPattern || open && (l.detailed || n.valueToMetric) {
			return true
		}
	}
	return false
}
