package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// checkTraces runs random traces on the store and on the specification, and compares every decision. A run
// has at least 10,000 steps.
func checkTraces(t rapid.TB, store stint.Store, clock *Clock) {
	traces, decisions := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		traces++ // each trace has its own subjects, since the store is shared
		tr := trace{t: t, store: store, clock: clock, model: counters{}, id: traces}
		tr.run()
		decisions += tr.decisions
	})
	t.Logf("%d decisions in %d traces agree with the specification", decisions, traces)
}

type trace struct {
	t       *rapid.T
	store   stint.Store
	clock   *Clock
	model   counters
	id      int
	limits  []stint.Limit
	changed [4]int // how often, of each limit
	ladder  *stint.Penalty
	// charges are of earlier takes, with the asks that made them.
	charges []stint.Ask
	latest  time.Time
	setBack bool
	wait    time.Duration // of the last denial
	log     []string

	decisions int
}

func (tr *trace) run() {
	for range rapid.IntRange(1, 4).Draw(tr.t, "limits") {
		tr.limits = append(tr.limits, drawLimit(tr.t))
	}
	tr.ladder = drawPenalty(tr.t)
	tr.clock.Set(Epoch.Add(time.Duration(rapid.Int64Range(0, int64(3*365*24*time.Hour)).Draw(tr.t, "start"))))
	tr.latest = tr.clock.Now()
	// In a trace with a clock that steps back, a take has one subject, and there are no resets. Where a
	// take of several is undone in part, its counters have been there at that instant, and the mark
	// of a reset may be in the future. Likewise, only such a trace changes the rate of a bucket: when
	// it would have been empty is known to the microsecond, and rounded up again where it was asked.
	tr.setBack = rapid.Bool().Draw(tr.t, "set back")
	for range rapid.IntRange(100, 110).Draw(tr.t, "steps") {
		tr.move()
		switch rapid.IntRange(0, 19).Draw(tr.t, "verb") {
		case 0:
			tr.change()
		case 1:
			if !tr.setBack {
				tr.reset()
			}
		case 2, 3:
			tr.adjust()
		case 4, 5, 6:
			tr.amend()
		default:
			tr.take()
		}
	}
}

// move sets the clock: mostly forwards, often to the RetryAfter of the last denial or just before, and
// sometimes a little backwards.
func (tr *trace) move() {
	now := tr.clock.Now()
	switch rapid.IntRange(0, 9).Draw(tr.t, "move") {
	case 0, 1, 2:
	case 3:
		now = now.Add(tr.wait)
	case 4:
		now = now.Add(max(0, tr.wait-time.Microsecond))
	case 5:
		// Less than a second: a store may drop what recovered earlier.
		back := time.Duration(rapid.Int64Range(0, 900_000).Draw(tr.t, "back")) * time.Microsecond
		if micros := back.Microseconds(); micros > stint.MaxPlaces-100 && micros <= stint.MaxPlaces {
			back = time.Millisecond // holds may be so far ahead of their time, and more within one take
		}
		if earliest := tr.latest.Add(-back); tr.setBack && now.After(earliest) {
			tr.dropRecovered()
			now = earliest
		}
	case 6:
		now = now.Add(time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(tr.t, "far")))
	default:
		now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(tr.t, "near")))
	}
	tr.clock.Set(now)
	if now.After(tr.latest) {
		tr.latest = now
	}
}

// dropRecovered drops counters that have recovered, since a store may have done so already.
func (tr *trace) dropRecovered() {
	var asks []stint.Ask
	for id, state := range tr.model {
		if state.Until > tr.clock.Now().UnixMicro() || id.change != "" {
			continue
		}
		a := stint.Ask{Key: id.key, Limit: stint.Limit{Algorithm: id.algorithm, Window: id.window, Max: 1}}
		if id.penalty {
			a.Penalty = tr.ladder
		}
		asks = append(asks, a)
	}
	tr.model = tr.model.reset(asks, tr.clock.Now())
	if err := tr.store.Reset(context.Background(), asks); err != nil {
		tr.t.Fatalf("reset %v: %v", asks, err)
	}
}

// asks draws a hierarchy: some of the limits, each for one of two subjects, possibly the same counter
// twice.
func (tr *trace) asks(minCost int64) []stint.Ask {
	var out []stint.Ask
	for range rapid.IntRange(1, 4).Draw(tr.t, "asks") {
		i := rapid.IntRange(0, len(tr.limits)-1).Draw(tr.t, "limit")
		l := tr.limits[i]
		maxCost := max(l.Max, l.Burst) + 1
		cost := rapid.Int64Range(max(minCost, -maxCost), maxCost).Draw(tr.t, "cost")
		if rapid.Bool().Draw(tr.t, "one") {
			cost = 1
		}
		out = append(out, stint.Ask{Key: tr.key(i), Limit: l, Cost: cost})
	}
	if tr.setBack || slices.ContainsFunc(out, isCoarse) {
		for i := range out {
			out[i].Key.Subject = out[0].Key.Subject
		}
	}
	return out
}

// isCoarse reports whether the ask is of a bucket with a tick above a microsecond. Where a take of several
// subjects is undone in part, such a bucket may be a tick behind.
func isCoarse(a stint.Ask) bool {
	p, err := a.Limit.Compile()
	return err == nil && (a.Limit.Algorithm == stint.TokenBucket || a.Limit.Algorithm == stint.LeakyBucket) && p.Terms().Tick > 1
}

func (tr *trace) key(limit int) stint.Key {
	subject := rapid.SampledFrom([]string{"alice", "bob"}).Draw(tr.t, "subject")
	return stint.Key{Subject: fmt.Sprintf("%s-%d", subject, tr.id), Name: fmt.Sprintf("limit-%d-%d", limit, tr.changed[limit])}
}

// guard adds penalties after some of the asks, if no counter is asked twice.
func (tr *trace) guard(asks []stint.Ask) []stint.Ask {
	var out []stint.Ask
	for i, a := range asks {
		out = append(out, a)
		if rapid.Bool().Draw(tr.t, "guarded") {
			out = append(out, stint.Ask{
				Key:  stint.Key{Subject: a.Key.Subject, Name: fmt.Sprintf("ban-%d", i)},
				Cost: rapid.Int64Range(0, 3).Draw(tr.t, "counts"), Penalty: tr.ladder,
			})
		}
	}
	if stint.ValidateTake(out, make([]stint.Decision, len(out))) != nil {
		return asks
	}
	return out
}

func (tr *trace) take() {
	asks := tr.asks(0)
	if rapid.IntRange(0, 2).Draw(tr.t, "penalties") == 0 {
		asks = tr.guard(asks)
	}
	given := slices.Clone(asks)
	got, err := Take(context.Background(), tr.store, given)
	tr.same("take", given, asks)
	next, want := tr.model.take(asks, tr.clock.Now())
	tr.compare("take", asks, got, want, err)
	tr.model = next
	for i := range got {
		if c := got[i].Charge(); c.Cost > 0 && asks[i].Penalty == nil {
			a := asks[i]
			a.Charge = &c
			tr.charges = append(tr.charges, a)
		}
	}
	for _, d := range want {
		if !d.Allowed && d.RetryAfter < 365*24*time.Hour {
			tr.wait = d.RetryAfter
		}
	}
}

func (tr *trace) adjust() {
	asks := tr.asks(-1 << 40)
	given := slices.Clone(asks)
	got, err := Adjust(context.Background(), tr.store, given)
	tr.same("adjust", given, asks)
	next, want := tr.model.adjust(asks, tr.clock.Now())
	tr.compare("adjust", asks, got, want, err)
	tr.model = next
}

// amend changes charges that were made before, some of them once, some of them again.
func (tr *trace) amend() {
	var asks []stint.Ask
	for range rapid.IntRange(1, 3).Draw(tr.t, "amendments") {
		if len(tr.charges) == 0 {
			return
		}
		a := tr.charges[rapid.IntRange(max(0, len(tr.charges)-20), len(tr.charges)-1).Draw(tr.t, "charge")]
		c := *a.Charge
		if c.At > tr.clock.Now().UnixMicro() {
			continue // the clock was set back
		}
		a.Charge, a.Cost = &c, rapid.Int64Range(-c.Cost, 3).Draw(tr.t, "by")
		if rapid.Bool().Draw(tr.t, "all") {
			a.Cost = -c.Cost
		}
		if rapid.IntRange(0, 3).Draw(tr.t, "once") == 0 {
			c.ID = rapid.SampledFrom([]string{"a", "b"}).Draw(tr.t, "id")
			c.Keep = rapid.SampledFrom([]time.Duration{0, time.Second, 10 * time.Minute}).Draw(tr.t, "keep")
		}
		for _, l := range tr.limits {
			if tr.setBack && l.Algorithm == a.Limit.Algorithm && l.Window == a.Limit.Window {
				a.Limit = l // it may have changed since
			}
		}
		asks = append(asks, a)
	}
	got, err := Adjust(context.Background(), tr.store, asks)
	next, want := tr.model.adjust(asks, tr.clock.Now())
	tr.compare("amend", asks, got, want, err)
	tr.model = next
	for i := range got {
		if c := got[i].Charge(); c.Cost > 0 { // renewed
			a := asks[i]
			a.Charge = &c
			tr.charges = append(tr.charges, a)
		}
	}
}

func (tr *trace) reset() {
	i := rapid.IntRange(0, len(tr.limits)-1).Draw(tr.t, "limit")
	asks := []stint.Ask{{Key: tr.key(i), Limit: tr.limits[i]}}
	if rapid.Bool().Draw(tr.t, "pardon") {
		ban := stint.Ask{Key: asks[0].Key, Penalty: tr.ladder}
		ban.Key.Name = "ban-0"
		asks = append(asks, ban)
	}
	tr.model = tr.model.reset(asks, tr.clock.Now())
	if err := tr.store.Reset(context.Background(), asks); err != nil {
		tr.t.Fatalf("reset %v: %v", asks, err)
	}
	tr.log = append(tr.log, fmt.Sprintf("reset %v", asks))
	// What is charged at the instant of a reset counts as charged before it.
	tr.clock.Add(time.Microsecond)
	if now := tr.clock.Now(); now.After(tr.latest) {
		tr.latest = now
	}
}

// change changes a limit's size, or replaces the limit or the penalty.
func (tr *trace) change() {
	if rapid.Bool().Draw(tr.t, "ladder") {
		tr.ladder = drawPenalty(tr.t)
		return
	}
	i := rapid.IntRange(0, len(tr.limits)-1).Draw(tr.t, "limit")
	l := &tr.limits[i]
	if !tr.setBack {
		tr.changed[i]++ // it has other counters from now on
	}
	if rapid.Bool().Draw(tr.t, "other") {
		*l = drawLimit(tr.t)
		return
	}
	if rapid.IntRange(0, 3).Draw(tr.t, "rewindow") == 0 {
		l.Window = drawLimit(tr.t).Window
		if l.Validate() != nil {
			l.Window = stint.Every(time.Minute)
		}
		return
	}
	resized := *l
	resized.Max = rapid.Int64Range(1, 2*l.Max).Draw(tr.t, "max")
	if resized.Validate() == nil {
		*l = resized
	}
}

// same checks that the store has not changed the asks.
func (tr *trace) same(verb string, given, asks []stint.Ask) {
	if !slices.Equal(given, asks) {
		tr.t.Fatalf("%s has changed its asks\n    from %v\n    to   %v", verb, asks, given)
	}
}

func (tr *trace) compare(verb string, asks []stint.Ask, got, want []stint.Decision, err error) {
	line := tr.clock.Now().UTC().Format("15:04:05.000000 ") + verb
	for _, a := range asks {
		var of fmt.Stringer = a.Limit
		if a.Penalty != nil {
			of = a.Penalty
		}
		line += fmt.Sprintf("\n    %s %d of %s", a.Key, a.Cost, of)
		if a.Charge != nil {
			line += " charged as " + a.Charge.String()
		}
	}
	tr.log = append(tr.log, line)
	if err == nil && Agree(got, want) {
		tr.decisions += len(want)
		return
	}
	show := func(ds []stint.Decision) string {
		var b strings.Builder
		for _, d := range ds {
			b.WriteString("\n    " + Format(d))
		}
		return b.String()
	}
	recent := tr.log[max(0, len(tr.log)-12):]
	tr.t.Fatalf("after\n  %s\ngot %v%s\nwant%s", strings.Join(recent, "\n  "), err, show(got), show(want))
}

func drawPenalty(t *rapid.T) *stint.Penalty {
	lengths := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, 10 * time.Second, time.Hour})
	return &stint.Penalty{
		Threshold:   rapid.Int64Range(1, 4).Draw(t, "threshold"),
		Within:      lengths.Draw(t, "within"),
		Cooldown:    lengths.Draw(t, "cooldown"),
		Multipliers: rapid.SliceOfN(rapid.Int64Range(1, 5), 0, 4).Draw(t, "multipliers"),
	}
}

// drawLimit draws a valid limit: mostly a small one, whose edges are reached, and sometimes one so large that
// it uses coarser ticks.
func drawLimit(t *rapid.T) stint.Limit {
	l := stint.Limit{
		Algorithm: rapid.SampledFrom(stint.Algorithms()).Draw(t, "algorithm"),
		Max:       rapid.Int64Range(1, 12).Draw(t, "max"),
		Window: stint.Every(rapid.SampledFrom([]time.Duration{
			time.Microsecond, 7 * time.Microsecond, time.Millisecond, 333_333 * time.Microsecond,
			time.Second, 7 * time.Second, time.Minute, time.Hour, 24 * time.Hour,
		}).Draw(t, "window")),
	}
	switch l.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		l.Burst = rapid.Int64Range(0, 15).Draw(t, "burst")
	case stint.FixedWindow:
		if w := rapid.SampledFrom([]string{"", "day", "week anchor=sunday", "month anchor=31", "day tz=America/New_York", "year tz=Asia/Tokyo"}).Draw(t, "calendar"); w != "" {
			l.Window = must(stint.ParseWindow(w))
		}
	default:
	}
	if rapid.IntRange(0, 3).Draw(t, "size") == 0 {
		large := l
		large.Max = rapid.SampledFrom([]int64{1000, 1_234_567, 10_000_019, 1 << 40}).Draw(t, "large")
		if large.Validate() == nil {
			return large
		}
	}
	return l
}
