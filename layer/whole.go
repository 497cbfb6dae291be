package layer

import (
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/slot"
)

// whole is a counter that is split, and what this node knows of it.
type whole struct {
	key   stint.Key
	limit stint.Limit
	split int
	cap   int64
	parts []part        // none: it has only one unit, or its parts would not be exact
	at    atomic.Int32  // the part at which takes begin
	takes atomic.Uint32 // that have passed where they began
}

// part is a counter that is a part of another.
type part struct {
	subject string
	plan    *stint.Plan
	mark    atomic.Uint64 // [stint.Decision.Counter], with a bit that says that it is known

	// What was last heard of it, until it has recovered, by the clock of the store. The fields are of
	// different answers at worst.
	remaining, before, until atomic.Int64
}

// newWhole returns the counter of an ask. Chance says at which of its parts takes begin.
func newWhole(a *stint.Ask, chance uint64) *whole {
	w := &whole{
		key:   stint.Key{Subject: strings.Clone(a.Key.Subject), Name: strings.Clone(a.Key.Name)},
		limit: a.Limit, split: a.Policy.Split, cap: a.Limit.Cap(),
	}
	n := int(min(int64(a.Policy.Split), stint.MaxSplit, w.limit.Max, w.cap))
	plans, err := plansOf(w.limit, n)
	if err != nil || n < 2 {
		return w
	}
	w.parts = make([]part, n)
	for i, subject := range partSubjects(w.key.Subject, n) {
		p := &w.parts[i]
		p.subject, p.plan = subject, plans[i]
	}
	w.at.Store(int32(chance % uint64(n)))
	return w
}

// orNone returns nil if the counter has no parts.
func (w *whole) orNone() *whole {
	if len(w.parts) == 0 {
		return nil
	}
	return w
}

// plansOf returns the limits of n parts. Equal ones share a plan: there are at most three.
func plansOf(l stint.Limit, n int) ([]*stint.Plan, error) {
	plans := make([]*stint.Plan, n)
	for i := range plans {
		part := l
		part.Max = equal(l.Max, n, i)
		if l.Burst > 0 {
			part.Burst = equal(l.Burst, n, i)
		}
		if i > 0 && plans[i-1].Limit() == part {
			plans[i] = plans[i-1]
			continue
		}
		plan, err := part.Compile()
		if err != nil {
			return nil, err
		}
		plans[i] = plan
	}
	return plans, nil
}

// equal returns the i-th of n nearly equal parts of a number, of which the first are the larger ones.
func equal(all int64, n, i int) int64 {
	each, rest := all/int64(n), all%int64(n)
	if int64(i) < rest {
		each++
	}
	return each
}

// partSubjects returns the subjects of n parts. The first is that of the counter, and the others have endings by which
// the parts are evenly spread over the slots of a Redis Cluster: part i is in the zone that differs from the zone of
// the first by the bits of i in reverse order, so two parts are in different halves, four in different quarters, and
// so on. The zone before the endings is the exclusive or of one that was tried; see [slot.Of].
//
// A byte of 0xFF is in no valid key. Keys that are so long that they are hashed are spread by chance.
func partSubjects(subject string, n int) []string {
	out := make([]string, n)
	out[0] = subject
	turn := zoneOf(subject) ^ zoneOf(subject+"\xff"+endings[0]) ^ zone(endings[0])
	for i := 1; i < n; i++ {
		reversed := bits.Reverse8(uint8(i)) / (256 / stint.MaxSplit)
		out[i] = subject + "\xff" + endings[turn^int(reversed)]
	}
	return out
}

// endings has an ending for each of the zones, which are equal ranges of slots.
var endings = func() (all [stint.MaxSplit]string) {
	for n, found := 100, 0; found < len(all); n++ {
		if text := strconv.Itoa(n); all[zone(text)] == "" {
			all[zone(text)] = text
			found++
		}
	}
	return all
}()

// zone returns the zone of a key.
func zone(key string) int { return slot.Of(key) / (slot.Count / stint.MaxSplit) }

func zoneOf(subject string) int { return zone(stint.Key{Subject: subject}.String()) }

// turn is how many takes of a node begin at the same part, if it passes them. They are many, so that takes are
// sent together.
const turn = 1024

// moveOn has takes begin at the next part after a turn. Nodes begin by chance, several at one part and none at
// another, but in the end each is at all of them as often, and has heard of all.
func (w *whole) moveOn(at int, d *stint.Decision) {
	if w.parts[at].name(d); w.takes.Add(1)%turn == 0 && int(w.at.Load()) == at {
		w.parts[at].hear(d)
		w.at.Store(int32((at + 1) % len(w.parts)))
	}
}

// known is set in a mark that is known.
const known = 1 << 32

// charged returns the part that has made a charge with this mark, or -1 if none has, or its mark is not known yet.
func (w *whole) charged(mark uint32) int {
	for i := range w.parts {
		if w.parts[i].mark.Load() == known|uint64(mark) {
			return i
		}
	}
	return -1
}

// name remembers the mark of a part.
func (p *part) name(d *stint.Decision) {
	if m := known | uint64(d.Counter); p.mark.Load() != m {
		p.mark.Store(m)
	}
}

// hear remembers what the store says of a part.
func (p *part) hear(d *stint.Decision) {
	p.name(d)
	p.remaining.Store(d.Remaining)
	p.before.Store(d.Before)
	p.until.Store(d.At + d.ResetAfter.Microseconds())
}

// widen makes a decision about one part one about all of them, as far as this node has heard of the others. When
// a bucket has recovered stays that of the part, since its charge is changed by that.
func (w *whole) widen(d *stint.Decision, at int) {
	d.Limit = w.cap
	for i := range w.parts {
		p := &w.parts[i]
		if i == at {
			continue
		}
		until := p.until.Load()
		if until <= d.At {
			d.Remaining += p.plan.Cap()
			continue
		}
		d.Remaining += p.remaining.Load()
		d.Before += p.before.Load()
		if w.limit.Algorithm != stint.TokenBucket {
			d.ResetAfter = max(d.ResetAfter, time.Duration(until-d.At)*time.Microsecond)
		}
	}
}
