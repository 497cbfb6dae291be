package redisstore_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// change is a ring before, during and after a change, on shared servers.
type change struct{ old, moving, now *redisstore.Store }

// newChange opens stores with the same counters. Servers are named by their numbers.
func newChange(t testing.TB, old, now string, o redisstore.Options) change {
	t.Helper()
	nodes := testredis.SharedRing(t).Nodes()
	name := strings.NewReplacer("0", nodes[0].Addr(), "1", nodes[1].Addr(), "2", nodes[2].Addr())
	prefix := fmt.Sprint("m", stores.Add(1))
	open := func(servers, more string) *redisstore.Store {
		scheme := "redis+ring://"
		if !strings.Contains(servers, ",") && more == "" {
			scheme = "redis://"
		}
		return openURL(t, scheme+name.Replace(servers)+"?prefix="+prefix+name.Replace(more), o)
	}
	return change{open(old, ""), open(now, "&was="+old), open(now, "")}
}

// movedSubject returns the n-th subject that the change moves.
func (c change) movedSubject(n int) string {
	for i := 0; ; i++ {
		who := fmt.Sprint("user:", i)
		if a := ask(who, 1); strings.Contains(c.moving.Server(&a[0]), "->") {
			if n--; n < 0 {
				return who
			}
		}
	}
}

var changes = map[string]struct{ old, now string }{
	"a server more":  {"0,1", "0,1,2"},
	"a server fewer": {"0,1,2", "0,2"},
	"another server": {"0,1", "0,2"},
	"the second one": {"0", "0,1"},
	"all but one":    {"0,1,2", "1"},
	"none is left":   {"0,1", "2"},
}

// TestMovingScripts runs the behaviour scripts while all counters are moved: with the same clock, both places
// have the same counters, and answer as one.
func TestMovingScripts(t *testing.T) {
	t.Parallel()
	for _, script := range storetest.Scripts() {
		t.Run(script.Name, func(t *testing.T) {
			t.Parallel()
			script.RunOpen(t, func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return newChange(t, "0,1", "2", redisstore.Options{Now: now}).moving
			})
		})
	}
}

// TestMoveForgetsNothing uses a part of every limit before a change, and the rest during it. Without was,
// what has moved begins anew.
func TestMoveForgetsNothing(t *testing.T) {
	t.Parallel()
	for name, row := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := storetest.NewClock()
			c := newChange(t, row.old, row.now, redisstore.Options{Now: clock.Now})
			moved := 0
			for i := range 60 {
				l := limitOf(stint.Algorithms()[i%6], 10)
				one := []stint.Ask{{Key: stint.Key{Subject: fmt.Sprint("user:", i), Name: "api"}, Limit: l, Cost: 1}}
				seven := []stint.Ask{one[0]}
				seven[0].Cost = 7
				if _, err := storetest.Take(t.Context(), c.old, seven); err != nil {
					t.Fatal(err)
				}
				rest := int64(0) // in the new place alone
				if strings.Contains(c.moving.Server(&one[0]), "->") {
					moved++
					rest = 7
					anew := []stint.Ask{one[0]}
					anew[0].Cost = 0
					if out, err := storetest.Take(t.Context(), c.now, anew); err != nil || out[0].Remaining != 10 {
						t.Fatalf("without was: %v, %v", out, err)
					}
				}
				for n := range 5 {
					out, err := storetest.Take(t.Context(), c.moving, one)
					if err != nil {
						t.Fatal(err)
					}
					if want := max(0, 2-int64(n)); out[0].Allowed != (n < 3) || out[0].Remaining != want {
						t.Fatalf("%v: take %d after the change: %+v, want %d remaining", l, n, out[0], want)
					}
				}
				// Denied takes are charged nowhere.
				one[0].Cost = 0
				for s, want := range map[*redisstore.Store]int64{c.old: 0, c.now: rest} {
					if out, err := storetest.Take(t.Context(), s, one); err != nil || out[0].Remaining != want {
						t.Errorf("%v: %v, %v; want %d remaining", l, out, err, want)
					}
				}
			}
			if moved == 0 {
				t.Error("nothing has moved")
			}
		})
	}
}

// TestMoveTogether takes from processes that know the old ring only, and from some that know both; then
// from some that know both, and some that know the new one only. Each time they admit exactly the limit.
func TestMoveTogether(t *testing.T) {
	t.Parallel()
	const limit = 300
	c := newChange(t, "0,1", "0,1,2", redisstore.Options{})
	for name, pair := range map[string][]*redisstore.Store{
		"the change begins": {c.old, c.moving}, "the change ends": {c.moving, c.now},
	} {
		subjects := []string{c.movedSubject(0), c.movedSubject(1), c.movedSubject(2)}
		one := func(s *redisstore.Store, subject string) bool {
			a := ask(subject, limit)
			a[0].Key.Name = name
			out, err := storetest.Take(t.Context(), s, a)
			if err != nil {
				t.Error(err)
			}
			return err == nil && out[0].Allowed
		}
		passed := make([]atomic.Int64, len(subjects))
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for n := range 500 {
					i := (n + w) % len(subjects)
					if one(pair[w%2], subjects[i]) {
						passed[i].Add(1)
					}
				}
			})
		}
		wg.Wait()
		for i := range passed {
			for one(pair[0], subjects[i]) && one(pair[1], subjects[i]) { // what was denied while others were undone
				passed[i].Add(2)
			}
			if n := passed[i].Load(); n < limit-1 || n > limit {
				t.Errorf("%s: %d of %s admitted, want %d", name, n, subjects[i], limit)
			}
		}
	}
}

// TestMoveSeveral takes over subjects that stay and that move, all or nothing.
func TestMoveSeveral(t *testing.T) {
	t.Parallel()
	c := newChange(t, "0,1", "0,1,2", redisstore.Options{Now: storetest.NewClock().Now})
	var asks []stint.Ask
	for i := range 150 {
		asks = append(asks, stint.Ask{Key: stint.Key{Subject: fmt.Sprint("user:", i), Name: "api"}, Limit: limitOf(stint.Algorithms()[i%6], 10), Cost: 1})
	}
	full := asks[:1:1]
	for i := range asks {
		if strings.Contains(c.moving.Server(&asks[i]), "->") {
			full = asks[i : i+1 : i+1]
		}
	}
	use := []stint.Ask{full[0]}
	use[0].Cost = 10
	if _, err := storetest.Take(t.Context(), c.old, use); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{100, 150} {
		out, err := storetest.Take(t.Context(), c.moving, append(asks[:n:n], full...)[:n+1])
		if err != nil {
			t.Fatal(err)
		}
		denied := 0
		for i := range out {
			if !out[i].Allowed {
				denied++
			}
		}
		if denied == 0 {
			t.Fatalf("%d asks were admitted", n)
		}
	}
	for name, s := range map[string]*redisstore.Store{"moving": c.moving, "now": c.now, "old": c.old} {
		out, err := storetest.Take(t.Context(), s, looks(asks))
		if err != nil {
			t.Fatal(err)
		}
		for i := range out {
			if out[i].Remaining != 10 && asks[i].Key != full[0].Key {
				t.Errorf("%s: %v was charged: %+v", name, asks[i].Key, out[i])
			}
		}
	}
}

// TestMoveChanges changes charges of the time before a change and during it, resets, and looks at both
// places.
func TestMoveChanges(t *testing.T) {
	t.Parallel()
	c := newChange(t, "0,1", "0,1,2", redisstore.Options{}) // by the servers' own clocks
	remaining := func(s *redisstore.Store, a stint.Ask) int64 {
		t.Helper()
		a.Cost, a.Charge = 0, nil
		out, err := storetest.Take(t.Context(), s, []stint.Ask{a})
		if err != nil {
			t.Fatal(err)
		}
		return out[0].Remaining
	}
	for n, l := range []stint.Limit{
		parse(t, "100/1000h fixed_window"), parse(t, "100/1000h sliding_window"), parse(t, "100/2000h token_bucket"),
		parse(t, "100/1000h sliding_log"), parse(t, "100/1000h concurrency"),
	} {
		a := stint.Ask{Key: stint.Key{Subject: c.movedSubject(n), Name: "api"}, Limit: l}
		do := func(s *redisstore.Store, cost int64, charge *stint.Charge) stint.Charge {
			t.Helper()
			b := a
			b.Cost, b.Charge = cost, charge
			of := storetest.Take
			if charge != nil {
				of = storetest.Adjust
			}
			out, err := of(t.Context(), s, []stint.Ask{b})
			if err != nil {
				t.Fatal(err)
			}
			return out[0].Charge()
		}
		want := func(what string, now, old int64) {
			t.Helper()
			if got := remaining(c.now, a); got != now {
				t.Errorf("%v, %s: %d remain in the new place, want %d", l, what, got, now)
			}
			if got := remaining(c.old, a); got != old {
				t.Errorf("%v, %s: %d remain in the old place, want %d", l, what, got, old)
			}
			if got := remaining(c.moving, a); got != min(now, old) {
				t.Errorf("%v, %s: %d remain, want the smaller of %d and %d", l, what, got, now, old)
			}
		}
		before := do(c.old, 40, nil)
		want("before", 100, 60)
		during := do(c.moving, 10, nil)
		want("during", 90, 50)
		// The old place does not know this instant: a log keeps what it has.
		kept := int64(0)
		if l.Algorithm == stint.SlidingLog {
			kept = 4
		}
		do(c.moving, -4, &during)
		want("a refund", 94, 54-kept)
		do(c.moving, -40, &before)
		if got := remaining(c.old, a); got != 94-kept {
			t.Errorf("%v: %d remain in the old place after a refund of what was charged there, want %d", l, got, 94-kept)
		}
		if err := c.moving.Reset(t.Context(), []stint.Ask{a}); err != nil {
			t.Fatal(err)
		}
		want("a reset", 100, 100)
	}
}

// TestMoveHolds holds places before a change and during it. Each counts once, and when all have been renewed
// the new place has them all.
func TestMoveHolds(t *testing.T) {
	t.Parallel()
	c := newChange(t, "0,1", "0,1,2", redisstore.Options{}) // by the servers' own clocks
	a := stint.Ask{Key: stint.Key{Subject: c.movedSubject(0), Name: "api"}, Limit: parse(t, "5/1000h concurrency"), Cost: 1}
	change := func(charge *stint.Charge, by int64) stint.Decision {
		t.Helper()
		b := a
		b.Charge, b.Cost = charge, by
		out, err := storetest.Adjust(t.Context(), c.moving, []stint.Ask{b})
		if err != nil {
			t.Fatal(err)
		}
		*charge = out[0].Charge()
		return out[0]
	}
	var holds []*stint.Charge
	hold := func(s *redisstore.Store, allowed bool) {
		t.Helper()
		out, err := storetest.Take(t.Context(), s, []stint.Ask{a})
		if err != nil || out[0].Allowed != allowed {
			t.Fatalf("%d are held: %+v, %v", len(holds), out, err)
		}
		if charge := out[0].Charge(); allowed {
			holds = append(holds, &charge)
		}
	}
	places := func(s *redisstore.Store) int64 {
		t.Helper()
		out, err := storetest.Take(t.Context(), s, looks([]stint.Ask{a}))
		if err != nil {
			t.Fatal(err)
		}
		return out[0].Limit - out[0].Remaining
	}
	for range 3 {
		hold(c.old, true)
	}
	hold(c.moving, true)
	hold(c.moving, true)
	hold(c.moving, false)
	hold(c.old, false)
	for range 3 {
		for i, h := range holds {
			if d := change(h, 0); d.Cost != 1 || d.Remaining != 0 {
				t.Errorf("hold %d is renewed: %+v; want none to remain", i, d)
			}
		}
		if n := places(c.now); n != 5 {
			t.Errorf("the new place has %d, want 5", n)
		}
	}
	for i, h := range holds {
		if change(h, -1); places(c.now) != int64(4-i) || places(c.moving) > 5-int64(i) {
			t.Errorf("%d are released, and held are %d in the new place, %d of both", i+1, places(c.now), places(c.moving))
		}
	}
	if n := places(c.moving); n != 0 {
		t.Errorf("all are released, and %d are held", n)
	}
}

// TestMoveNeedsBoth kills the server that subjects move from. They fail, and say so of both; others do not.
func TestMoveNeedsBoth(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	n := r.Nodes()
	s := openURL(t, fmt.Sprintf("redis+ring://%s,%s?was=%s,%s,%s", n[0].Addr(), n[1].Addr(), n[0].Addr(), n[1].Addr(), n[2].Addr()), redisstore.Options{})
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
	n[2].Kill(t)
	failed, fine := 0, 0
	for i := range 60 {
		a := ask(fmt.Sprint("user:", i), 10)
		_, err := storetest.Take(t.Context(), s, a)
		server := s.Server(&a[0])
		var by interface{ FailedServers() []string }
		switch moved := strings.HasPrefix(server, n[2].Addr()+"->"); {
		case moved && !errors.Is(err, stint.ErrUnavailable):
			t.Errorf("%s: %v", server, err)
		case moved && (!errors.As(err, &by) || len(by.FailedServers()) != 1 || by.FailedServers()[0] != server):
			t.Errorf("%s: %v does not blame it", server, err)
		case moved:
			failed++
		case err != nil:
			t.Errorf("%s: %v", server, err)
		default:
			fine++
		}
	}
	if failed == 0 || fine == 0 {
		t.Errorf("%d failed, %d did not", failed, fine)
	}
	// Both of these need it, for what moves to one server and to the other.
	var both []stint.Ask
	for i := 0; len(both) < 2; i++ {
		a := ask(fmt.Sprint("user:", i), 10)
		if s.Server(&a[0]) == n[2].Addr()+"->"+n[len(both)].Addr() {
			both = append(both, a...)
		}
	}
	_, err := storetest.Take(t.Context(), s, both)
	var by interface{ FailedServers() []string }
	if !errors.As(err, &by) || !slices.Equal(by.FailedServers(), []string{s.Server(&both[0]), s.Server(&both[1])}) {
		t.Errorf("%v does not blame both", err)
	}
}

// TestMoveBehind refunds and renews what was just charged, where the old server's clock is behind.
func TestMoveBehind(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64 // by which the clock of the old server is used
	calls.Store(math.MaxInt64)
	c := newChange(t, "0,1", "0,1,2", redisstore.Options{Now: func() time.Time {
		if calls.Add(-1) < 0 {
			return storetest.Epoch.Add(-time.Second)
		}
		return storetest.Epoch
	}})
	for i, algorithm := range stint.Algorithms() {
		calls.Store(math.MaxInt64)
		asks := ask(c.movedSubject(i), 100)
		asks[0].Limit, asks[0].Cost = limitOf(algorithm, 100), 10
		out, err := storetest.Take(t.Context(), c.moving, asks)
		if err != nil {
			t.Fatal(err)
		}
		charge := out[0].Charge()
		asks[0].Charge, asks[0].Cost = &charge, -4
		calls.Store(1) // the new server's
		if out, err := storetest.Adjust(t.Context(), c.moving, asks); err != nil || out[0].Remaining != 94 {
			t.Errorf("%v: %+v, %v; want 94 to remain", algorithm, out, err)
		}
		if algorithm == stint.Concurrency {
			calls.Store(1)
			asks[0].Cost = 0
			if out, err := storetest.Adjust(t.Context(), c.moving, asks); err != nil || out[0].Cost != 6 {
				t.Errorf("renewed: %+v, %v; want six places", out, err)
			}
		}
	}
}
