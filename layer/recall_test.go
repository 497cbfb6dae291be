package layer_test

import (
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

// limits are of each algorithm that is charged, so small that every unit is noticed.
var limits = []string{"9/1s fixed_window", "9/1s sliding_window", "9/1s sliding_log", "9/1s token_bucket", "9/1s burst=4 token_bucket", "9/1s burst=3 leaky_bucket"}

func parse(t testing.TB, text string) stint.Limit {
	t.Helper()
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fleet is some nodes that share a store.
type fleet struct {
	store  stint.Store
	faults []*faulty
	nodes  []stint.Store
}

func newFleet(t testing.TB, n int) *fleet {
	t.Helper()
	f := &fleet{store: memory(t, nil)}
	for range n {
		down := &faulty{Store: f.store}
		f.faults = append(f.faults, down)
		f.nodes = append(f.nodes, must(t)(layer.Fallback(down, layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return n }})))
	}
	return f
}

func (f *fleet) away() {
	for _, n := range f.faults {
		n.fail(away)
	}
}

// back has the store come back, and all nodes notice.
func (f *fleet) back(t testing.TB) {
	t.Helper()
	for i, n := range f.faults {
		n.heal()
		if _, err := storetest.Take(t.Context(), f.nodes[i], ask("nobody", 1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

func decide(t testing.TB, s stint.Store, a stint.Ask) stint.Decision {
	t.Helper()
	out, err := storetest.Take(t.Context(), s, []stint.Ask{a})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// exhaust asks until it is denied, and returns how often it was not.
func exhaust(t testing.TB, s stint.Store, a stint.Ask) (n int64) {
	t.Helper()
	for decide(t, s, a).Allowed {
		n++
	}
	return n
}

// TestNoFreshStart has a client at its limit when the store goes away. All nodes together admit no more
// than it would have, in any window.
func TestNoFreshStart(t *testing.T) {
	t.Parallel()
	for _, text := range limits {
		for _, nodes := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(text, " on ", nodes), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, nodes)
					a := stint.Ask{Key: stint.Key{Subject: "alice", Name: text}, Limit: parse(t, text), Cost: 1}
					admitted := func() (n int64) {
						for more := true; more; {
							more = false
							for _, node := range f.nodes {
								if decide(t, node, a).Allowed {
									n, more = n+1, true
								}
							}
						}
						return n
					}
					<-time.After(300 * time.Millisecond)
					if n := admitted(); n != a.Limit.Cap() {
						t.Fatalf("%d admitted, want the limit", n)
					}
					f.away()
					if n := admitted(); n != 0 {
						t.Errorf("%d admitted again, since the store has gone away", n)
					}
					for _, node := range f.nodes {
						d := decide(t, node, a)
						if d.Basis != stint.Local || d.RetryAfter <= 0 || d.RetryAfter == stint.Never {
							t.Errorf("%+v; want a local denial that says when", d)
						}
					}
					// It recovers by and by, as the limit says.
					total := int64(0)
					for range 40 {
						<-time.After(50 * time.Millisecond)
						total += admitted()
					}
					want := 2*a.Limit.Max + 1 // in two seconds
					if total > want || total < int64(nodes) {
						t.Errorf("%d admitted in the next two seconds, want at most %d, and at least one for each node", total, want)
					}
				})
			})
		}
	}
}

// TestRemains has a part of a limit remain when the store goes away: the nodes share it.
func TestRemains(t *testing.T) {
	t.Parallel()
	for _, text := range limits {
		for _, nodes := range []int{1, 2, 3} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, nodes)
				a := stint.Ask{Key: stint.Key{Subject: "alice", Name: text}, Limit: parse(t, text), Cost: 1}
				for range 2 { // half of the time by each
					for _, node := range f.nodes {
						a.Cost = min(1, decide(t, f.store, stint.Ask{Key: a.Key, Limit: a.Limit}).Remaining)
						decide(t, node, a)
					}
				}
				a.Cost = 0
				var remained int64
				for _, node := range f.nodes {
					remained = decide(t, node, a).Remaining
				}
				f.away()
				got := int64(0)
				a.Cost = 1
				for _, node := range f.nodes {
					got += exhaust(t, node, a)
				}
				if want := remained / int64(nodes) * int64(nodes); got != want {
					t.Errorf("%s on %d: %d admitted of %d that remained, want %d", text, nodes, got, remained, want)
				}
				f.back(t)
				// What was admitted is charged once, and what the counters began with is not.
				if d := decide(t, f.store, stint.Ask{Key: a.Key, Limit: a.Limit}); d.Remaining != remained-got {
					t.Errorf("%s on %d: afterwards %d remain, want %d", text, nodes, d.Remaining, remained-got)
				}
			})
		}
	}
}

// TestLikeTheStore compares one node, over random outages, with a store that never was away: the node
// admits nothing that it would not have. In windows, during an outage, it admits all that it would have.
func TestLikeTheStore(t *testing.T) {
	t.Parallel()
	for _, text := range limits {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			limit := parse(t, text)
			exact := limit.Algorithm == stint.FixedWindow || limit.Algorithm == stint.SlidingWindow
			seeds := uint64(10)
			if torture.Enabled {
				seeds *= 10
			}
			for seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 1))
					f, oracle := newFleet(t, 1), memory(t, nil)
					a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: limit}
					gone := false
					for step := range 60 {
						<-time.After(time.Duration(random.Int64N(int64(400 * time.Millisecond))))
						if random.IntN(10) == 0 {
							if gone = !gone; gone {
								f.away()
							} else {
								f.back(t)
							}
						}
						a.Cost = 1 + random.Int64N(4)
						would := decide(t, oracle, stint.Ask{Key: a.Key, Limit: limit}).Remaining >= a.Cost
						d := decide(t, f.nodes[0], a)
						switch {
						case d.Allowed && !would:
							t.Fatalf("seed %d, step %d: %+v, though the store would have denied", seed, step, d)
						case !d.Allowed && would && exact && gone:
							t.Fatalf("seed %d, step %d: %+v, though the store would have allowed", seed, step, d)
						}
						if d.Allowed {
							if _, err := storetest.Adjust(t.Context(), oracle, []stint.Ask{a}); err != nil {
								t.Fatal(err)
							}
						}
					}
				})
			}
		})
	}
}

// TestSettles has one node come back while another is still without the store, and admits its share.
func TestSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: parse(t, "100/1s fixed_window"), Cost: 1}
		all := func(node int) int64 { return exhaust(t, f.nodes[node], a) }
		f.away()
		for range 4 { // single failures are no outage
			decide(t, f.nodes[0], a)
		}
		f.back(t)
		if n := all(0); n != 96 {
			t.Errorf("%d admitted after single failures, want the rest of the limit", n)
		}
		<-time.After(time.Second)
		f.away()
		for range 5 {
			<-time.After(100 * time.Millisecond)
			for _, node := range f.nodes {
				decide(t, node, a)
			}
		}
		<-time.After(600 * time.Millisecond) // another window
		f.faults[0].heal()
		decide(t, f.nodes[0], stint.Ask{Key: a.Key, Limit: a.Limit}) // which notices
		if here, there := all(0), all(1); here != 50 || there != 50 {
			t.Errorf("%d and %d admitted, want half of the limit each", here, there)
		}
		used := decide(t, f.store, stint.Ask{Key: a.Key, Limit: a.Limit})
		if used.Remaining != 50 {
			t.Errorf("%+v; want that the store knows what was admitted", used)
		}
		// What the store denies is not charged here.
		<-time.After(300 * time.Millisecond)
		if _, err := storetest.Adjust(t.Context(), f.store, []stint.Ask{{Key: a.Key, Limit: a.Limit, Cost: 70}}); err != nil {
			t.Fatal(err)
		}
		if n := all(0); n != 0 {
			t.Errorf("%d admitted, though the store denies", n)
		}
		<-time.After(2 * time.Second)
		if n := all(0); n != 100 {
			t.Errorf("%d admitted a second later, want the limit", n)
		}
	})
}

// TestSettlesInPart has a store that answers every second call: that is an outage too, since other nodes may
// get no answer at all.
func TestSettlesInPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: parse(t, "100/10s fixed_window"), Cost: 1}
		for n := range 30 {
			<-time.After(10 * time.Millisecond)
			if n%2 == 0 {
				f.faults[0].fail(away)
			} else {
				f.faults[0].heal()
			}
			decide(t, f.nodes[0], a)
		}
		f.back(t)
		if n := exhaust(t, f.nodes[0], a); n > 35 {
			t.Errorf("%d admitted after 30, though another node may admit its half of the limit", n)
		}
	})
}

// TestForgotten has what is remembered end: by a reset, a refund, a raised limit, and time.
func TestForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(t *testing.T, f *fleet, a *stint.Ask) // the outage begins
		want          int64                                      // admitted then, of a limit of 10
	}{
		"nothing": {},
		"a reset": {before: func(t *testing.T, f *fleet, a *stint.Ask) {
			t.Helper()
			if err := f.nodes[0].Reset(t.Context(), []stint.Ask{*a}); err != nil {
				t.Fatal(err)
			}
		}, want: 10},
		"a reset while the store is away": {after: func(t *testing.T, f *fleet, a *stint.Ask) {
			t.Helper()
			_ = f.nodes[0].Reset(t.Context(), []stint.Ask{*a})
		}, want: 10},
		"a refund": {before: func(t *testing.T, f *fleet, a *stint.Ask) {
			t.Helper()
			back := *a
			back.Cost = -4
			if _, err := storetest.Adjust(t.Context(), f.nodes[0], []stint.Ask{back}); err != nil {
				t.Fatal(err)
			}
		}, want: 4},
		"a refund while the store is away": {after: func(t *testing.T, f *fleet, a *stint.Ask) {
			t.Helper()
			back := *a
			back.Cost = -4
			if _, err := storetest.Adjust(t.Context(), f.nodes[0], []stint.Ask{back}); err != nil {
				t.Fatal(err)
			}
		}, want: 4},
		"a raised limit":      {after: func(_ *testing.T, _ *fleet, a *stint.Ask) { a.Limit.Max = 15 }, want: 5},
		"a lowered limit":     {after: func(_ *testing.T, _ *fleet, a *stint.Ask) { a.Limit.Max = 5 }},
		"another window":      {after: func(_ *testing.T, _ *fleet, a *stint.Ask) { a.Limit.Window = stint.Every(time.Minute) }, want: 10},
		"another user":        {after: func(_ *testing.T, _ *fleet, a *stint.Ask) { a.Key.Subject = "bob" }, want: 10},
		"the end of a window": {after: func(*testing.T, *fleet, *stint.Ask) { <-time.After(time.Hour) }, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: parse(t, "10/1h fixed_window"), Cost: 1}
				exhaust(t, f.nodes[0], a)
				if c.before != nil {
					c.before(t, f, &a)
				}
				f.away()
				if c.after != nil {
					c.after(t, f, &a)
				}
				if got := exhaust(t, f.nodes[0], a); got != c.want {
					t.Errorf("%d admitted, want %d", got, c.want)
				}
			})
		})
	}
}

// TestBanHolds bans a client, and has the store go away.
func TestBanHolds(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return 2 }}))
		penalty := stint.Ask{
			Key: stint.Key{Subject: "alice", Name: "ban"}, Cost: 1,
			Penalty: &stint.Penalty{Threshold: 2, Within: time.Hour, Cooldown: time.Minute},
		}
		limit := stint.Ask{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: parse(t, "3/1s"), Cost: 1}
		take := func() []stint.Decision {
			t.Helper()
			ds, err := storetest.Take(t.Context(), s, []stint.Ask{limit, penalty})
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		for range 5 {
			take()
		}
		<-time.After(20 * time.Second) // the limit has recovered, the ban has not
		f.fail(away)
		for range 3 {
			ds := take()
			if d := ds[1]; d.Allowed || d.Basis != stint.Local || d.RetryAfter != 40*time.Second || d.Limit != 2 {
				t.Errorf("banned: %+v", d)
			}
			if d := ds[0]; !d.Allowed || d.Remaining != 1 {
				t.Errorf("beside the ban: %+v; want that nothing is charged", d)
			}
		}
		<-time.After(40 * time.Second)
		if ds := take(); !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("after the ban: %+v", ds)
		}
		// One that is lifted is forgotten.
		f.heal()
		<-time.After(10 * time.Second)
		for range 5 {
			take()
		}
		if err := s.Reset(t.Context(), []stint.Ask{penalty}); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		f.fail(away)
		if ds := take(); !ds[1].Allowed {
			t.Errorf("after the ban was lifted: %+v", ds)
		}
	})
}

// TestMemoryIsBounded has a client at its limit, and many others come: those who use little do not push it
// out of what is remembered, and there is no more than fits.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), Remember: 16}))
		for _, c := range []struct {
			cost  int64 // of each of the others
			known bool
		}{{1, true}, {9, false}} {
			who := fmt.Sprint("alice", c.cost)
			decide(t, s, ask(who, 10, 10)[0])
			for i := range 1000 {
				decide(t, s, ask(fmt.Sprint("user:", c.cost, i), 10, c.cost)[0])
			}
			f.fail(away)
			if d := decide(t, s, ask(who, 10, 1)[0]); d.Allowed == c.known {
				t.Errorf("others with a cost of %d: %+v", c.cost, d)
			}
			f.heal()
			synctest.Wait()
		}
		none := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), Remember: -1}))
		decide(t, none, ask("bob", 10, 10)[0])
		f.fail(away)
		if d := decide(t, none, ask("bob", 10, 10)[0]); !d.Allowed {
			t.Errorf("%+v, though nothing is to be remembered", d)
		}
	})
}

// TestServedAlone has a node serve a client alone until the store goes away: on each of the others it has at most their
// share then.
func TestServedAlone(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]int64{1: 100, 2: 150, 3: 166, 10: 190} {
		virtual(t, func(t *testing.T, f *faulty) {
			t.Helper()
			passed := int64(0)
			for i := range nodes {
				s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return nodes }}))
				if i == 0 {
					passed += exhaust(t, s, ask("alice", 100, 1)[0])
					f.fail(away)
				}
				passed += exhaust(t, s, ask("alice", 100, 1)[0])
			}
			if passed != want {
				t.Errorf("%d nodes: %d passed of 100, want %d", nodes, passed, want)
			}
		})
	}
}
