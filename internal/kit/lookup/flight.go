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
	// maxTries is how many times an id is loaded if each answer is older than the revision
	// that invalidated it.
	maxTries = 3

	// probePause is the pause after the source has failed, and after a background load that
	// could not begin.
	probePause = 250 * time.Millisecond

	// A failed load is repeated in the background after minBackoff, then twice that, and so
	// on, up to maxBackoff.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second

	// After a caller has waited in vain for the successor of an invalidated answer, others do
	// not wait for a time between these.
	minQuiet = 250 * time.Millisecond
	maxQuiet = time.Second
)

// outage describes a source that fails.
type outage struct {
	err   error
	until atomic.Int64 // no load begins before
}

// admit reports whether a load may begin. If the source fails, only one load may begin
// after each pause: the probe.
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

// flight is the load of an id. Cache.mu protects its fields, except for the last two, which
// are set before done is closed.
type flight[V any] struct {
	want    int64 // the lowest revision that is good enough
	tried   int   // how many loads have begun
	waiters int
	queued  bool // it has no slot yet
	probe   bool
	cancel  context.CancelFunc
	done    chan struct{}

	e   *entry[V]
	err error
}

// await joins the load of an id, or begins it, and waits for it. A caller that has joined
// during the last try, whose answer is invalidated, waits for another load, which begins
// after its own call.
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
	late = f.tried == maxTries
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

// refresh begins a background load of an answer past its TTL, unless one was tried recently.
func (c *Cache[V]) refresh(ctx context.Context, id string, e *entry[V], now int64) {
	retry := e.retry.Load()
	// The first caller reserves the time of a load, so that others do not try.
	if c.pausing(retry, now) || !e.retry.CompareAndSwap(retry, now+int64(c.o.Timeout)) {
		return
	}
	if probe, err := c.admit(now); err != nil || !c.background(ctx, id, probe) {
		e.retry.Store(now + around(probePause))
	}
}

// background begins a load that no one waits for, and reports whether it could. Half of the
// slots are reserved for loads that someone waits for.
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

// launch begins a load. The caller holds c.mu and, unless the flight is queued, a slot.
func (c *Cache[V]) launch(ctx context.Context, id string, queued bool) *flight[V] {
	id = strings.Clone(id) // it may be part of a large request
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

// fly loads the id until an answer is kept, or the flight fails.
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
			// The source lags behind, perhaps for a while.
			e.quiet.Store(c.now() + between(minQuiet, maxQuiet))
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

// keep stores an answer, and reports whether it did. An answer that was invalidated
// meanwhile is stored only after the last try, and stays invalidated.
func (c *Cache[V]) keep(id string, f *flight[V], e *entry[V]) bool {
	c.down.Store(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.want.Store(f.want)
	if c.invalidated(e) && f.tried < maxTries {
		return false
	}
	c.entries.Set(id, e)
	c.end(id, f, e, nil)
	return true
}

// failed ends a flight whose load has failed.
func (c *Cache[V]) failed(ctx context.Context, id string, f *flight[V], err error) {
	if ctx.Err() != nil { // canceled, not failed
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
		backoff := min(minBackoff<<min(e.failures, 5), maxBackoff)
		e.failures++
		e.retry.Store(now + between(backoff, backoff+backoff/10))
		if c.waits(e, now) {
			e.quiet.Store(now + between(minQuiet, maxQuiet))
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
