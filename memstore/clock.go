package memstore

import (
	"time"
	_ "unsafe" // for go:linkname
)

// clock is the time since the Unix epoch. It starts at the wall time, and from then on is
// monotonic.
type clock struct {
	now    func() time.Time // nil: the runtime's clock
	start  int64            // of the runtime's clock
	origin int64            // the same instant in microseconds since the epoch
}

// newClock returns a clock that tells the time by now, if there is one.
func newClock(now func() time.Time) clock {
	c := clock{now: now}
	var wall time.Time
	for range 10 { // unless something came between the two readings
		c.start = nanotime()
		wall = time.Now()
		if nanotime()-c.start < int64(100*time.Microsecond) {
			break
		}
	}
	c.origin = wall.UnixMicro()
	monotonic := wall != wall.Round(0) // which strips that reading
	if now == nil && !monotonic {
		c.now = time.Now // this is a bubble of testing/synctest, whose time is its own
	}
	return c
}

// micros returns the time in microseconds.
func (c *clock) micros() int64 {
	if c.now != nil {
		return c.now().UnixMicro()
	}
	return c.running()
}

// running is micros by the runtime's clock. It is small enough to be inlined, which micros is not.
func (c *clock) running() int64 {
	return c.origin + int64(uint64(nanotime()-c.start)/1000)
}

// nanotime is the runtime's monotonic clock. time.Since reads the same one, but asks twice on the way
// whether it is called from a bubble, which is a twentieth of a take and more. The runtime
// promises to keep it for those who use it like this.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64
