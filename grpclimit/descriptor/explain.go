package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Match is how an entry was matched.
type Match string

// The kinds of matches.
const (
	Nothing      Match = ""
	Exact        Match = "exact"
	ValuePattern Match = "pattern"
	KeyPattern   Match = "key pattern"
	KeyAlone     Match = "key"
)

// Step explains how one entry of a descriptor was matched.
type Step struct {
	Entry Entry
	Match Match
	// Declared is the descriptor that it matched, and Path is its path, like [Limit.Path].
	Declared Entry
	Path     string
	// Tried is how many patterns the entry was compared with.
	Tried int
	// Limit is the limit that the last entry led to, if any.
	Limit *Limit
	// Why is the limit, or why there is none. It is empty if the next entry decides.
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
		text += "matches the pattern " + declared
	case KeyAlone:
		text += "is declared by its key alone as " + declared
	default:
		text += "is not declared, neither with its value nor by its key alone"
	}
	if s.Match == KeyAlone || s.Match == Nothing {
		switch s.Tried {
		case 0:
		case 1:
			text += ", and does not match the one pattern"
		default:
			text += ", and matches none of " + strconv.Itoa(s.Tried) + " patterns"
		}
	}
	if s.Why != "" {
		text += "; " + s.Why
	}
	return text
}

// Explain says, entry by entry, how the limit of a descriptor is found, or why there is
// none. The last step is for the entry that decides.
func (t *Tree) Explain(entries []Entry) []Step {
	var steps []Step
	l, path := &t.root, t.domain
	for i, e := range entries {
		s := Step{Entry: e, Path: path, Tried: l.prefixes.count()}
		if e.Value != "" {
			s.Tried += l.values[e.Key].count()
		}
		n := l.match(&e)
		if n == nil {
			s.Why = "there is no limit"
			return append(steps, s)
		}
		path += "." + n.name()
		s.Match, s.Declared, s.Path = n.kind, Entry{n.key, n.value}, path
		l = &n.below
		deeper := len(l.exact)+len(l.keys)+l.patterns > 0
		last := i == len(entries)-1
		switch {
		case last && n.limit != nil:
			s.Limit, s.Why = n.limit, n.limit.describe()
		case last && deeper:
			s.Why = "it has no rate_limit, but descriptors below it do: the request has too few entries"
		case last:
			s.Why = "it has no rate_limit"
		case !deeper:
			s.Why = fmt.Sprintf("nothing is declared below it, and the request has more entries (%d)", len(entries)-1-i)
		}
		if steps = append(steps, s); s.Why != "" {
			return steps
		}
	}
	return steps
}

// describe returns the limit for people.
func (l *Limit) describe() string {
	text := "the limit is 0: nothing passes"
	switch {
	case l.Unlimited:
		text = "it is unlimited"
	case l.Requests > 0:
		text = "the limit is " + l.Limit.String()
	}
	var notes []string
	switch {
	case l.Mark:
		notes = append(notes, "mark: it denies nothing, and adds Stint-Over to requests over it")
	case l.Shadow:
		notes = append(notes, "shadow_mode: it denies nothing")
	}
	if l.Quota {
		notes = append(notes, "quota_mode: it denies only if all such limits of a request are used up")
	}
	for _, e := range l.Shared {
		if e != (Entry{}) {
			notes = append(notes, "shared by all that match "+string(appendName(nil, e.Key, e.Value)))
		}
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}
