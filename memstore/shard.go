package memstore

import (
	"runtime"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// shard holds the counters whose fingerprints have the same prefix.
type shard struct {
	store *Store

	// mu is held to insert or remove counters, and to be sure that one does not exist. It is
	// locked before cells: whoever holds a cell does not wait for it.
	mu             sync.Mutex
	table          *table // the same as in the directory
	quota          int
	prefix         uint64 // the first depth bits of its fingerprints
	depth          uint8
	hand           int    // where the next sweep starts
	counters, bans choice // of victims
	swept          uint64
	evicted        [reasons]uint64
	lost           int64 // when a counter was last evicted of a client that is within its share
}

// Unless stated otherwise, the methods below are called with the shard's lock held, and with no cell
// locked but the one they get.

// acquire finds and locks the counter's cell, or returns nil.
func (sh *shard) acquire(c id) *cell { return sh.table.acquire(c) }

func (sh *shard) live() int { return sh.table.live }

// insert adds a cell for a counter that has none, and returns it locked.
func (sh *shard) insert(c id, k kept, now int64) *cell {
	// Visit one cell for each new counter: if more were swept than added, counters that recover
	// quickly would be removed and inserted all the time.
	sh.sweep(1, now)
	for sh.full(k) && !sh.evict(k, now) {
		runtime.Gosched() // all candidates are locked at the moment
	}
	if sh.table.full() {
		sh.sweep(32, now)
	}
	if sh.table.full() {
		sh.resize(sh.live() + 1)
	}
	var counter stint.Counter
	if k.hasLog {
		counter.Aux = sh.store.logs.make()
	}
	if from := sh.choice(k.ban); len(from.known) > 0 && len(from.known)+len(from.fresh) < maxChoice {
		from.fresh = append(from.fresh, c)
	}
	return sh.table.settle(c, counter, k)
}

// newTable returns an empty table for a number of counters. It is roomy unless the store has tens of
// thousands of counters.
func (sh *shard) newTable(counters int) *table {
	t := newTable(counters, sh.depth < 5)
	t.shard = sh
	return t
}

// resize replaces the table by one of the right size for a number of counters.
func (sh *shard) resize(counters int) {
	next := sh.newTable(counters)
	sh.table.moveTo(func(id) *table { return next })
	sh.table = next
	sh.store.enter(sh)
}

// remove removes a counter whose cell is locked, and unlocks it.
func (sh *shard) remove(x *cell) {
	if x.Aux < 0 {
		sh.store.logs.drop(x.Aux)
	}
	sh.table.remove(x)
}

// visit visits the next n cells and skips those that are locked. It removes counters that have
// recovered by the given time, and passes the others to keep, locked. It reports whether it removed any.
func (sh *shard) visit(n int, by int64, keep func(x *cell)) (dropped bool) {
	t := sh.table
	for ; n > 0; n-- {
		if sh.hand >= len(t.cells) {
			sh.hand = 0
		}
		x := &t.cells[sh.hand]
		c := x.id()
		if c.hi == 0 || !x.tryAcquire(c) {
			sh.hand++
			continue
		}
		if x.Until <= by {
			sh.remove(x)
			sh.swept++
			dropped = true
			sh.hand++
			continue
		}
		if keep != nil {
			keep(x)
		}
		x.release(c)
		sh.hand++
	}
	return dropped
}

// sweep removes counters that have recovered, and shrinks a table of which seven eighths are free: then
// few counters have to move, which takes microseconds. Counters have a grace period of ten seconds: a
// client that comes back within it does not need a new counter, and the clock may step back a little.
func (sh *shard) sweep(n int, now int64) {
	const grace = int64(10 * time.Second / time.Microsecond)
	if !sh.visit(n, now-grace, nil) {
		return
	}
	if n := len(sh.table.cells); n > 64 && sh.live() < n/8 {
		sh.resize(sh.live())
	}
}

// sweepSome sweeps if the shard is not locked; the caller does not hold the lock. Without it, counters
// would be swept only when new ones are inserted.
func (sh *shard) sweepSome(now int64) {
	if sh.mu.TryLock() {
		sh.sweep(16, now)
		sh.mu.Unlock()
	}
}

// split moves half of the fingerprints, and of the quota, to a new shard. The new tables are visible
// only after Store.enter.
func (sh *shard) split() *shard {
	sh.depth++
	other := &shard{store: sh.store, depth: sh.depth, prefix: sh.prefix | held>>sh.depth, quota: sh.quota / 2}
	sh.quota -= other.quota
	old := sh.table
	moving := 0
	for x := range old.all() {
		if x.id().hi >= other.prefix {
			moving++
		}
	}
	low, high := sh.newTable(old.live-moving), other.newTable(moving)
	old.moveTo(func(c id) *table {
		if c.hi >= other.prefix {
			return high
		}
		return low
	})
	sh.table, other.table = low, high
	return other
}
