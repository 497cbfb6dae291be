package link

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stintdev/stint"
)

const (
	// places is how many limits have a number on a stream. The next one takes the place of the oldest.
	places = 4096
	// maxLimitText is the most bytes of a limit's text. None that people write comes near.
	maxLimitText = 256
)

// speller numbers the limits that are sent.
type speller struct {
	numbers map[stint.Limit]uint32
	limits  []stint.Limit // by number, from 1
	oldest  int           // in limits, once they are all in use
}

// refer returns the number of a limit, and its text if the other side does not know the number.
func (s *speller) refer(l stint.Limit) (number uint32, text string) {
	if n, ok := s.numbers[l]; ok {
		return n, ""
	}
	i := len(s.limits)
	switch {
	case i == 0:
		s.numbers = map[stint.Limit]uint32{}
		fallthrough
	case i < places:
		s.limits = append(s.limits, l)
	default:
		i = s.oldest
		s.oldest = (i + 1) % places
		delete(s.numbers, s.limits[i])
		s.limits[i] = l
	}
	number = uint32(i) + 1
	s.numbers[l] = number
	return number, l.String()
}

// glossary has the limits that were received.
type glossary struct {
	plans  []*stint.Plan
	limits []stint.Limit
}

// find returns the limit of a number, which first gets it if there is a text.
func (g *glossary) find(number uint32, text string) (stint.Limit, *stint.Plan, error) {
	i := int(number) - 1
	switch known := len(g.limits); {
	case number < 1 || number > places || i > known || (i == known && text == ""):
		return stint.Limit{}, nil, refuse(BadMessage, "limit %d of %d that were sent", number, known)
	case text == "":
		return g.limits[i], g.plans[i], nil
	case len(text) > maxLimitText:
		return stint.Limit{}, nil, refuse(BadMessage, "a limit of %d bytes, want at most %d", len(text), maxLimitText)
	case i == known:
		g.limits, g.plans = append(g.limits, stint.Limit{}), append(g.plans, nil)
	}
	l, err := stint.ParseLimit(text)
	if err != nil {
		return stint.Limit{}, nil, refuse(BadMessage, "%v", err)
	}
	plan, err := l.Compile()
	if err != nil {
		return stint.Limit{}, nil, refuse(BadMessage, "%v", err)
	}
	g.limits[i], g.plans[i] = l, plan
	return l, plan, nil
}

// measure adds up how large a message becomes at most.
type measure struct {
	bytes  int
	limits map[stint.Limit]bool // those whose text is counted
}

// limit adds a limit.
func (m *measure) limit(l stint.Limit) error {
	if m.limits[l] {
		return nil
	}
	if err := l.Validate(); err != nil {
		return err
	}
	text := l.String()
	if len(text) > maxLimitText {
		return fmt.Errorf("link: limit of %d bytes, want at most %d", len(text), maxLimitText)
	}
	if m.limits == nil || len(m.limits) == places { // after so many, the first has to be sent again
		m.limits = map[stint.Limit]bool{}
	}
	m.limits[l] = true
	m.bytes += protowire.SizeBytes(len(text)) + 1
	return nil
}

// field adds fields of bytes.
func (m *measure) field(lengths ...int) {
	for _, n := range lengths {
		m.bytes += protowire.SizeBytes(n) + 1
	}
}
