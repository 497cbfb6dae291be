package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// held is a concurrency counter with holders.
type held struct {
	tb      testing.TB
	store   stint.Store
	ask     stint.Ask
	charges []stint.Charge
	next    int
}

// holders returns a counter with n holders, and places for more.
func holders(tb testing.TB, s stint.Store, n int) *held {
	tb.Helper()
	l := parse(tb, fmt.Sprintf("%d/1h concurrency", n+50))
	p, err := l.Compile()
	if err != nil {
		tb.Fatal(err)
	}
	h := &held{tb: tb, store: s, ask: stint.Ask{Key: stint.Key{Subject: "alice", Name: fmt.Sprint("held-", n)}, Limit: l, Plan: p}}
	for range n {
		h.charges = append(h.charges, h.take())
	}
	return h
}

// take holds one more place.
func (h *held) take() stint.Charge {
	h.tb.Helper()
	a := h.ask
	a.Cost = 1
	out, err := storetest.Take(h.tb.Context(), h.store, []stint.Ask{a})
	if err != nil || !out[0].Allowed {
		h.tb.Fatal(out, err)
	}
	return out[0].Charge()
}

// change releases a place (-1) or renews it (0).
func (h *held) change(c stint.Charge, by int64) stint.Charge {
	h.tb.Helper()
	a := h.ask
	a.Cost, a.Charge = by, &c
	out, err := storetest.Adjust(h.tb.Context(), h.store, []stint.Ask{a})
	if err != nil {
		h.tb.Fatal(err)
	}
	return out[0].Charge()
}

// pick returns one of the holders, each time somewhere else in the counter.
func (h *held) pick() *stint.Charge {
	h.next = (h.next + 617) % len(h.charges)
	return &h.charges[h.next]
}

// renew renews a place somewhere among the others.
func (h *held) renew() {
	h.tb.Helper()
	c := h.pick()
	if *c = h.change(*c, 0); c.Cost != 1 {
		h.tb.Fatal("the place was lost")
	}
}

// BenchmarkConcurrency measures a counter with 1,000 holders.
func BenchmarkConcurrency(b *testing.B) {
	s := open(b, testredis.Shared(b).URL(), redisstore.Options{})
	for _, n := range []int{1, 1000} {
		h := holders(b, s, n)
		name := func(what string) string { return fmt.Sprintf("%s/holders=%d", what, n) }
		b.Run(name("hold and release"), func(b *testing.B) {
			for b.Loop() {
				h.change(h.take(), -1)
			}
		})
		b.Run(name("take"), func(b *testing.B) {
			for b.Loop() {
				c := h.take()
				b.StopTimer()
				h.change(c, -1)
				b.StartTimer()
			}
		})
		b.Run(name("release"), func(b *testing.B) {
			for b.Loop() {
				c := h.pick()
				h.change(*c, -1)
				b.StopTimer()
				*c = h.take()
				b.StartTimer()
			}
		})
		b.Run(name("renew"), func(b *testing.B) {
			for b.Loop() {
				h.renew()
			}
		})
	}
}

// TestDeniedWithHolds denies takes in the calls in which others hold the last places. They wait for the
// oldest hold.
func TestDeniedWithHolds(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := open(t, testredis.Shared(t).URL(), redisstore.Options{Now: clock.Now})
	l := parse(t, "4/1h concurrency")
	for round := range 20 {
		a := stint.Ask{Key: stint.Key{Subject: "alice", Name: fmt.Sprint("round-", round)}, Limit: l, Cost: 2}
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				out, err := storetest.Take(t.Context(), s, []stint.Ask{a})
				if err != nil {
					t.Error(err)
				} else if d := out[0]; !d.Allowed && d.RetryAfter != time.Hour {
					t.Errorf("denied for %v, want 1h", d.RetryAfter)
				}
			})
		}
		wg.Wait()
	}
}
