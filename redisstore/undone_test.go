package redisstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// elsewhere returns a subject whose counters are on another server than those of all others.
func elsewhere(t testing.TB, c *testredis.Cluster, name string, others ...string) string {
	t.Helper()
	for i := 0; ; i++ {
		subject, ok := fmt.Sprint(name, "-", i), true
		for _, other := range others {
			ok = ok && c.Primary(t, "{"+subject+"}") != c.Primary(t, "{"+other+"}")
		}
		if ok {
			return subject
		}
	}
}

// hammered is a tenant's limit that good callers and bad ones share. The good callers have their own
// limits with room, in another slot; those of the bad callers are used up, so that every take of theirs
// charges the tenant and is undone. A good request moves the clock by a thousandth of a second, so that
// good callers ask for exactly the tenant's rate, however fast the machine is.
type hammered struct {
	clock    *storetest.Clock
	store    stint.Store
	tenant   stint.Ask
	good     stint.Ask
	turn     *sync.Cond // signals that a good request was decided
	turns    atomic.Int64
	stopped  atomic.Bool
	hammered atomic.Int64 // takes of bad callers

	// ideal is the tenant's counter without the bad callers.
	ideal              stint.State
	asked, wrong, over int
}

// takeIdeal takes from the ideal counter, or peeks.
func (h *hammered) takeIdeal(at time.Time, cost int64) (d stint.Decision) {
	h.ideal, d = h.tenant.Limit.Take(h.ideal, at, cost)
	return d
}

// ask is a request of a good caller.
func (h *hammered) ask(ctx context.Context) error {
	h.clock.Add(time.Millisecond)
	out, err := storetest.Take(ctx, h.store, []stint.Ask{h.tenant, h.good})
	if err != nil {
		return err
	}
	if out[0].Basis != stint.Counted && out[0].Basis != stint.Remembered {
		return fmt.Errorf("decided %v", out[0].Basis)
	}
	h.asked++
	now := h.clock.Now()
	passed := out[0].Allowed && out[1].Allowed
	ideal := h.takeIdeal(now, 0).Remaining > 0
	switch {
	case passed && !ideal:
		h.over++
		h.ideal, _ = h.tenant.Limit.Adjust(h.ideal, now, 1)
	case passed:
		h.takeIdeal(now, 1)
	case ideal:
		h.wrong++
	}
	return nil
}

// ticking returns a clock that shows no instant twice, like that of a Redis server.
func ticking(c *storetest.Clock) func() time.Time {
	var mu sync.Mutex
	var last time.Time
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		if last = last.Add(time.Microsecond); last.Before(c.Now()) {
			last = c.Now()
		}
		return last
	}
}

// layers puts the recommended layers around a store, as the daemon does.
func layers(t testing.TB, s stint.Store, clock *storetest.Clock) stint.Store {
	t.Helper()
	local, err := memstore.New(memstore.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	stack, err := layer.New(s, layer.Options{
		// Patient, for busy machines: a local decision would say nothing about undone charges.
		Retry:    layer.RetryOptions{Budget: 30 * time.Second},
		Breaker:  layer.BreakerOptions{Slow: -1},
		Fallback: &layer.FallbackOptions{Local: local},
		Deny:     layer.DenyCacheOptions{Now: clock.Now},
	})
	if err != nil {
		t.Fatal(err)
	}
	return stack
}

// TestUndoKeepsBuckets has callers hammer whose takes are all denied and undone. The tenant that they
// share with others must lose nothing by it. While such a take is in flight, what it has charged is
// missing, so that a good request may be denied wrongly. With layers, the bad callers rarely get as far
// as the store.
func TestUndoKeepsBuckets(t *testing.T) {
	t.Parallel()
	c := testredis.SharedCluster(t)
	caller := elsewhere(t, c, "caller", "tenant")
	callers := []int{48}
	if torture.Enabled {
		callers = []int{4, 48}
	}
	for _, text := range []string{"1000/1s token_bucket", "1000/1s", "1000/1s fixed_window"} {
		for _, bad := range callers {
			for _, layered := range []bool{false, true} {
				if layered && text != "1000/1s token_bucket" && !torture.Enabled {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d callers/layers=%v", text, bad, layered), func(t *testing.T) { //nolint:paralleltest // they would measure each other
					clock := storetest.NewClock()
					var s stint.Store = open(t, c.URL(), redisstore.Options{Now: ticking(clock)})
					if layered {
						s = layers(t, s, clock)
					}
					h := &hammered{
						clock: clock, store: s, turn: sync.NewCond(new(sync.Mutex)),
						tenant: stint.Ask{Key: stint.Key{Subject: "tenant", Name: "api"}, Limit: parse(t, text), Cost: 1},
						good:   stint.Ask{Key: stint.Key{Subject: caller, Name: "good"}, Limit: parse(t, "1000000/1000h"), Cost: 1},
					}
					h.run(t, bad, layered)
					share := float64(h.wrong) / float64(h.asked) * 100
					left := takeOne(t, s, "tenant", h.tenant.Limit, 0).Remaining
					want := h.takeIdeal(clock.Now(), 0).Remaining
					t.Logf("%d good requests, %d bad ones: %d denied wrongly (%.2f %%), %d admitted beyond the limit; %d remain, %d without the bad callers",
						h.asked, h.hammered.Load(), h.wrong, share, h.over, left, want)
					if layered {
						torture.AtMost(t, "percent denied wrongly", share, 2) // 0.2 on a quiet machine
					}
					// A call that read the clock before a turn, and came after another of that turn, has set
					// it back by a millisecond, or more on a busy machine. Redis' own clock does not.
					torture.AtMost(t, "admitted beyond the limit", h.over, 3)
					torture.AtMost(t, "units too many that remain", left-want, 3)
					if left < want {
						t.Errorf("%d remain, want %d", left, want)
					}
				})
			}
		}
	}
}

// run has good requests asked while bad callers ask all the time. With layers around the store, the bad
// callers come one after another within a second, and each waits for the next good request after it was
// denied without asking the store: all are in one process here, and would take its processors.
func (h *hammered) run(t testing.TB, bad int, layered bool) {
	t.Helper()
	takeOne(t, h.store, "tenant", h.tenant.Limit, 1000)
	h.takeIdeal(h.clock.Now(), 1000)
	if h.tenant.Limit.Algorithm != stint.TokenBucket {
		h.clock.Add(time.Second) // a bucket gets back what the good callers ask for from now on, a window from its next on
	}
	ctx := t.Context()
	var wg sync.WaitGroup
	errs := make(chan error, bad+1)
	for i := range bad {
		own := stint.Ask{Key: stint.Key{Subject: h.good.Key.Subject, Name: fmt.Sprint("bad-", i)}, Limit: parse(t, "1/1000h"), Cost: 1}
		if _, err := storetest.Take(ctx, h.store, []stint.Ask{own}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if layered {
				h.await(int64(1000 * i / bad))
			}
			for !h.stopped.Load() {
				out, err := storetest.Take(ctx, h.store, []stint.Ask{h.tenant, own})
				if err == nil && out[1].Allowed {
					err = errors.New("a bad caller was admitted")
				}
				if err != nil {
					errs <- err
					return
				}
				h.hammered.Add(1)
				if out[1].Basis == stint.Remembered {
					h.await(h.turns.Load() + 1)
				}
			}
		})
	}
	requests := 300
	if layered {
		requests = 1500
	}
	for ; h.asked < requests; h.next() {
		if err := h.ask(ctx); err != nil {
			errs <- err
			break
		}
	}
	h.stopped.Store(true)
	h.next()
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// next starts the next turn.
func (h *hammered) next() {
	h.turn.L.Lock()
	defer h.turn.L.Unlock()
	h.turns.Add(1)
	h.turn.Broadcast()
}

// await waits for a turn, or the end.
func (h *hammered) await(turn int64) {
	h.turn.L.Lock()
	defer h.turn.L.Unlock()
	for h.turns.Load() < turn && !h.stopped.Load() {
		h.turn.Wait()
	}
}

// TestResetRacesUndo resets a counter while takes of it are undone. What was charged before the reset
// gives nothing back after it.
func TestResetRacesUndo(t *testing.T) {
	t.Parallel()
	const capacity, takers = 50, 24
	rounds := 1
	if torture.Enabled {
		rounds = 10
	}
	c := testredis.SharedCluster(t)
	caller := elsewhere(t, c, "caller", "tenant")
	for _, text := range []string{"50/1000h fixed_window", "50/1000h", "50/1000h token_bucket", "50/1000h burst=49 leaky_bucket", "50/1000h sliding_log", "50/1000h concurrency"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			prefix := fmt.Sprint("reset", stores.Add(1))
			s := openURL(t, c.URL()+"?prefix="+prefix, redisstore.Options{})
			used := stint.Ask{Key: stint.Key{Subject: caller, Name: "used"}, Limit: parse(t, "1/1000h"), Cost: 1}
			if _, err := storetest.Take(t.Context(), s, []stint.Ask{used}); err != nil {
				t.Fatal(err)
			}
			for round := range rounds {
				tenant := stint.Ask{Key: stint.Key{Subject: "tenant", Name: fmt.Sprint("round-", round)}, Limit: parse(t, text), Cost: 1}
				var (
					wg      sync.WaitGroup
					takes   atomic.Int64
					done    atomic.Bool
					mu      sync.Mutex
					charges []int64 // when takes passed
				)
				for i := range takers {
					wg.Go(func() {
						for n := 0; n < capacity; { // after the reset
							if done.Load() {
								n++
							}
							asks := []stint.Ask{tenant}
							if i%4 > 0 { // one in four takers is in earnest
								asks = append(asks, used)
							}
							out, err := storetest.Take(t.Context(), s, asks)
							if err != nil {
								t.Error(err)
								return
							}
							takes.Add(1)
							if len(asks) == 1 && out[0].Allowed {
								mu.Lock()
								charges = append(charges, out[0].At)
								mu.Unlock()
							}
						}
					})
				}
				wait.For(t, "takes", func() bool { return takes.Load() >= takers*capacity/2 })
				if err := s.Reset(t.Context(), []stint.Ask{tenant}); err != nil {
					t.Error(err)
				}
				done.Store(true)
				wg.Wait()
				// The mark beside the counter says when it was reset.
				mark, _ := c.Primary(t, "{tenant}").Do(t, "GET", strings.Replace(keyOf(tenant), "rl:", prefix+":", 1)+" ").(string)
				if len(mark) < 21 {
					t.Fatalf("the mark of the reset is %q", mark)
				}
				reset := int64(binary.BigEndian.Uint64([]byte("\x00" + mark[:7])))
				before, after := 0, 0
				for _, at := range charges {
					if at <= reset {
						before++
					} else {
						after++
					}
				}
				out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: tenant.Key, Limit: tenant.Limit}})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d passed before the reset, %d after it, of %d; %d remain", before, after, capacity, out[0].Remaining)
				if before > capacity || after > capacity || out[0].Remaining != int64(capacity-after) {
					t.Errorf("%d passed before the reset, %d after it, and %d remain, of %d", before, after, out[0].Remaining, capacity)
				}
			}
		})
	}
}
