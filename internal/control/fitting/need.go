package fitting

import (
	"math"

	"github.com/stintdev/stint"
)

// never is the use of a client that no limit of a kind would always let pass.
const never = math.MaxInt64

// need returns the smallest limit of a kind that would not have denied anything of what was taken, oldest first, by the arithmetic of
// limits; or 0 if there is none. A limit that denies nothing is followed by no smaller one that does, so it is found by halving.
func need(shape stint.Limit, taken []taking) int64 {
	if shape.Algorithm == stint.SlidingLog {
		return needOfLog(shape.Window.Length().Microseconds(), taken)
	}
	const largest = 1 << 52
	low, high := int64(0), int64(1)
	for !enough(shape, high, taken) {
		if high == largest {
			return 0
		}
		low, high = high, 2*high
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; enough(shape, middle, taken) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// needOfLog is need for a sliding_log, whose states are as long as what is in a window.
func needOfLog(window int64, taken []taking) (most int64) {
	used, first := int64(0), 0
	for _, t := range taken {
		for ; taken[first].at <= t.at-window; first++ {
			used -= taken[first].units
		}
		if used += t.units; used > stint.MaxLog {
			return 0
		}
		most = max(most, used)
	}
	return most
}

// enough reports whether a limit of a size denies nothing.
func enough(shape stint.Limit, size int64, taken []taking) bool {
	p, err := sized(shape, size).Compile()
	if err != nil {
		return false
	}
	var s stint.State
	for _, t := range taken {
		var d stint.Decision
		if s, d = p.TakeState(s, t.at, t.units); !d.Allowed {
			return false
		}
	}
	return true
}

// sized returns a limit of the same kind with another size. A burst stays in proportion.
func sized(shape stint.Limit, size int64) stint.Limit {
	if shape.Burst > 0 {
		shape.Burst = int64(math.Ceil(float64(size) * float64(shape.Burst) / float64(shape.Max)))
	}
	shape.Max = size
	return shape
}
