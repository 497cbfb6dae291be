package layer_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
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
				if a.Limit.Algorithm != stint.FixedWindow || a.Limit.Max < 1 {
					return
				}
				a.Policy = &stint.Policy{Split: parts}
				if a.Cost > 1 && a.Cost > a.Limit.Max/min(int64(parts), a.Limit.Max) && a.Charge == nil {
					t.Skip("a part cannot hold that")
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
	t       *rapid.T
	clock   *storetest.Clock
	base    stint.Store
	nodes   []stint.Store
	parts   []stint.Ask
	limit   stint.Limit
	split   int
	exact   bool // no refund may have been rounded
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

func (w *world) ask(s stint.Store, call func(context.Context, stint.Store, []stint.Ask) ([]stint.Decision, error), asks ...stint.Ask) []stint.Decision {
	ds, err := call(context.Background(), s, asks)
	if err != nil {
		w.t.Fatal(err)
	}
	return ds
}

// remaining returns what remains of all parts, and of the one that has most. All of them have no more than one counter
// would have, and of windows and logs no less.
func (w *world) remaining() (all, most int64) {
	for _, d := range w.ask(w.base, storetest.Take, w.parts...) {
		all, most = all+d.Remaining, max(most, d.Remaining)
	}
	one, least := w.one(), int64(0)
	switch w.limit.Algorithm {
	case stint.FixedWindow, stint.SlidingLog:
		least = one
	case stint.SlidingWindow:
		least = one - int64(len(w.parts)) + 1 // each part rounds up
	default:
	}
	if all > one || w.exact && all < least {
		w.t.Fatalf("%v in %d parts: %d remain of all, and of one counter %d", w.limit, len(w.parts), all, one)
	}
	return all, most
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

// take takes what a part can hold, and sometimes waits for as long as a denial says.
func (w *world) take() {
	most := w.parts[0].Limit.Cap()
	cost := rapid.Int64Range(0, most+1).Draw(w.t, "cost")
	all, before := w.remaining()
	d := w.ask(w.node(), storetest.Take, splitAsk(w.limit, w.split, cost))[0]
	if d.Allowed != (cost <= before) || d.Limit != w.limit.Cap() || d.At != w.clock.Now().UnixMicro() {
		w.t.Fatalf("%d units, of which a part has %d: %+v", cost, before, d)
	}
	if d.Allowed {
		w.charge(d)
		if after, _ := w.remaining(); d.Cost != cost || d.RetryAfter != 0 || after != all-cost {
			w.t.Fatalf("%d of %d units passed, and %d remain: %+v", cost, all, after, d)
		}
		return
	}
	if d.Cost != 0 || d.Remaining != all || d.Remaining > int64(len(w.parts))*(cost-1) || d.RetryAfter <= 0 ||
		(d.RetryAfter == stint.Never) != (cost > most) {
		w.t.Fatalf("denied %d of %d units: %+v", cost, all, d)
	}
	if d.RetryAfter != stint.Never && rapid.Bool().Draw(w.t, "wait") {
		w.clock.Add(d.RetryAfter - time.Microsecond)
		_, early := w.remaining()
		w.clock.Add(time.Microsecond)
		if _, on := w.remaining(); early >= cost || on < cost {
			w.t.Fatalf("a part has %d before the %v of %+v, and %d then; want that it has %d", early, d.RetryAfter, d, on, cost)
		}
	}
}

// refund gives back some or all of an earlier charge, through any node.
func (w *world) refund() {
	if len(w.charges) == 0 {
		return
	}
	c := &w.charges[rapid.IntRange(max(0, len(w.charges)-5), len(w.charges)-1).Draw(w.t, "charge")]
	if c.left == 0 || c.Cost == 0 {
		return
	}
	units := rapid.Int64Range(1, c.left).Draw(w.t, "units")
	w.exact = w.exact && c.Cost == 1
	before, _ := w.remaining()
	a, now := splitAsk(w.limit, w.split, -units), c.Amended(c.left-c.Cost) // a part of it may have been given back
	a.Charge = &now
	w.ask(w.node(), storetest.Adjust, a)
	c.left -= units
	if after, _ := w.remaining(); after < before || after > before+units {
		w.t.Fatalf("%d units came back of a refund of %d", after-before, units)
	}
}

// adjust charges what remains, or some of it, without asking.
func (w *world) adjust() {
	before, _ := w.remaining()
	cost := rapid.Int64Range(0, before).Draw(w.t, "adjust")
	d := w.ask(w.node(), storetest.Adjust, splitAsk(w.limit, w.split, cost))[0]
	if d.Remaining != before-cost || d.Cost != cost || !d.Allowed {
		w.t.Fatalf("%d of %d units charged: %+v", cost, before, d)
	}
	if w.charge(d); d.Counter == 0 && cost > 0 { // several parts have been charged, and who gives that back takes it where something is used
		w.charges[len(w.charges)-1].Cost = 0
	}
}

// TestSplitLimit has several nodes take from one counter, at chosen instants: no more passes than the limit allows, what
// is denied no part could have passed, and what is given back was charged.
func TestSplitLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		w := &world{t: r, clock: storetest.NewClock(), exact: true, split: rapid.IntRange(2, 9).Draw(r, "parts")}
		w.base = memory(t, w.clock.Now)
		w.limit = stint.Limit{
			Algorithm: rapid.SampledFrom([]stint.Algorithm{stint.FixedWindow, stint.SlidingWindow, stint.SlidingLog, stint.TokenBucket}).Draw(r, "algorithm"),
			Max:       rapid.Int64Range(int64(w.split), 40).Draw(r, "max"),
			Window:    stint.Every(rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Second, time.Minute, time.Hour}).Draw(r, "window")),
		}
		if w.limit.Algorithm == stint.TokenBucket {
			w.limit.Burst = rapid.Int64Range(int64(w.split), 60).Draw(r, "burst")
		}
		w.parts = partsOf(t, w.limit, w.split)
		for range rapid.IntRange(1, 3).Draw(r, "nodes") {
			w.nodes = append(w.nodes, must(t)(layer.Split(w.base)))
		}
		for range rapid.IntRange(20, 60).Draw(r, "steps") {
			switch rapid.IntRange(0, 9).Draw(r, "step") {
			case 0:
				w.clock.Add(time.Duration(rapid.Int64Range(0, int64(w.limit.Window.Length())).Draw(r, "pause")))
			case 1:
				w.clock.Add(w.limit.Window.Length() / 20)
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
