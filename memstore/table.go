package memstore

import (
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// table holds the cells of a shard, in groups of seven. Beside them it has a
// word for each group: a byte for each cell, which is zero or, with its top bit
// set, the same byte of the fingerprint of who lives there; and in the top byte
// how many went past the group because it was full. A search looks at the word of
// the group that the fingerprint names, and at the next while some have gone past,
// and so finds the one cell worth a look; the words of a million counters fit into
// a processor's cache. Nothing has to be tidied up when a counter leaves.
//
// A table is made 85 per cent full, or less as far as the allocator rounds up,
// and grows at 92, so that a counter costs less than 80 bytes, all told. While
// there are few counters, it is roomy: made a third full, it grows at a half, and hardly one
// in a hundred goes past its group.
//
// It is searched without a lock while counters come and go: a search may miss
// one that is there, but never finds one that is not.
type table struct {
	words []uint64 // atomic, once the table is searched
	cells []cell
	shard *shard
	live  int
	most  int // counters, before a larger table is needed
}

const (
	group = 7
	lows  = 0x0001010101010101
	highs = 0x0080808080808080 // set in the bytes of cells that are taken
	past  = 1 << 56            // one in the top byte
	many  = 0xff               // in the top byte: no longer counted
)

// newTable returns an empty table for so many counters.
func newTable(counters int, roomy bool) *table {
	n := counters * 20 / 17
	if roomy {
		n = 3 * counters
	}
	// The allocator rounds up, by up to an eighth, and what it gives is used.
	cells := slices.Grow([]cell(nil), n+group)
	groups := cap(cells) / group
	t := &table{words: make([]uint64, groups), cells: cells[:groups*group]}
	t.most = len(t.cells) * 23 / 25
	if roomy {
		t.most = len(t.cells) / 2
	}
	return t
}

// full reports whether a larger table is needed for the next counter.
func (t *table) full() bool { return t.live >= t.most }

// home returns the group where the search for a fingerprint begins.
func (t *table) home(lo uint64) int {
	g, _ := bits.Mul64(lo, uint64(len(t.words)))
	return int(g)
}

func (t *table) after(g int) int {
	if g++; g < len(t.words) {
		return g
	}
	return 0
}

// acquire finds the counter's cell and locks it, or returns nil.
func (t *table) acquire(c id) *cell {
	g := t.home(c.lo)
	for range t.words { // counters that come and go could keep a search going round
		word := atomic.LoadUint64(&t.words[g])
		for m := alike(word, c.lo); m != 0; m &= m - 1 {
			if x := &t.cells[g*group+bits.TrailingZeros64(m)/8]; x.acquire(c) {
				return x
			}
		}
		if word < past {
			return nil
		}
		g = t.after(g)
	}
	return nil
}

// alike returns a bit for each byte of a word that is as the counter's would be there, and perhaps
// for some that are not.
func alike(word, lo uint64) uint64 {
	x := word ^ (lo | highs)
	return (x - lows) &^ x & highs
}

// What follows changes the table, and is done by one at a time.

// seat finds a free cell for a counter that is not there, and returns it with the word of its
// group, and what that is once the counter lives there.
func (t *table) seat(c id) (x *cell, word *uint64, lived uint64) {
	g := t.home(c.lo)
	for {
		word, now := &t.words[g], atomic.LoadUint64(&t.words[g])
		if free := ^now & highs; free != 0 {
			i := bits.TrailingZeros64(free) / 8
			x := &t.cells[g*group+i]
			x.place = uint32(g*group + i)
			t.live++
			return x, word, now | (c.lo|highs)&(0xff<<(8*i))
		}
		if now>>56 != many {
			atomic.StoreUint64(word, now+past)
		}
		g = t.after(g)
	}
}

// settle moves a counter that is not there into a free cell, and returns that, locked.
func (t *table) settle(c id, counter stint.Counter) *cell {
	x, word, lived := t.seat(c)
	x.Counter = counter
	atomic.StoreUint64(&x.lo, c.lo)
	atomic.StoreUint64(&x.owner, c.hi|held)
	atomic.StoreUint64(word, lived)
	return x
}

// remove empties a cell that is locked.
func (t *table) remove(x *cell) {
	last := int(x.place / group)
	for g := t.home(x.id().lo); g != last; g = t.after(g) {
		if word := atomic.LoadUint64(&t.words[g]); word>>56 != many {
			atomic.StoreUint64(&t.words[g], word-past)
		}
	}
	atomic.StoreUint64(&t.words[last], atomic.LoadUint64(&t.words[last])&^(0xff<<(8*(x.place%group))))
	t.live--
	atomic.StoreUint64(&x.owner, 0)
}

// moveTo moves all counters to other tables, which are not searched yet, each to the one
// that is chosen for it.
func (t *table) moveTo(choose func(c id) *table) {
	for x := range t.all() {
		c := x.id()
		x.leave(c)
		to, word, lived := choose(c).seat(c)
		to.Counter, to.lo, to.owner, *word = x.Counter, c.lo, c.hi, lived
	}
}

// all yields the cells of all counters, and does not touch the others.
func (t *table) all() iter.Seq[*cell] {
	return func(yield func(*cell) bool) {
		for g := range t.words {
			for m := atomic.LoadUint64(&t.words[g]) & highs; m != 0; m &= m - 1 {
				if !yield(&t.cells[g*group+bits.TrailingZeros64(m)/8]) {
					return
				}
			}
		}
	}
}
