package memstore

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// shard is the part of the store whose fingerprints begin alike.
type shard struct {
	store *Store

	// mu is held by those who make or drop counters, and by those who must be
	// sure that one is not there. It is taken before cells: whoever holds a cell
	// does not wait for it.
	mu             sync.Mutex
	table          *table // also in the directory
	quota          int
	prefix         uint64 // the first depth bits that its fingerprints have
	depth          uint8
	hand           int // where the sweep goes on
	victims        []victim
	swept, evicted uint64
}

// victim is a counter that was nearest to recovery when it was last looked at.
type victim struct {
	id    id
	until int64
}

// What follows is done under the shard's lock, and while holding no cell but
// the one it is about.

// acquire finds the counter's cell and locks it. Nil means that it is not there.
func (sh *shard) acquire(c id) *cell { return sh.table.acquire(c) }

func (sh *shard) live() int { return sh.table.live }

// insert makes a cell for a counter that has none, and returns it locked.
func (sh *shard) insert(c id, a stint.Algorithm, now int64) *cell {
	// One look for one counter: what leaves is never more than what comes, or
	// counters that recover quickly would be dropped and made again all the time.
	sh.sweep(1, now)
	for sh.live() >= sh.quota && !sh.evict(now) {
		runtime.Gosched() // all that could go are in use at this moment
	}
	if sh.table.full() {
		sh.sweep(32, now)
	}
	if sh.table.full() {
		sh.resize(sh.live() + 1)
	}
	var counter stint.Counter
	if a == stint.SlidingLog || a == penalty {
		counter.Aux = sh.store.logs.make()
	}
	return sh.table.settle(c, counter)
}

// newTable returns an empty table for so many counters of the shard. It is roomy unless the
// store has some ten thousand counters.
func (sh *shard) newTable(counters int) *table {
	t := newTable(counters, sh.depth < 5)
	t.shard = sh
	return t
}

// resize makes a table of the right size for so many counters.
func (sh *shard) resize(counters int) {
	next := sh.newTable(counters)
	sh.table.moveTo(func(id) *table { return next })
	sh.table = next
	sh.store.enter(sh)
}

// remove drops a counter whose cell is locked, and unlocks it.
func (sh *shard) remove(x *cell) {
	if x.Aux < 0 {
		sh.store.logs.drop(x.Aux)
	}
	sh.table.remove(x)
}

// visit looks at the next n cells, passes over those that someone is using,
// drops the counters that have recovered by the time given, and hands the rest
// to keep. It reports whether it dropped any.
func (sh *shard) visit(n int, by int64, keep func(v victim)) (dropped bool) {
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
		v := victim{c, x.Until}
		x.release(c)
		if keep != nil {
			keep(v)
		}
		sh.hand++
	}
	return dropped
}

// sweep drops counters that have recovered, and gives back the room of a table
// that has become far too large: seven eighths of it are free then, so that few have to
// move, which takes microseconds. Counters have a grace of ten seconds: those who come
// back within them need not be made anew, and a clock that steps back a little
// finds what it left.
func (sh *shard) sweep(n int, now int64) {
	const grace = int64(10 * time.Second / time.Microsecond)
	if !sh.visit(n, now-grace, nil) {
		return
	}
	if n := len(sh.table.cells); n > 64 && sh.live() < n/8 {
		sh.resize(sh.live())
	}
}

// sweepSome sweeps if no one else is at work in the shard. Without it, counters
// would only be swept while new ones come.
func (sh *shard) sweepSome(now int64) {
	if sh.mu.TryLock() {
		sh.sweep(16, now)
		sh.mu.Unlock()
	}
}

// evict makes room: it drops the counters that have recovered, or else the one
// nearest to it. It reports whether it could. A large shard remembers the few
// nearest for the next time, since looking at all takes microseconds.
func (sh *shard) evict(now int64) bool {
	if sh.evictVictim() {
		return true
	}
	few := min(max(sh.live()/64, 1), 16)
	if sh.visit(len(sh.table.cells), now, func(v victim) {
		i, _ := slices.BinarySearchFunc(sh.victims, v, func(a, b victim) int {
			return cmp.Compare(b.until, a.until) // the nearest last
		})
		if sh.victims = slices.Insert(sh.victims, i, v); len(sh.victims) > few {
			sh.victims = slices.Delete(sh.victims, 0, 1)
		}
	}) {
		sh.victims = sh.victims[:0]
		return true
	}
	return sh.evictVictim()
}

// evictVictim drops the nearest counter that is remembered and has not been
// used since.
func (sh *shard) evictVictim() bool {
	for last := len(sh.victims) - 1; last >= 0; last-- {
		v := sh.victims[last]
		sh.victims = sh.victims[:last]
		x := sh.acquire(v.id)
		if x == nil {
			continue
		}
		if x.Until == v.until {
			sh.remove(x)
			sh.evicted++
			return true
		}
		x.release(v.id)
	}
	return false
}

// split gives half of the fingerprints, and of the quota, to a new shard. Neither is found
// before it is entered.
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
