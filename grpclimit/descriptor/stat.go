package descriptor

// AppendPath appends the [Limit.Path] that the descriptor would have if it were declared
// with its values.
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

// StatVaries reports whether [Limit.AppendStat] depends on the entries.
func (l *Limit) StatVaries() bool { return l.varies }

// AppendStat appends the name under which hits of a descriptor are counted: the path of its
// limit or, with detailed_metric, value_to_metric or a pattern of keys, the name that
// envoyproxy/ratelimit makes of the entries.
func (l *Limit) AppendStat(b []byte, entries []Entry) []byte {
	if !l.varies || len(entries) != len(l.chain) {
		return append(b, l.Path...)
	}
	b = append(b, l.tree.domain...)
	for i := range entries {
		e := &entries[i]
		b = append(b, '.')
		if l.detailed && l.Shared == nil {
			b = append(append(append(b, e.Key...), '_'), e.Value...) // even if it is empty
		} else {
			b = appendName(b, e.Key, l.statValue(i, e))
		}
	}
	return b
}

// statValue returns the value of an entry as the name has it.
func (l *Limit) statValue(i int, e *Entry) string {
	n := l.chain[i]
	switch {
	case !n.shared && (l.detailed || n.valueToMetric || n.kind == Exact):
		return e.Value
	case n.kind == KeyPattern:
		return n.key
	default:
		return n.value
	}
}

// statVaries computes StatVaries.
func (l *Limit) statVaries() bool {
	for _, n := range l.chain {
		open := n.kind == KeyAlone || n.kind == ValuePattern && !n.shared
		if n.kind == KeyPattern || open && (l.detailed || n.valueToMetric) {
			return true
		}
	}
	return false
}
