// Package memstore is a [stint.Store] in this process's memory: exact, and
// made so that a decision costs little more than reading the clock.
//
// A key is held as a fingerprint of 127 bits under secrets drawn when the store
// is made, not as its text: among a billion live subjects the chance that any
// two share a counter is below 10^-19, and no one outside can look for such a
// pair.
//
// A counter is a cell of one cache line: its fingerprint, which is also its
// lock, and its state. Cells lie inline in open-addressed tables, one for each
// shard, with no pointers for the collector to follow. Tables are searched
// without a lock, so that processors share nothing but the counters they share;
// what is not found is looked for again under the shard's lock, which is for
// those who make counters and drop them.
//
// A Take of several asks decides at one instant, under the locks of all its
// cells, taken in order, so that no two wait for each other. One that needs a
// counter that is not there yet holds its shard's lock as well, so that no one else
// can make it meanwhile.
//
// # Bounds
//
// The store holds at most MaxKeys counters, in equal shares for each shard.
// Counters that have recovered are swept, a few at a time, by the calls that
// come in; there is no goroutine and no stop-the-world scan. When a new counter
// finds its shard full, the shard drops those of its counters that have
// recovered, or else the one nearest to recovery, which is counted in
// [Stats.Evicted]: its client starts anew. As keys never spread perfectly
// evenly, that begins at about nine tenths of MaxKeys. A sliding_log also holds
// up to 32 bytes for each unit of its max.
//
// # What it refuses to do
//
// It persists nothing and shares nothing with other processes. It does not
// look at contexts: there is nothing to wait for.
package memstore

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Options are a store's settings. The zero value is useful.
type Options struct {
	// MaxKeys is the most counters held at once. Defaults to 1,048,576, which
	// takes up to 80 MB.
	MaxKeys int
	// Now replaces the clock, for tests. The default clock starts at the wall
	// time and from then on is monotonic: it does not follow when the wall
	// clock is set. A store that is made in a bubble of testing/synctest goes by
	// the bubble's time; one that is made outside and used in it needs time.Now
	// here for that.
	Now func() time.Time
}

const defaultMaxKeys = 1 << 20

// Store is a [stint.Store] in memory.
type Store struct {
	clock  clock
	logs   logs
	dir    atomic.Pointer[directory]
	grow   sync.Mutex // held while the directory changes
	closed atomic.Bool

	subjects, names hasher
}

var _ stint.Store = (*Store)(nil)

// New returns an empty store.
func New(o Options) (*Store, error) {
	if o.MaxKeys < 0 {
		return nil, &stint.InvalidError{Field: "MaxKeys", Value: strconv.Itoa(o.MaxKeys), Want: "1 or more, or 0 for the default"}
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	s := &Store{clock: newClock(o.Now), subjects: newHasher(), names: newHasher()}
	s.logs.all.Store(new([]*log))
	sh := &shard{store: s, quota: o.MaxKeys}
	sh.table = sh.newTable(0)
	s.dir.Store(newDirectory(0))
	s.enter(sh)
	return s, nil
}

// Stats are a store's counts.
type Stats struct {
	Keys    int    // counters held now, some of them recovered but not yet swept
	Swept   uint64 // recovered counters dropped so far
	Evicted uint64 // counters dropped before they had recovered, for want of room
}

// Stats returns the store's counts. It visits every shard in turn.
func (s *Store) Stats() Stats {
	var out Stats
	var last *shard
	d := s.dir.Load()
	for i := range d.tables {
		sh := d.tables[i].Load().shard
		if sh == last {
			continue
		}
		last = sh
		sh.mu.Lock()
		out.Keys += sh.live()
		out.Swept += sh.swept
		out.Evicted += sh.evicted
		sh.mu.Unlock()
	}
	return out
}

// Close makes all further calls fail with [stint.ErrClosed].
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// Take implements [stint.Store]. It allocates nothing for counters that are there, unless there are
// more than ten asks, or several of which one is not compiled.
func (s *Store) Take(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	if len(asks) != 1 || len(ds) != 1 || asks[0].Penalty != nil {
		return s.takeAll(asks, ds)
	}
	if a := &asks[0]; a.Cost >= 0 && a.Compiled() {
		s.takeOne(a, a.Plan, &ds[0])
		return nil
	}
	return s.takeCompiling(&asks[0], &ds[0])
}

// takeCompiling is a take of one ask whose limit is not compiled, or that is not valid.
func (s *Store) takeCompiling(a *stint.Ask, d *stint.Decision) error {
	var room stint.Plan
	plan, err := a.CompileIn(&room)
	if err != nil || a.Cost < 0 {
		return a.Validate()
	}
	s.takeOne(a, plan, d)
	return nil
}

// takeOne is a take of one limit.
func (s *Store) takeOne(a *stint.Ask, plan *stint.Plan, d *stint.Decision) {
	c := s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), a.Limit.Algorithm)
	now := s.clock.micros()
	t := s.tableOf(c)
	if x := t.acquire(c); x == nil {
		s.takeFirst(c, a, plan, now, d)
	} else {
		s.logs.take(x, plan, now, a.Cost, d)
		x.release(c)
	}
	if now%1024 == 0 {
		t.shard.sweepSome(now)
	}
}

// takeFirst is a take from a counter that is probably not there.
func (s *Store) takeFirst(c id, a *stint.Ask, plan *stint.Plan, now int64, d *stint.Decision) {
	sh := s.lock(c)
	defer s.unlock(sh)
	x := sh.acquire(c) // now it is certain
	next, log := s.logs.load(x)
	plan.TakeLog(&next, log, now, a.Cost, d)
	if d.Allowed && a.Cost > 0 {
		if x == nil {
			x = sh.insert(c, a.Limit.Algorithm, now)
		}
		s.logs.commit(x, a.Cost, &next)
	}
	if x != nil {
		x.release(c)
	}
}

// Reset implements [stint.Store].
func (s *Store) Reset(_ context.Context, asks []stint.Ask) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	for i := range asks {
		a := &asks[i]
		c := s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), algorithmOf(a))
		sh := s.lock(c)
		if x := sh.acquire(c); x != nil {
			sh.remove(x)
		}
		s.unlock(sh)
	}
	return nil
}
