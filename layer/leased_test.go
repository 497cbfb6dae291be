package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestLeaseTraces compares leases with the specification, within the bounds that they declare.
func TestLeaseTraces(t *testing.T) {
	t.Parallel()
	const term = 50 * time.Millisecond
	storetest.RunLeased(t, term, func(t testing.TB) stint.Store {
		t.Helper()
		return must(t)(layer.Lease(memory(t, time.Now), layer.LeaseOptions{Begin: 2}))
	})
}

// TestLeaseFar leases from a store that is 150 ms away: once units are here, no request waits for more.
func TestLeaseFar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory(t, nil)
		w := &distant{faulty: faulty{Store: store}, random: func() time.Duration { return 75 * time.Millisecond }}
		node := must(t)(layer.Lease(must(t)(layer.DenyCache(w, layer.DenyCacheOptions{})), layer.LeaseOptions{}))
		defer node.Close()
		a := leaseAsk(t, "1000000/1h", time.Second)
		var waited atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := range 600 {
					<-time.After(90*time.Millisecond + rand.N(20*time.Millisecond))
					began := time.Now()
					decide(t, node, a)
					if time.Since(began) > 0 && i > 50 {
						waited.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := waited.Load(); n > 0 {
			t.Errorf("%d requests have waited for a store that is 150ms away", n)
		}
	})
}

// TestLeaseUnused has four nodes ask for twice what the limit allows: hardly anything of it is left unused, and the store
// gets no more calls than docs/scale.md says.
func TestLeaseUnused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit string
		least int64 // admitted in a window
		long  bool
	}{
		{"20000/10s fixed_window", 19600, true},
		{"20000/10s sliding_window", 19600, true},
		{"2000/1s fixed_window", 1900, false},
		{"2000/1s sliding_window", 1800, false},
	} {
		seconds := int64(4)
		if torture.Enabled {
			seconds = 21
		} else if c.long {
			continue
		}
		t.Run(c.limit, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				meter := layer.NewLeaseMeter()
				g := leaseSim{limit: c.limit, term: 100 * time.Millisecond, nodes: 4, callers: 8, load: 2, length: time.Duration(seconds) * time.Second}.run(t, meter)
				first, last := int64(1)<<62, int64(0)
				for w := range g.byWin {
					first, last = min(first, w), max(last, w)
				}
				least := g.limit.Max
				for w := first + 1; w < last; w++ {
					least = min(least, g.byWin[w])
				}
				t.Logf("at least %d in a window, %d takes a second, %d calls a second and node; %+v", least, 2*20000/10, g.calls/seconds/4, meter.Read())
				if least < c.least {
					t.Errorf("a window has %d, want at least %d", least, c.least)
				}
				if n := g.calls / seconds / 4; n > 410 {
					t.Errorf("%d calls a second and node, want at most 410", n)
				}
			})
		})
	}
}

// sound checks that a meter accounts for all that was lent by a node that is closed.
func sound(t testing.TB, meter *layer.LeaseMeter) {
	t.Helper()
	for _, m := range meter.Read() {
		if m.Counters != 0 || m.Held != 0 || m.Lent != m.Spent+m.Back+m.Kept {
			t.Errorf("%+v; want that what was lent was spent, given back or kept", m)
		}
	}
}

// warm takes until the counter of the ask is leased.
func warm(t testing.TB, s stint.Store, a stint.Ask) {
	t.Helper()
	for range 100 {
		d := decide(t, s, a)
		synctest.Wait()
		if d.Basis == stint.Leased {
			return
		}
	}
	t.Fatalf("%s is not leased", a.Key)
}

// TestLeaseCold has a counter with few takes, which is never leased, and one whose takes become few.
func TestLeaseCold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		s := must(t)(layer.Lease(memory(t, time.Now), layer.LeaseOptions{Meter: meter}))
		a := leaseAsk(t, "1000000/1h", 100*time.Millisecond)
		for range 200 { // seven in a term are too few
			<-time.After(15 * time.Millisecond)
			if d := decide(t, s, a); d.Basis != stint.Counted {
				t.Fatalf("%+v of a cold counter", d)
			}
		}
		warm(t, s, a)
		<-time.After(250 * time.Millisecond)
		if m := meter.Read()[0]; m.Counters != 0 || m.Held != 0 || m.Lent != m.Spent+m.Back {
			t.Errorf("%+v; want that the lease has ended", m)
		}
		if d := decide(t, s, a); d.Basis != stint.Counted {
			t.Errorf("%+v after it has ended", d)
		}
	})
}

// TestLeaseKeep has the meter forget a limit that is leased, which it does when the lease has ended.
func TestLeaseKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		s := must(t)(layer.Lease(memory(t, time.Now), layer.LeaseOptions{Meter: meter}))
		for _, name := range []string{"old:limit", "new:limit"} {
			a := leaseAsk(t, "1000000/1h", 100*time.Millisecond)
			a.Key.Name = name + ":/path"
			warm(t, s, a)
		}
		limits := func() (names []string) {
			meter.Keep(func(limit string) bool { return limit == "new:limit" })
			for _, l := range meter.Read() {
				names = append(names, l.Limit)
			}
			return names
		}
		if got := limits(); !slices.Equal(got, []string{"new:limit", "old:limit"}) {
			t.Errorf("%v while both are leased", got)
		}
		<-time.After(250 * time.Millisecond)
		if got := limits(); !slices.Equal(got, []string{"new:limit"}) {
			t.Errorf("%v after the leases have ended", got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLeaseRoom has more hot counters than may be leased.
func TestLeaseRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		s := must(t)(layer.Lease(memory(t, time.Now), layer.LeaseOptions{Meter: meter, Counters: 4}))
		a := leaseAsk(t, "1000000/1h", 100*time.Millisecond)
		for n := range 6 {
			a.Key.Subject = fmt.Sprint("user:", n)
			for range 20 {
				decide(t, s, a)
			}
		}
		if n := meter.Read()[0].Counters; n != 4 || meter.Full() == 0 {
			t.Errorf("%d counters are leased, and %d were not for lack of room; want 4, and some", n, meter.Full())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLeaseSeveral has takes of two asks: they spend units of both, or the store decides, and nothing of what was
// spent is lost.
func TestLeaseSeveral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory(t, time.Now)
		meter := layer.NewLeaseMeter()
		node := newLeasing(t, store, time.Millisecond, layer.LeaseOptions{Meter: meter})
		wide := leaseAsk(t, "100000/1h", 100*time.Millisecond)
		tight := leaseAsk(t, "300/1h", 100*time.Millisecond)
		tight.Key.Subject = "alice"
		both := []stint.Ask{wide, tight}
		passed, leased := int64(0), 0
		for range 1000 {
			<-time.After(time.Millisecond)
			ds, err := storetest.Take(t.Context(), node, both)
			if err != nil {
				t.Fatal(err)
			}
			if ds[0].Basis != ds[1].Basis && ds[0].Allowed && ds[1].Allowed {
				t.Fatalf("%+v", ds)
			}
			if ds[0].Basis == stint.Leased {
				leased++
			}
			if ds[0].Allowed && ds[1].Allowed {
				passed++
			}
		}
		if passed != 300 || leased < 200 {
			t.Errorf("%d passed, %d of them leased, want 300, and most of them", passed, leased)
		}
		// With an ask that is not leased, the store decides.
		plain := stint.Ask{Key: stint.Key{Subject: "bob"}, Limit: parse(t, "1000/1h"), Cost: 1}
		warm(t, node, wide)
		ds, err := storetest.Take(t.Context(), node, []stint.Ask{wide, plain})
		if err != nil || ds[0].Basis != stint.Counted {
			t.Errorf("%+v, %v; want that the store has decided", ds, err)
		}
		_ = node.Close()
		sound(t, meter)
		for _, a := range both {
			a.Cost = 0
			used := a.Limit.Max - decide(t, store, a).Remaining
			want := passed
			if a.Key == wide.Key {
				want = used // and what warmed it up
			}
			if used != want {
				t.Errorf("%d used of %s, want %d", used, a.Limit, want)
			}
		}
	})
}

// TestLeasePenalty has a take with a penalty, which the store decides, and which does not count as a violation
// while this node holds units.
func TestLeasePenalty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := must(t)(layer.Lease(memory(t, time.Now), layer.LeaseOptions{}))
		a := leaseAsk(t, "100/1h", 100*time.Millisecond)
		for range 20 {
			decide(t, s, a)
			synctest.Wait()
		}
		ban := stint.Ask{
			Key: stint.Key{Subject: "global", Name: "ban"}, Cost: 1,
			Penalty: &stint.Penalty{Threshold: 1, Within: time.Hour, Cooldown: time.Minute},
		}
		for n := range 81 {
			ds, err := storetest.Take(t.Context(), s, []stint.Ask{a, ban})
			if err != nil {
				t.Fatal(err)
			}
			if passed := ds[0].Allowed && ds[1].Allowed; passed != (n < 80) {
				t.Fatalf("take %d after 20: %+v", n, ds)
			}
		}
	})
}

// TestLeaseAway has the store go away: what is held is spent or kept, and then the local share decides. Nothing is
// taken ahead of that share, and all is paid when the store is back.
func TestLeaseAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, meter := memory(t, time.Now), layer.NewLeaseMeter()
		wire := &faulty{Store: store}
		s := must(t)(layer.New(wire, layer.Options{
			Fallback: &layer.FallbackOptions{Local: memory(t, time.Now), Settle: -1}, Lease: layer.LeaseOptions{Meter: meter},
		}))
		a := leaseAsk(t, "2000/1h fixed_window", 100*time.Millisecond)
		passed := map[stint.Basis]int64{}
		ask := func(n int) {
			for range n {
				<-time.After(time.Millisecond)
				if d := decide(t, s, a); d.Allowed {
					passed[d.Basis]++
				}
			}
		}
		ask(500)
		wire.fail(away)
		ask(10)
		<-time.After(200 * time.Millisecond) // what is held cannot be given back
		if m := meter.Read()[0]; m.Kept == 0 || m.Held != 0 {
			t.Errorf("%+v; want that units are kept, and none held", m)
		}
		ask(500)
		if passed[stint.Local] < 300 {
			t.Errorf("%v; want local decisions while the store is away", passed)
		}
		lent := meter.Read()[0].Lent
		wire.heal()
		ask(3000)
		if meter.Read()[0].Lent <= lent {
			t.Error("nothing is leased after the store is back")
		}
		// What a breaker or a timeout leaves unknown may be charged twice, but never less than once.
		if all := passed[stint.Counted] + passed[stint.Leased] + passed[stint.Local]; all > 2000 || all < 1900 {
			t.Errorf("%v passed, want 2000, or a little less", passed)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		sound(t, meter)
	})
}

// TestLeaseClose has Close give back what is held, and nothing is lent after it.
func TestLeaseClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory(t, time.Now)
		meter := layer.NewLeaseMeter()
		node := newLeasing(t, store, 10*time.Millisecond, layer.LeaseOptions{Meter: meter})
		a := leaseAsk(t, "100000/1h", time.Second)
		admitted := int64(0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				ds, err := storetest.Take(context.Background(), node, []stint.Ask{a})
				if err != nil {
					if !errors.Is(err, stint.ErrClosed) {
						t.Error(err)
					}
					return
				}
				admitted += ds[0].Cost
				if admitted%100 == 0 {
					<-time.After(time.Millisecond)
				}
			}
		}()
		<-time.After(time.Second)
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil { // the node's own Close leaves it to others
			t.Fatal(err)
		}
		<-done
		sound(t, meter)
		if admitted < 1000 {
			t.Errorf("only %d admitted", admitted)
		}
	})
}

// TestLeaseUnknown has the store fail while units are fetched: those that it may have charged are kept, and those that
// it has not charged for sure do not count.
func TestLeaseUnknown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how  func(context.Context) error
		kept bool
	}{{unknown, true}, {away, false}} {
		synctest.Test(t, func(t *testing.T) {
			meter := layer.NewLeaseMeter()
			node := newLeasing(t, memory(t, nil), time.Millisecond, layer.LeaseOptions{Meter: meter})
			a := leaseAsk(t, "100000/1h", 100*time.Millisecond)
			warm(t, node, a)
			node.wire.fail(c.how)
			for range 100 { // it spends what is held, and fetches more
				_, _ = storetest.Take(t.Context(), node, []stint.Ask{a})
				<-time.After(100 * time.Microsecond)
			}
			node.wire.heal()
			if err := node.Close(); err != nil {
				t.Fatal(err)
			}
			sound(t, meter)
			if m := meter.Read()[0]; m.Kept > 0 != c.kept {
				t.Errorf("%+v after %v", m, c.how(t.Context()))
			}
		})
	}
}
