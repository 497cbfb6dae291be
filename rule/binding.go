package rule

import (
	"cmp"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// checkNeverReached finds limits that have no effect, because another limit of the same
// rule always denies first, both with the rule's own values and with those of every tier:
// a limit may exist for the sake of one tier.
func (c *checker) checkNeverReached() {
	for n := range c.rules {
		r := &c.rules[n]
		// Where regions have parts, or a credit, a limit may deny a little before it is reached.
		if !r.sound || len(r.Limits) < 2 || r.Regions == RegionsQuota || r.Regions == RegionsGossip {
			continue
		}
		for i, l := range r.Limits {
			if l.Lease != 0 || l.Split != 0 {
				continue // it may deny a little before it is reached
			}
			first, never := r.hiddenBy(i, nil)
			if never && c.always(r, func(tier Values) bool { _, never := r.hiddenBy(i, tier); return never }) {
				c.Add(strict.Item(r.path()+".limits", i), fmt.Sprintf("%v is never reached: the limit %q (%v) always denies first",
					r.value(l.Name), first, r.value(first)), "")
			}
		}
	}
}

// hiddenBy returns the limit that always denies before the i-th does, if there is one,
// for clients of a tier or of none. An unlimited limit denies nothing anyway.
func (r *checked) hiddenBy(i int, tier Values) (first string, never bool) {
	b := r.valueFor(r.Limits[i].Name, tier)
	if b.Max == 0 {
		return "", true
	}
	for j, l := range r.Limits {
		a := r.valueFor(l.Name, tier)
		if i == j || a.Max == 0 || !alwaysFirst(a, b) {
			continue
		}
		if j < i || !alwaysFirst(b, a) { // of two equivalent limits, the first is kept
			return l.Name, true
		}
	}
	return "", false
}

// alwaysFirst reports whether b provably never denies what a lets pass, if both count the
// same requests and both are charged, or neither.
//
// The proof uses how much a lets pass at most in any time w: burst + w*rate, where the
// burst is what can pass at once, or around the end of a window; and, for a whole number of
// its windows, that many times max.
//
//   - A fixed_window never denies if a lets no more than its max pass in a window.
//   - A sliding_log never denies if that holds for every interval of its length,
//     wherever it begins.
//   - A sliding_window counts the window before by the share e of this one that has
//     not passed yet. With p the most for a window, its count is at most
//     p*e + burst + (1-e)*w*rate, which is at most p + burst, since w*rate <= p.
//   - A token_bucket is never empty if it is as deep as the burst and fills at
//     least at the rate.
//   - A leaky_bucket holds requests even if it denies none.
//   - How many come does not tell how many are there at once, nor the other way round: concurrency
//     is compared with concurrency only.
//
// Nothing is claimed of limits with a tick coarser than a microsecond, because they round.
func alwaysFirst(a, b stint.Limit) bool {
	if a.Tick() != time.Microsecond || b.Tick() != time.Microsecond {
		return false
	}
	if a.Algorithm == stint.Concurrency || b.Algorithm == stint.Concurrency {
		// Only holds bound holds: who has a place under a has one under b, which comes back no later.
		return a.Algorithm == b.Algorithm && a.Max <= b.Max && a.Window.Length() >= b.Window.Length()
	}
	if a.Window == b.Window && a.Algorithm == b.Algorithm && a.Algorithm <= stint.SlidingLog {
		return a.Max <= b.Max // both count in the same way
	}
	if period(a) != "" {
		n, ok := periods[[2]string{period(a), period(b)}]
		return ok && scale(a.Max, n, 1) <= b.Max
	}
	wa, wb := a.Window.Length().Microseconds(), b.Window.Length().Microseconds()
	// Windows are counted from the epoch, so these begin and end together.
	nested := wb > 0 && (wa%wb == 0 || wb%wa == 0) && b.Algorithm <= stint.FixedWindow
	switch b.Algorithm {
	case stint.FixedWindow:
		if wb == 0 {
			wb = longest[period(b)].Microseconds()
		}
		return maxPassed(a, wb, nested) <= b.Max
	case stint.SlidingLog:
		return maxPassed(a, wb, false) <= b.Max
	case stint.SlidingWindow:
		return maxPassed(a, wb, nested)+burst(a, nested) <= b.Max
	case stint.TokenBucket:
		return burst(a, false) <= b.Cap() && compareProducts(a.Max, wb, b.Max, wa) <= 0
	default:
		return false
	}
}

// periods says how many of the first calendar period the second overlaps at most, whatever
// their time zones and anchors; longest says how long a period is at most. Both are a day
// or two on the safe side.
var (
	periods = map[[2]string]int64{
		{"day", "week"}: 9, {"day", "month"}: 33, {"day", "year"}: 368,
		{"week", "month"}: 7, {"week", "year"}: 55, {"month", "year"}: 14,
	}
	longest = map[string]time.Duration{
		"day": 48 * time.Hour, "week": 9 * 24 * time.Hour, "month": 33 * 24 * time.Hour, "year": 368 * 24 * time.Hour,
	}
)

// period returns the calendar period of a limit, or "".
func period(l stint.Limit) string {
	if l.Window.Length() > 0 {
		return ""
	}
	name, _, _ := strings.Cut(l.Window.String(), " ")
	return name
}

// maxPassed returns how much a limit lets pass at most in an interval, which begins or ends
// with a window of the limit if they are nested.
func maxPassed(l stint.Limit, micros int64, nested bool) int64 {
	window := l.Window.Length().Microseconds()
	switch l.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		return min(l.Cap()+scale(l.Max, micros, window), tooMany)
	case stint.SlidingLog:
		nested = true // every interval of its window's length is one of its windows
	default:
	}
	n := (micros + window - 1) / window
	if !nested {
		n++
	}
	return scale(l.Max, n, 1)
}

// burst returns how much a limit lets pass at most in an instant and, unless the interval is
// nested, around it.
func burst(l stint.Limit, nested bool) int64 {
	switch {
	case l.Algorithm > stint.SlidingLog:
		return l.Cap()
	case nested || l.Algorithm == stint.SlidingLog:
		return l.Max
	default:
		return 2 * l.Max
	}
}

// tooMany is more units than any limit has.
const tooMany = maxCost + 1

// scale returns n*by/per, rounded up, or tooMany if it is more.
func scale(n, by, per int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(by))
	if hi >= uint64(per) {
		return tooMany
	}
	q, rest := bits.Div64(hi, lo, uint64(per))
	return int64(min(q+min(rest, 1), tooMany))
}

// compareProducts compares a*x with b*y.
func compareProducts(a, x, b, y int64) int {
	hi1, lo1 := bits.Mul64(uint64(a), uint64(x))
	hi2, lo2 := bits.Mul64(uint64(b), uint64(y))
	return cmp.Or(cmp.Compare(hi1, hi2), cmp.Compare(lo1, lo2))
}
