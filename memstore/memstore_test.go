package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// This file is long: what a store in memory promises beyond the suite, with the helpers that count it.

func newStore(t testing.TB, o memstore.Options) *memstore.Store {
	t.Helper()
	s, err := memstore.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func open(t testing.TB, now func() time.Time) stint.Store {
	t.Helper()
	return newStore(t, memstore.Options{Now: now})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, open)
	t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, open) })
}

// TestConformanceCrowded runs the suite among strangers who come and go, so that
// cells change hands, tables grow and split, and sweeps come at every step. The limits of all asks are compiled,
// as most callers have them.
func TestConformanceCrowded(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return &crowd{Store: newStore(t, memstore.Options{Now: now, MaxKeys: 50_000}), t: t}
	})
}

// crowd takes for a stranger before it takes for whom it was asked.
type crowd struct {
	*memstore.Store
	t  testing.TB
	mu sync.Mutex
	n  int
}

func (c *crowd) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	// Strangers recover soon: they are the first to go.
	limit := stint.Limit{Algorithm: stint.Algorithms()[n%6], Max: 1, Window: stint.Every(time.Microsecond)}
	for i := range 3 {
		_, err := storetest.Take(ctx, c.Store, []stint.Ask{{Key: stint.Key{Subject: fmt.Sprint("stranger", n, i)}, Limit: limit, Cost: 1}})
		if err != nil && !errors.Is(err, stint.ErrClosed) {
			c.t.Error(err)
		}
	}
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i].Plan, _ = asks[i].Limit.Compile()
	}
	return c.Store.Take(ctx, asks, ds)
}

func BenchmarkTake(b *testing.B) {
	storetest.Bench(b, func(t testing.TB, _ func() time.Time) stint.Store {
		t.Helper()
		return newStore(t, memstore.Options{})
	})
}

func ask(subject, limit string) stint.Ask {
	l, err := stint.ParseLimit(limit)
	if err != nil {
		panic(err)
	}
	return stint.Ask{Key: stint.Key{Subject: subject}, Limit: l, Cost: 1}
}

func take(t testing.TB, s *memstore.Store, asks ...stint.Ask) []stint.Decision {
	t.Helper()
	out, err := storetest.Take(context.Background(), s, asks)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	var invalid *stint.InvalidError
	if _, err := memstore.New(memstore.Options{MaxKeys: -1}); !errors.As(err, &invalid) || invalid.Field != "MaxKeys" {
		t.Errorf("got %v", err)
	}
}

// TestLogRoom uses a sliding_log for long, and looks at what it keeps: no more than its limit.
func TestLogRoom(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{Now: clock.Now})
	a := ask("alice", "10/10ms sliding_log")
	for range 10_000 {
		clock.Add(time.Millisecond)
		if d := take(t, s, a)[0]; !d.Allowed {
			t.Fatal(d)
		}
	}
	if room := s.LogRoom(a.Key, a.Limit); room > 40 {
		t.Errorf("room for %d entries, of which 10 count", room)
	}
}

// TestSweepStep looks at how many counters a take sweeps, of very many that have recovered.
func TestSweepStep(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{Now: clock.Now})
	stays := ask("stays", "10/1h")
	take(t, s, stays)
	for i := range 1000 {
		take(t, s, ask(strconv.Itoa(i), "1/1ms"))
	}
	last := s.Stats().Swept
	for s.Stats().Keys > 1 {
		clock.Add(1024 * time.Microsecond)
		take(t, s, stays)
		swept := s.Stats().Swept
		if swept-last > 16 {
			t.Fatalf("one take has swept %d counters", swept-last)
		}
		last = swept
		if clock.Now().Sub(storetest.Epoch) > time.Minute {
			t.Fatalf("%+v after a minute", s.Stats())
		}
	}
}

// TestEviction fills a store and looks at who has to go: those who have
// recovered, and else the one who is nearest to it.
func TestEviction(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{MaxKeys: 4, Now: clock.Now})
	const limit = "/1h token_bucket" // a unit of n recovers in an nth of an hour
	keys := map[string]stint.Ask{}
	for name, max := range map[string]int{"long": 1, "middle": 2, "short": 60, "shortest": 3600} {
		keys[name] = ask(name, strconv.Itoa(max)+limit)
		take(t, s, keys[name])
	}
	here := func(name string) bool {
		a := keys[name]
		a.Cost = 0
		return take(t, s, a)[0].ResetAfter > 0
	}
	check := func(when string, evicted uint64, names ...string) {
		t.Helper()
		if st := s.Stats(); st.Keys > 4 || st.Evicted != evicted {
			t.Errorf("%s: %+v, want %d evicted", when, st, evicted)
		}
		for _, n := range names {
			if !here(n) {
				t.Errorf("%s: %s is gone", when, n)
			}
		}
	}
	check("full", 0, "long", "middle", "short", "shortest")

	clock.Add(2 * time.Second) // the shortest has recovered
	take(t, s, ask("new", "1/1h token_bucket"))
	check("one more", 0, "long", "middle", "short")

	take(t, s, ask("newer", "1/1h token_bucket"))
	check("two more", 1, "long", "middle")
	if here("short") {
		t.Error("short was nearest to recovery and stayed")
	}
	take(t, s, ask("newest", "1/1h token_bucket"))
	check("three more", 2, "long")
	if here("middle") {
		t.Error("middle was nearest to recovery and stayed")
	}
}

// TestMaxKeys throws new keys at a large store: it never holds more than it
// may, and hardly fewer.
func TestMaxKeys(t *testing.T) {
	t.Parallel()
	const most = 3000
	s := newStore(t, memstore.Options{MaxKeys: most})
	for i := range 3 * most {
		take(t, s, ask(strconv.Itoa(i), "5/1h"))
		if i%100 == 0 {
			if st := s.Stats(); st.Keys > most {
				t.Fatalf("after %d keys: %+v", i, st)
			}
		}
	}
	if st := s.Stats(); st.Keys < most*85/100 || st.Evicted < most {
		t.Errorf("%+v", st)
	}
}

// TestEvictionWithLogs has logs come and go: a log must not outlive its counter
// nor be found by another.
func TestEvictionWithLogs(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{MaxKeys: 50})
	for i := range 5000 {
		a := ask(strconv.Itoa(i), "5/1h sliding_log")
		a.Cost = int64(1 + i%3)
		if d := take(t, s, a)[0]; !d.Allowed || d.Remaining != 5-a.Cost {
			t.Fatalf("key %d: %s", i, storetest.Format(d))
		}
		if i%7 == 0 {
			if err := s.Reset(context.Background(), []stint.Ask{a}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := s.Stats(); st.Keys > 50 {
		t.Errorf("%+v", st)
	}
}

// TestSweep lets keys recover: the new ones that come after clear them away.
func TestSweep(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{Now: clock.Now})
	const keys = 10_000
	for i := range keys {
		take(t, s, ask(strconv.Itoa(i), "5/1s token_bucket"))
	}
	if st := s.Stats(); st.Keys != keys || st.Swept != 0 {
		t.Fatalf("%+v, want %d keys", st, keys)
	}
	clock.Add(time.Minute)
	for i := range 2 * keys {
		take(t, s, ask(strconv.Itoa(i+keys), "5/1h"))
	}
	if st := s.Stats(); st.Keys > keys*22/10 || st.Swept < keys*8/10 || st.Evicted != 0 {
		t.Errorf("%+v, want hardly more than %d keys", st, 2*keys)
	}
}

// TestSweepIdle lets keys recover while no new ones come: the takes of one that
// is there clear them away too, if more slowly.
func TestSweepIdle(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{Now: clock.Now, MaxKeys: 400})
	const keys = 300
	for i := range keys {
		take(t, s, ask(strconv.Itoa(i), "5/1s token_bucket"))
	}
	clock.Add(time.Minute)
	for s.Stats().Keys > keys/2 {
		clock.Add(time.Microsecond)
		take(t, s, ask("0", "5/1h"))
	}
	for s.Stats().Keys > keys/10 {
		clock.Add(time.Microsecond)
		take(t, s, ask("0", "5/1h"), ask("1", "5/1h"))
	}
}

// TestGrowthUnderLoad has many make counters and use them while tables grow and
// split under them: not a unit may be lost or counted twice.
func TestGrowthUnderLoad(t *testing.T) {
	t.Parallel()
	const workers, rounds, keys = 8, 4000, 6000
	s := newStore(t, memstore.Options{})
	var used [keys]atomic.Int64
	askFor := func(key int, cost int64) stint.Ask {
		// Every algorithm, each under its own keys.
		l := stint.Limit{Algorithm: stint.Algorithms()[key%6], Max: 10_000, Window: stint.Every(1000 * time.Hour)}
		if l.Algorithm == stint.LeakyBucket {
			l.Burst = l.Max - 1
		}
		return stint.Ask{Key: stint.Key{Subject: strconv.Itoa(key)}, Limit: l, Cost: cost}
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 0))
			for i := range rounds {
				// New keys come all the while, old ones are used again.
				var asks []stint.Ask
				for range 1 + r.IntN(3) {
					key := r.IntN(1 + keys*(i+1)/rounds)
					asks = append(asks, askFor(min(key, keys-1), 1+r.Int64N(3)))
				}
				do := storetest.Take
				if r.IntN(4) == 0 {
					do = storetest.Adjust
				}
				out, err := do(context.Background(), s, asks)
				if err != nil {
					t.Error(err)
					return
				}
				for k, a := range asks {
					if !out[k].Allowed {
						t.Errorf("%v: %s", a, storetest.Format(out[k]))
					}
					key, err := strconv.Atoi(a.Key.Subject)
					if err != nil {
						t.Error(err)
					}
					used[key].Add(a.Cost)
				}
			}
		})
	}
	wg.Wait()
	for key := range used {
		d := take(t, s, askFor(key, 0))[0]
		if got, want := d.Limit-d.Remaining, used[key].Load(); got != want {
			t.Errorf("key %d has %d used, want %d", key, got, want)
		}
	}
	if st := s.Stats(); st.Keys > keys || st.Evicted != 0 {
		t.Errorf("%+v", st)
	}
}

// TestDecisionsAreTheCallers checks that answers cut from one piece of memory
// do not reach each other.
func TestDecisionsAreTheCallers(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{})
	first := take(t, s, ask("a", "5/1h"))
	second := take(t, s, ask("b", "9/1h"))
	_ = append(first, stint.Decision{Limit: -1})
	first[0].Limit = -2
	if second[0].Limit != 9 {
		t.Errorf("got %+v", second[0])
	}
}

// TestPeeks has looks at counters make none.
func TestPeeks(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{})
	a, b := ask("a", "5/1h"), ask("b", "5/1h sliding_log")
	a.Cost, b.Cost = 0, 0
	take(t, s, a)
	take(t, s, a, b)
	if n := s.Stats().Keys; n != 0 {
		t.Errorf("%d counters", n)
	}
}

// TestConservation has many take from the same few counters, in any order, some twice, some
// nearly used up, while tables grow: what all those takes have charged that were allowed is what
// is used in the end.
func TestConservation(t *testing.T) {
	t.Parallel()
	const keys, workers = 7, 6
	rounds := torture.Rounds(1000)
	s := newStore(t, memstore.Options{})
	askFor := func(key int, cost int64) stint.Ask {
		l := stint.Limit{Algorithm: stint.Algorithms()[key%6], Max: 10_000, Window: stint.Every(1000 * time.Hour)}
		if key >= 5 {
			l.Max = 200 // soon used up
		}
		if l.Algorithm == stint.LeakyBucket {
			l.Burst = l.Max - 1
		}
		return stint.Ask{Key: stint.Key{Subject: "alice", Name: strconv.Itoa(key)}, Limit: l, Cost: cost}
	}
	var used [keys]atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 0))
			for i := range rounds {
				n := 1 + r.IntN(4)
				if r.IntN(50) == 0 {
					n = 13 // more than there are
				}
				order := r.Perm(keys)
				var asks []stint.Ask
				var asked []int
				for j := range n {
					key := order[j%keys]
					if r.IntN(10) == 0 {
						key = order[0]
					}
					asked = append(asked, key)
					asks = append(asks, askFor(key, r.Int64N(3)))
				}
				if r.IntN(4) == 0 {
					asks = append(asks, ask(fmt.Sprint("stranger", w, i), "5/1m"))
				}
				out, err := storetest.Take(context.Background(), s, asks)
				if err != nil {
					t.Error(err)
					return
				}
				if slices.ContainsFunc(out, func(d stint.Decision) bool { return !d.Allowed }) {
					continue
				}
				for j, key := range asked {
					used[key].Add(asks[j].Cost)
				}
			}
		})
	}
	wg.Wait()
	for key := range keys {
		d := take(t, s, askFor(key, 0))[0]
		if got, want := d.Limit-d.Remaining, used[key].Load(); got != want {
			t.Errorf("%v: %d used, %d charged", stint.Algorithms()[key%6], got, want)
		}
	}
}

// TestClock compares the default clock with the wall clock: a window that lies on the grid of the
// epoch says what time it is.
func TestClock(t *testing.T) {
	t.Parallel()
	const window = 10 * 24 * time.Hour
	s := newStore(t, memstore.Options{})
	for i := range 100 {
		a := ask(fmt.Sprint("user", i), "1/10d fixed_window")
		before := time.Now()
		d := take(t, s, a)[0]
		after := time.Now()
		end := time.Unix(0, 0).Add(before.Sub(time.Unix(0, 0)).Truncate(window) + window)
		now := end.Add(-d.ResetAfter)
		if now.Before(before.Add(-time.Millisecond)) || now.After(after.Add(time.Millisecond)) {
			t.Fatalf("%v, between %v and %v", now, before, after)
		}
	}
}

// TestClockInBubble uses stores in a bubble: its time passes for one that was made there, and for one
// that was made outside and told so.
func TestClockInBubble(t *testing.T) {
	t.Parallel()
	outside := newStore(t, memstore.Options{Now: time.Now})
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []*memstore.Store{outside, newStore(t, memstore.Options{})} {
			a := ask("alice", "1/1s token_bucket")
			if d := take(t, s, a)[0]; !d.Allowed {
				t.Fatal(storetest.Format(d))
			}
			<-time.After(time.Second - time.Microsecond)
			if d := take(t, s, a)[0]; d.Allowed || d.RetryAfter != time.Microsecond {
				t.Fatal(storetest.Format(d))
			}
			<-time.After(time.Microsecond)
			if d := take(t, s, a)[0]; !d.Allowed {
				t.Fatal(storetest.Format(d))
			}
		}
	})
}

// TestInstants has callers charge one counter and look at it: whoever has seen more charges has decided later.
func TestInstants(t *testing.T) {
	const callers, each = 8, 5_000
	for _, asks := range []int{1, 2} {
		s := newStore(t, memstore.Options{})
		charged := make([]int64, callers*each/2+2) // when the n-th unit was charged, in microseconds
		type look struct{ at, used int64 }
		looks := make([][]look, callers)
		var g sync.WaitGroup
		for i := range callers {
			g.Go(func() {
				as, ds := make([]stint.Ask, asks), make([]stint.Decision, asks)
				for n := range each {
					for k := range as {
						as[k] = ask(strconv.Itoa(k), "10000000/8000h")
						as[k].Cost = int64((n + i) % 2)
					}
					if err := s.Take(t.Context(), as, ds); err != nil {
						t.Error(err)
						return
					}
					if used := ds[0].Limit - ds[0].Remaining; as[0].Cost > 0 {
						charged[used] = ds[0].At
					} else {
						looks[i] = append(looks[i], look{ds[0].At, used})
					}
				}
			})
		}
		g.Wait()
		const units = callers * each / 2
		for n := 2; n <= units; n++ {
			if charged[n] < charged[n-1] {
				t.Fatalf("%d asks: the unit %d was charged %d µs before the unit before it", asks, n, charged[n-1]-charged[n])
			}
		}
		for _, l := range slices.Concat(looks...) {
			if l.used > 0 && charged[l.used] > l.at || l.used < units && charged[l.used+1] < l.at {
				t.Fatalf("%d asks: at %d, %d units were used; they were charged at %d, and the next one at %d", asks, l.at, l.used, charged[l.used], charged[l.used+1])
			}
		}
	}
}

// TestCloseWhileInUse closes a store that others are using.
func TestCloseWhileInUse(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{})
	a, b := ask("a", "5/1h sliding_log"), ask("b", "5/1h")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				if _, err := storetest.Take(context.Background(), s, []stint.Ask{a, b}); err != nil {
					if !errors.Is(err, stint.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
