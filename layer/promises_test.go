package layer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestCallersThatLeave takes for callers who do not wait for the answer. They are
// not let through, or everyone would be who leaves early enough.
func TestCallersThatLeave(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		f.fail(func(ctx context.Context) error {
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %w", stint.ErrUnavailable, ctx.Err())
			}
			return nil
		})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for name, o := range map[string]layer.Options{
			"open": {}, "local": {Fallback: &layer.FallbackOptions{Local: memory(t, nil)}},
		} {
			s := must(t)(layer.New(f, o))
			for range 20 {
				if out, err := storetest.Take(gone, s, ask("alice", 1, 1)); err == nil {
					t.Fatalf("%s: %+v for a caller that has left", name, out)
				}
			}
		}
	})
}

// TestLongOutage has a client go on at its legal rate through an outage. It owes
// what has not recovered, and no more.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 1)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), OnReturn: func(r layer.Return) { returns <- r },
		}))
		for _, text := range []string{"10/1s token_bucket", "10/1s burst=9 leaky_bucket", "10/1s", "10/1s fixed_window", "10/1s sliding_log", "600/day"} {
			l, err := stint.ParseLimit(text)
			if err != nil {
				t.Fatal(err)
			}
			one := []stint.Ask{{Key: stint.Key{Subject: text}, Limit: l, Cost: 1}}
			f.fail(unknown)
			admitted := int64(0)
			for range 60 * 5 { // five a second, for a minute
				out, err := storetest.Take(t.Context(), s, one)
				if err != nil {
					t.Fatal(err)
				}
				if out[0].Allowed {
					admitted++
				}
				<-time.After(200 * time.Millisecond)
			}
			f.heal()
			one[0].Cost = 0
			if _, err := storetest.Take(t.Context(), s, one); err != nil {
				t.Fatal(err)
			}
			r := <-returns
			if r.Lost != 0 || r.Paid+r.Expired != admitted || (text != "600/day" && r.Paid > 20) {
				t.Errorf("%s: %+v of %d admitted", text, r, admitted)
			}
			one[0].Cost = 1
			if out, err := storetest.Take(t.Context(), s, one); err != nil || !out[0].Allowed && out[0].RetryAfter > time.Second {
				t.Errorf("%s: afterwards %+v, %v", text, out, err)
			}
		}
	})
}

// TestDay has an outage over midnight: yesterday's units are not today's.
func TestDay(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) { // which begins at midnight
		t.Helper()
		returns := make(chan layer.Return, 1)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), OnReturn: func(r layer.Return) { returns <- r },
		}))
		take := func(cost int64) {
			t.Helper()
			asks := []stint.Ask{{Key: stint.Key{Subject: "alice"}, Limit: stint.PerDay(1000), Cost: cost}}
			if _, err := storetest.Take(t.Context(), s, asks); err != nil {
				t.Fatal(err)
			}
		}
		f.fail(unknown)
		<-time.After(23 * time.Hour)
		take(999)
		<-time.After(2 * time.Hour)
		take(64)
		f.heal()
		take(0)
		if r := <-returns; r != (layer.Return{Paid: 64, Expired: 999}) {
			t.Errorf("%+v; want 64 charged to the new day", r)
		}
	})
}

// TestSilentProbes has probes that say nothing about the store.
func TestSilentProbes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		var state layer.State
		s := must(t)(layer.Breaker(f, layer.BreakerOptions{OnChange: func(c layer.Change) { state = c.To }}))
		f.fail(unknown)
		for range 5 {
			_, _ = storetest.Take(t.Context(), s, ask("alice", 10, 1))
		}
		f.fail(func(context.Context) error { return &stint.InvalidError{Field: "cost"} })
		pass(10 * time.Second)
		if state != layer.BreakerOpen {
			t.Errorf("%v, though no probe has said anything", state)
		}
		f.heal()
		pass(time.Second)
		if state != layer.BreakerClosed {
			t.Errorf("%v after three good probes", state)
		}
		// What says nothing does not open it, either.
		f.fail(hang)
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = storetest.Take(ctx, s, ask("alice", 10, 1))
			cancel()
		}
		if state != layer.BreakerClosed {
			t.Errorf("%v after callers that do not wait", state)
		}
		// Callers with deadlines of their own do not keep it from opening.
		f.fail(hang)
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, _ = storetest.Take(ctx, s, ask("alice", 10, 1))
			cancel()
		}
		if state != layer.BreakerOpen {
			t.Errorf("%v, though the store has not answered five callers for 20ms", state)
		}
		s.Close()
		if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 1)); !errors.Is(err, stint.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestUnpaid has the store go away again before debts are paid: they wait.
func TestUnpaid(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		returns := make(chan layer.Return, 9)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), OnReturn: func(r layer.Return) { returns <- r },
		}))
		f.fail(unknown)
		for i := range 100 {
			if _, err := storetest.Take(t.Context(), s, ask(fmt.Sprint("user:", i), 10, 1)); err != nil {
				t.Fatal(err)
			}
		}
		// One call gets through, and nothing after it for a while.
		first := true
		f.fail(func(context.Context) error {
			if first {
				first = false
				return nil
			}
			return errAway
		})
		_, _ = storetest.Take(t.Context(), s, ask("alice", 10, 0))
		pass(time.Second)
		f.heal()
		paid := int64(0)
		for paid < 100 {
			if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 0)); err != nil {
				t.Fatal(err)
			}
			select {
			case r := <-returns:
				if paid += r.Paid; r.Lost > 0 || r.Expired > 0 {
					t.Fatalf("%+v; want all paid", r)
				}
			case <-time.After(time.Second):
				t.Fatalf("%d paid, want 100", paid)
			}
		}
	})
}

// TestManyDebts owes for as many counters as it may, forgets some of them, and pays for the
// others what each has had.
func TestManyDebts(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		const most = 3000
		returns := make(chan layer.Return, 9)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{
			Local: memory(t, nil), MaxDebts: most, OnReturn: func(r layer.Return) { returns <- r },
		}))
		f.fail(unknown)
		owed := map[string]int64{}
		admit := func(i int) {
			t.Helper()
			who, cost := fmt.Sprint("user:", i), int64(i%7+1)
			for limit := int64(1000); limit < 1003; limit++ { // under others, too, and the last counts
				if _, err := storetest.Take(t.Context(), s, ask(who, limit, cost)); err != nil {
					t.Fatal(err)
				}
				owed[who] += cost
			}
		}
		for i := range most {
			admit(i)
		}
		for i := 0; i < most; i += 3 {
			who := fmt.Sprint("user:", i)
			_ = s.Reset(t.Context(), ask(who, 1, 0)) // the store cannot, and the rest is done
			delete(owed, who)
		}
		for i := range most / 3 { // for whom there is room again
			admit(most + i)
		}
		f.heal()
		if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 0)); err != nil {
			t.Fatal(err)
		}
		want := layer.Return{}
		for _, units := range owed {
			want.Paid += units
		}
		if r := <-returns; r != want {
			t.Errorf("%+v, want %+v", r, want)
		}
		for i := range most + most/3 {
			who := fmt.Sprint("user:", i)
			if out, err := storetest.Take(t.Context(), f.Store, ask(who, 1002, 0)); err != nil || out[0].Remaining != 1002-owed[who] {
				t.Fatalf("%s: %+v, %v; want %d used", who, out, err, owed[who])
			}
		}
	})
}

// TestRememberedTimes has a store that takes its time to deny: what is remembered tells no
// one to come back before it would let them pass.
func TestRememberedTimes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.DenyCache(f, layer.DenyCacheOptions{}))
		take := func() stint.Decision {
			t.Helper()
			ds, err := storetest.Take(t.Context(), s, ask("alice", 1, 1))
			if err != nil {
				t.Fatal(err)
			}
			return ds[0]
		}
		take()
		f.fail(func(context.Context) error { <-time.After(100 * time.Millisecond); return nil }) // and then it decides
		first := take()
		f.heal()
		<-time.After(50 * time.Millisecond)
		const passed = 50 * time.Millisecond
		if d := take(); d.Basis != stint.Remembered || d.RetryAfter != first.RetryAfter-passed || d.ResetAfter != first.ResetAfter-passed {
			t.Errorf("%+v, want %v after %+v", d, passed, first)
		}
	})
}

// TestRememberedBeforeItLeft has a denial stay what it is when the store goes away, by a
// clock that is far behind.
func TestRememberedBeforeItLeft(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		now := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil)}))
		s = must(t)(layer.DenyCache(s, layer.DenyCacheOptions{Now: func() time.Time { return now }}))
		take := func(who string) stint.Decision {
			t.Helper()
			ds, err := storetest.Take(t.Context(), s, ask(who, 1, 1))
			if err != nil {
				t.Fatal(err)
			}
			return ds[0]
		}
		take("alice")
		if d := take("alice"); d.Allowed || d.Basis != stint.Counted {
			t.Fatalf("%+v, want a denial of the store", d)
		}
		f.fail(unknown)
		take("bob")
		if d := take("alice"); d.Allowed || d.Basis != stint.Remembered {
			t.Errorf("%+v, want the denial that is remembered", d)
		}
		now = now.Add(2 * time.Second)
		for range 2 { // the first to come then has seen that all is over
			if d := take("alice"); d.Basis != stint.Local {
				t.Errorf("%+v, want a decision of this node", d)
			}
		}
	})
}

// TestRefundOnce gives units back of which the store may know already.
func TestRefundOnce(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil)}))
		if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 10)); err != nil {
			t.Fatal(err)
		}
		// Applied, but the answer was lost.
		if _, err := storetest.Adjust(t.Context(), f.Store, ask("alice", 10, -5)); err != nil {
			t.Fatal(err)
		}
		f.fail(unknown)
		if _, err := storetest.Adjust(t.Context(), s, ask("alice", 10, -5)); err != nil {
			t.Fatal(err)
		}
		f.heal()
		for range 3 {
			out, err := storetest.Take(t.Context(), s, ask("alice", 10, 0))
			if err != nil || out[0].Remaining != 5 {
				t.Errorf("%+v, %v; want 5 remaining", out, err)
			}
			pass(time.Second)
		}
	})
}

// TestInvalidAway asks what is invalid while the store is away: it is not let
// through for that.
func TestInvalidAway(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		f.fail(unknown)
		for name, s := range map[string]stint.Store{
			"local": must(t)(layer.Fallback(f, layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return 2 }})),
			"open":  must(t)(layer.FailMode(f, layer.FailModeOptions{})),
		} {
			for _, l := range []stint.Limit{{}, {Max: -1, Window: stint.Every(time.Second)}, {Algorithm: stint.SlidingLog, Max: 20_000, Window: stint.Every(time.Second)}} {
				var invalid *stint.InvalidError
				if out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "alice"}, Limit: l, Cost: 1}}); !errors.As(err, &invalid) {
					t.Errorf("%s, %v: %+v, %v; want an InvalidError", name, l, out, err)
				}
			}
		}
	})
}

// TestLocalIsNotRemembered denies locally, and has the store come back.
func TestLocalIsNotRemembered(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, f *faulty) {
		t.Helper()
		s := must(t)(layer.New(f, layer.Options{
			Fallback: &layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return 4 }},
		}))
		f.fail(unknown)
		if out, err := storetest.Take(t.Context(), s, ask("alice", 100, 30)); err != nil || out[0].Allowed || out[0].RetryAfter == stint.Never {
			t.Errorf("more than this node's share: %+v, %v; want a denial that does not say never", out, err)
		}
		f.heal()
		if out, err := storetest.Take(t.Context(), s, ask("alice", 100, 30)); err != nil || !out[0].Allowed {
			t.Errorf("back: %+v, %v", out, err)
		}
	})
}

// TestHalfApplied adjusts counters on two servers of which one is gone. What was
// applied is not applied again.
func TestHalfApplied(t *testing.T) {
	t.Parallel()
	c := testredis.StartPrimaries(t, 3)
	bob := "bob"
	for i := 0; c.Primary(t, "{"+bob+"}") == c.Primary(t, "{alice}"); i++ {
		bob = fmt.Sprint("bob-", i)
	}
	r, err := redisstore.Open(c.URL()+"?timeout=30s&dial_timeout=30s", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := must(t)(layer.Retry(r, layer.RetryOptions{Budget: 30 * time.Second}))
	both := append(ask("alice", 1000, 10), ask(bob, 1000, 10)...)
	if _, err := storetest.Adjust(t.Context(), s, both); err != nil {
		t.Fatal(err)
	}
	c.Primary(t, "{"+bob+"}").Kill(t)
	for range 2 { // the first may still have found a connection
		if _, err := storetest.Adjust(t.Context(), s, both); err == nil || errors.Is(err, stint.ErrNotApplied) {
			t.Errorf("adjust: %v; want an error that does not say that nothing was done", err)
		}
	}
	out, err := storetest.Take(t.Context(), s, ask("alice", 1000, 0))
	if err != nil || out[0].Remaining != 970 {
		t.Errorf("%+v, %v; want 970 remaining after three adjustments by 10", out, err)
	}
}
