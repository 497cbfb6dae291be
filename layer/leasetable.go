package layer

import (
	"time"

	"github.com/stintdev/stint"
)

// find returns the lease of the ask's counter, or nil.
func (l *leases) find(a *stint.Ask) *lease {
	if a.Penalty != nil {
		return nil
	}
	id := hash(l.seed, a)
	s := &l.sets[id&uint64(len(l.sets)-1)]
	for i := range s {
		if e := s[i].Load(); e != nil && e.id == id && e.ask.Key == a.Key {
			return e
		}
	}
	return nil
}

// maxHeat is how many takes of a counter that is not leased are counted at most.
const maxHeat = 1<<16 - 1

// warm counts a take of a counter that is not leased, and reports whether there were enough in this term.
// Counters that share a place forget each other's takes: those that are taken from often enough have it.
func (l *leases) warm(a *stint.Ask, now time.Duration) bool {
	id := hash(l.seed, a)
	place := &l.heat[(id>>16)%uint64(len(l.heat))]
	term := id>>32<<32 | uint64(now/a.Policy.Lease)%(1<<16)<<16
	n := uint64(1)
	if old := place.Load(); old&^maxHeat == term {
		n = min(old&maxHeat+1, maxHeat)
	}
	place.Store(term | n) // a take that is lost is no harm
	return n >= uint64(l.o.Begin)
}

// begin returns a new lease of the ask's counter, or nil if there are too many.
func (l *leases) begin(a *stint.Ask, now time.Duration) *lease {
	e := newLease(a, hash(l.seed, a), now)
	s := &l.sets[e.id&uint64(len(l.sets)-1)]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	free := -1
	for i := range s {
		switch x := s[i].Load(); {
		case x == nil:
			free = i
		case x.id == e.id && x.ask.Key == a.Key:
			return x // someone else has just begun it
		}
	}
	if free < 0 {
		l.o.Meter.full.Add(1)
		return nil
	}
	e.meter = l.o.Meter.begin(&e.ask)
	e.takes, e.units = int64(l.o.Begin), int64(l.o.Begin)*a.Cost
	e.timer = time.AfterFunc(e.term, func() { l.do(func() { l.turn(e) }) })
	s[free].Store(e)
	return e
}

// end removes a lease, and returns what is to be given back.
func (l *leases) end(e *lease) []stint.Ask {
	back := e.end()
	s := &l.sets[e.id&uint64(len(l.sets)-1)]
	for i := range s {
		if s[i].CompareAndSwap(e, nil) {
			l.o.Meter.end(e)
		}
	}
	return back
}
