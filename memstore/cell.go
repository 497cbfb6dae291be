package memstore

import (
	"runtime"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// held is set in a cell's owner while someone works on the cell.
const held = 1 << 63

// cell is one counter, one cache line long, so that two processors that use the
// same counter pass one line to and fro and those that do not share none. Its
// owner is the hi of the counter that lives there, or zero if none does, and at
// the same time its lock: to lock a cell is to make sure whose it is.
//
// The Aux of a sliding_log names its log.
type cell struct {
	// owner and lo are read and written atomically in a table that is searched. To fill
	// one that is not yet, plain writes do, which cost a tenth.
	owner, lo uint64
	stint.Counter
	place uint32 // in its table
	_     [12]byte
}

// id returns whose cell it is, locked or not. If it is no one's, hi is zero.
func (x *cell) id() id {
	return id{lo: atomic.LoadUint64(&x.lo), hi: atomic.LoadUint64(&x.owner) &^ held}
}

// tryAcquire locks the cell if it is c's and free.
func (x *cell) tryAcquire(c id) bool {
	if !atomic.CompareAndSwapUint64(&x.owner, c.hi, c.hi|held) {
		return false
	}
	if atomic.LoadUint64(&x.lo) == c.lo {
		return true
	}
	x.release(c) // half a fingerprint in common
	return false
}

// acquire locks the cell, waiting while others hold it. It returns false if the cell is not c's,
// or no longer.
func (x *cell) acquire(c id) bool {
	for spins := 0; !x.tryAcquire(c); spins++ {
		if x.id() != c {
			return false
		}
		pause(spins)
	}
	return true
}

// pause passes the time until a cell is free, which takes some tens of nanoseconds, unless
// its holder was suspended.
func pause(spins int) {
	if spins > 20 {
		runtime.Gosched()
	}
}

func (x *cell) release(c id) { atomic.StoreUint64(&x.owner, c.hi) }

// leave waits until no one holds the cell, which is c's, and makes it no one's. Under the
// shard's lock no one else can make it another's, or move in.
func (x *cell) leave(c id) {
	for spins := 0; !atomic.CompareAndSwapUint64(&x.owner, c.hi, 0); spins++ {
		pause(spins)
	}
}
