package memstore

import (
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// held is set in a cell's owner while the cell is locked.
const held = 1 << 63

// cell holds one counter in one cache line, so that processors share a line only if they use the
// same counter. Its owner is the hi of the counter's fingerprint, or zero if the cell is free. It is
// also the lock: locking a cell checks whose it is.
//
// For a sliding_log, Aux identifies the log.
type cell struct {
	// owner and lo are accessed atomically once the table is shared. Before that, plain writes
	// are used, which cost a tenth.
	owner, lo uint64
	stint.Counter
	// decided is when it was last decided: the low bits of an instant. An idle counter may seem to have been
	// decided in the future, which costs another reading of the clock.
	decided uint32
	from          // set when the counter is inserted, like ban, and read under the shard's lock
	ban     bool  // it is the state of a penalty
	worth   uint8 // see note
	_       [2]byte
}

// exhausted is set in the worth of a counter that denies.
const exhausted = 1 << 6

// note keeps when a decision was made, and what it says about the cell's counter: its worth is what its
// client would gain if it were evicted. A counter that denies is worth more than any that does not, and otherwise the one of
// which more units are used, to a power of two. The caller holds the cell.
func (x *cell) note(d *stint.Decision, now int64) {
	x.decided = uint32(now)
	x.worth = uint8(bits.Len64(uint64(d.Limit - d.Remaining)))
	if d.Remaining == 0 || !d.Allowed {
		x.worth |= exhausted
	}
}

// id returns the fingerprint of the cell's counter, whether locked or not. If the cell is free, hi is
// zero.
func (x *cell) id() id {
	return id{lo: atomic.LoadUint64(&x.lo), hi: atomic.LoadUint64(&x.owner) &^ held}
}

// tryAcquire locks the cell if it belongs to c and is not locked.
func (x *cell) tryAcquire(c id) bool {
	if !atomic.CompareAndSwapUint64(&x.owner, c.hi, c.hi|held) {
		return false
	}
	if atomic.LoadUint64(&x.lo) == c.lo {
		return true
	}
	x.release(c) // another counter with the same hi
	return false
}

// acquire locks the cell, waiting while it is locked. It returns false if the cell does not belong to
// c, or no longer does.
func (x *cell) acquire(c id) bool {
	for spins := 0; !x.tryAcquire(c); spins++ {
		if x.id() != c {
			return false
		}
		pause(spins)
	}
	return true
}

// pause spins while a cell is locked, and yields if that takes longer than usual: its holder may have
// been suspended.
func pause(spins int) {
	if spins > 20 {
		runtime.Gosched()
	}
}

func (x *cell) release(c id) { atomic.StoreUint64(&x.owner, c.hi) }

// leave waits until the cell, which belongs to c, is unlocked, and frees it. The caller holds the
// shard's lock, so the cell cannot get another owner meanwhile.
func (x *cell) leave(c id) {
	for spins := 0; !atomic.CompareAndSwapUint64(&x.owner, c.hi, 0); spins++ {
		pause(spins)
	}
}
