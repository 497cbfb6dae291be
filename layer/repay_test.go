package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// lived is a node whose store was away for a time, beside a store that never was. Both stores have a clock that
// is not the node's.
type lived struct {
	*faulty
	node, oracle stint.Store
	skew         time.Duration
	ask          stint.Ask
	returns      chan layer.Return
	gone         time.Duration // how long the store was away
	since        time.Time
}

func newLived(t testing.TB, text string, skew time.Duration) *lived {
	t.Helper()
	w := &lived{skew: skew, returns: make(chan layer.Return, 99)}
	now := func() time.Time { return time.Now().Add(w.skew) }
	w.faulty, w.oracle = &faulty{Store: memory(t, now)}, memory(t, now)
	w.node = must(t)(layer.Fallback(w.faulty, layer.FallbackOptions{
		Local: memory(t, nil), OnReturn: func(r layer.Return) { w.returns <- r },
	}))
	w.ask = stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: parse(t, text)}
	return w
}

// leave and back have the store go away, and come back.
func (w *lived) leave() {
	w.fail(away)
	w.since = time.Now()
}

func (w *lived) back(t testing.TB) {
	t.Helper()
	w.heal()
	w.gone += time.Since(w.since)
	decide(t, w.node, ask("nobody", 1, 0)[0])
	synctest.Wait()
}

// backAfterTry is back if a payment may have failed meanwhile, after which there is a pause.
func (w *lived) backAfterTry(t testing.TB) {
	t.Helper()
	w.back(t)
	<-time.After(100 * time.Millisecond)
	decide(t, w.node, ask("nobody", 1, 0)[0])
	synctest.Wait()
}

// take has the node decide, and what it admits charged by the oracle.
func (w *lived) take(t testing.TB, cost int64) stint.Decision {
	t.Helper()
	a := w.ask
	a.Cost = cost
	d := decide(t, w.node, a)
	if d.Allowed {
		w.adjust(t, w.oracle, cost, nil)
	}
	return d
}

func (w *lived) adjust(t testing.TB, s stint.Store, by int64, c *stint.Charge) {
	t.Helper()
	a := w.ask
	a.Cost, a.Charge = by, c
	if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{a}); err != nil {
		t.Fatal(err)
	}
}

// compare compares the stores at some instants of the next two windows: windows and logs are the same, and a
// bucket has at least what it should have, and more by at most what had drained.
func (w *lived) compare(t testing.TB, what string) {
	t.Helper()
	for range 16 {
		got, want := decide(t, w.Store, w.ask), decide(t, w.oracle, w.ask)
		drained := int64(0)
		if l := w.ask.Limit; l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
			drained = l.Max*int64(w.gone)/int64(l.Window.Length()) + 1
			got.ResetAfter = want.ResetAfter
		}
		if over := want.Remaining - got.Remaining; over < 0 || over > drained || got.Before != want.Before || got.ResetAfter != want.ResetAfter {
			t.Fatalf("%s: %+v; want %+v, of a bucket at most %d less remaining", what, got, want, drained)
		}
		<-time.After(w.ask.Limit.Window.Length() / 8)
	}
}

// TestRepaidInTime has outages that begin and end in any part of a window: the store then is as if it had never
// been away.
func TestRepaidInTime(t *testing.T) {
	t.Parallel()
	type outage struct {
		leaves, back time.Duration   // the windows begin at whole seconds
		takes        []time.Duration // of two units each
	}
	const ms = time.Millisecond
	table := map[string]outage{
		"in a window":          {100 * ms, 800 * ms, []time.Duration{0, 200 * ms, 400 * ms, 600 * ms}},
		"over a turn":          {300 * ms, 1300 * ms, []time.Duration{100 * ms, 600 * ms, 900 * ms, 1100 * ms}},
		"before a turn":        {300 * ms, 1400 * ms, []time.Duration{100 * ms, 600 * ms, 900 * ms}},
		"right before a turn":  {300 * ms, 1020 * ms, []time.Duration{100 * ms, 600 * ms, 990 * ms}},
		"right after a turn":   {300 * ms, 1020 * ms, []time.Duration{100 * ms, 600 * ms, 1010 * ms}},
		"over many turns":      {300 * ms, 5300 * ms, []time.Duration{100 * ms, 900 * ms, 1900 * ms, 2900 * ms, 3900 * ms, 4400 * ms, 4900 * ms, 5100 * ms}},
		"until all is over":    {300 * ms, 4300 * ms, []time.Duration{100 * ms, 900 * ms, 1900 * ms}},
		"before it ever spoke": {0, 1300 * ms, []time.Duration{600 * ms, 900 * ms, 1100 * ms}},
	}
	for _, text := range limits {
		for name, o := range table {
			for _, skew := range []time.Duration{0, 250 * ms, -time.Hour - 250*ms} {
				if o.leaves == 0 && skew != 0 {
					continue // the node cannot know the windows of the store
				}
				t.Run(fmt.Sprint(text, " ", name, " ", skew), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						w := newLived(t, text, skew)
						begin := time.Now().Add(2*time.Second - skew%time.Second) // of a window of the store
						until := func(at time.Duration) { <-time.After(time.Until(begin.Add(at))) }
						gone := false
						for _, at := range o.takes {
							if !gone && at >= o.leaves {
								until(o.leaves)
								w.leave()
								gone = true
							}
							until(at)
							w.take(t, 2)
						}
						until(o.back)
						w.back(t)
						if l := w.ask.Limit; l.Algorithm == stint.SlidingLog && o.back-o.takes[len(o.takes)-1] < 100*ms {
							return // it is charged a moment late
						}
						w.compare(t, "afterwards")
					})
				})
			}
		}
	}
}

// TestRepaidAlways has random outages, and charges that are changed during them.
func TestRepaidAlways(t *testing.T) {
	t.Parallel()
	for _, text := range limits {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			seeds := uint64(20)
			if torture.Enabled {
				seeds *= 10
			}
			for seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 2))
					some := func(most time.Duration) time.Duration {
						return time.Duration(random.Int64N(int64(most))).Truncate(time.Microsecond)
					}
					w := newLived(t, text, some(time.Minute)-30*time.Second)
					windows := w.ask.Limit.Algorithm == stint.FixedWindow || w.ask.Limit.Algorithm == stint.SlidingWindow
					known := random.IntN(4) > 0 // the node knows the clock of the store, and so its windows
					if known {
						w.take(t, 0)
					}
					for range random.IntN(5) {
						<-time.After(some(400 * time.Millisecond))
						w.take(t, 1+random.Int64N(4))
					}
					w.leave()
					for range random.IntN(20) {
						<-time.After(some(400 * time.Millisecond))
						cost := 1 + random.Int64N(4)
						at := time.Now().Add(w.skew).UnixMicro()
						d := w.take(t, cost)
						if d.Allowed && windows && random.IntN(3) == 0 { // it cost less, or more
							<-time.After(some(700 * time.Millisecond))
							c, by := d.Charge(), random.Int64N(2*cost)-cost
							w.adjust(t, w.node, by, &c)
							w.adjust(t, w.oracle, by, &stint.Charge{At: at, Cost: cost})
						}
					}
					<-time.After(some(400 * time.Millisecond))
					w.backAfterTry(t)
					log := w.ask.Limit.Algorithm == stint.SlidingLog
					if known && !log {
						w.compare(t, fmt.Sprint("seed ", seed))
						return
					}
					// A log may have it for an eighth of its window and 0.1 s longer, and nothing has it shorter.
					for range 16 {
						got, most := decide(t, w.Store, w.ask), decide(t, w.oracle, w.ask)
						<-time.After(w.ask.Limit.Window.Length()/8 + 100*time.Millisecond)
						if later := decide(t, w.Store, w.ask); got.Remaining > most.Remaining || log && later.Remaining < most.Remaining {
							t.Fatalf("seed %d: %+v, and later %+v; want %+v, or of a log by then", seed, got, later, most)
						}
					}
				})
			}
		})
	}
}

// TestRepaidInTheFuture has the store's clock set back during an outage, and right after it: units are charged
// as of now, and not lost.
func TestRepaidInTheFuture(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"9/1m fixed_window", "9/1m sliding_window", "9/1m sliding_log", "9/1m token_bucket", "9/1m burst=8 leaky_bucket"} {
		for _, again := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newLived(t, text, time.Hour)
				w.take(t, 0)
				w.leave()
				w.take(t, 3)
				<-time.After(200 * time.Millisecond)
				w.take(t, 2)
				<-time.After(200 * time.Millisecond)
				w.skew = 0
				w.heal()
				if calls := 0; again {
					w.fail(func(context.Context) error { // the first call gets the time, and the next is the payment
						if calls++; calls == 2 {
							w.skew = -time.Hour
						}
						return nil
					})
				}
				decide(t, w.node, ask("nobody", 1, 0)[0])
				synctest.Wait()
				if r := <-w.returns; r != (layer.Return{Paid: 5}) {
					t.Errorf("%s, again %v: %+v; want 5 units paid", text, again, r)
				}
				if d := decide(t, w.Store, w.ask); d.Remaining != 4 {
					t.Errorf("%s, again %v: %+v; want 4 remaining", text, again, d)
				}
			})
		}
	}
}

// TestRepaidAfterReset has a counter reset right before an outage, which is short, and by another node during one,
// which is longer: what was admitted since is charged, and what was admitted before is not.
func TestRepaidAfterReset(t *testing.T) {
	t.Parallel()
	for _, text := range limits {
		synctest.Test(t, func(t *testing.T) {
			w := newLived(t, text, time.Hour)
			w.take(t, 1)
			<-time.After(300 * time.Millisecond)
			if err := w.node.Reset(t.Context(), []stint.Ask{w.ask}); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond)
			w.leave()
			w.take(t, 2)
			<-time.After(time.Millisecond)
			w.back(t)
			if d := decide(t, w.Store, w.ask); d.Limit-d.Remaining != 2 {
				t.Errorf("%s: %+v; want 2 used", text, d)
			}
			w.leave()
			w.take(t, 1)
			<-time.After(200 * time.Millisecond)
			if err := w.Store.Reset(t.Context(), []stint.Ask{w.ask}); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond)
			w.back(t)
			if d := decide(t, w.Store, w.ask); d.Remaining != d.Limit {
				t.Errorf("%s, reset by another: %+v; want nothing used", text, d)
			}
		})
	}
}

// TestRepaidToParts has the store of a split counter go away: what was admitted is charged to all parts.
func TestRepaidToParts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"40/1m fixed_window", "40/1m sliding_window", "40/1m sliding_log", "40/1m token_bucket"} {
		virtual(t, func(t *testing.T, f *faulty) {
			t.Helper()
			s := must(t)(layer.New(f, layer.Options{Fallback: &layer.FallbackOptions{Local: memory(t, nil)}}))
			a := splitAsk(parse(t, text), 4, 0)
			decide(t, s, a)
			f.fail(away)
			a.Cost = 1
			for range 25 {
				if d := decide(t, s, a); d.Basis != stint.Local || !d.Allowed {
					t.Fatalf("%s: %+v; want it admitted here", text, d)
				}
			}
			f.heal()
			pass(time.Second) // until the breaker has noticed
			decide(t, s, ask("nobody", 1, 0)[0])
			synctest.Wait()
			if n := exhaust(t, s, a); n != 15 && (a.Limit.Algorithm != stint.TokenBucket || n != 16) { // some drains
				t.Errorf("%s: %d admitted, of 15 that remained", text, n)
			}
		})
	}
}

// TestRepaidThenSettled has a node reserve units while its store is away, and settle that when the store has been charged
// for them: what was not used is given back there, and what was used in addition is charged, once each.
func TestRepaidThenSettled(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"100/1h fixed_window", "100/1h sliding_window", "100/1h sliding_log", "100/100h token_bucket"} {
		for _, by := range []int64{-7, -20, 5} {
			for _, when := range []string{"before it is back", "at once", "later"} {
				t.Run(fmt.Sprintln(text, by, when), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						w := newLived(t, text, time.Hour)
						w.take(t, 3) // the store's clock is known
						w.leave()
						<-time.After(time.Second)
						d := w.take(t, 20)
						if d.Basis != stint.Local || !d.Allowed {
							t.Fatalf("%+v", d)
						}
						<-time.After(time.Second)
						if when != "before it is back" {
							w.back(t)
						}
						if when == "later" {
							<-time.After(time.Minute)
						}
						c := d.Charge()
						c.ID = "a"
						for range 3 { // it is made once
							w.adjust(t, w.node, by, &c)
							synctest.Wait()
						}
						if when == "before it is back" {
							w.backAfterTry(t)
						}
						synctest.Wait()
						a := w.ask
						if used := a.Limit.Cap() - decide(t, w.Store, a).Remaining; used != 23+by {
							t.Errorf("%d are charged in the store, want %d", used, 23+by)
						}
					})
				})
			}
		}
	}
}

// TestSettledThere settles units that a node has admitted alone, for a caller who wants the store to know of it: that
// fails until the store has been charged for them, and then it is done once, whichever node is asked.
func TestSettledThere(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"100/1h fixed_window", "100/1h sliding_window", "100/1h sliding_log", "100/100h token_bucket"} {
		for _, by := range []int64{-7, -20, 5} {
			synctest.Test(t, func(t *testing.T) {
				w := newLived(t, text, time.Hour)
				other := must(t)(layer.Fallback(w.faulty, layer.FallbackOptions{Local: memory(t, nil)}))
				w.take(t, 3)
				w.leave()
				<-time.After(time.Second)
				d := w.take(t, 20)
				<-time.After(time.Second)
				c := d.Charge()
				c.ID = "a"
				a := w.ask
				a.Cost, a.Charge, a.Policy = by, &c, &stint.Policy{OnFailure: stint.FailError}
				settle := func(s stint.Store) (stint.Decision, error) {
					out, err := storetest.Adjust(t.Context(), s, []stint.Ask{a})
					if err != nil {
						return stint.Decision{}, err
					}
					return out[0], nil
				}
				for _, s := range []stint.Store{w.node, other} {
					if _, err := settle(s); !errors.Is(err, stint.ErrUnavailable) {
						t.Fatalf("%s: away: %v; want it unavailable", text, err)
					}
				}
				w.heal()
				if _, err := settle(w.node); !errors.Is(err, stint.ErrUnavailable) {
					t.Fatalf("%s: before the store is charged: %v; want it unavailable", text, err)
				}
				w.backAfterTry(t)
				for i, s := range []stint.Store{other, w.node, other, w.node} {
					if d, err := settle(s); err != nil || d.Repeated != (i > 0) || d.Basis != stint.Counted {
						t.Fatalf("%s, settlement %d: %+v, %v", text, i, d, err)
					}
				}
				if used := w.ask.Limit.Cap() - decide(t, w.Store, w.ask).Remaining; used != 23+by {
					t.Errorf("%s: %d are charged in the store, want %d", text, used, 23+by)
				}
			})
		}
	}
}

// TestClosedWhileAway closes a node whose store does not answer: it tries for a few seconds, and says what is lost.
func TestClosedWhileAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLived(t, "1000/1h", 0)
		w.take(t, 3)
		w.leave()
		for i := range 100 {
			w.ask.Key.Subject = fmt.Sprint("user:", i)
			w.take(t, 2)
		}
		w.fail(func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("%w: %w", stint.ErrUnavailable, ctx.Err())
		})
		begin := time.Now()
		if err := w.node.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 7*time.Second {
			t.Errorf("it took %v", took)
		}
		if r := <-w.returns; r.Lost != 200 || r.Paid != 0 {
			t.Errorf("%+v; want 200 units lost", r)
		}
	})
}

// TestResetWhilePaid has a counter reset while the store is being charged for it, and used again: what is owed since is
// charged in full.
func TestResetWhilePaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLived(t, "100/1h", 0)
		w.take(t, 0)
		w.leave()
		w.take(t, 20)
		paying, resume := make(chan struct{}), make(chan struct{})
		calls := 0
		w.fail(func(context.Context) error {
			if calls++; calls == 2 { // the first asks whether the store is back, and the second pays
				close(paying)
				<-resume
			}
			return nil
		})
		<-paying
		w.fail(away)
		if err := w.node.Reset(t.Context(), []stint.Ask{w.ask}); err == nil {
			t.Fatal("the store was reset")
		}
		w.take(t, 30)
		close(resume)
		synctest.Wait()
		w.backAfterTry(t)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if d := decide(t, w.Store, w.ask); d.Remaining != 50 { // the store was never reset
			t.Errorf("%+v; want 20 and 30 charged", d)
		}
	})
}
