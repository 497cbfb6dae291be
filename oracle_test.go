package stint_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// The oracle answers from the definitions of the algorithms, with rational
// numbers and a list of everything that was ever admitted, knowing nothing of states, ticks
// or parts of units.
type oracle struct {
	limit  stint.Limit
	events []event
}

type event struct{ at, units int64 }

// allows reports whether the cost may pass at that time.
func (o *oracle) allows(at, cost int64) bool {
	var (
		w    = o.limit.Window.Length().Microseconds()
		zero = new(big.Rat)
		sum  = func(from, to int64) int64 { // of events in [from, to)
			var n int64
			for _, e := range o.events {
				if from <= e.at && e.at < to {
					n += e.units
				}
			}
			return n
		}
		rate = big.NewRat(o.limit.Max, w)
	)
	switch o.limit.Algorithm {
	case stint.FixedWindow:
		return sum(at-at%w, at+1)+cost <= o.limit.Max
	case stint.SlidingLog:
		return sum(at-w+1, at+1)+cost <= o.limit.Max
	case stint.Concurrency: // a hold at the instant of another is a little later
		return sum(at-w+1, math.MaxInt64)+cost <= o.limit.Max
	case stint.SlidingWindow:
		start := at - at%w
		carried := new(big.Rat).Mul(big.NewRat(sum(start-w, start), 1), big.NewRat(w-(at-start), w))
		used := carried.Add(carried, big.NewRat(sum(start, at+1)+cost, 1))
		return used.Cmp(big.NewRat(o.limit.Max, 1)) <= 0
	default: // a bucket: what is used drains at the rate, never below nothing
		used, last := new(big.Rat), int64(0)
		drain := func(to int64) {
			used.Sub(used, new(big.Rat).Mul(rate, big.NewRat(to-last, 1)))
			if used.Cmp(zero) < 0 {
				used.Set(zero)
			}
			last = to
		}
		for _, e := range o.events {
			drain(e.at)
			used.Add(used, big.NewRat(e.units, 1))
		}
		drain(at)
		capacity := o.limit.Burst + 1
		if o.limit.Algorithm == stint.TokenBucket {
			capacity = max(o.limit.Burst, o.limit.Max)
			if o.limit.Burst > 0 {
				capacity = o.limit.Burst
			}
		}
		return used.Add(used, big.NewRat(cost, 1)).Cmp(big.NewRat(capacity, 1)) <= 0
	}
}

// TestOracle compares whole histories with the definitions. At a tick of one
// microsecond the answers are the same; at a coarser one nothing passes that
// the definitions would not let pass.
func TestOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := stint.Limit{
			Algorithm: rapid.SampledFrom(stint.Algorithms()).Draw(t, "algorithm"),
			Max:       rapid.Int64Range(1, 20).Draw(t, "max"),
			Window:    stint.Every(time.Duration(rapid.Int64Range(1, 100).Draw(t, "window")) * time.Microsecond),
		}
		if l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
			l.Burst = rapid.Int64Range(0, 30).Draw(t, "burst")
		}
		if rapid.Bool().Draw(t, "coarse") && l.Algorithm != stint.SlidingLog && l.Algorithm != stint.Concurrency {
			// At a hundred ticks to the window, this many units need a coarser one.
			l.Max = rapid.Int64Range(1<<45, 1<<46).Draw(t, "large")
			l.Window = stint.Every(time.Duration(rapid.Int64Range(1000, 2000).Draw(t, "ms")) * time.Millisecond)
			if l.Algorithm == stint.SlidingWindow {
				// A window that no tick divides is held at the next that it does,
				// and its edges lie elsewhere.
				l.Window = stint.Every(l.Window.Length().Truncate(time.Second))
			}
			if l.Algorithm == stint.LeakyBucket {
				l.Burst = rapid.Int64Range(0, l.Max).Draw(t, "queue")
			} else {
				l.Burst = 0
			}
		}
		if l.Validate() != nil { // fits at no tick
			l.Max, l.Burst = 7, 0
		}
		exact := l.Tick() == time.Microsecond
		span := l.Window.Length().Microseconds()
		o := oracle{limit: l}
		var s stint.State
		now := int64(1_800_000_000_000_000)
		for range 60 {
			now += rapid.Int64Range(0, 2+span/3).Draw(t, "step")
			cost := rapid.Int64Range(1, 1+max(l.Max, l.Burst)/3).Draw(t, "cost")
			next, d := l.Take(s, time.UnixMicro(now), cost)
			want := o.allows(now, cost)
			if d.Allowed && !want || exact && want && !d.Allowed {
				t.Fatalf("%v at %d, cost %d, after %v: got %v, want %v", l, now, cost, o.events, d.Allowed, want)
			}
			if s = next; d.Allowed {
				o.events = append(o.events, event{d.At, cost})
			}
		}
	})
}

// TestCoarseIsNeverEarly asks buckets with coarse ticks at instants between the ticks, where they are
// nearly full: nothing passes before the definitions let it pass.
func TestCoarseIsNeverEarly(t *testing.T) {
	t.Parallel()
	limits := []stint.Limit{parse(t, "1234567/1d token_bucket"), parse(t, "10000019/1h token_bucket"), parse(t, "1234567/1d burst=100 leaky_bucket")}
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(limits).Draw(t, "limit")
		o := oracle{limit: l}
		var s stint.State
		now := int64(1_790_000_000_000_000)
		for range 30 {
			_, d := l.Take(s, time.UnixMicro(now), 0)
			cost := rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(max(d.Remaining-2, 1), d.Remaining+2)).Draw(t, "cost")
			next, d := l.Take(s, time.UnixMicro(now), cost)
			if d.Allowed && !o.allows(now, cost) {
				t.Fatalf("%v at %d, cost %d, after %v: passes early", l, now, cost, o.events)
			}
			if s = next; d.Allowed {
				o.events = append(o.events, event{now, cost})
				now += max(0, rapid.SampledFrom([]int64{0, d.ResetAfter.Microseconds()}).Draw(t, "step")+rapid.Int64Range(-150, 150).Draw(t, "near"))
			} else if d.RetryAfter != stint.Never {
				now += max(0, d.RetryAfter.Microseconds()-rapid.Int64Range(0, 200).Draw(t, "before"))
			}
		}
	})
}

// drawLimit draws a limit of one of these algorithms.
func drawLimit(t *rapid.T, of ...stint.Algorithm) stint.Limit {
	l := stint.Limit{
		Algorithm: rapid.SampledFrom(of).Draw(t, "algorithm"),
		Max:       rapid.SampledFrom([]int64{1, 2, 3, 7, 10, 60, 1000, 9999}).Draw(t, "max"),
		Window: stint.Every(rapid.SampledFrom([]time.Duration{
			time.Microsecond, 2 * time.Microsecond, 3 * time.Microsecond, time.Millisecond, time.Second, 2 * time.Second,
			333_333 * time.Microsecond, time.Minute, 24 * time.Hour,
		}).Draw(t, "window")),
	}
	if l.Algorithm != stint.SlidingLog && l.Algorithm != stint.Concurrency && rapid.Bool().Draw(t, "coarse") {
		l.Max = rapid.SampledFrom([]int64{1_234_567, 10_000_019, 1 << 41}).Draw(t, "large")
	}
	switch l.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		l.Burst = rapid.Int64Range(0, 2*l.Max).Draw(t, "burst")
	case stint.FixedWindow:
		w, err := stint.ParseWindow(rapid.SampledFrom([]string{
			l.Window.String(), "day", "month tz=Europe/Berlin anchor=31", "year anchor=02-29", "week tz=Africa/Cairo",
		}).Draw(t, "calendar"))
		if err != nil {
			t.Fatal(err)
		}
		l.Window = w
	default:
	}
	if l.Validate() != nil { // fits at no tick
		l.Max, l.Burst = 7, 0
	}
	return l
}

// resize draws another max and burst for the limit: its counters stay.
func resize(t *rapid.T, l stint.Limit) stint.Limit {
	other := drawLimit(t, l.Algorithm)
	other.Window = l.Window
	if other.Validate() != nil { // fits at no tick
		return l
	}
	return other
}

// drawState draws a limit and a state that it can have reached, and the time.
func drawState(t *rapid.T, of ...stint.Algorithm) (stint.Limit, stint.State, time.Time) {
	l := drawLimit(t, of...)
	var s stint.State
	span := max(l.Window.Length(), time.Microsecond)
	now := time.UnixMicro(1_800_000_000_000_000 + rapid.Int64Range(0, 1<<40).Draw(t, "now"))
	for range rapid.IntRange(0, 20).Draw(t, "before") {
		step := time.Duration(rapid.Int64Range(-int64(span)/20, int64(span)/3).Draw(t, "step"))
		now = now.Add(step.Truncate(time.Microsecond))
		cost := rapid.Int64Range(0, max(l.Max, l.Burst)/2+1).Draw(t, "cost")
		switch rapid.IntRange(0, 9).Draw(t, "verb") {
		case 0:
			s, _ = l.Adjust(s, now, -cost)
		case 1:
			s, _ = l.Adjust(s, now, cost)
		default:
			s, _ = l.Take(s, now, cost)
		}
	}
	return l, s, now
}

// plan compiles a limit that is valid.
func plan(l stint.Limit) *stint.Plan {
	p, err := l.Compile()
	if err != nil {
		panic(err)
	}
	return p
}

// TestPlan holds what stores call to the pure function.
func TestPlan(t *testing.T) {
	t.Parallel()
	for _, a := range stint.Algorithms() {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) { testPlan(t, a) }))
	}
}

func testPlan(t *rapid.T, a stint.Algorithm) {
	l, s, now := drawState(t, a)
	if rapid.Bool().Draw(t, "change") {
		l = resize(t, l)
	}
	for range 10 {
		step := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(-1000, 1_000_000)).Draw(t, "step")
		now = now.Add(time.Duration(step) * time.Microsecond)
		_, standing := l.Take(s, now, 0)
		cost := rapid.OneOf(
			rapid.Int64Range(-1, 3),
			rapid.Int64Range(max(standing.Remaining-1, 0), standing.Remaining+1),
		).Draw(t, "cost")
		next, want := l.Take(s, now, cost)
		got, c := stint.Decision{}, s.Counter
		if !plan(l).TakeLog(&c, s.Log, now.UnixMicro(), cost, &got) {
			next, want := plan(l).TakeState(s, now.UnixMicro(), cost)
			got, c = want, next.Counter
		}
		if got != want || c != next.Counter {
			t.Fatalf("%v, %+v at %d, cost %d:\n got %+v, %+v,\nwant %+v, %+v", l, s, now.UnixMicro(), cost, got, c, want, next.Counter)
		}
		s = next
	}
}

// TestPlanTimes has stores tell times that are none: they are moved to the nearest that is one.
func TestPlanTimes(t *testing.T) {
	t.Parallel()
	end := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	for _, a := range stint.Algorithms() {
		l := stint.Limit{Algorithm: a, Max: 3, Window: stint.Every(time.Hour)}
		for _, start := range []int64{0, end - 1} {
			s, _ := l.Take(stint.State{}, time.UnixMicro(start), 1)
			for _, now := range []int64{-1 << 62, -1, 0, 1, end, end + 1, 1 << 62} {
				next, want := l.Take(s, time.UnixMicro(now), 1)
				got, c := stint.Decision{}, s.Counter
				if !plan(l).TakeLog(&c, s.Log, now, 1, &got) {
					continue // it must be moved first
				}
				if got != want || c != next.Counter {
					t.Errorf("%v, %+v at %d:\n got %+v, %+v,\nwant %+v, %+v", l, s, now, got, c, want, next.Counter)
				}
			}
		}
	}
}

// TestPlanOverflow has a bucket's rate rise so much that what a microsecond gives back is beyond 64 bits.
func TestPlanOverflow(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	slow := stint.Limit{Algorithm: stint.TokenBucket, Max: 1, Burst: 1 << 52, Window: stint.Every(time.Microsecond)}
	fast := stint.Limit{Algorithm: stint.TokenBucket, Max: 8889172475252099, Burst: 1, Window: stint.Every(time.Microsecond)}
	s, d := slow.Take(stint.State{}, now, 11720669110482)
	if !d.Allowed {
		t.Fatal(d)
	}
	now = now.Add(time.Microsecond)
	_, want := fast.Take(s, now, 1)
	var got stint.Decision
	plan(fast).Take(&s.Counter, now.UnixMicro(), 1, &got)
	if want.RetryAfter != time.Microsecond || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestDecisionIsExact checks each word of a decision against what Take answers
// when it is put to the test.
func TestDecisionIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, s, now := drawState(t, stint.Algorithms()...)
		changed := rapid.Bool().Draw(t, "change")
		if changed {
			l = resize(t, l)
		}
		_, standing := l.Take(s, now, 0)
		cost := rapid.OneOf(
			rapid.Int64Range(0, standing.Limit+1),
			rapid.Int64Range(max(standing.Remaining-1, 0), standing.Remaining+1),
		).Draw(t, "cost")
		next, d := l.Take(s, now, cost)
		about := fmt.Sprintf("%v, %+v at %d, cost %d: %+v", l, s, now.UnixMicro(), cost, d)

		passes := func(s stint.State, at time.Time, cost int64) bool {
			_, d := l.Take(s, at, cost)
			return d.Allowed
		}
		if d.Allowed != (d.RetryAfter == 0) {
			t.Fatalf("%s: RetryAfter goes with a denial", about)
		}
		if (cost > d.Limit) != (d.RetryAfter == stint.Never) {
			t.Fatalf("%s: never means above capacity", about)
		}
		if now.Add(d.ResetAfter).Year() >= 2200 {
			return // where time ends
		}
		if d.RetryAfter > 0 && d.RetryAfter != stint.Never {
			if !passes(next, now.Add(d.RetryAfter), cost) {
				t.Fatalf("%s: does not pass after RetryAfter", about)
			}
			if passes(next, now.Add(d.RetryAfter-time.Microsecond), cost) {
				t.Fatalf("%s: passes a microsecond before RetryAfter", about)
			}
		}
		if passes(next, now, d.Remaining+1) || (d.Remaining > 0 && !passes(next, now, d.Remaining)) {
			t.Fatalf("%s: Remaining is not the largest cost that passes", about)
		}
		full := func(after time.Duration) bool {
			_, d := l.Take(next, now.Add(after), 0)
			return d.Remaining == d.Limit && d.ResetAfter == 0
		}
		if !full(d.ResetAfter) || (d.ResetAfter > 0 && full(d.ResetAfter-time.Microsecond)) {
			t.Fatalf("%s: ResetAfter is not when the full allowance is back", about)
		}
		at := now.Add(d.ResetAfter)
		a, da := l.Take(next, at, 1)
		b, db := l.Take(stint.State{}, at, 1)
		if db.At = da.At; da != db || (a.Counter != b.Counter && l.Algorithm != stint.Concurrency) {
			t.Fatalf("%s: a recovered state differs from none: %+v, %+v", about, da, db)
		}
		if !changed && max(next.Until, now.UnixMicro()) != at.UnixMicro() {
			t.Fatalf("%s: %+v does not recover at ResetAfter", about, next)
		}
		if (d.Delay > 0) && l.Algorithm != stint.LeakyBucket {
			t.Fatalf("%s: a delay", about)
		}
		if !d.Allowed || cost == 0 {
			// Unless it had to be moved, and then it was moved once.
			again, _ := l.Take(next, now, cost)
			if fmt.Sprint(again) != fmt.Sprint(next) || (!changed && s.At <= now.UnixMicro() && fmt.Sprint(next) != fmt.Sprint(s)) {
				t.Fatalf("%s: a take that charges nothing changed the state", about)
			}
		}
	})
}

// TestLoweredLimit checks that a lowered limit frees nothing.
func TestLoweredLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, s, now := drawState(t, stint.Algorithms()...)
		_, before := l.Take(s, now, 0)
		changed := l
		changed.Max = rapid.Int64Range(1, l.Max).Draw(t, "lower max")
		if l.Burst > 0 {
			changed.Burst = rapid.Int64Range(1, l.Burst).Draw(t, "lower burst")
		}
		if changed.Validate() != nil { // fits at no tick
			changed.Max, changed.Burst = l.Max, l.Burst
		}
		_, after := changed.Take(s, now, 0)
		if after.Remaining > before.Remaining {
			t.Fatalf("%v to %v frees: %+v, %+v", l, changed, before, after)
		}
	})
}

// TestExtremes asks at the ends of every range. Nothing may panic, and every
// answer must make sense.
func TestExtremes(t *testing.T) {
	t.Parallel()
	const big = 1<<53 - 1
	values := []int64{-1 << 63, -big, -1, 0, 1, 2, big - 1, big, big + 1, 1<<63 - 1}
	times := []time.Time{{}, time.Unix(0, 0), time.UnixMicro(1), time.Unix(1_800_000_000, 0), time.Unix(1<<33, 0), time.Unix(1<<40, 0)}
	windows := []time.Duration{-1, 0, 1, time.Microsecond, time.Second, stint.MaxWindow, stint.MaxWindow + 1}
	for _, a := range append(stint.Algorithms(), 200) {
		for _, maxUnits := range values {
			for _, burst := range values {
				for _, w := range windows {
					l := stint.Limit{Algorithm: a, Max: maxUnits, Window: stint.Every(w), Burst: burst}
					var s stint.State
					for _, now := range times {
						for _, cost := range values {
							var d stint.Decision
							s, d = l.Adjust(s, now, cost)
							checkSane(t, l, d)
							if s, d = l.Take(s, now, cost); cost >= 0 {
								checkSane(t, l, d)
							} else if d.At = 0; d != (stint.Decision{RetryAfter: stint.Never}) {
								t.Fatalf("%v, cost %d: %+v", l, cost, d)
							}
						}
					}
				}
			}
		}
	}
}

func checkSane(t *testing.T, l stint.Limit, d stint.Decision) {
	t.Helper()
	valid := l.Validate() == nil
	if d.Remaining < 0 || d.Remaining > d.Limit || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Delay < 0 ||
		valid != (d.Limit > 0) || (!valid && d.Allowed) {
		t.Fatalf("%v (valid: %v): %+v", l, valid, d)
	}
}
