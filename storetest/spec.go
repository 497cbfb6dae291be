package storetest

import (
	"context"
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
	penalty   bool
}

func idOf(a *stint.Ask) counterID {
	if a.Penalty != nil {
		return counterID{key: a.Key, penalty: true}
	}
	return counterID{key: a.Key, algorithm: a.Limit.Algorithm}
}

// take charges every ask or none. If it is denied, penalties may count a violation.
func (cs counters) take(asks []stint.Ask, now time.Time) (counters, []stint.Decision) {
	next := maps.Clone(cs)
	out := make([]stint.Decision, len(asks))
	allowed := true
	for i := range asks {
		a, id := &asks[i], idOf(&asks[i])
		if a.Penalty != nil {
			_, out[i] = a.Penalty.Take(next[id], now, false)
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
		if a, id := &asks[i], idOf(&asks[i]); a.Penalty != nil && a.Cost > 0 && deniedAmong(out[stint.Guarded(asks, i):i]) {
			next[id], out[i] = a.Penalty.Take(next[id], now, true)
		}
	}
	for i := range asks {
		if a := &asks[i]; a.Penalty == nil && out[i].Allowed {
			_, out[i] = a.Limit.Take(cs[idOf(a)], now, 0)
			out[i].Allowed = true
		}
	}
	return next, out
}

func deniedAmong(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed })
}

func (cs counters) adjust(asks []stint.Ask, now time.Time) (counters, []stint.Decision) {
	next := maps.Clone(cs)
	out := make([]stint.Decision, len(asks))
	for i := range asks {
		id := idOf(&asks[i])
		next[id], out[i] = asks[i].Limit.Adjust(next[id], now, asks[i].Cost)
	}
	return next, out
}

func (cs counters) reset(asks []stint.Ask) counters {
	next := maps.Clone(cs)
	for i := range asks {
		delete(next, idOf(&asks[i]))
	}
	return next
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
	var out []stint.Decision
	s.counters, out = next(s.counters, asks, s.now())
	copy(ds, out)
	return nil
}

func (s *spec) Reset(_ context.Context, asks []stint.Ask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return stint.ErrClosed
	}
	s.counters = s.counters.reset(asks)
	return nil
}

func (s *spec) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
