package memstore

import "time"

// clock returns the time since the Unix epoch. It starts at the wall time and is monotonic from then on.
type clock struct {
	now    func() time.Time // nil: the process's own clock
	start  time.Time
	origin int64 // start in microseconds since the epoch
}

// newClock returns a clock that uses now, or the process's clock if now is nil.
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

// wall returns an instant of the clock as the wall clock has it now.
func (c *clock) wall(micros int64) time.Time {
	if c.now != nil {
		return time.UnixMicro(micros)
	}
	return time.Now().Add(-time.Duration(c.micros()-micros) * time.Microsecond)
}
