package link_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/storetest"
)

// central returns the store of a region that has this one.
func central(t testing.TB, s stint.Store) stint.Store {
	t.Helper()
	_, addr := serve(t, func(o *link.ServerOptions) { o.Central = s })
	return connected(t, open(t, addr, nil)).Store()
}

// TestConformance runs the suite on counters of another region.
func TestConformance(t *testing.T) {
	t.Parallel()
	suite := func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return central(t, memory(t, now))
	}
	storetest.Run(t, suite)
	t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, suite) })
}

// far is a store that does what the test says.
type far struct {
	do     func(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error
	closed atomic.Bool
}

func (f *far) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return f.do(ctx, asks, ds)
}

func (f *far) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return f.do(ctx, asks, ds)
}
func (f *far) Reset(ctx context.Context, asks []stint.Ask) error { return f.do(ctx, asks, nil) }
func (f *far) Close() error                                      { f.closed.Store(true); return nil }

var one = []stint.Ask{{Key: stint.Key{Subject: "alice", Name: "n"}, Limit: stint.PerMinute(10), Cost: 1}}

// take asks for one.
func take(ctx context.Context, s stint.Store) error {
	return s.Take(ctx, one, make([]stint.Decision, 1))
}

// TestFields checks what the far store is asked, and what the caller is told.
func TestFields(t *testing.T) {
	t.Parallel()
	var got []stint.Ask
	decision := stint.Decision{
		Allowed: true, Basis: stint.Leased, Counter: 1 << 31, At: 1_800_000_000_000_000, Cost: 3, Limit: 4, Remaining: 5, Before: 6,
		RetryAfter: stint.Never, ResetAfter: 7, Delay: 8,
	}
	s := central(t, &far{do: func(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
		got = asks
		for i := range ds {
			ds[i] = decision
		}
		return nil
	}})
	penalty, err := stint.ParsePenalty("3/1h cooldown=1m multipliers=1,2,4")
	do(t, err)
	charge := stint.Charge{At: 9, Cost: 10, Reset: 11, Counter: 12, Local: true, ID: "undo", Keep: 13 * time.Microsecond}
	policy := &stint.Policy{OnFailure: stint.FailOpen, Lease: time.Second, Split: 8, Regions: stint.RegionsCentral}
	asks := []stint.Ask{
		{Key: stint.Key{Subject: "a", Name: "b"}, Limit: limit(t, "10/month tz=Europe/Berlin anchor=15"), Cost: 9, Client: "ip:1", Policy: policy},
		{Key: stint.Key{Subject: "a", Name: "c"}, Cost: 1, Penalty: penalty},
	}
	ds := make([]stint.Decision, 2)
	do(t, s.Take(t.Context(), asks, ds))
	if ds[0] != decision || ds[1] != decision {
		t.Errorf("%+v, want %+v", ds, decision)
	}
	if a := got[0]; a.Key != asks[0].Key || a.Limit != asks[0].Limit || a.Cost != 9 || a.Client != "ip:1" || !a.Compiled() ||
		*a.Policy != (stint.Policy{OnFailure: stint.FailError, Split: 8}) || a.Charge != nil || a.Penalty != nil {
		t.Errorf("%+v", a)
	}
	if a := got[1]; a.Key != asks[1].Key || a.Cost != 1 || a.Penalty.String() != penalty.String() {
		t.Errorf("%+v", a)
	}
	asks[0].Cost, asks[0].Charge = -4, &charge
	do(t, s.Adjust(t.Context(), asks[:1], ds[:1]))
	if a := got[0]; a.Cost != -4 || *a.Charge != charge {
		t.Errorf("%+v", a)
	}
	// A reset needs only what names the counter.
	asks[0].Limit.Max, asks[0].Charge = 0, nil
	do(t, s.Reset(t.Context(), asks))
	if len(got) != 2 || got[0].Limit.Window != asks[0].Limit.Window || got[0].Policy.Split != 8 || got[1].Penalty == nil {
		t.Errorf("%+v", got)
	}
	if err := s.Reset(t.Context(), []stint.Ask{{}}); !errors.As(err, new(*stint.InvalidError)) {
		t.Errorf("a reset of nothing: %v", err)
	}
}

// TestErrors has the far store fail.
func TestErrors(t *testing.T) {
	t.Parallel()
	var fail error
	s := central(t, &far{do: func(context.Context, []stint.Ask, []stint.Decision) error { return fail }})
	for name, c := range map[string]struct {
		err                     error
		unavailable, notApplied bool
	}{
		"unavailable": {err: fmt.Errorf("%w: redis", stint.ErrUnavailable), unavailable: true},
		"not applied": {err: fmt.Errorf("%w: redis; %w", stint.ErrUnavailable, stint.ErrNotApplied), unavailable: true, notApplied: true},
		"closed":      {err: stint.ErrClosed, unavailable: true, notApplied: true},
		"broken":      {err: errors.New("redis: no script \xff")},
		"long":        {err: errors.New("redis: " + strings.Repeat("x", 5<<20))},
	} {
		fail = c.err
		err := take(t.Context(), s)
		if err == nil || errors.Is(err, stint.ErrUnavailable) != c.unavailable || errors.Is(err, stint.ErrNotApplied) != c.notApplied {
			t.Errorf("%s: %v", name, err)
		}
		if len(c.err.Error()) < 100 && !strings.Contains(err.Error(), c.err.Error()) || len(err.Error()) > 2000 {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
	fail = fmt.Errorf("deep: %w", &stint.InvalidError{Field: "max", Value: "0", Want: "more"})
	invalid := new(stint.InvalidError)
	if err := take(t.Context(), s); !errors.As(err, &invalid) || *invalid != (stint.InvalidError{Field: "max", Value: "0", Want: "more"}) {
		t.Errorf("%v, want an InvalidError", err)
	}
	fail = nil
	many := make([]stint.Ask, link.MaxAsks+1)
	for i := range many {
		many[i] = one[0]
	}
	long := one[0]
	long.Key.Subject = strings.Repeat("x", link.MaxMessage)
	for _, asks := range [][]stint.Ask{many, {long}} {
		if err := s.Take(t.Context(), asks, make([]stint.Decision, len(asks))); !errors.As(err, &invalid) || invalid.Field != "asks" {
			t.Errorf("%d asks: %v, want an InvalidError", len(asks), err)
		}
	}
	do(t, s.Take(t.Context(), many[1:], make([]stint.Decision, link.MaxAsks)))
}

// TestNotCentral asks a region that has no central counters.
func TestNotCentral(t *testing.T) {
	t.Parallel()
	err := take(t.Context(), central(t, nil))
	if !errors.Is(err, stint.ErrNotApplied) || !errors.Is(err, stint.ErrUnavailable) || !strings.Contains(err.Error(), "region us: this is not the central region") {
		t.Error(err)
	}
}

// TestDown asks a region that was never reached.
func TestDown(t *testing.T) {
	t.Parallel()
	l := open(t, "127.0.0.1:1", nil)
	if err := take(t.Context(), l.Store()); !errors.Is(err, stint.ErrNotApplied) || !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, link.ErrDown) {
		t.Error(err)
	}
	if err := l.Send(batch(1)); !errors.Is(err, link.ErrDown) {
		t.Error(err)
	}
	if s := l.State(); s.Up || s.Why == nil || s.Since.IsZero() || s.Region != "us" {
		t.Errorf("%+v", s)
	}
}

// TestManyCalls makes more calls than may be in flight.
func TestManyCalls(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	_, addr := serve(t, func(o *link.ServerOptions) {
		o.Central = &far{do: func(context.Context, []stint.Ask, []stint.Decision) error { <-release; return nil }}
	})
	l := connected(t, open(t, addr, nil))
	s := l.Store()
	answers := make(chan error, link.MaxCalls)
	for range link.MaxCalls {
		go func() { answers <- take(t.Context(), s) }()
	}
	wait.For(t, "all are in flight", func() bool { return l.State().Calls == link.MaxCalls })
	if err := take(t.Context(), s); !errors.Is(err, stint.ErrNotApplied) || !strings.Contains(err.Error(), "too many calls") {
		t.Error(err)
	}
	close(release)
	for range link.MaxCalls {
		do(t, <-answers)
	}
	do(t, take(t.Context(), s))
	if s := l.State(); s.Calls != 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// BenchmarkStore measures calls over a connection of this machine.
func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return central(t, memory(t, now))
	})
}
