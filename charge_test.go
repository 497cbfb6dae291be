package stint_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// TestAmend changes charges of a random history, while it goes on, and compares the counter, then and later,
// with one to which the right costs were charged in the first place: it is the same, or, of a bucket, shows
// at least as much, to a tick.
func TestAmend(t *testing.T) {
	t.Parallel()
	for _, a := range stint.Algorithms() {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) { testAmend(t, a) }))
	}
}

func testAmend(t *rapid.T, a stint.Algorithm) {
	l := drawLimit(t, a)
	bucket := a == stint.TokenBucket || a == stint.LeakyBucket
	span := max(l.Window.Length(), time.Microsecond)
	// Where a tick is long, a bucket that was charged less may have been empty within it, so that a charge counts as made at the tick's
	// end, when the other has drained for a tick already.
	coarse := int64(0)
	if tick := l.Tick(); bucket && tick > time.Microsecond {
		coarse = int64(math.Ceil(float64(l.Max) / float64(span) * float64(tick)))
	}
	now := time.UnixMicro(1_800_000_000_000_000 + rapid.Int64Range(0, 1<<40).Draw(t, "now"))
	move := func() {
		if rapid.Bool().Draw(t, "later") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(span)/3+2000).Draw(t, "step")).Truncate(time.Microsecond))
		}
		if a == stint.Concurrency {
			now = now.Add(time.Microsecond) // no two holds have the same instant
		}
	}
	type change struct {
		charge stint.Charge
		by     int64
	}
	var s, ideal stint.State
	var changes []change
	fits := func() {
		if s.Used == 1<<53-1 || ideal.Used == 1<<53-1 {
			t.Skip("more than a counter can hold")
		}
	}
	take := func(most int) {
		cost := rapid.Int64Range(1, max(l.Max, l.Burst)/2+1).Draw(t, "cost")
		next, d := l.Take(s, now, cost)
		if !d.Allowed {
			return
		}
		s = next
		if len(changes) < most && rapid.Bool().Draw(t, "changed") {
			by := -cost
			if rapid.Bool().Draw(t, "not undone") {
				by = rapid.Int64Range(-cost, max(l.Max, l.Burst)).Draw(t, "by")
			}
			if a == stint.Concurrency && by == 0 {
				by = -1 // a change by 0 renews
			}
			changes = append(changes, change{d.Charge(), by})
			cost += by
		}
		ideal, _ = l.Adjust(ideal, now, cost)
		fits()
	}
	amend := func() {
		i := rapid.IntRange(0, len(changes)-1).Draw(t, "which")
		s, _ = l.Amend(s, now, changes[i].charge, changes[i].by)
		changes = append(changes[:i], changes[i+1:]...)
		fits()
	}
	for range rapid.IntRange(1, 12).Draw(t, "charges") {
		move()
		take(3)
		if len(changes) > 0 && rapid.Bool().Draw(t, "amend") {
			move()
			amend()
		}
	}
	for len(changes) > 0 {
		move()
		amend()
	}
	for range 5 {
		_, got := l.Take(s, now, 0)
		_, want := l.Take(ideal, now, 0)
		if !bucket && (got.Remaining != want.Remaining || got.ResetAfter != want.ResetAfter) || bucket && got.Remaining > want.Remaining+coarse {
			t.Fatalf("%v at %d:\n got %+v, %+v\nwant %+v, %+v", l, now.UnixMicro(), s, got, ideal, want)
		}
		move()
		take(0)
	}
}

// TestManyRefunds gives back a thousand charges of one bucket: few of them are remembered one by one, and
// the counter shows no more than it should, and not much less.
func TestManyRefunds(t *testing.T) {
	t.Parallel()
	l := parse(t, "1000000/1s burst=2000 token_bucket")
	now := time.Unix(1_800_000_000, 0)
	var s stint.State
	for range 1000 {
		next, d := l.Take(s, now, 1)
		now = now.Add(3 * time.Microsecond)
		if s, d = l.Amend(next, now, d.Charge(), -1); len(s.Past.Refunds) > 48 {
			t.Fatalf("%d refunds are remembered after %v", len(s.Past.Refunds), d)
		}
	}
	if _, d := l.Take(s, now, 0); d.Remaining < 1990 {
		t.Errorf("%d remain of 2000", d.Remaining)
	}
}

// TestAmendRefundsAll undoes charges at once and later. What was charged to a bucket comes back whole, but
// for what drains in the microseconds between.
func TestAmendRefundsAll(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for _, text := range []string{
		"1000/1s token_bucket", "1000/1m token_bucket", "7/1s burst=3 token_bucket", "1234567/1d token_bucket",
		"10/1s burst=50 leaky_bucket", "10/1m", "10/1m fixed_window", "10/1m sliding_log", "10/1m concurrency",
	} {
		l := parse(t, text)
		s, d := l.Take(stint.State{}, now, 1)
		if s, _ = l.Amend(s, now, d.Charge(), -1); s.Until != 0 {
			t.Errorf("%s: undone at once, %+v is left", text, s)
		}
		var charges []stint.Charge
		at := now
		for range 3 {
			s, d = l.Take(s, at, 1)
			charges = append(charges, d.Charge())
			at = at.Add(time.Microsecond)
		}
		for _, c := range charges {
			s, d = l.Amend(s, at, c, -1)
		}
		if d.ResetAfter > 3*time.Microsecond {
			t.Errorf("%s: after three charges were undone: %+v", text, d)
		}
	}
}

// TestRefundedTwice releases places twice: the second time, nothing is there to be released.
func TestRefundedTwice(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	l := parse(t, "10/30s concurrency")
	s, first := l.Take(stint.State{}, now, 3)
	s, second := l.Take(s, now, 4)
	if first.At == second.At {
		t.Fatal("two holds with one name")
	}
	for _, remaining := range []int64{6, 6} {
		var d stint.Decision
		if s, d = l.Amend(s, now, first.Charge(), -3); d.Remaining != remaining {
			t.Errorf("got %+v, want %d remaining", d, remaining)
		}
	}
	s, d := l.Amend(s, now.Add(29*time.Second), second.Charge(), 0)
	if d.Cost != 4 || d.Remaining != 6 || d.Charge() == second.Charge() {
		t.Errorf("renewed: %+v", d)
	}
	if _, d := l.Amend(s, now.Add(30*time.Second), second.Charge(), -4); d.Remaining != 6 {
		t.Errorf("released by its old name: %+v", d)
	}
	if _, d := l.Amend(s, now.Add(59*time.Second), d.Charge(), 0); d.Cost != 0 || d.Remaining != 10 {
		t.Errorf("renewed too late: %+v", d)
	}
}

// TestSetBack sets the clock back: what was used still counts, and no limit denies for longer than its
// own recovery time.
func TestSetBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, s, now := drawState(t, stint.Algorithms()...)
		if l.Algorithm == stint.Concurrency && l.Window.Length() < time.Second {
			l.Window = stint.Every(time.Second) // longer than holds may be apart from their time
			s = stint.State{}
		}
		s, d := l.Take(s, now, 1)
		before, recovery := d, time.Duration(s.Until-s.At)*time.Microsecond
		now = now.Add(-time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "back")) * time.Microsecond)
		s, d = l.Take(s, now, 0)
		if d.Remaining > before.Remaining && l.Algorithm != stint.SlidingWindow && now.Add(before.ResetAfter).After(now) {
			t.Fatalf("%v: %d remaining after a step back, %d before", l, d.Remaining, before.Remaining)
		}
		most := 2*l.Window.Length() + 2*time.Second // ticks
		if l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
			most = recovery + time.Second
		}
		if l.Window.Length() > 0 && d.ResetAfter > most {
			t.Fatalf("%v, %+v: recovers in %v, want at most %v", l, s, d.ResetAfter, most)
		}
		if again, _ := l.Take(s, now, 0); fmt.Sprint(again) != fmt.Sprint(s) {
			t.Fatalf("%v: moved twice: %+v, %+v", l, s, again)
		}
	})
}

func TestChargeText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := stint.Charge{
			At: rapid.Int64Range(1, 1<<52).Draw(t, "at"), Cost: rapid.Int64Range(1, 1<<53-1).Draw(t, "cost"),
			Reset: rapid.Int64Range(0, 1<<53-1).Draw(t, "reset"), Counter: rapid.Uint32().Draw(t, "counter"),
			Local: rapid.Bool().Draw(t, "local"), ID: rapid.StringN(0, 20, stint.MaxChargeID).Draw(t, "id"),
		}
		text, err := c.MarshalText()
		if err != nil {
			t.Skip(err)
		}
		var got stint.Charge
		if err := got.UnmarshalText(text); err != nil || got != c {
			t.Fatalf("%s: %+v, %v; want %+v", text, got, err, c)
		}
	})
	for _, text := range []string{
		"", ".", "...", "1.2.3", "1.2.3.zz", "1.2.3.4.", "01.2.3.4", "+1.2.3.4", "1.-2.3.4", "1.0.3.4", "0.1.3.4", "1.2.3.100000000",
		"99999999999999999999.1.1.1", "1.9007199254740992.1.1", "1.1.-1.1", "1.1.1.1." + strings.Repeat("x", 129), "1.1.1.1.\xff", "9007199254740991.1.1.1",
	} {
		_, err := stint.ParseCharge(text)
		if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || invalid.Field != "charge" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseCharge(f *testing.F) {
	f.Add("1767225600000000.80.60000000.9f3a1c22l.ticket-7")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := stint.ParseCharge(text); err == nil && c.String() != text {
			t.Errorf("%q reads as %q", text, c.String())
		}
	})
}
