package layer_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// TestSplitStore runs the suite with split fixed windows, whose decisions are those of one counter as long as there is
// one caller, nothing is charged beyond the limit, and neither the limit nor the clock is set back. Traces do all of that,
// and "one key" and "linearizable" have several callers who compare what remains.
func TestSplitStore(t *testing.T) {
	t.Parallel()
	open := func(base storetest.Open, wrap func(testing.TB, stint.Store, func() time.Time) (stint.Store, error), parts int) storetest.Open {
		return func(t testing.TB, now func() time.Time) stint.Store {
			t.Helper()
			return storetest.Rewrite(must(t)(wrap(t, base(t, now), now)), func(a *stint.Ask) {
				if a.Limit.Algorithm == stint.FixedWindow {
					a.Policy = &stint.Policy{Split: parts}
				}
			})
		}
	}
	alone := func(_ testing.TB, s stint.Store, _ func() time.Time) (stint.Store, error) { return layer.Split(s) }
	stack := func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
		t.Helper()
		return layer.New(s, patient(t, now))
	}
	shared := func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return redis(t, testredis.Shared(t).URL()+"?timeout=30s&dial_timeout=30s", now)
	}
	for name, open := range map[string]storetest.Open{
		"2": open(memory, alone, 2), "3": open(memory, alone, 3), "8": open(memory, alone, 8), "64": open(memory, alone, 64),
		"redis": open(shared, alone, 8), "stack": open(memory, stack, 8),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			except := []string{
				"one key", "traces", "linearizable",
				"script fixed_window-backwards-time.txt", "script fixed_window-changed-limit.txt", "script fixed_window-amend.txt",
			}
			if name != "8" {
				except = append(except, "many asks")
			}
			storetest.RunExcept(t, open, except...)
		})
	}
}

func splitAsk(limit stint.Limit, parts int, cost int64) stint.Ask {
	return stint.Ask{Key: stint.Key{Subject: "everyone", Name: "api"}, Limit: limit, Cost: cost, Policy: &stint.Policy{Split: parts}}
}

// world is a store with several nodes, each of which splits, and what was charged.
type world struct {
	t     *rapid.T
	clock *storetest.Clock
	base  stint.Store
	nodes []stint.Store
	limit stint.Limit
	parts int
	// exact says that no refund may have been rounded, so that a fixed_window and a sliding_log have what one counter has.
	exact   bool
	charges []charged
}

// charged is a charge, and what is left of it after refunds.
type charged struct {
	stint.Charge
	at   time.Time
	left int64
}

// one returns what would remain had one counter been charged what is left of all charges, when they were made.
func (w *world) one() int64 {
	var s stint.State
	for _, c := range w.charges {
		if c.left > 0 {
			s, _ = w.limit.Adjust(s, c.at, c.left)
		}
	}
	_, d := w.limit.Take(s, w.clock.Now(), 0)
	return d.Remaining
}

// remaining returns what remains by a node that has heard nothing before. That is no more than of one counter, and of
// windows and logs no less.
func (w *world) remaining() int64 {
	fresh, err := layer.Split(w.base)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := storetest.Take(context.Background(), fresh, []stint.Ask{splitAsk(w.limit, w.parts, 0)})
	if err != nil || got[0].Limit != w.limit.Cap() {
		w.t.Fatalf("%+v, %v", got, err)
	}
	split, one, least := got[0].Remaining, w.one(), int64(0)
	switch w.limit.Algorithm {
	case stint.FixedWindow, stint.SlidingLog:
		least = one
	case stint.SlidingWindow:
		least = one - int64(w.parts) + 1 // each part rounds up
	default:
	}
	if split > one || w.exact && split < least {
		w.t.Fatalf("%v in %d parts: %d remain of all, and of one counter %d", w.limit, w.parts, split, one)
	}
	return split
}

// charge notes what was charged.
func (w *world) charge(d stint.Decision) {
	if c := d.Charge(); c.Cost > 0 {
		w.charges = append(w.charges, charged{c, w.clock.Now(), c.Cost})
	}
}

func (w *world) node() stint.Store {
	return w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")]
}

func (w *world) take() {
	before := w.remaining()
	cost := rapid.Int64Range(1, 3).Draw(w.t, "cost")
	if rapid.IntRange(0, 3).Draw(w.t, "large") == 0 {
		cost = rapid.Int64Range(0, w.limit.Cap()+1).Draw(w.t, "cost")
	}
	ask := []stint.Ask{splitAsk(w.limit, w.parts, cost)}
	got, err := storetest.Take(context.Background(), w.node(), ask)
	if err != nil {
		w.t.Fatal(err)
	}
	d := got[0]
	if d.Allowed != (cost <= before) || d.Limit != w.limit.Cap() || d.At != w.clock.Now().UnixMicro() {
		w.t.Fatalf("%d units, of which %d remain: %+v", cost, before, d)
	}
	if !d.Allowed {
		w.denied(cost, before, d)
		return
	}
	w.charge(d)
	if after := w.remaining(); d.Cost != cost || d.RetryAfter != 0 || after != before-cost {
		w.t.Fatalf("%d of %d units passed, and %d remain: %+v", cost, before, after, d)
	}
}

// denied checks a denial, and sometimes waits as long as it says.
func (w *world) denied(cost, before int64, d stint.Decision) {
	if d.Cost != 0 || d.Remaining != before {
		w.t.Fatalf("denied %d of %d units: %+v", cost, before, d)
	}
	if never := cost > w.limit.Cap(); never || d.RetryAfter == stint.Never || d.RetryAfter <= 0 {
		if !never || d.RetryAfter != stint.Never {
			w.t.Fatalf("denied %d units: %+v", cost, d)
		}
		return
	}
	if rapid.Bool().Draw(w.t, "wait") {
		w.clock.Add(d.RetryAfter - time.Microsecond)
		if early := w.remaining(); early >= cost {
			w.t.Fatalf("%d units would pass before the %v of %+v", cost, d.RetryAfter, d)
		}
		w.clock.Add(time.Microsecond)
		if on := w.remaining(); cost == 1 && on < 1 {
			w.t.Fatalf("nothing remains after the %v of %+v", d.RetryAfter, d)
		}
	}
}

// refund gives back some or all of an earlier charge, through any node.
func (w *world) refund() {
	if len(w.charges) == 0 {
		return
	}
	c := &w.charges[rapid.IntRange(max(0, len(w.charges)-5), len(w.charges)-1).Draw(w.t, "charge")]
	if c.left == 0 {
		return
	}
	units := rapid.Int64Range(1, c.left).Draw(w.t, "units")
	if c.Cost > 1 {
		w.exact = false
	}
	before := w.remaining()
	ask := splitAsk(w.limit, w.parts, -units)
	now := c.Amended(c.left - c.Cost) // a part of it may have been given back
	ask.Charge = &now
	got, err := storetest.Adjust(context.Background(), w.node(), []stint.Ask{ask})
	if err != nil || got[0].Cost != 0 {
		w.t.Fatalf("refund of %v: %+v, %v", now, got, err)
	}
	c.left -= units
	if after := w.remaining(); after < before || after > before+units {
		w.t.Fatalf("%d units came back of a refund of %d", after-before, units)
	}
}

// adjust charges what remains, or a part of it, without asking.
func (w *world) adjust() {
	before := w.remaining()
	ask := []stint.Ask{splitAsk(w.limit, w.parts, rapid.Int64Range(0, before).Draw(w.t, "adjust"))}
	got, err := storetest.Adjust(context.Background(), w.node(), ask)
	if err != nil || got[0].Remaining != before-ask[0].Cost || got[0].Cost != ask[0].Cost || !got[0].Allowed {
		w.t.Fatalf("%d of %d units charged: %+v, %v", ask[0].Cost, before, got, err)
	}
	w.charge(got[0])
}

// TestSplitLimit has several nodes take from one counter, at chosen instants: no more passes than the limit allows, what
// is denied could not have passed, and what is given back was charged.
func TestSplitLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := storetest.NewClock()
		base, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, clock: clock, base: base, exact: true}
		w.parts = rapid.IntRange(2, 9).Draw(t, "parts")
		w.limit = stint.Limit{
			Algorithm: rapid.SampledFrom([]stint.Algorithm{stint.FixedWindow, stint.SlidingWindow, stint.SlidingLog, stint.TokenBucket}).Draw(t, "algorithm"),
			Max:       rapid.Int64Range(int64(w.parts), 40).Draw(t, "max"),
			Window:    stint.Every(rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Second, time.Minute, time.Hour}).Draw(t, "window")),
		}
		if w.limit.Algorithm == stint.TokenBucket {
			w.limit.Burst = rapid.Int64Range(int64(w.parts), 60).Draw(t, "burst")
		}
		for range rapid.IntRange(1, 3).Draw(t, "nodes") {
			n, err := layer.Split(base)
			if err != nil {
				t.Fatal(err)
			}
			w.nodes = append(w.nodes, n)
		}
		for range rapid.IntRange(20, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				clock.Add(time.Duration(rapid.Int64Range(0, int64(w.limit.Window.Length())).Draw(t, "pause")))
			case 1:
				clock.Add(w.limit.Window.Length() / 20)
			case 2, 3:
				w.refund()
			case 4:
				w.adjust()
			default:
				w.take()
			}
		}
	})
}

// skewed is a store whose servers, one for each subject, have clocks that differ.
type skewed struct {
	stint.Store
	ahead map[string]int64 // microseconds
}

func (s skewed) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := s.Store.Take(ctx, asks, ds)
	for i := range ds {
		ds[i].At += s.ahead[asks[i].Key.Subject]
	}
	return err
}

func (s skewed) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	asks = slices.Clone(asks)
	for i := range asks {
		if c := asks[i].Charge; c != nil {
			at := *c
			at.At -= s.ahead[asks[i].Key.Subject]
			asks[i].Charge = &at
		}
	}
	err := s.Store.Adjust(ctx, asks, ds)
	for i := range ds {
		ds[i].At += s.ahead[asks[i].Key.Subject]
	}
	return err
}

// TestSplitClocks gives back what was gathered from servers with different clocks: what one has charged is not in the
// future of another.
func TestSplitClocks(t *testing.T) {
	t.Parallel()
	const much = 60_000_000
	parts := partsOf(t, parse(t, "40/7d"), 4)
	now := storetest.NewClock()
	now.Add(time.Hour) // windows of seven days begin when it does
	base := skewed{memory(t, now.Now), map[string]int64{parts[1].Key.Subject: much, parts[2].Key.Subject: -much}}
	for _, algorithm := range []stint.Algorithm{stint.FixedWindow, stint.SlidingWindow, stint.TokenBucket} {
		limit := stint.Limit{Algorithm: algorithm, Max: 40, Window: stint.Every(24 * time.Hour)}
		if algorithm != stint.TokenBucket {
			limit.Window = parse(t, "1/7d").Window
		}
		for _, cost := range []int64{40, 12, 7} {
			one, other := must(t)(layer.Split(base)), must(t)(layer.Split(base))
			ds, err := storetest.Take(t.Context(), one, []stint.Ask{splitAsk(limit, 4, cost)})
			if err != nil || !ds[0].Allowed {
				t.Fatalf("%v: %+v, %v", algorithm, ds, err)
			}
			charge, want := ds[0].Charge(), int64(40)
			back := splitAsk(limit, 4, -cost)
			back.Charge = &charge
			ds, err = storetest.Adjust(t.Context(), other, []stint.Ask{back})
			if algorithm == stint.TokenBucket {
				want-- // a minute is a unit that may have drained
			}
			if err != nil || ds[0].Remaining < want {
				t.Errorf("%v, %d units given back: %+v, %v; want %d that remain", algorithm, cost, ds, err, want)
			}
			if err := one.Reset(t.Context(), []stint.Ask{back}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
