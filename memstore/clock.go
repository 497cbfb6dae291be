package memstore

import "time"

// clock is the time since the Unix epoch. It starts at the wall time, and from then on is
// monotonic.
type clock struct {
	now    func() time.Time // nil: the process's own clock
	start  time.Time
	origin int64 // start in microseconds since the epoch
}

// newClock returns a clock that tells the time by now, or by the process's own clock if that is nil.
func newClock(now func() time.Time) clock {
	start := time.Now()
	return clock{now: now, start: start, origin: start.UnixMicro()}
}

// micros returns the time in microseconds.
func (c *clock) micros() int64 {
	if c.now != nil {
		return c.now().UnixMicro()
	}
	return c.origin + time.Since(c.start).Microseconds()
}
