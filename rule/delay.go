package rule

import (
	"math/bits"
	"time"

	"github.com/stintdev/stint"
)

// MaxDelay is the longest time that a request may be held: the maximum of a rule's
// max_delay, and its default for a leaky_bucket.
const MaxDelay = time.Minute

// heldWithin returns the limit with its burst lowered, so that it holds no request longer
// than that: a leaky_bucket queues no more requests than leave in that time. The store then
// denies requests that would wait longer.
func heldWithin(l stint.Limit, longest time.Duration) stint.Limit {
	if l.Algorithm != stint.LeakyBucket || l.Burst <= 0 || l.Window.Length() <= 0 {
		return l // it holds no requests, or is invalid, which the store reports
	}
	// Like the limit itself, use the finest tick at which products do not overflow.
	for tick := int64(1); ; tick *= 10 {
		window := (l.Window.Length().Microseconds() + tick - 1) / tick
		ticks := longest.Microseconds() / tick
		if tick > 1 {
			ticks-- // a tick that has begun counts in full
		}
		slots := l.Burst
		if hi, lo := bits.Mul64(uint64(max(ticks, 0)), uint64(l.Max)); hi < uint64(window) {
			whole, _ := bits.Div64(hi, lo, uint64(window))
			slots = int64(min(whole, uint64(l.Burst)))
		}
		if slots < maxCost/window {
			l.Burst = slots
			return l
		}
	}
}
