package memstore

import (
	"math/bits"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// table holds the cells of a shard, in groups of seven. Beside them it has a
// word for each group: a byte for each cell, which is zero or seven bits of the
// fingerprint of who lives there, and in the top byte how many went past the
// group because it was full. A search looks at the word of the group that the
// fingerprint names, and at the next while some have gone past, and so finds the
// one cell worth a look; the words of a million counters fit into a processor's
// cache. Nothing has to be tidied up when a counter leaves.
//
// A table is between 85 and 92 per cent full, unless it is small, so that a
// counter costs less than 80 bytes, all told.
//
// It is searched without a lock while counters come and go: a search may miss
// one that is there, but never finds one that is not.
type table struct {
	words []atomic.Uint64
	cells []cell
	live  int
}

const (
	group  = 7
	lodged = 0x80 // set in the byte of a cell that is taken

	lows  = 0x0001010101010101
	highs = 0x0080808080808080
	past  = 1 << 56 // one in the top byte
	many  = 0xff    // in the top byte: no longer counted
)

// newTable returns an empty table for so many counters.
func newTable(counters int) *table {
	n := counters * 20 / 17
	if n < 128 {
		n = 2 * counters // small tables need not be so full
	}
	groups := n/group + 1
	return &table{words: make([]atomic.Uint64, groups), cells: make([]cell, groups*group)}
}

// full reports whether a larger table is needed for the next counter.
func (t *table) full() bool { return t.live >= len(t.cells)*23/25 }

// home returns the group where the search for a fingerprint begins.
func (t *table) home(lo uint64) int {
	h, _ := bits.Mul64(lo, uint64(len(t.words)))
	return int(h)
}

func (t *table) after(g int) int {
	if g++; g < len(t.words) {
		return g
	}
	return 0
}

func tagOf(c id) uint64 { return c.lo&0x7f | lodged }

// acquire finds the counter's cell and locks it, or returns nil.
func (t *table) acquire(c id) *cell {
	tag, g := tagOf(c)*lows, t.home(c.lo)
	for range t.words { // counters that come and go could keep a search going round
		word := t.words[g].Load()
		x := (word ^ tag) &^ (many * past)
		// A bit for each byte that is the tag, and perhaps for some that are not.
		for m := (x - lows) &^ x & highs; m != 0; m &= m - 1 {
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

// What follows changes the table, and is done by one at a time.

// settle moves a counter that is not there into a free cell, and returns it.
func (t *table) settle(c id, counter stint.Counter, owner uint64) *cell {
	g := t.home(c.lo)
	for {
		word := t.words[g].Load()
		if free := ^word & highs; free != 0 {
			i := bits.TrailingZeros64(free) / 8
			x := &t.cells[g*group+i]
			x.Counter, x.place = counter, uint32(g*group+i)
			x.lo.Store(c.lo)
			x.owner.Store(owner)
			t.words[g].Store(word | tagOf(c)<<(8*i))
			t.live++
			return x
		}
		if word>>56 != many {
			t.words[g].Store(word + past)
		}
		g = t.after(g)
	}
}

// remove empties a cell that is locked.
func (t *table) remove(x *cell) {
	last := int(x.place / group)
	for g := t.home(x.lo.Load()); g != last; g = t.after(g) {
		if word := t.words[g].Load(); word>>56 != many {
			t.words[g].Store(word - past)
		}
	}
	t.words[last].Store(t.words[last].Load() &^ (0xff << (8 * (x.place % group))))
	t.live--
	x.owner.Store(0)
}

// moveTo moves all counters to other tables, each to the one that is chosen for
// it.
func (t *table) moveTo(choose func(c id) *table) {
	for i := range t.cells {
		x := &t.cells[i]
		c := id{lo: x.lo.Load(), hi: x.owner.Load() &^ held}
		if c.hi == 0 {
			continue
		}
		x.acquire(c)
		choose(c).settle(c, x.Counter, c.hi)
		x.owner.Store(0)
	}
}
