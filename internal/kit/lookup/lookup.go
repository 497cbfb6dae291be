// Package lookup keeps what a database has said of ids, so that every request can
// ask and few wait: for keys, users and tenants, of which there are more than fit
// into memory. It is in use in many goroutines at once.
//
// What holds:
//
//   - A fresh answer costs no allocation, and no lock that is shared by all.
//   - Of an id there is one load at a time, however many ask.
//   - An answer past its TTL is given at once, and loaded again meanwhile, by half of
//     the loads at most. One that there is none is not: what was made since is not
//     to be refused.
//   - After [Cache.Invalidate] has returned, no answer is given that is older than its
//     revision, also if its load had begun before: unless the source fails, or still
//     has an older one when it is asked three times.
//   - A source that fails is not waited for: answers are given for MaxStale beyond their
//     TTL, ids of which nothing is known are refused at once, and one load at a time
//     tries whether it is back.
//   - There are at most Size answers, those that there is none included. Ids that are
//     made up evict each other rather than what is in use.
//   - A clock that goes back makes answers be loaded again, and delays nothing.
//
// What it refuses to do: to remember errors as answers; to load for those who have
// left before it could begin; to copy values, which are shared and must not be
// changed; to outlive a source whose revisions begin anew, for which a new Cache is
// needed.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// ErrUnavailable is wrapped, beside the error of the load, by the error of a Get that
// the source could not answer.
var ErrUnavailable = errors.New("lookup: source unavailable")

var errClosed = fmt.Errorf("%w: the cache is closed", ErrUnavailable)

// Options are the options of [New].
type Options[V any] struct {
	// Size is the most answers that are kept, those that there is none included.
	// Default 100,000.
	Size int
	// TTL is how long an answer is good, NegativeTTL one that there is none; each is
	// up to a tenth longer or shorter. Defaults 5 minutes and 30 s.
	TTL, NegativeTTL time.Duration
	// MaxStale is how long beyond its TTL an answer may be used: while it is loaded
	// again, or cannot be. Default 24 h; negative: not at all.
	MaxStale time.Duration
	// Timeout is that of one load, whoever waits for it. Default 2 s.
	Timeout time.Duration
	// Load asks the source. Its context has the values of that of a caller, and ends
	// after Timeout and with Close; Load must end then. An error says that the source
	// could not be asked, and keeps others from asking for a moment: of an id that the
	// source would not take, Load should answer that there is none.
	Load func(ctx context.Context, id string) (Answer[V], error)
	// Rebuild says what a value is once Answer.Until has passed, and until when from
	// then, as Answer.Until does. It must be quick, and not change the value it is given, which is not nil. Without
	// it such an answer is loaded again.
	Rebuild func(v *V, now time.Time) (*V, time.Time)
	// MaxLoads is how many loads there are at once; beyond it, callers wait. Default 64.
	MaxLoads int
	// Now is the time. Default [time.Now], whose monotonic reading is used: should the
	// wall clock be set, Answer.Until is late or early by that until the next load.
	Now func() time.Time
}

// Answer is what the source says of an id.
type Answer[V any] struct {
	Value    *V        // nil: there is none
	Revision int64     // of the source when it was read: from 0, and never less than before
	Until    time.Time // when the value changes by itself; zero: never
}

// Stats are numbers since [New]. Each Get is one of the first four.
type Stats struct {
	Hits         int64 // a value that is fresh
	NegativeHits int64 // that there is none, freshly known
	Stale        int64 // an answer past its TTL, or invalidated and not to be had anew
	Misses       int64 // a load was waited for, or nothing is known
	Loads        int64
	LoadErrors   int64
	Evictions    int64
	Len          int // answers that are kept now
}

const (
	longestTime = 10 * 365 * 24 * time.Hour
	longestID   = 1 << 10 // bytes: what is kept of made-up ids is bounded too
)

// Cache keeps answers. Close ends it.
type Cache[V any] struct {
	o       Options[V]
	now     func() int64 // nanoseconds since New
	longest struct{ fresh, pause int64 }
	entries *otter.Cache[string, *entry[V]]
	all     atomic.Int64 // the revision of InvalidateAll
	down    atomic.Pointer[outage]
	slots   chan struct{} // of loads

	hits                                      [64]hits // apart, so that those who count do not meet
	stale, misses, loads, loadErrors, evicted atomic.Int64

	mu      sync.Mutex // of those who load and invalidate
	flights map[string]*flight[V]
	closed  bool
	flying  sync.WaitGroup
	chores  chores
}

type hits struct {
	some, none atomic.Int64
	_          [48]byte
}

// New returns a Cache that is empty.
func New[V any](o Options[V]) (*Cache[V], error) {
	if o.Size == 0 {
		o.Size = 100_000
	}
	if o.MaxLoads == 0 {
		o.MaxLoads = 64
	}
	switch {
	case o.Load == nil:
		return nil, errors.New("lookup: Load is nil: want a function that asks the source")
	case o.Size < 0 || o.Size > 1<<30:
		return nil, fmt.Errorf("lookup: Size %d: want 1 to %d", o.Size, 1<<30)
	case o.MaxLoads < 0 || o.MaxLoads > 1<<16:
		return nil, fmt.Errorf("lookup: MaxLoads %d: want 1 to %d", o.MaxLoads, 1<<16)
	case o.MaxStale > longestTime:
		return nil, fmt.Errorf("lookup: MaxStale %v: want at most %v", o.MaxStale, longestTime)
	case o.MaxStale < 0:
		o.MaxStale = 0
	case o.MaxStale == 0:
		o.MaxStale = 24 * time.Hour
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{{"TTL", &o.TTL, 5 * time.Minute}, {"NegativeTTL", &o.NegativeTTL, 30 * time.Second}, {"Timeout", &o.Timeout, 2 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.usual
		}
		if *d.value < time.Millisecond || *d.value > longestTime {
			return nil, fmt.Errorf("lookup: %s %v: want 1ms to %v", d.name, *d.value, longestTime)
		}
	}
	c := &Cache[V]{o: o, flights: map[string]*flight[V]{}, slots: make(chan struct{}, o.MaxLoads)}
	if o.Now == nil {
		c.o.Now = time.Now
		born := time.Now()
		c.now = func() int64 { return int64(time.Since(born)) } // quicker to read than both clocks
	} else {
		born := o.Now()
		c.now = func() int64 { return int64(o.Now().Sub(born)) }
	}
	c.longest.fresh = most(max(o.TTL, o.NegativeTTL))
	c.longest.pause = most(max(mostBackoff, o.Timeout+probePause))
	var err error
	c.entries, err = otter.New(&otter.Options[string, *entry[V]]{
		MaximumSize: o.Size,
		Executor:    c.chores.run,
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

// Get returns what the source has of an id, nil if there is none. The value is shared:
// it must not be changed. It waits only for a load, until ctx ends; the error then
// wraps that of ctx, and is not [ErrUnavailable].
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

// hit counts an answer that is fresh.
func (c *Cache[V]) hit(e *entry[V]) *V {
	if h := &c.hits[rand.Uint32()%uint32(len(c.hits))]; e.value != nil {
		h.some.Add(1)
	} else {
		h.none.Add(1)
	}
	return e.value
}

// old counts one that is not.
func (c *Cache[V]) old(e *entry[V]) *V {
	c.stale.Add(1)
	return e.value
}

// missing is a Get of an id of which nothing is known that may be used.
func (c *Cache[V]) missing(ctx context.Context, id string, now int64) (*V, error) {
	c.misses.Add(1)
	if len(id) > longestID {
		return nil, fmt.Errorf("lookup: an id of %d bytes: want at most %d", len(id), longestID)
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

// outdated is a Get of an id whose answer is not simply good.
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

// Invalidate says that the source has changed these ids, by that revision. A Get that
// begins after it has returned waits for an answer of that revision or a later one.
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

// InvalidateAll says that the source may have changed anything, by that revision. It
// takes no longer for many ids than for one.
func (c *Cache[V]) InvalidateAll(revision int64) {
	for {
		all := c.all.Load()
		if revision <= all || c.all.CompareAndSwap(all, revision) {
			return
		}
	}
}

// Stats returns the numbers up to now.
func (c *Cache[V]) Stats() Stats {
	s := Stats{
		Stale: c.stale.Load(), Misses: c.misses.Load(), Loads: c.loads.Load(), LoadErrors: c.loadErrors.Load(),
		Evictions: c.evicted.Load(), Len: c.entries.EstimatedSize(),
	}
	for i := range c.hits {
		s.Hits += c.hits[i].some.Load()
		s.NegativeHits += c.hits[i].none.Load()
	}
	return s
}

// Close cancels the loads that are under way, and waits for them. What is fresh is
// still answered afterwards, and nothing is loaded.
func (c *Cache[V]) Close() {
	c.mu.Lock()
	c.closed = true
	for _, f := range c.flights {
		f.cancel()
	}
	c.mu.Unlock()
	c.flying.Wait()
	c.chores.close()
}

// chores are what the map of entries does behind its callers' backs, once in many
// calls, and in no time.
type chores struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

func (c *chores) run(chore func()) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.running.Add(1)
	}
	c.mu.Unlock()
	if closed {
		chore()
		return
	}
	go func() {
		defer c.running.Done()
		chore()
	}()
}

func (c *chores) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
