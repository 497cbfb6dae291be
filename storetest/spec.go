package storetest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// Spec returns the specification as a store: the pure functions over a map,
// under one lock. It is what other stores are compared with. It is slow, and it
// never forgets a key.
func Spec(now func() time.Time) stint.Store {
	return &spec{now: now, counters: counters{}}
}

type spec struct {
	now func() time.Time

	mu       sync.Mutex
	counters counters
	closed   bool
}

// counters are the states of counters. Its methods leave the receiver alone and
// return its next value.
type counters map[counterID]stint.State

type counterID struct {
	key       stint.Key
	algorithm stint.Algorithm
}

func idOf(a *stint.Ask) counterID { return counterID{a.Key, a.Limit.Algorithm} }

// take charges every ask or none.
func (cs counters) take(asks []stint.Ask, now time.Time) (counters, []stint.Decision) {
	next := maps.Clone(cs)
	out := make([]stint.Decision, len(asks))
	allowed := true
	for i := range asks {
		id := idOf(&asks[i])
		next[id], out[i] = asks[i].Limit.Take(next[id], now, asks[i].Cost)
		allowed = allowed && out[i].Allowed
	}
	if allowed {
		return next, out
	}
	for i := range asks {
		if out[i].Allowed {
			_, out[i] = asks[i].Limit.Take(cs[idOf(&asks[i])], now, 0)
			out[i].Allowed = true
		}
	}
	return cs, out
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

func (cs counters) reset(keys []stint.Key) counters {
	next := maps.Clone(cs)
	for _, k := range keys {
		for _, a := range stint.Algorithms() {
			delete(next, counterID{k, a})
		}
	}
	return next
}

func (s *spec) Take(_ context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, stint.ErrClosed
	}
	for i := range asks {
		if asks[i].Cost < 0 || asks[i].Limit.Tick() == 0 {
			return nil, asks[i].Validate()
		}
	}
	var out []stint.Decision
	s.counters, out = s.counters.take(asks, s.now())
	return out, nil
}

func (s *spec) Adjust(_ context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, stint.ErrClosed
	}
	for i := range asks {
		if err := asks[i].Limit.Validate(); err != nil {
			return nil, err
		}
	}
	var out []stint.Decision
	s.counters, out = s.counters.adjust(asks, s.now())
	return out, nil
}

func (s *spec) Reset(_ context.Context, keys ...stint.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return stint.ErrClosed
	}
	s.counters = s.counters.reset(keys)
	return nil
}

func (s *spec) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
