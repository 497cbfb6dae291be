package envoystats

import (
	"sync/atomic"
	"time"
)

// A timer counts durations in whole milliseconds, as envoyproxy/ratelimit does: each up to a
// second, and then each tenth of a second up to ten seconds. Longer ones count as ten seconds.
const (
	single = 1000 // milliseconds that are counted singly
	step   = 100  // beyond that
	slots  = single + (10_000-single)/step + 1
)

type timer struct{ slots [slots]atomic.Uint64 }

// slotOf returns the slot of a duration.
func slotOf(took time.Duration) int {
	ms := max(took.Milliseconds(), 0)
	if ms < single {
		return int(ms)
	}
	return int(min(single+(ms-single)/step, slots-1))
}

// inMillis returns the duration that a slot stands for.
func inMillis(slot int) uint64 {
	if slot < single {
		return uint64(slot)
	}
	return uint64(single + (slot-single)*step)
}

func (t *timer) observe(took time.Duration) { t.slots[slotOf(took)].Add(1) }

func (t *timer) count() (n uint64) {
	for i := range t.slots {
		n += t.slots[i].Load()
	}
	return n
}
