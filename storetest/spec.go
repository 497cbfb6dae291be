package storetest

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// Spec returns the specification as a store: the pure functions over a map, under one lock. Other stores are
// compared with it. It is slow, and never drops a key.
func Spec(now func() time.Time) stint.Store {
	return &spec{now: now, counters: counters{}}
}

type spec struct {
	now func() time.Time

	mu       sync.Mutex
	counters counters
	closed   bool
}

// counters holds the states of counters. Its methods do not change the receiver, but return the next value.
type counters map[counterID]stint.State

type counterID struct {
	key       stint.Key
	algorithm stint.Algorithm
	window    stint.Window
	penalty   bool
	// change is the ID of a change of a charge of the counter. The state says until when it is
	// not made again.
	change string
}

func idOf(a *stint.Ask) counterID {
	if a.Penalty != nil {
		return counterID{key: a.Key, penalty: true}
	}
	return counterID{key: a.Key, algorithm: a.Limit.Algorithm, window: a.Limit.Window}
}

// take charges every ask or none. If it is denied, penalties may count a violation.
func (cs counters) take(asks []stint.Ask, now time.Time) (counters, []stint.Decision) {
	next := maps.Clone(cs)
	out := make([]stint.Decision, len(asks))
	allowed := true
	for i := range asks {
		a, id := &asks[i], idOf(&asks[i])
		if a.Penalty != nil {
			out[i] = next.look(id, a.Penalty, now)
		} else {
			next[id], out[i] = a.Limit.Take(next[id], now, a.Cost)
		}
		allowed = allowed && out[i].Allowed
	}
	if allowed {
		return next, out
	}
	next = maps.Clone(cs)
	for i := range asks {
		a, id := &asks[i], idOf(&asks[i])
		if a.Penalty != nil {
			next.look(id, a.Penalty, now)
			continue
		}
		var look stint.Decision
		next[id], look = a.Limit.Take(next[id], now, 0) // it may have to be moved
		if out[i].Allowed {
			out[i] = look
			out[i].Allowed = true
		}
	}
	for i := range asks {
		if a, id := &asks[i], idOf(&asks[i]); a.Penalty != nil && a.Cost > 0 && deniedAmong(out[stint.Guarded(asks, i):i]) {
			next[id], out[i] = a.Penalty.Take(next[id], now, true)
		}
	}
	return next, out
}

// look judges a penalty, whose state is moved if it is from the future.
func (cs counters) look(id counterID, p *stint.Penalty, now time.Time) stint.Decision {
	before := cs[id]
	after, d := p.Take(before, now, false)
	if before.At > now.UnixMicro() {
		cs[id] = after
	}
	return d
}

func deniedAmong(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed })
}

func (cs counters) adjust(asks []stint.Ask, now time.Time) (counters, []stint.Decision) {
	next := maps.Clone(cs)
	out := make([]stint.Decision, len(asks))
	for i := range asks {
		a, id := &asks[i], idOf(&asks[i])
		switch c := a.Charge; {
		case c == nil:
			next[id], out[i] = a.Limit.Adjust(next[id], now, a.Cost)
		case next.made(id, c, now):
			next[id], out[i] = a.Limit.Take(next[id], now, 0)
			out[i].Repeated = true
		default:
			next[id], out[i] = a.Limit.Amend(next[id], now, *c, a.Cost)
		}
	}
	return next, out
}

// made reports whether a change with this ID was made before. If not, it is made now.
func (cs counters) made(id counterID, c *stint.Charge, now time.Time) bool {
	if c.ID == "" {
		return false
	}
	id.change = c.ID
	made := cs[id].Until > now.UnixMicro()
	if !made {
		cs[id] = stint.State{Counter: stint.Counter{Until: c.KeptUntil(now.UnixMicro())}}
	}
	return made
}

func (cs counters) reset(asks []stint.Ask, now time.Time) counters {
	next := maps.Clone(cs)
	for i := range asks {
		a, id := &asks[i], idOf(&asks[i])
		if a.Penalty != nil {
			delete(next, id)
		} else {
			next[id] = a.Limit.Reset(next[id], now)
		}
	}
	return next
}

// counterMark is what tells charges of the ask's counter from those of others.
func counterMark(a *stint.Ask) uint32 {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, idOf(a))
	return h.Sum32()
}

func (s *spec) Take(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.step(asks, ds, stint.ValidateTake, counters.take)
}

func (s *spec) Adjust(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.step(asks, ds, stint.ValidateAdjust, counters.adjust)
}

// step validates the asks and applies next to the counters.
func (s *spec) step(
	asks []stint.Ask, ds []stint.Decision,
	validate func([]stint.Ask, []stint.Decision) error,
	next func(counters, []stint.Ask, time.Time) (counters, []stint.Decision),
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return stint.ErrClosed
	}
	if err := validate(asks, ds); err != nil {
		return err
	}
	now := s.now()
	for i := range asks {
		if c := asks[i].Charge; c != nil {
			if err := c.ValidateFor(counterMark(&asks[i]), now.UnixMicro()); err != nil {
				return err
			}
		}
	}
	var out []stint.Decision
	s.counters, out = next(s.counters, asks, now)
	copy(ds, out)
	for i := range asks {
		ds[i].Counter = counterMark(&asks[i])
	}
	return nil
}

func (s *spec) Reset(_ context.Context, asks []stint.Ask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return stint.ErrClosed
	}
	s.counters = s.counters.reset(asks, s.now())
	return nil
}

func (s *spec) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
