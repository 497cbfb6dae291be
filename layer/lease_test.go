package layer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// distant is a store that takes some time to be reached, and to answer, and counts its calls.
type distant struct {
	faulty
	random func() time.Duration
	mute   atomic.Bool // its answers are lost
}

// answer waits for the answer to a call.
func (s *distant) answer(err error) error {
	<-time.After(s.random())
	if err == nil && s.mute.Load() {
		return errUnknown
	}
	return err
}

func (s *distant) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	<-time.After(s.random())
	return s.answer(s.faulty.Take(ctx, asks, ds))
}

func (s *distant) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	<-time.After(s.random())
	return s.answer(s.faulty.Adjust(ctx, asks, ds))
}

func (s *distant) Close() error { return nil } // others use the store, too

// leaseAsk is an ask of a hot counter.
func leaseAsk(t testing.TB, limit string, term time.Duration) stint.Ask {
	t.Helper()
	l := parse(t, limit)
	plan, err := l.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return stint.Ask{
		Key: stint.Key{Subject: "global", Name: "hot:limit"}, Limit: l, Plan: plan, Cost: 1, Policy: &stint.Policy{Lease: term},
	}
}

// leasing is a node that leases from a store which others use, too.
type leasing struct {
	stint.Store
	wire *distant
}

func newLeasing(t testing.TB, store stint.Store, latency time.Duration, o layer.LeaseOptions) *leasing {
	t.Helper()
	w := &distant{faulty: faulty{Store: store}, random: func() time.Duration { return rand.N(latency) + 1 }}
	divided := must(t)(layer.Split(w)) // which passes on what is not split
	return &leasing{must(t)(layer.Lease(must(t)(layer.DenyCache(divided, layer.DenyCacheOptions{})), o)), w}
}

// TestLeases has a steady load on one counter: nearly all of it is decided without the store, which is called at
// most twenty times a second, and counts what was admitted exactly.
func TestLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		store := memory(t, nil)
		node := newLeasing(t, store, time.Millisecond, layer.LeaseOptions{Meter: meter})
		a := leaseAsk(t, "1000000/1h", 100*time.Millisecond)
		admitted, leased := 0, 0
		for range 20_000 {
			<-time.After(time.Millisecond)
			for range 5 {
				d := decide(t, node, a)
				if d.Allowed {
					admitted++
				}
				if d.Basis == stint.Leased {
					leased++
				}
			}
		}
		calls := node.wire.calls.Load()
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
		peek := a
		peek.Cost = 0
		used := 1_000_000 - decide(t, store, peek).Remaining
		t.Logf("%d admitted, %d of them leased, %d calls in 20 s; %+v", admitted, leased, calls, meter.Read())
		if admitted != 100_000 || used != 100_000 {
			t.Errorf("%d admitted, and %d used in the store, want 100000", admitted, used)
		}
		if leased < 99_000 || calls > 400 {
			t.Errorf("%d leased with %d calls in 20 s, want nearly all with at most 20 calls a second", leased, calls)
		}
		m := meter.Read()[0]
		if m.Lent != m.Spent+m.Back || m.Kept != 0 || m.Held != 0 || m.Counters != 0 || m.Spent != int64(leased) {
			t.Errorf("%+v; want that lent is spent and back", m)
		}
	})
}

// ledger keeps what was admitted, to check it against a limit.
type ledger struct {
	mu    sync.Mutex
	limit stint.Limit
	term  time.Duration
	byWin map[int64]int64 // of windows
	loose stint.Limit     // what admissions of buckets and logs must satisfy
	state stint.State
	asked atomic.Int64 // takes, whether admitted or not
	takes int64
	calls int64 // of the store
	total int64
	worst int64
}

func newLedger(limit stint.Limit, term time.Duration) *ledger {
	g := &ledger{limit: limit, term: term, byWin: map[int64]int64{}, loose: limit}
	span := limit.Window.Length()
	switch limit.Algorithm {
	case stint.SlidingLog: // what was charged in a window was admitted up to a term later
		g.loose.Window = stint.Every(span - term)
	case stint.TokenBucket, stint.LeakyBucket:
		g.loose.Algorithm = stint.TokenBucket
		g.loose.Burst = limit.Cap() + int64(time.Duration(limit.Max)*term/span) + 1
	default:
	}
	return g
}

// admit notes an admission, and reports whether it is beyond the limit. What was leased is admitted now, and
// what was counted when the store has done so.
func (g *ledger) admit(d *stint.Decision) (beyond bool) {
	now, cost := time.Now(), d.Cost
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takes++
	g.total += cost
	switch g.limit.Algorithm {
	case stint.FixedWindow, stint.SlidingWindow:
		if d.Basis == stint.Counted {
			now = time.UnixMicro(d.At)
		}
		w := now.UnixNano() / int64(g.limit.Window.Length())
		g.byWin[w] += cost
		g.worst = max(g.worst, g.byWin[w])
		return g.byWin[w] > g.limit.Max
	default:
		next, d := g.loose.Take(g.state, now, cost)
		g.state = next
		return !d.Allowed
	}
}

// TestLeaseBound has nodes with changing loads, that crash and lose the store, ask for more than a limit allows.
// Nothing is admitted beyond it: in windows at all, in buckets and logs more than a term gives back.
func TestLeaseBound(t *testing.T) {
	t.Parallel()
	length := 2 * time.Second
	if torture.Enabled {
		length *= 10
	}
	for _, c := range []struct {
		limit string
		split int
	}{
		{"5000/1s fixed_window", 0},
		{"5000/1s sliding_window", 0},
		{"3000/1s sliding_log", 0},
		{"5000/1s token_bucket", 0},
		{"5000/1s burst=500 leaky_bucket", 0},
		{"3000/1500ms fixed_window", 0},
		{"3000/1500ms sliding_window", 0},
		{"200/1s fixed_window", 0},
		{"5000/1s fixed_window", 8},
		{"5000/1s sliding_window", 8},
		{"3000/1s sliding_log", 4},
		{"5000/1s token_bucket", 8},
		{"200/1s fixed_window", 64},
	} {
		for _, term := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
			t.Run(fmt.Sprint(c.limit, " in ", max(c.split, 1), " for ", term), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					meter := layer.NewLeaseMeter()
					g := leaseSim{limit: c.limit, split: c.split, term: term, nodes: 4, callers: 8, load: 1.5, faults: true, changes: true, length: length}.run(t, meter)
					t.Logf("%d takes, %d units admitted, at most %d in a window; %+v", g.takes, g.total, g.worst, meter.Read())
				})
			})
		}
	}
}

// TestLeaseOfShortWindow has limits whose windows are shorter than the lease, as those of a client may be. What is
// admitted in addition is no more than they give back in one window, since a lease has at most half of what remains.
func TestLeaseOfShortWindow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"500/100ms fixed_window", "500/100ms sliding_window", "500/100ms token_bucket", "500/100ms burst=50 leaky_bucket"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				meter := layer.NewLeaseMeter()
				leaseSim{limit: text, term: stint.MaxLease, nodes: 4, callers: 8, load: 1.5, faults: true, changes: true, length: 3 * time.Second}.run(t, meter)
				if shown := meter.Read(); len(shown) != 1 || shown[0].Lent == 0 {
					t.Errorf("%+v, want that units were lent", shown)
				}
			})
		})
	}
}

// leaseSim is nodes that lease from one store, and what befalls them.
type leaseSim struct {
	limit   string
	split   int // among how many counters it is divided; 0: it has one
	term    time.Duration
	nodes   int
	callers int     // of each node
	load    float64 // how much of the limit callers ask for, on average
	faults  bool    // nodes crash, and lose the store
	changes bool    // the limit is lowered by a tenth now and then, and raised again
	length  time.Duration
}

// run runs the simulation, and returns what was admitted.
func (s leaseSim) run(t *testing.T, meter *layer.LeaseMeter) *ledger {
	t.Helper()
	seed := rand.Uint64()
	store := memory(t, nil)
	a := leaseAsk(t, s.limit, s.term)
	a.Policy.Split = s.split
	g := newLedger(a.Limit, min(s.term, a.Limit.Window.Length()))
	lower := a
	lower.Limit.Max -= lower.Limit.Max / 10
	lower.Plan = nil
	var now atomic.Pointer[stint.Ask]
	now.Store(&a)
	perSecond := s.load * float64(a.Limit.Max) / a.Limit.Window.Length().Seconds() / float64(s.nodes*s.callers)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range s.nodes {
		start := func() *leasing {
			return newLeasing(t, store, 4*time.Millisecond, layer.LeaseOptions{Replicas: func() int { return s.nodes }, Meter: meter})
		}
		var node atomic.Pointer[leasing]
		node.Store(start())
		for c := range s.callers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(n*s.callers+c)))
				load := perSecond
				for {
					pause := time.Duration(r.Int64N(int64(4 * time.Millisecond)))
					select {
					case <-stop:
						return
					case <-time.After(pause):
					}
					switch event := r.IntN(8000); {
					case event < 10:
						load = perSecond * r.Float64() * 2
					case !s.faults || event > 20:
					case event == 11: // it crashes: what it held stays charged
						old := node.Swap(start())
						old.wire.fail(away)
						defer old.Close()
					case event == 12:
						node.Load().wire.fail(away)
					default:
						node.Load().wire.heal()
					}
					for range int(pause.Seconds()*load + r.Float64()) {
						ask := *now.Load()
						if r.IntN(10) == 0 {
							ask.Cost = 1 + r.Int64N(5)
						}
						ds, err := storetest.Take(context.Background(), node.Load(), []stint.Ask{ask})
						g.asked.Add(1)
						if err == nil && ds[0].Allowed && g.admit(&ds[0]) {
							t.Errorf("seed %d: %+v is beyond the limit", seed, ds[0])
							return
						}
					}
				}
			})
		}
		defer func() {
			_ = node.Load().Close()
			g.calls += node.Load().wire.calls.Load()
		}()
	}
	for end := time.Now().Add(s.length); time.Now().Before(end); {
		if <-time.After(700 * time.Millisecond); s.changes && now.Swap(&lower) == &lower {
			now.Store(&a)
		}
	}
	close(stop)
	wg.Wait()
	return g
}
