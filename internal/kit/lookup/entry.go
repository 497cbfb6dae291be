package lookup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// entry is a cached answer. Times are those of Cache.now. Atomic fields are read without
// Cache.mu, and changed with it, except that refresh changes retry without it.
type entry[V any] struct {
	value    *V
	revision int64
	fresh    int64        // until when it is fresh
	until    int64        // when the value changes by itself
	want     atomic.Int64 // the lowest revision that is good enough
	retry    atomic.Int64 // no background load begins before
	quiet    atomic.Int64 // no one waits for a load before
	failures int          // in a row; protected by Cache.mu
}

// never stands for an Answer.Until of zero.
const never = math.MaxInt64

// offset converts a time of the wall clock to one of Cache.now; wall and now are the same
// instant.
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

// entry returns the entry of an answer whose load began at begin, or wall.
func (c *Cache[V]) entry(a Answer[V], begin int64, wall time.Time) *entry[V] {
	ttl := c.o.TTL
	if a.Value == nil {
		ttl = c.o.NegativeTTL
	}
	e := &entry[V]{value: a.Value, revision: a.Revision, fresh: begin + around(ttl), until: offset(a.Until, wall, begin)}
	if e.until <= c.now() && (c.o.Rebuild == nil || a.Value == nil) {
		e.until = never // the source has seen the change
	}
	return e
}

// fresh reports whether an answer is within its TTL. If it seems to be fresh for longer than
// any TTL, the clock was set back.
func (c *Cache[V]) fresh(e *entry[V], now int64) bool {
	return now < e.fresh && e.fresh-now <= c.longest.fresh
}

// pausing reports whether a pause lasts, with the same check of the clock.
func (c *Cache[V]) pausing(until, now int64) bool {
	return now < until && until-now <= c.longest.pause
}

// invalidated reports whether the source has changed since the answer.
func (c *Cache[V]) invalidated(e *entry[V]) bool {
	return e.revision < e.want.Load() || e.revision < c.all.Load()
}

// waits reports whether a Get should wait for a new answer, if the source works.
func (c *Cache[V]) waits(e *entry[V], now int64) bool {
	return c.invalidated(e) || now >= e.until || e.value == nil && !c.fresh(e, now)
}

// rebuilt returns the entry, rebuilt if its value has changed by itself.
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

// peek returns the entry of an id, or nil, without marking it as used.
func (c *Cache[V]) peek(id string) *entry[V] {
	if e, ok := c.entries.GetEntryQuietly(id); ok {
		return e.Value
	}
	return nil
}

// between returns a random duration in this range.
func between(low, high time.Duration) int64 {
	return int64(low) + rand.Int64N(int64(high-low)+1)
}

// around returns a random duration that is up to a tenth longer or shorter.
func around(d time.Duration) int64 { return between(d-d/10, d+d/10) }

// longestAround bounds the result of around, as seen by a goroutine that read the clock a
// little earlier.
func longestAround(d time.Duration) int64 { return int64(d + d/10 + time.Second) }
