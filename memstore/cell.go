package memstore

import (
	"runtime"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// id is a counter's fingerprint. The top bit of hi is free for the lock.
type id struct{ lo, hi uint64 }

func (c id) less(d id) bool { return c.hi < d.hi || c.hi == d.hi && c.lo < d.lo }

// held is set in a cell's owner while someone works on the cell.
const held = 1 << 63

// cell is one counter, one cache line long, so that two processors that use the
// same counter pass one line to and fro and those that do not share none. Its
// owner is the hi of the counter that lives there, or zero if none does, and at
// the same time its lock: to lock a cell is to make sure whose it is.
//
// The Aux of a sliding_log names its log.
type cell struct {
	owner atomic.Uint64
	lo    atomic.Uint64
	stint.Counter
	place uint32 // in its table
	_     [12]byte
}

// is reports whether the cell is c's, locked or not.
func (x *cell) is(c id) bool {
	return x.owner.Load()&^held == c.hi && x.lo.Load() == c.lo
}

// tryAcquire locks the cell if it is c's and free.
func (x *cell) tryAcquire(c id) bool {
	if !x.owner.CompareAndSwap(c.hi, c.hi|held) {
		return false
	}
	if x.lo.Load() == c.lo {
		return true
	}
	x.owner.Store(c.hi) // half a fingerprint in common
	return false
}

// acquire locks the cell, waiting while others hold it. It returns false if the
// cell is not c's, or no longer.
func (x *cell) acquire(c id) bool {
	for spins := 0; !x.tryAcquire(c); spins++ {
		if !x.is(c) {
			return false
		}
		// Cells are held for some tens of nanoseconds, unless their holder was
		// suspended.
		if spins > 20 {
			runtime.Gosched()
		}
	}
	return true
}

func (x *cell) release(c id) { x.owner.Store(c.hi) }
