package lookup

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// tries is how many loads an answer is worth if each is older than what it has
	// been invalidated by.
	tries = 3

	// probePause is how long a source that has failed is left alone, and how long
	// until a background load is tried again that found no room.
	probePause = 250 * time.Millisecond

	// A load that failed is made again in the background after leastBackoff, then
	// twice that and so on.
	leastBackoff = time.Second
	mostBackoff  = 30 * time.Second

	// For so long those who ask for an answer that is invalidated do not wait, after
	// one has in vain.
	leastQuiet = 250 * time.Millisecond
	mostQuiet  = time.Second
)

// outage is what is known of a source that has failed.
type outage struct {
	err   error
	until atomic.Int64 // no load before
}

// admit reports whether a load may begin: always, if the source is well. If it is not,
// one after a pause, whose time it then has for itself: that load is the probe.
func (c *Cache[V]) admit(now int64) (probe bool, err error) {
	d := c.down.Load()
	if d == nil {
		return false, nil
	}
	until := d.until.Load()
	if c.pausing(until, now) || !d.until.CompareAndSwap(until, now+int64(c.o.Timeout+probePause)) {
		return false, d.err
	}
	return true, nil
}

// flight is the load of an id. Its fields are under Cache.mu, but for the last two,
// which are there once it is done.
type flight[V any] struct {
	want    int64 // the least revision that will do
	tried   int   // loads that have begun
	waiters int
	queued  bool // it has no slot yet
	probe   bool
	cancel  context.CancelFunc // it has been given up, or Close was called
	done    chan struct{}

	e   *entry[V]
	err error
}

// await joins the load of an id, or begins it, and waits until it is done. One who has
// joined when the last try was under way, and was invalidated, has yet to see one that
// began after he asked.
func (c *Cache[V]) await(ctx context.Context, id string, probe bool) (*entry[V], error) {
	for {
		e, late, err := c.join(ctx, id, probe)
		if err != nil {
			return nil, err
		}
		if !late || !c.invalidated(e) {
			return c.rebuilt(id, e, c.now())
		}
	}
}

func (c *Cache[V]) join(ctx context.Context, id string, probe bool) (e *entry[V], late bool, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, false, errClosed
	}
	f := c.flights[id]
	if f == nil {
		f = c.launch(ctx, id, true)
	}
	f.probe = f.probe || probe
	f.waiters++
	late = f.tried == tries
	c.mu.Unlock()

	select {
	case <-f.done:
		return f.e, late, f.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.waiters--; f.waiters == 0 && f.queued && c.flights[id] == f {
		delete(c.flights, id)
		f.cancel()
	}
	return nil, false, fmt.Errorf("lookup: %w", ctx.Err())
}

// refresh begins to load an answer again that is past its TTL, if it is time to.
func (c *Cache[V]) refresh(ctx context.Context, id string, e *entry[V], now int64) {
	retry := e.retry.Load()
	// The first takes the time of a load, so that the others need not look for it.
	if c.pausing(retry, now) || !e.retry.CompareAndSwap(retry, now+int64(c.o.Timeout)) {
		return
	}
	if probe, err := c.admit(now); err != nil || !c.background(ctx, id, probe) {
		e.retry.Store(now + around(probePause))
	}
}

// background begins a load for which no one waits, and reports whether it could. It
// leaves half of the slots to those who do.
func (c *Cache[V]) background(ctx context.Context, id string, probe bool) bool {
	if len(c.slots) >= (cap(c.slots)+1)/2 {
		return false
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.flights[id] != nil {
		<-c.slots
		return false
	}
	c.launch(ctx, id, false).probe = probe
	return true
}

// launch begins a load. The caller holds c.mu, and a slot unless the flight is queued
// for one.
func (c *Cache[V]) launch(ctx context.Context, id string, queued bool) *flight[V] {
	id = strings.Clone(id) // which may be a piece of a request
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight[V]{queued: queued, cancel: cancel, done: make(chan struct{})}
	if e := c.peek(id); e != nil {
		f.want = e.want.Load()
	}
	c.flights[id] = f
	c.flying.Go(func() {
		defer cancel()
		c.fly(ctx, id, f, queued)
	})
	return f
}

// fly loads until the flight has landed.
func (c *Cache[V]) fly(ctx context.Context, id string, f *flight[V], queued bool) {
	if queued {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			c.land(id, f, errClosed)
			return
		}
	}
	defer func() { <-c.slots }()

	c.mu.Lock()
	f.queued = false
	probe := f.probe
	c.mu.Unlock()
	if d := c.down.Load(); d != nil && !probe {
		c.land(id, f, d.err)
		return
	}
	for ctx.Err() == nil {
		c.mu.Lock()
		f.tried++
		want := max(f.want, c.all.Load())
		c.mu.Unlock()
		begin, wall := c.now(), c.o.Now()
		a, err := c.load(ctx, id)
		if err != nil {
			c.failed(ctx, id, f, err)
			return
		}
		e := c.entry(a, begin, wall)
		if a.Revision < want {
			// The source lags behind what it has announced. That may take a while.
			e.quiet.Store(c.now() + between(leastQuiet, mostQuiet))
		}
		if c.keep(id, f, e) {
			return
		}
	}
	c.land(id, f, errClosed)
}

// load asks the source once.
func (c *Cache[V]) load(ctx context.Context, id string) (a Answer[V], err error) {
	c.loads.Add(1)
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("load panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return c.o.Load(ctx, id)
}

// keep keeps an answer, and reports whether it did: one that was invalidated meanwhile
// is kept only if it is the last that is tried for, and as that.
func (c *Cache[V]) keep(id string, f *flight[V], e *entry[V]) bool {
	c.down.Store(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.want.Store(f.want)
	if c.invalidated(e) && f.tried < tries {
		return false
	}
	c.entries.Set(id, e)
	c.end(id, f, e, nil)
	return true
}

// failed is told that the source has not answered.
func (c *Cache[V]) failed(ctx context.Context, id string, f *flight[V], err error) {
	if ctx.Err() != nil { // it was not let
		c.land(id, f, errClosed)
		return
	}
	c.loadErrors.Add(1)
	now := c.now()
	err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	d := &outage{err: err}
	d.until.Store(now + around(probePause))
	c.down.Store(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.peek(id); e != nil {
		backoff := min(leastBackoff<<min(e.failures, 5), mostBackoff)
		e.failures++
		e.retry.Store(now + between(backoff, backoff+backoff/10))
		if c.waits(e, now) {
			e.quiet.Store(now + between(leastQuiet, mostQuiet))
		}
	}
	c.end(id, f, nil, err)
}

// land ends a flight without an answer.
func (c *Cache[V]) land(id string, f *flight[V], err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(id, f, nil, err)
}

// end ends a flight. The caller holds c.mu.
func (c *Cache[V]) end(id string, f *flight[V], e *entry[V], err error) {
	if c.flights[id] == f {
		delete(c.flights, id)
	}
	f.e, f.err = e, err
	close(f.done)
}
