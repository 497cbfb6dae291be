package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Match is how an entry was matched.
type Match string

// The ways.
const (
	Nothing      Match = ""
	Exact        Match = "exact"
	ValuePattern Match = "pattern"
	KeyPattern   Match = "key pattern"
	KeyAlone     Match = "key"
)

// Step is what became of an entry of a descriptor.
type Step struct {
	Entry Entry
	Match Match
	// Declared is what it matched, and Path where that stands, as [Limit.Path] has it.
	Declared Entry
	Path     string
	// Tried is how many patterns were declared that might have come before, on its level.
	Tried int
	// Limit is what the last entry has led to, if there is something.
	Limit *Limit
	// Why says how it ends: what limit there is, or why there is none. It is empty for
	// entries that lead on.
	Why string
}

// String returns the step in a line.
func (s Step) String() string {
	text := s.Entry.Key + "=" + s.Entry.Value + ": "
	declared := string(appendName(nil, s.Declared.Key, s.Declared.Value))
	switch s.Match {
	case Exact:
		text += "is declared as " + declared
	case ValuePattern, KeyPattern:
		text += "fits the pattern " + declared
	case KeyAlone:
		text += "is declared by its key alone, as " + declared
	default:
		text += "is not declared, neither with its value nor by its key alone"
	}
	if s.Match == KeyAlone || s.Match == Nothing {
		switch s.Tried {
		case 0:
		case 1:
			text += ", and does not fit the one pattern"
		default:
			text += ", and fits none of " + strconv.Itoa(s.Tried) + " patterns"
		}
	}
	if s.Why != "" {
		text += "; " + s.Why
	}
	return text
}

// Explain says, entry by entry, how the limit of a descriptor is found, or why there is
// none. It ends with the entry that decides.
func (t *Tree) Explain(entries []Entry) []Step {
	var steps []Step
	l, path := &t.root, t.domain
	for i, e := range entries {
		s := Step{Entry: e, Path: path}
		if e.Value != "" && l.values[e.Key] != nil {
			for _, p := range l.values[e.Key].byPrefix {
				s.Tried += len(p)
			}
		}
		if l.prefixes != nil {
			for _, p := range l.prefixes.byPrefix {
				s.Tried += len(p)
			}
		}
		n := l.match(&e)
		if n == nil {
			s.Why = "so there is no limit"
			return append(steps, s)
		}
		path += "." + n.name()
		s.Match, s.Declared, s.Path = n.kind, Entry{n.key, n.value}, path
		l = &n.below
		deeper := len(l.exact)+len(l.keys)+l.patterns > 0
		last := i == len(entries)-1
		switch {
		case last && n.limit != nil:
			s.Limit, s.Why = n.limit, "the limit is "+n.limit.describe()
		case last && deeper:
			s.Why = "it has no rate_limit, those below it have: the descriptor is not deep enough"
		case last:
			s.Why = "it has no rate_limit"
		case !deeper:
			s.Why = fmt.Sprintf("nothing is declared below it, and the descriptor goes on, by %d: it is too deep", len(entries)-1-i)
		}
		if steps = append(steps, s); s.Why != "" {
			return steps
		}
	}
	return steps
}

// describe returns the limit for people.
func (l *Limit) describe() string {
	text := "that nothing passes"
	switch {
	case l.Unlimited:
		text = "none: it is unlimited"
	case l.Requests > 0:
		text = l.Limit.String()
	}
	var notes []string
	if l.Shadow {
		notes = append(notes, "shadow_mode: it refuses no one")
	}
	if l.Quota {
		notes = append(notes, "quota_mode: it refuses if all such limits of a request do")
	}
	for _, e := range l.Shared {
		if e != (Entry{}) {
			notes = append(notes, "shared by all that fit "+string(appendName(nil, e.Key, e.Value)))
		}
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}
