package layer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// This file is long: retry, breaker, fallback and deny cache as state machines, on one store that fails on demand.

// virtual runs a test in virtual time, with a store in memory that can be made to
// fail.
func virtual(t *testing.T, test func(t *testing.T, f *faulty)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		test(t, &faulty{Store: memory(t, nil)})
	})
}

// pass has some time pass, and what is to be done then done.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestRetry(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Retry(f, layer.RetryOptions{}))
		take := func(ctx context.Context, cost int64) (calls int64, took time.Duration, err error) {
			before, start := f.calls.Load(), time.Now()
			_, err = storetest.Take(ctx, s, ask("alice", 100, cost))
			return f.calls.Load() - before, time.Since(start), err
		}
		bg := context.Background()
		if calls, _, err := take(bg, 1); err != nil || calls != 1 {
			t.Errorf("well: %d calls, %v", calls, err)
		}
		f.fail(away)
		if calls, took, err := take(bg, 1); !errors.Is(err, stint.ErrUnavailable) || calls < 3 || took < 20*time.Millisecond || took > 60*time.Millisecond {
			t.Errorf("not applied: %d calls, %v after %v; want several within 50ms", calls, err, took)
		}
		f.fail(unknown)
		if calls, took, err := take(bg, 1); !errors.Is(err, errUnknown) || calls != 1 || took > 0 {
			t.Errorf("perhaps applied: %d calls, %v after %v; want one", calls, err, took)
		}
		if calls, _, err := take(bg, 0); !errors.Is(err, errUnknown) || calls < 3 {
			t.Errorf("a peek: %d calls, %v; want several", calls, err)
		}
		before := f.calls.Load()
		if err := s.Reset(bg, ask("alice", 100, 1)); !errors.Is(err, errUnknown) || f.calls.Load()-before < 3 {
			t.Errorf("a reset: %d calls, %v; want several", f.calls.Load()-before, err)
		}
		before = f.calls.Load()
		if _, err := storetest.Adjust(bg, s, ask("alice", 100, -1)); !errors.Is(err, errUnknown) || f.calls.Load()-before != 1 {
			t.Errorf("an adjustment: %d calls, %v; want one", f.calls.Load()-before, err)
		}
		f.fail(func(context.Context) error { return errors.New("broken") })
		if calls, _, err := take(bg, 0); err == nil || calls != 1 {
			t.Errorf("another error: %d calls, %v; want one", calls, err)
		}
		f.fail(hang)
		if _, took, err := take(bg, 1); !errors.Is(err, stint.ErrUnavailable) || took > 60*time.Millisecond {
			t.Errorf("hangs: %v after %v; want 50ms", err, took)
		}
		short, cancel := context.WithTimeout(bg, 5*time.Millisecond)
		defer cancel()
		if _, took, err := take(short, 1); !errors.Is(err, stint.ErrUnavailable) || took > 5*time.Millisecond {
			t.Errorf("hangs, the caller has 5ms: %v after %v", err, took)
		}
		// It comes back in time.
		f.fail(away)
		time.AfterFunc(15*time.Millisecond, f.heal)
		if calls, took, err := take(bg, 1); err != nil || calls < 2 || took < 15*time.Millisecond {
			t.Errorf("comes back: %d calls, %v after %v", calls, err, took)
		}
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		var changes []layer.Change
		s := must(t)(layer.Breaker(f, layer.BreakerOptions{OnChange: func(c layer.Change) { changes = append(changes, c) }}))
		take := func() error {
			_, err := storetest.Take(t.Context(), s, ask("alice", 1000, 1))
			return err
		}
		states := func() (out []string) {
			for _, c := range changes {
				out = append(out, c.To.String())
			}
			changes = nil
			return out
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if got := states(); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}

		// Failures in a row.
		f.fail(unknown)
		for range 4 {
			_ = take()
		}
		expect("4 failures")
		f.heal()
		_ = take()
		f.fail(unknown)
		for range 4 {
			_ = take()
		}
		expect("4 failures and a success between")
		_ = take()
		expect("5 failures", "open")
		calls := f.calls.Load()
		for range 100 {
			if err := take(); !errors.Is(err, layer.ErrOpen) || !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) {
				t.Fatalf("open: %v", err)
			}
		}
		if n := f.calls.Load() - calls; n != 0 {
			t.Errorf("open: %d calls", n)
		}

		// It is probed, however long the outage is, at the same rate, and no caller is needed.
		pass(time.Hour)
		if n := f.calls.Load() - calls; n < 10_000 || n > 15_000 {
			t.Errorf("%d probes in an hour, want about one in 300 ms", n)
		}
		if err := take(); !errors.Is(err, layer.ErrOpen) {
			t.Fatalf("after an hour: %v", err)
		}
		expect("an hour")
		f.heal()
		calls = f.calls.Load()
		pass(time.Second)
		expect("healed", "closed")
		if n := f.calls.Load() - calls; n != 3 {
			t.Errorf("closed after %d probes, want 3", n)
		}
		if err := take(); err != nil {
			t.Fatal(err)
		}

		// One probe that succeeds is not enough.
		f.fail(unknown)
		for range 5 {
			_ = take()
		}
		n := 0
		f.fail(func(context.Context) error {
			if n++; n%3 == 0 {
				return errUnknown
			}
			return nil
		})
		pass(10 * time.Second)
		expect("two of three probes succeed", "open")
		f.heal()
		pass(time.Second)
		expect("and back", "closed")

		// A rate of failures, over ten seconds.
		failHalf := func() {
			for i := range 19 {
				if i%2 == 0 {
					f.heal()
				} else {
					f.fail(unknown)
				}
				_ = take()
			}
		}
		failHalf()
		expect("9 of 19")
		pass(11 * time.Second)
		failHalf()
		expect("9 of 19 again, since the others have left the window")
		f.fail(unknown)
		_ = take()
		expect("10 of 20", "open")

		// Slow calls are failures, though their answers are used.
		f.heal()
		pass(time.Second)
		states()
		f.fail(func(context.Context) error { <-time.After(41 * time.Millisecond); return nil })
		for range 5 {
			if err := take(); err != nil {
				t.Fatal(err)
			}
		}
		expect("slow", "open")

		// What the caller did is not the store's fault.
		f.heal()
		pass(time.Second)
		states()
		f.fail(hang)
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := storetest.Take(ctx, s, ask("alice", 1000, 1))
			cancel()
			if !errors.Is(err, stint.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		f.fail(func(context.Context) error { return errors.New("broken") })
		for range 20 {
			_ = take()
		}
		expect("callers that leave, and errors that are not the store's absence")
	})
}

// TestProbes has many callers, and a store that hangs, while a breaker is open: only the probe reaches it.
func TestProbes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Breaker(f, layer.BreakerOptions{}))
		f.fail(unknown)
		for range 5 {
			_, _ = storetest.Take(t.Context(), s, ask("alice", 10, 1))
		}
		f.fail(hang)
		before := f.calls.Load()
		for range 1000 {
			if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 1)); !errors.Is(err, layer.ErrOpen) {
				t.Fatal(err)
			}
			pass(10 * time.Millisecond)
		}
		// A probe takes a second, and another begins 300 ms later.
		if n := f.calls.Load() - before; n < 6 || n > 10 {
			t.Errorf("%d probes in 10 s, want about one in 1.3 s", n)
		}
	})
}

// shards is a store on two servers: subjects that begin with a or b. Either may be made to fail.
type shards struct {
	stint.Store
	mu   sync.Mutex
	down map[string]error
	took map[string]int // calls
	gone bool           // the second has no counters any more
}

func (s *shards) server(a *stint.Ask) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(a.Key.Subject); !s.gone && n > 0 && (a.Key.Subject[0] == 'b' || a.Key.Subject[n-1] == '7') {
		return "b"
	}
	return "a"
}

// shardError is the error of some servers.
type shardError struct {
	error
	servers []string
}

func (e *shardError) FailedServers() []string { return e.servers }
func (e *shardError) Unwrap() error           { return e.error }

func (s *shards) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := s.ask(asks); err != nil {
		return err
	}
	return s.Store.Take(ctx, asks, ds)
}

func (s *shards) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := s.ask(asks); err != nil {
		return err
	}
	return s.Store.Adjust(ctx, asks, ds)
}

func (s *shards) ask(asks []stint.Ask) error {
	var failed []string
	var err error
	for i := range asks {
		server := s.server(&asks[i])
		s.mu.Lock()
		s.took[server]++
		if down := s.down[server]; down != nil {
			err, failed = down, append(failed, server)
		}
		s.mu.Unlock()
	}
	if err != nil {
		return &shardError{err, failed}
	}
	return nil
}

// TestBreakers has one server of two fail: the other is used as before. What needs both is rejected as a
// whole, and the one that works is not blamed.
func TestBreakers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &shards{Store: memory(t, nil), down: map[string]error{}, took: map[string]int{}}
		var changes []string
		s := must(t)(layer.Breaker(f, layer.BreakerOptions{
			Server: f.server, OnChange: func(c layer.Change) { changes = append(changes, c.Server+" "+c.To.String()) },
		}))
		take := func(asks []stint.Ask) error {
			_, err := storetest.Take(t.Context(), s, asks)
			return err
		}
		a, b := ask("alice", 1000, 1), ask("bob", 1000, 1)
		both := append(slices.Clone(a), b...)
		set := func(server string, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.down[server] = err
		}
		calls := func(server string) int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.took[server]
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if !slices.Equal(changes, want) {
				t.Errorf("%s: %v, want %v", what, changes, want)
			}
			changes = nil
		}
		if err := errors.Join(take(a), take(b), take(both)); err != nil {
			t.Fatal(err)
		}
		set("b", errUnknown)
		for range 5 {
			_ = take(both)
		}
		expect("one fails", "b open")
		before := calls("a")
		if err := take(both); !errors.Is(err, layer.ErrOpen) || !errors.Is(err, stint.ErrNotApplied) || calls("a") != before {
			t.Errorf("a take of both: %v, and %d calls of the one that works", err, calls("a")-before)
		}
		if err := take(b); !errors.Is(err, layer.ErrOpen) {
			t.Errorf("a take of the one that fails: %v", err)
		}
		for range 100 {
			if err := take(a); err != nil {
				t.Fatalf("a take of the one that works: %v", err)
			}
		}
		// The probes are of counters on that server.
		before, beforeB := calls("a"), calls("b")
		pass(10 * time.Second)
		if n, other := calls("b")-beforeB, calls("a")-before; n < 10 || other != 0 {
			t.Errorf("%d probes of the one that fails, and %d of the other", n, other)
		}
		expect("still")
		set("b", nil)
		pass(time.Second)
		expect("back", "b closed")
		if err := take(both); err != nil {
			t.Error(err)
		}
		// A server that leaves is not probed any more, and what it had is asked of its successor.
		set("b", errUnknown)
		for range 5 {
			_ = take(b)
		}
		f.mu.Lock()
		f.gone = true
		f.mu.Unlock()
		if err := take(b); err != nil {
			t.Errorf("moved: %v", err)
		}
		pass(time.Second)
		expect("left", "b open", "b closed")
	})
}

// TestShardsReturn has both servers of a store fail, and one come back: what was admitted of its counters is
// charged there, though the other is still away.
func TestShardsReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &shards{Store: memory(t, nil), down: map[string]error{"a": errAway, "b": errAway}, took: map[string]int{}}
		var paid atomic.Int64
		s := must(t)(layer.Fallback(must(t)(layer.Breaker(f, layer.BreakerOptions{Server: f.server})), layer.FallbackOptions{
			Local: memory(t, nil), OnReturn: func(r layer.Return) { paid.Add(r.Paid) }, Server: f.server,
		}))
		take := func(who string) {
			t.Helper()
			if _, err := storetest.Take(t.Context(), s, ask(who, 1000, 1)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 50 {
			take(fmt.Sprint("a", i, "x"))
			take(fmt.Sprint("b", i, "x"))
		}
		f.mu.Lock()
		f.down["a"] = nil
		f.mu.Unlock()
		pass(time.Second) // until the breaker closes
		for range 1000 {
			take("alice")
			pass(time.Millisecond)
		}
		if n := paid.Load(); n != 50 {
			t.Errorf("%d units charged, want 50", n)
		}
		f.mu.Lock()
		before := f.took["a"]
		f.down["b"] = nil
		f.mu.Unlock()
		pass(time.Second)
		take("alice")
		pass(time.Second)
		if n := paid.Load(); n != 100 {
			t.Errorf("%d units charged in the end, want 100", n)
		}
		if before > 5000 {
			t.Errorf("%d calls of the server that works, for 1000 takes and 50 charges", before)
		}
	})
}

func TestFallback(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 1)
		replicas := 4
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), Replicas: func() int { return replicas },
			OnReturn: func(r layer.Return) { returns <- r },
		}))
		take := func(cost int64) stint.Decision {
			t.Helper()
			out, err := storetest.Take(t.Context(), s, ask("alice", 100, cost))
			if err != nil {
				t.Fatal(err)
			}
			return out[0]
		}
		if d := take(10); d.Basis != stint.Counted || d.Remaining != 90 {
			t.Errorf("well: %+v", d)
		}
		f.fail(unknown)
		if d := take(20); d.Basis != stint.Local || d.Limit != 25 || d.Remaining != 5 {
			t.Errorf("out of reach: %+v; want a quarter of the limit", d)
		}
		if d := take(6); d.Basis != stint.Local || d.Allowed {
			t.Errorf("out of reach, exhausted: %+v", d)
		}
		replicas = 2
		if d := take(6); d.Basis != stint.Local || d.Limit != 50 || !d.Allowed {
			t.Errorf("two nodes have left: %+v", d)
		}
		replicas = 1000
		if d := take(1); d.Limit != 1 || d.Allowed {
			t.Errorf("a thousand nodes: %+v; want a share of one unit", d)
		}
		f.heal()
		if d := take(0); d.Basis != stint.Counted || d.Remaining != 90 {
			t.Errorf("back: %+v; want the store's own count", d)
		}
		if r := <-returns; r != (layer.Return{Paid: 26}) {
			t.Errorf("returned %+v, want 26 units charged", r)
		}
		if d := take(0); d.Remaining != 64 {
			t.Errorf("after that: %+v; want 64", d)
		}

		// What has recovered meanwhile is not charged.
		f.fail(unknown)
		replicas = 1
		take(5)
		<-time.After(3 * time.Hour)
		f.heal()
		take(0)
		if r := <-returns; r != (layer.Return{Expired: 5}) {
			t.Errorf("returned %+v, want 5 units expired", r)
		}

		// A reset is for both.
		f.fail(unknown)
		take(7)
		if err := s.Reset(t.Context(), ask("alice", 1, 1)); !errors.Is(err, errUnknown) {
			t.Errorf("reset: %v; want the store's error", err)
		}
		if d := take(0); d.Remaining != 100 {
			t.Errorf("after the reset: %+v", d)
		}
	})
}

// TestDebts has more counters in debt than are remembered.
// TestDenyCachePenalties remembers a take with a penalty only while it is banned, and
// by that penalty.
func TestDenyCachePenalties(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.DenyCache(f, layer.DenyCacheOptions{}))
		ban := func(threshold int64) *stint.Penalty {
			return &stint.Penalty{Threshold: threshold, Within: time.Hour, Cooldown: time.Minute}
		}
		first, other := ban(3), ban(4)
		take := func(p *stint.Penalty, cost int64, want int64) {
			t.Helper()
			before := f.calls.Load()
			asks := append(ask("alice", 1, 1), stint.Ask{Key: stint.Key{Subject: "alice", Name: "ban"}, Cost: cost, Penalty: p})
			if _, err := storetest.Take(t.Context(), s, asks); err != nil {
				t.Fatal(err)
			}
			if calls := f.calls.Load() - before; calls != want {
				t.Errorf("%v, cost %d: %d calls, want %d", p, cost, calls, want)
			}
		}
		take(first, 1, 1) // passes
		for range 3 {
			take(first, 1, 1) // the violations, of which the last bans
		}
		take(first, 1, 0)
		take(first, 2, 1) // another cost is another take
		take(other, 1, 1) // and so is another penalty, by which there is no ban yet
		take(other, 1, 0)
	})
}

// TestPenaltiesAreNotOwed falls back with a penalty: only what was charged is owed.
func TestPenaltiesAreNotOwed(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 1)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), OnReturn: func(r layer.Return) { returns <- r }}))
		f.fail(unknown)
		p := &stint.Penalty{Threshold: 3, Within: time.Hour, Cooldown: time.Minute}
		asks := append(ask("alice", 10, 2), stint.Ask{Key: stint.Key{Subject: "alice", Name: "ban"}, Cost: 1, Penalty: p})
		if _, err := storetest.Take(t.Context(), s, asks); err != nil {
			t.Fatal(err)
		}
		f.heal()
		if _, err := storetest.Take(t.Context(), s, asks); err != nil {
			t.Fatal(err)
		}
		if r := <-returns; r != (layer.Return{Paid: 2}) {
			t.Errorf("returned %+v, want 2 paid", r)
		}
	})
}

func TestDebts(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 1)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), MaxDebts: 100, OnReturn: func(r layer.Return) { returns <- r },
		}))
		f.fail(unknown)
		for i := range 150 {
			if _, err := storetest.Take(t.Context(), s, ask(fmt.Sprint("user:", i), 10, 2)); err != nil {
				t.Fatal(err)
			}
		}
		f.heal()
		if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 1)); err != nil {
			t.Fatal(err)
		}
		if r := <-returns; r != (layer.Return{Paid: 200, Lost: 100}) {
			t.Errorf("returned %+v, want 200 paid and 100 lost", r)
		}
	})
}

// TestFleet has twenty nodes in fallback share a limit.
func TestFleet(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, _ *faulty) {
		t.Helper()
		const nodes, limit, seconds = 20, 1000, 10
		for _, a := range []stint.Algorithm{stint.FixedWindow, stint.TokenBucket} {
			var fleet []stint.Store
			for range nodes {
				down := &faulty{Store: memory(t, nil)}
				down.fail(away)
				local, err := memstore.New(memstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				fleet = append(fleet, must(t)(layer.New(down, layer.Options{
					Fallback: &layer.FallbackOptions{Local: local, Replicas: func() int { return nodes }},
				})))
			}
			l := stint.Limit{Algorithm: a, Max: limit, Window: stint.Every(time.Second)}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			start := time.Now()
			for _, s := range fleet {
				wg.Go(func() {
					for time.Since(start) < seconds*time.Second {
						for range 2 { // 4,000 a second ask
							out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "all"}, Limit: l, Cost: 1}})
							if err != nil {
								t.Error(err)
							} else if out[0].Allowed {
								admitted.Add(1)
							}
						}
						<-time.After(10 * time.Millisecond)
					}
				})
			}
			wg.Wait()
			// A window more at the edges; a bucket begins full.
			if n := admitted.Load(); n > limit*(seconds+1) || n < limit*(seconds-1) {
				t.Errorf("%v: %d admitted in %d s, want about %d", a, n, seconds, limit*seconds)
			}
		}
	})
}

func TestDenyCache(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.DenyCache(f, layer.DenyCacheOptions{}))
		take := func(asks []stint.Ask) ([]stint.Decision, int64) {
			t.Helper()
			before := f.calls.Load()
			out, err := storetest.Take(t.Context(), s, asks)
			if err != nil {
				t.Fatal(err)
			}
			return out, f.calls.Load() - before
		}
		one := ask("alice", 3, 3)
		take(one)
		one[0].Cost = 1
		first, calls := take(one)
		if first[0].Allowed || first[0].Basis != stint.Counted || calls != 1 {
			t.Fatalf("denied: %+v, %d calls", first, calls)
		}
		// For a second it is not asked, and the times are counted on.
		<-time.After(300 * time.Millisecond)
		second, calls := take(one)
		want := first[0]
		want.Basis = stint.Remembered
		want.RetryAfter -= 300 * time.Millisecond
		want.ResetAfter -= 300 * time.Millisecond
		if second[0] != want || calls != 0 {
			t.Errorf("remembered: %+v, %d calls; want %+v", second, calls, want)
		}
		for _, c := range []struct {
			what  string
			asks  []stint.Ask
			calls int64
		}{
			{"a larger cost", ask("alice", 3, 2), 1},
			{"a cost above capacity", ask("alice", 3, 9), 1},
			{"a peek", ask("alice", 3, 0), 1},
			{"another limit", ask("alice", 4, 1), 1},
			{"another subject", ask("bob", 3, 1), 1},
			{"another ask with it", append(ask("alice", 3, 1), ask("bob", 3, 1)...), 1},
			{"the same again", append(ask("alice", 3, 1), ask("bob", 3, 1)...), 0},
		} {
			if _, calls := take(c.asks); calls != c.calls {
				t.Errorf("%s: %d calls, want %d", c.what, calls, c.calls)
			}
		}
		if out, _ := take(ask("alice", 3, 9)); out[0].RetryAfter != stint.Never {
			t.Errorf("a cost above capacity: %+v", out)
		}
		<-time.After(700 * time.Millisecond)
		if _, calls := take(one); calls != 1 {
			t.Errorf("after a second: %d calls", calls)
		}
		// A reset, and a refund, are seen at once.
		if err := s.Reset(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if out, _ := take(one); !out[0].Allowed {
			t.Error("denied after a reset")
		}
		take(ask("alice", 3, 2))
		take(one)
		if _, err := storetest.Adjust(t.Context(), s, ask("alice", 3, -1)); err != nil {
			t.Fatal(err)
		}
		if out, _ := take(one); !out[0].Allowed {
			t.Error("denied after a refund")
		}
		// Another node's reset is seen within a second.
		take(one)
		if err := f.Store.Reset(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if out, _ := take(one); out[0].Allowed {
			t.Error("this is what the cache does not see")
		}
		<-time.After(time.Second)
		if out, _ := take(one); !out[0].Allowed {
			t.Error("denied a second after another node's reset")
		}
		// It ends with RetryAfter, to the microsecond.
		tight := []stint.Ask{{Key: stint.Key{Subject: "carol"}, Limit: stint.Limit{Algorithm: stint.TokenBucket, Max: 10, Window: stint.Every(time.Second), Burst: 1}, Cost: 1}}
		take(tight)
		out, _ := take(tight)
		<-time.After(out[0].RetryAfter - time.Microsecond)
		if out, calls := take(tight); out[0].Allowed || calls != 0 {
			t.Errorf("a microsecond early: %+v, %d calls", out, calls)
		}
		<-time.After(time.Microsecond)
		if out, _ := take(tight); !out[0].Allowed {
			t.Errorf("at RetryAfter: %+v", out)
		}
	})
}

// TestObserver watches a stack through an outage.
func TestObserver(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		m := new(layer.Meter)
		s := must(t)(layer.New(f, layer.Options{Fallback: &layer.FallbackOptions{Local: memory(t, nil)}, Observer: m}))
		for range 4 {
			_, _ = storetest.Take(t.Context(), s, ask("alice", 2, 1))
		}
		f.fail(func(context.Context) error { <-time.After(3 * time.Millisecond); return errUnknown })
		for range 7 {
			_, _ = storetest.Take(t.Context(), s, ask("bob", 5, 1))
		}
		_ = s.Reset(t.Context(), ask("bob", 5, 1))
		got := m.Read()
		for _, want := range []struct {
			layer  string
			result layer.Result
			basis  stint.Basis
			calls  uint64
		}{
			{"store", layer.Allowed, stint.Counted, 2},
			{"store", layer.Denied, stint.Counted, 1},
			{"store", layer.Failed, stint.Counted, 5},
			{"retry", layer.Failed, stint.Counted, 5},
			{"breaker", layer.Failed, stint.Counted, 7},
			{"fallback", layer.Allowed, stint.Local, 5},
			{"fallback", layer.Denied, stint.Local, 2},
			{"denycache", layer.Denied, stint.Remembered, 1},
			{"denycache", layer.Allowed, stint.Local, 5},
			{"failmode", layer.Allowed, stint.Counted, 2},
			{"failmode", layer.Denied, stint.Counted, 1},
		} {
			o := layer.Outcome{Layer: want.layer, Verb: layer.Take, Result: want.result, Basis: want.basis}
			if l := got[o]; l.Calls != want.calls {
				t.Errorf("%+v: %d calls, want %d", o, l.Calls, want.calls)
			}
		}
		failed := got[layer.Outcome{Layer: "store", Verb: layer.Take, Result: layer.Failed}]
		if failed.Total != 15*time.Millisecond || failed.Quantile(0.5) < 3*time.Millisecond || failed.Quantile(0.99) > 6*time.Millisecond {
			t.Errorf("5 calls of 3ms: %v in all, half below %v", failed.Total, failed.Quantile(0.5))
		}
		if l := got[layer.Outcome{Layer: "failmode", Verb: layer.Reset, Result: layer.Failed}]; l.Calls != 1 {
			t.Errorf("%d resets failed, want 1", l.Calls)
		}
	})
}

// TestMeter sorts times into buckets.
func TestMeter(t *testing.T) {
	t.Parallel()
	for took, bucket := range map[time.Duration]int{
		0: 0, 1: 0, time.Microsecond: 0, time.Microsecond + 1: 1, 2 * time.Microsecond: 1, 2*time.Microsecond + 1: 2,
		time.Millisecond: 10, 20 * time.Second: 25, time.Hour: 25,
	} {
		m := new(layer.Meter)
		m.Observe(t.Context(), layer.Call{Layer: "x", Took: took})
		for o, l := range m.Read() {
			if l.Calls != 1 || l.Buckets[bucket] != 1 || (bucket < 25 && l.Bound(bucket) < took) {
				t.Errorf("%v of %+v is in %v", took, o, l.Buckets)
			}
		}
	}
}

// TestFallbackFails makes adjustments that are to fail if the store does: they are not made up for when it is back.
func TestFallbackFails(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil)}))
		for _, how := range []func(context.Context) error{away, unknown} {
			f.fail(how)
			a := ask("alice", 100, 10)
			a[0].Policy = &stint.Policy{OnFailure: stint.FailError}
			if _, err := storetest.Adjust(t.Context(), s, a); !errors.Is(err, how(t.Context())) {
				t.Errorf("%v, want %v", err, how(t.Context()))
			}
			f.heal()
		}
		for range 2 { // the first has debts paid
			out, err := storetest.Take(t.Context(), s, ask("alice", 100, 0))
			if err != nil || out[0].Remaining != 100 {
				t.Errorf("%+v, %v; want 100 remaining", out, err)
			}
			synctest.Wait()
		}
	})
}

// TestFallbackCharges changes charges while the store is out of reach, and afterwards: each where it was
// made, once.
func TestFallbackCharges(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 1)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), OnReturn: func(r layer.Return) { returns <- r },
		}))
		take := func(cost int64) stint.Decision {
			t.Helper()
			out, err := storetest.Take(t.Context(), s, ask("alice", 100, cost))
			if err != nil {
				t.Fatal(err)
			}
			return out[0]
		}
		amend := func(by int64, charges ...stint.Charge) {
			t.Helper()
			var asks []stint.Ask
			for i := range charges {
				a := ask("alice", 100, by)[0]
				a.Charge = &charges[i]
				asks = append(asks, a)
			}
			if _, err := storetest.Adjust(t.Context(), s, asks); err != nil {
				t.Fatal(err)
			}
		}
		first, second := take(30), take(20)
		f.fail(away)
		here, there := take(10), take(10)
		if c := here.Charge(); !c.Local || c.Cost != 10 {
			t.Errorf("charged here: %+v", c)
		}
		amend(-10, here.Charge(), first.Charge()) // one here, one when the store is back
		once := second.Charge()
		once.ID = "once"
		amend(-5, once)
		amend(-5, once)
		f.fail(unknown)
		amend(-7, second.Charge()) // it may have been given back already, so it is not given back again
		f.heal()
		if r := <-returns; r.Lost > 0 { // in the background: no take is needed
			t.Errorf("%+v; want nothing lost", r)
		}
		// 30 less 10, 20 less 5, and 10 that were charged here.
		if d := take(0); d.Remaining != 55 {
			t.Errorf("after that: %+v; want 55", d)
		}
		paid := there.Charge()
		paid.ID = "paid"
		for range 3 {
			amend(-10, paid)
		}
		take(0)
		synctest.Wait()
		if d := take(0); d.Remaining != 65 {
			t.Errorf("given back here, when it was charged in the store: %+v; want 65", d)
		}
	})
}

// TestRetryCharges makes a change again that may have been made, if it is made once however often it is sent.
func TestRetryCharges(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Retry(f, layer.RetryOptions{}))
		out, err := storetest.Take(t.Context(), s, ask("alice", 100, 10))
		if err != nil {
			t.Fatal(err)
		}
		a := ask("alice", 100, 0)[0] // for concurrency a change by 0 is one, too
		charge := out[0].Charge()
		a.Charge = &charge
		for id, want := range map[string]bool{"": false, "once": true} {
			charge.ID = id
			f.fail(unknown)
			before := f.calls.Load()
			if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{a}); err == nil {
				t.Fatal("no error")
			}
			if again := f.calls.Load()-before > 1; again != want {
				t.Errorf("ID %q: sent again: %v, want %v", id, again, want)
			}
			f.heal()
		}
	})
}
