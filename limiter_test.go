package stint_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

func newLimiter(t testing.TB, limit string) *stint.Limiter {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := stint.New(store, stint.Options{Limit: parse(t, limit)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newLimiter(t, "5/1h")
	check := func(what string, d stint.Decision, err error, allowed bool, remaining int64) {
		t.Helper()
		if err != nil || d.Allowed != allowed || d.Remaining != remaining {
			t.Errorf("%s: %+v, %v; want allowed %v, remaining %d", what, d, err, allowed, remaining)
		}
	}
	d, err := l.Take(ctx, "alice")
	check("take", d, err, true, 4)
	charged, err := l.TakeN(ctx, "alice", 3)
	check("take 3", charged, err, true, 1)
	d, err = l.TakeN(ctx, "alice", 2)
	check("take 2", d, err, false, 1)
	d, err = l.Peek(ctx, "alice")
	check("peek", d, err, true, 1)
	if used, err := l.Usage(ctx, "alice"); used != 4 || err != nil {
		t.Errorf("usage: %d, %v; want 4", used, err)
	}
	d, err = l.Amend(ctx, "alice", charged.Charge(), -2)
	check("amend", d, err, true, 3)
	d, err = l.Refund(ctx, "alice", stint.Decision{})
	check("refund of nothing", d, err, true, 3)
	d, err = l.Take(ctx, "bob")
	check("bob", d, err, true, 4)
	if err := l.Reset(ctx, "alice"); err != nil {
		t.Error(err)
	}
	d, err = l.Peek(ctx, "alice")
	check("peek after reset", d, err, true, 5)
}

// TestLimiterEmbedded checks that a store is asked by its own Take, also if it has by embedding
// what a limiter would rather use.
func TestLimiterEmbedded(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own := &counting{Store: store}
	l, err := stint.New(own, stint.Options{Limit: parse(t, "5/1h")})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if d, err := l.Take(t.Context(), "alice"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if own.takes != 3 {
		t.Errorf("asked %d times; want 3", own.takes)
	}
}

type counting struct {
	*memstore.Store
	takes int
}

func (c *counting) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	c.takes++
	return c.Store.Take(ctx, asks, ds)
}

// TestLimiterNames checks that two limiters over one store do not meet, and
// that two of the same name do.
func TestLimiterNames(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	remaining := func(name string) int64 {
		l, err := stint.New(store, stint.Options{Limit: stint.PerHour(10), Name: name})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Take(t.Context(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	for i, c := range []struct {
		name string
		want int64
	}{{"", 9}, {"default", 8}, {"search", 9}, {"search", 8}} {
		if got := remaining(c.name); got != c.want {
			t.Errorf("%d: %q has %d left, want %d", i, c.name, got, c.want)
		}
	}
}

func TestLimiterBadInput(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for field, make := range map[string]func() (*stint.Limiter, error){
		"store":  func() (*stint.Limiter, error) { return stint.New(nil, stint.Options{Limit: stint.PerSecond(1)}) },
		"max":    func() (*stint.Limiter, error) { return stint.New(store, stint.Options{Limit: stint.PerSecond(0)}) },
		"window": func() (*stint.Limiter, error) { return stint.New(store, stint.Options{Limit: stint.Limit{Max: 1}}) },
		"name": func() (*stint.Limiter, error) {
			return stint.New(store, stint.Options{Limit: stint.PerSecond(1), Name: "\xff"})
		},
	} {
		var invalid *stint.InvalidError
		if _, err := make(); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}

	ctx := t.Context()
	l, err := stint.New(store, stint.Options{Limit: stint.PerSecond(1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"", "\xff", strings.Repeat("x", 10<<20)} {
		_, take := l.Take(ctx, subject)
		_, peek := l.Peek(ctx, subject)
		_, usage := l.Usage(ctx, subject)
		_, refund := l.Refund(ctx, subject, stint.Decision{At: 1, Cost: 1})
		for verb, err := range map[string]error{
			"take": take, "peek": peek, "usage": usage, "refund": refund,
			"wait": l.Wait(ctx, subject), "reset": l.Reset(ctx, subject),
		} {
			var invalid *stint.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "subject" {
				t.Errorf("%s of %.20q: %v", verb, subject, err)
			}
		}
	}
	if _, err := l.TakeN(ctx, "alice", -1); err == nil || !strings.Contains(err.Error(), "Refund") {
		t.Errorf("a negative take: %v", err)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "2/1s token_bucket")
		start := time.Now()
		for i, ms := range []int{0, 0, 500, 1000, 1500} {
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != time.Duration(ms)*time.Millisecond {
				t.Errorf("wait %d ended after %v, want %d ms", i, got, ms)
			}
		}
	})
}

// TestWaitDeadline checks that Wait gives up at once when waiting is in vain,
// and has charged nothing.
func TestWaitDeadline(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"1/1h fixed_window", "1/1h burst=1 leaky_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, limit)
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
			before, err := l.Usage(t.Context(), "alice")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := l.Wait(ctx, "alice"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
				t.Errorf("%s: %v after %v; want DeadlineExceeded at once", limit, err, time.Since(start))
			}
			if after, err := l.Usage(t.Context(), "alice"); after != before || err != nil {
				t.Errorf("%s: usage went from %d to %d, %v", limit, before, after, err)
			}
		})
	}
}

// TestWaitCancel ends the context while Wait waits, for an allowance and for a
// slot.
func TestWaitCancel(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"1/1h token_bucket", "1/1h burst=5 leaky_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, limit)
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, cancel)
			start := time.Now()
			if err := l.Wait(ctx, "alice"); !errors.Is(err, context.Canceled) || time.Since(start) != time.Minute {
				t.Errorf("%s: %v after %v; want Canceled after a minute", limit, err, time.Since(start))
			}
			if used, err := l.Usage(t.Context(), "alice"); used != 1 || err != nil {
				t.Errorf("%s: %d used, %v; the wait that was broken off should have cost nothing", limit, used, err)
			}
			if err := l.Wait(ctx, "bob"); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: with an ended context: %v", limit, err)
			}
		})
	}
}

// TestWaitSpacing has many wait at once: a leaky bucket lets them go one slot
// at a time.
func TestWaitSpacing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "10/1s burst=100 leaky_bucket")
		start := time.Now()
		var mu sync.Mutex
		went := map[time.Duration]int{}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := l.Wait(t.Context(), "alice"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				went[time.Since(start)]++
				mu.Unlock()
			})
		}
		wg.Wait()
		for i := range 20 {
			if at := time.Duration(i) * 100 * time.Millisecond; went[at] != 1 {
				t.Errorf("%d went at %v, want 1", went[at], at)
			}
		}
	})
}

// broken denies without a reason to wait.
type broken struct{ stint.Store }

func (broken) Take(context.Context, []stint.Ask, []stint.Decision) error {
	return nil
}

// TestWaitNeverBusy checks that not even a broken store makes Wait spin.
func TestWaitNeverBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := stint.New(broken{}, stint.Options{Limit: stint.PerSecond(1)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Wait(ctx, "alice"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err) // it would not come back at all, in a bubble, if it spun
		}
	})
}
