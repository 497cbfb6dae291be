package lookup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// entry is an answer that is kept. Times are those of Cache.now. What is atomic is
// changed under Cache.mu, but for leases on retry, and read without.
type entry[V any] struct {
	value    *V
	revision int64
	fresh    int64 // until when it is
	until    int64 // when the value changes by itself
	want     atomic.Int64
	retry    atomic.Int64 // not to be loaded in the background before
	quiet    atomic.Int64 // not to be waited for before
	failures int          // in a row; under Cache.mu
}

// never is an Answer.Until of zero.
const never = math.MaxInt64

// offset returns a time of the wall clock as one of Cache.now, which is now.
func offset(t, wall time.Time, now int64) int64 {
	if t.IsZero() {
		return never
	}
	d := t.Sub(wall)
	if d > longestTime {
		return never
	}
	return now + int64(max(d, 0))
}

// entry returns what is kept of an answer whose load began then.
func (c *Cache[V]) entry(a Answer[V], begin int64, wall time.Time) *entry[V] {
	ttl := c.o.TTL
	if a.Value == nil {
		ttl = c.o.NegativeTTL
	}
	e := &entry[V]{value: a.Value, revision: a.Revision, fresh: begin + around(ttl), until: offset(a.Until, wall, begin)}
	if e.until <= c.now() && (c.o.Rebuild == nil || a.Value == nil) {
		e.until = never // the source knows better
	}
	return e
}

// fresh reports whether an answer is within its TTL. One that would be fresh for
// longer than that is from before the clock was set back.
func (c *Cache[V]) fresh(e *entry[V], now int64) bool {
	return now < e.fresh && e.fresh-now <= c.longest.fresh
}

// pausing reports whether a pause lasts, likewise.
func (c *Cache[V]) pausing(until, now int64) bool {
	return now < until && until-now <= c.longest.pause
}

// invalidated reports whether the source has changed what it answered.
func (c *Cache[V]) invalidated(e *entry[V]) bool {
	return e.revision < e.want.Load() || e.revision < c.all.Load()
}

// waits reports whether an answer is not to be given if another can be had.
func (c *Cache[V]) waits(e *entry[V], now int64) bool {
	return c.invalidated(e) || now >= e.until || e.value == nil && !c.fresh(e, now)
}

// rebuilt returns an entry, or what has become of it by itself.
func (c *Cache[V]) rebuilt(id string, e *entry[V], now int64) (next *entry[V], err error) {
	if now < e.until || e.value == nil || c.o.Rebuild == nil {
		return e, nil
	}
	defer func() {
		if p := recover(); p != nil {
			next, err = e, fmt.Errorf("%w: rebuild panicked: %v", ErrUnavailable, p)
		}
	}()
	wall := c.o.Now()
	v, until := c.o.Rebuild(e.value, wall)
	next = &entry[V]{value: v, revision: e.revision, fresh: e.fresh, until: offset(until, wall, now)}
	c.mu.Lock()
	defer c.mu.Unlock()
	next.failures = e.failures
	next.want.Store(e.want.Load())
	next.retry.Store(e.retry.Load())
	next.quiet.Store(e.quiet.Load())
	if c.peek(id) == e {
		c.entries.Set(id, next)
	}
	return next, nil
}

// peek returns an entry, if there is one, without a trace in the map.
func (c *Cache[V]) peek(id string) *entry[V] {
	if e, ok := c.entries.GetEntryQuietly(id); ok {
		return e.Value
	}
	return nil
}

// between returns a random duration.
func between(least, most time.Duration) int64 {
	return int64(least) + rand.Int64N(int64(most-least)+1)
}

// around returns a duration, up to a tenth longer or shorter.
func around(d time.Duration) int64 { return between(d-d/10, d+d/10) }

// most is how far ahead a time can be that around has made, seen by one who has read
// the clock a little earlier.
func most(d time.Duration) int64 { return int64(d + d/10 + time.Second) }
