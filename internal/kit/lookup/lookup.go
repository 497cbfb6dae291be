// Package lookup caches what a database says about ids, so that every request can look up
// keys, users and tenants, of which there are more than fit into memory, and few requests
// wait. A [Cache] is safe for concurrent use.
//
// # Invariants
//
//   - A fresh answer costs no allocation and no shared lock.
//   - There is one load of an id at a time, however many callers wait for it.
//   - An answer past its TTL is returned at once, and loaded again in the background, which
//     takes at most half of the loads. A negative answer past its TTL is not returned: the
//     id may exist now.
//   - After [Cache.Invalidate] has returned, no answer older than its revision is returned,
//     even if the load began before, unless the source fails, or returns an older revision
//     three times.
//   - No one waits for a source that fails: answers are used for MaxStale beyond their TTL,
//     unknown ids fail at once, and one load at a time probes whether the source is back.
//   - There are at most Size answers, including negative ones. Made-up ids evict each other
//     rather than ids that are in use.
//   - If the clock is set back, answers are loaded again, and nothing is delayed.
//
// # What it does not do
//
// It does not cache errors, does not start a load whose callers have all left, and does not
// copy values, which are shared and read-only. If the revisions of the source start over, a
// new Cache is needed.
package lookup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// ErrUnavailable is wrapped, together with the error of the load, if the source could not
// answer a Get.
var ErrUnavailable = errors.New("lookup: source unavailable")

var errClosed = fmt.Errorf("%w: the cache is closed", ErrUnavailable)

// Options are the options of [New].
type Options[V any] struct {
	// Size is how many answers are kept at most, including negative ones. Default 100,000.
	Size int
	// TTL is how long an answer is fresh, and NegativeTTL how long a negative one is; each
	// is up to a tenth longer or shorter. Defaults 5 minutes and 30 s.
	TTL, NegativeTTL time.Duration
	// MaxStale is how long beyond its TTL an answer may be used, while it is loaded again or
	// the source fails. Default 24 h; negative: not at all.
	MaxStale time.Duration
	// Timeout is the time limit of a load. Default 2 s.
	Timeout time.Duration
	// Load asks the source. Its context has the values of a caller's context, and ends after
	// Timeout and with Close; Load must return then. An error means that the source could not
	// be asked, and stops other loads for a moment. For an id that is invalid for the source,
	// Load should return a negative answer.
	Load func(ctx context.Context, id string) (Answer[V], error)
	// Rebuild returns what a value becomes after Answer.Until, and the next Until. It must be
	// fast, and must not change the value, which is not nil. Default: the answer is loaded
	// again.
	Rebuild func(v *V, now time.Time) (*V, time.Time)
	// MaxLoads is how many loads run at once; further callers wait. Default 64.
	MaxLoads int
	// Now is the clock. Default [time.Now], whose monotonic reading is used: if the wall
	// clock is set, Answer.Until is early or late until the next load.
	Now func() time.Time
}

// Answer is what the source says about an id.
type Answer[V any] struct {
	Value    *V        // nil if there is none: a negative answer
	Revision int64     // of the source; it starts at 0 and never decreases
	Until    time.Time // when the value changes by itself; zero: never
}

// Stats are counts since [New]. Each Get counts as one of the first four.
type Stats struct {
	Hits         int64 // fresh values
	NegativeHits int64 // fresh negative answers
	Stale        int64 // answers past their TTL, or invalidated while the source fails
	Misses       int64 // Gets that waited for a load, or failed
	Loads        int64
	LoadErrors   int64
	Evictions    int64
	Len          int // answers in the cache
}

const (
	longestTime = 10 * 365 * 24 * time.Hour
	longestID   = 1 << 10 // bytes, so that made-up ids take bounded memory
)

// Cache caches answers. Close it after use.
type Cache[V any] struct {
	o       Options[V]
	now     func() int64 // nanoseconds since New
	longest struct{ fresh, pause int64 }
	entries *otter.Cache[string, *entry[V]]
	all     atomic.Int64 // the revision of InvalidateAll
	down    atomic.Pointer[outage]
	slots   chan struct{} // one for each running load

	hits                                      [64]hits // spread, to avoid contention
	stale, misses, loads, loadErrors, evicted atomic.Int64

	mu      sync.Mutex // for loads and invalidations
	flights map[string]*flight[V]
	closed  bool
	flying  sync.WaitGroup
}

type hits struct {
	positive, negative atomic.Int64
	_                  [48]byte
}

// New returns an empty Cache.
func New[V any](o Options[V]) (*Cache[V], error) {
	o.Size, o.MaxLoads = cmp.Or(o.Size, 100_000), cmp.Or(o.MaxLoads, 64)
	o.TTL, o.NegativeTTL = cmp.Or(o.TTL, 5*time.Minute), cmp.Or(o.NegativeTTL, 30*time.Second)
	o.Timeout, o.MaxStale = cmp.Or(o.Timeout, 2*time.Second), max(cmp.Or(o.MaxStale, 24*time.Hour), 0)
	switch {
	case o.Load == nil:
		return nil, errors.New("lookup: Load is nil: want a function that asks the source")
	case o.Size < 0 || o.Size > 1<<30:
		return nil, fmt.Errorf("lookup: Size %d: want 1 to %d", o.Size, 1<<30)
	case o.MaxLoads < 0 || o.MaxLoads > 1<<16:
		return nil, fmt.Errorf("lookup: MaxLoads %d: want 1 to %d", o.MaxLoads, 1<<16)
	case o.MaxStale > longestTime:
		return nil, fmt.Errorf("lookup: MaxStale %v: want at most %v", o.MaxStale, longestTime)
	}
	for i, d := range []time.Duration{o.TTL, o.NegativeTTL, o.Timeout} {
		if d < time.Millisecond || d > longestTime {
			return nil, fmt.Errorf("lookup: %s %v: want 1ms to %v", []string{"TTL", "NegativeTTL", "Timeout"}[i], d, longestTime)
		}
	}
	c := &Cache[V]{o: o, flights: map[string]*flight[V]{}, slots: make(chan struct{}, o.MaxLoads)}
	if o.Now == nil {
		c.o.Now = time.Now
		born := time.Now()
		c.now = func() int64 { return int64(time.Since(born)) } // faster than time.Now
	} else {
		born := o.Now()
		c.now = func() int64 { return int64(o.Now().Sub(born)) }
	}
	c.longest.fresh = longestAround(max(o.TTL, o.NegativeTTL))
	c.longest.pause = longestAround(max(maxBackoff, o.Timeout+probePause))
	var err error
	c.entries, err = otter.New(&otter.Options[string, *entry[V]]{
		MaximumSize: o.Size,
		Executor:    func(maintain func()) { maintain() }, // which is rare and short
		OnAtomicDeletion: func(e otter.DeletionEvent[string, *entry[V]]) {
			if e.WasEvicted() {
				c.evicted.Add(1)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	return c, nil
}

// Get returns the value of an id, or nil if there is none. The value is shared and
// read-only. Get waits only for a load, and only until ctx ends; the error then wraps that
// of ctx, and is not [ErrUnavailable].
func (c *Cache[V]) Get(ctx context.Context, id string) (*V, error) {
	now := c.now()
	e, ok := c.entries.GetIfPresent(id)
	switch {
	case !ok:
		return c.missing(ctx, id, now)
	case c.fresh(e, now) && !c.waits(e, now):
		return c.hit(e), nil
	default:
		return c.outdated(ctx, id, e, now)
	}
}

// Known is like Get for an id that the source is known to have, or is known not to have. For
// any other id it returns false: nothing is loaded, and nothing counted.
func (c *Cache[V]) Known(ctx context.Context, id string) (v *V, known bool, err error) {
	now := c.now()
	e, ok := c.entries.GetIfPresent(id)
	switch {
	case !ok:
		return nil, false, nil
	case c.fresh(e, now) && !c.waits(e, now):
		return c.hit(e), true, nil
	case e.value == nil:
		return nil, false, nil // it was not there, and may be now
	default:
		v, err = c.outdated(ctx, id, e, now)
		return v, true, err
	}
}

// hit counts and returns a fresh answer.
func (c *Cache[V]) hit(e *entry[V]) *V {
	if h := &c.hits[rand.Uint32()%uint32(len(c.hits))]; e.value != nil {
		h.positive.Add(1)
	} else {
		h.negative.Add(1)
	}
	return e.value
}

// old counts and returns an answer that is not fresh.
func (c *Cache[V]) old(e *entry[V]) *V {
	c.stale.Add(1)
	return e.value
}

// missing is a Get without a usable answer.
func (c *Cache[V]) missing(ctx context.Context, id string, now int64) (*V, error) {
	c.misses.Add(1)
	if len(id) > longestID {
		return nil, fmt.Errorf("lookup: id of %d bytes: want at most %d", len(id), longestID)
	}
	probe, err := c.admit(now)
	if err != nil {
		return nil, err
	}
	e, err := c.await(ctx, id, probe)
	if err != nil {
		return nil, err
	}
	return e.value, nil
}

// outdated is a Get with an answer that is not fresh, or has been invalidated.
func (c *Cache[V]) outdated(ctx context.Context, id string, e *entry[V], now int64) (*V, error) {
	e, err := c.rebuilt(id, e, now)
	switch waits := c.waits(e, now); {
	case err != nil:
		c.misses.Add(1)
		return nil, err
	case !waits && c.fresh(e, now):
		return c.hit(e), nil
	case now-e.fresh > int64(c.o.MaxStale):
		return c.missing(ctx, id, now)
	case !waits:
		c.refresh(ctx, id, e, now)
		return c.old(e), nil
	case c.pausing(e.quiet.Load(), now):
		return c.old(e), nil
	case c.down.Load() != nil:
		if probe, err := c.admit(now); err == nil {
			c.background(ctx, id, probe)
		}
		return c.old(e), nil
	}
	switch next, err := c.await(ctx, id, false); {
	case err == nil && !c.invalidated(next):
		c.misses.Add(1)
		return next.value, nil
	case err == nil:
		return c.old(next), nil
	case ctx.Err() != nil:
		c.misses.Add(1)
		return nil, err
	}
	if e, err = c.rebuilt(id, e, c.now()); err != nil {
		c.misses.Add(1)
		return nil, err
	}
	return c.old(e), nil
}

// Invalidate says that the source changed these ids in this revision. A Get that begins
// after it has returned waits for an answer of this or a later revision.
func (c *Cache[V]) Invalidate(revision int64, ids ...string) {
	for _, id := range ids {
		c.mu.Lock()
		if f := c.flights[id]; f != nil {
			f.want = max(f.want, revision)
		}
		if e := c.peek(id); e != nil {
			e.want.Store(max(e.want.Load(), revision))
		}
		c.mu.Unlock()
	}
}

// InvalidateAll says that the source may have changed any id in this revision. It is fast,
// however many ids there are.
func (c *Cache[V]) InvalidateAll(revision int64) {
	for {
		all := c.all.Load()
		if revision <= all || c.all.CompareAndSwap(all, revision) {
			return
		}
	}
}

// Stats returns the counts up to now.
func (c *Cache[V]) Stats() Stats {
	s := Stats{
		Stale: c.stale.Load(), Misses: c.misses.Load(), Loads: c.loads.Load(), LoadErrors: c.loadErrors.Load(),
		Evictions: c.evicted.Load(), Len: c.entries.EstimatedSize(),
	}
	for i := range c.hits {
		s.Hits += c.hits[i].positive.Load()
		s.NegativeHits += c.hits[i].negative.Load()
	}
	return s
}

// Close cancels running loads and waits for them. Afterwards fresh answers are still
// returned, and nothing is loaded.
func (c *Cache[V]) Close() {
	c.mu.Lock()
	c.closed = true
	for _, f := range c.flights {
		f.cancel()
	}
	c.mu.Unlock()
	c.flying.Wait()
}
