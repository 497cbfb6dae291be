package stint_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stintdev/stint"
)

// TestSlidingWindowAccuracy says what docs/limits.md says of sliding_window: how often it decides otherwise
// than a log would that holds what it has admitted, and what someone gets through who knows how it
// estimates.
func TestSlidingWindowAccuracy(t *testing.T) {
	t.Parallel()
	const minute = int64(time.Minute / time.Microsecond)
	window, log := parse(t, "100/1m"), parse(t, "100/1m sliding_log")
	// wrong returns the share of decisions that differ from those of a log which holds what was admitted:
	// admitted though it makes more than 100 in a minute, or denied though it would not.
	wrong := func(next func(r *rand.Rand) int64) float64 {
		r := rand.New(rand.NewPCG(1, 2))
		var s, admitted stint.State
		differ, n := 0, 0
		for now := int64(1_800_000_000_000_000); n < 300_000; n++ {
			now += next(r)
			at := time.UnixMicro(now)
			var d stint.Decision
			_, exact := log.Take(admitted, at, 1)
			if s, d = window.Take(s, at, 1); d.Allowed {
				admitted, _ = log.Adjust(admitted, at, 1)
			}
			if d.Allowed != exact.Allowed {
				differ++
			}
		}
		return float64(differ) / float64(n)
	}
	// Spread: 70 requests a minute on average, at any time.
	spread := wrong(func(r *rand.Rand) int64 { return int64(r.ExpFloat64() * float64(minute) / 70) })
	// Bursty: 50 a minute on average, ten within a second, and then a pause.
	left := 0
	bursty := wrong(func(r *rand.Rand) int64 {
		if left--; left > 0 {
			return int64(r.ExpFloat64() * 50_000)
		}
		left = 10
		return int64(r.ExpFloat64() * float64(minute) * 10 / 50)
	})
	if spread > 0.001 || bursty > 0.02 {
		t.Errorf("%.3f %% of spread requests and %.3f %% of bursty ones are decided wrongly", 100*spread, 100*bursty)
	}

	// 100 at the end of a window, and 99 at the end of the next, as each becomes free.
	most := func(l stint.Limit) (n int64) {
		var s stint.State
		var times []int64
		start := int64(1_800_000_000_000_000) / minute * minute
		for now := start + minute - 1; now < start+2*minute; {
			var d stint.Decision
			if s, d = l.Take(s, time.UnixMicro(now), 1); d.Allowed {
				times = append(times, now)
			} else {
				now += d.RetryAfter.Microseconds()
			}
		}
		for i, first := range times {
			in := int64(0)
			for _, at := range times[i:] {
				if at < first+minute {
					in++
				}
			}
			n = max(n, in)
		}
		return n
	}
	if got := most(window); got != 199 {
		t.Errorf("%d of 100/1m within a minute, want 199, which docs/limits.md says", got)
	}
	if got := most(log); got != 100 {
		t.Errorf("%d of 100/1m sliding_log within a minute", got)
	}
}
