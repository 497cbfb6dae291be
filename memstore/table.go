package memstore

import (
	"math/bits"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// table holds the cells of a shard. Beside them it has a tag of one byte for
// each, eight to a word: empty, left, or seven bits of the fingerprint of who
// lives there. A search looks at the tags of the group that the fingerprint
// names, goes on to the next group while that is full, and so finds the one cell
// worth a look; the tags of a million counters fit into a processor's cache. It
// is between 85 and 92 per cent full, unless it is small, so a counter costs
// less than 78 bytes.
//
// It is searched without a lock while counters come and go: a search may miss
// one that is there, but never finds one that is not.
type table struct {
	tags  []atomic.Uint64
	cells []cell
	used  int // cells that are not empty
}

const (
	empty  = 0
	left   = 1 // someone lived there; those who came after may live further on
	lodged = 0x80

	group = 8 // tags in a word
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// newTable returns an empty table for so many counters.
func newTable(counters int) *table {
	n := counters * 20 / 17
	if n < 128 {
		n = 2 * counters // small tables need not be so full
	}
	groups := n/group + 1
	return &table{tags: make([]atomic.Uint64, groups), cells: make([]cell, groups*group)}
}

// full reports whether the table should be made anew before the next counter.
func (t *table) full() bool { return t.used >= len(t.cells)*23/25 }

// home returns the group where the search for a fingerprint begins.
func (t *table) home(c id) int {
	h, _ := bits.Mul64(c.lo, uint64(len(t.tags)))
	return int(h)
}

func (t *table) after(g int) int {
	if g++; g < len(t.tags) {
		return g
	}
	return 0
}

func tagOf(c id) uint64 { return c.lo&0x7f | lodged }

// withTag returns a bit for each tag of the word that is the one given, and
// perhaps for some that are not.
func withTag(word, tag uint64) uint64 {
	x := word ^ tag*lows
	return (x - lows) &^ x & highs
}

// acquire finds the counter's cell and locks it, or returns nil.
func (t *table) acquire(c id) *cell {
	tag, g := tagOf(c), t.home(c)
	for range t.tags { // counters that come and go could keep a search going round
		word := t.tags[g].Load()
		for m := withTag(word, tag); m != 0; m &= m - 1 {
			if x := &t.cells[g*group+bits.TrailingZeros64(m)/8]; x.acquire(c) {
				return x
			}
		}
		if withTag(word, empty) != 0 {
			return nil
		}
		g = t.after(g)
	}
	return nil
}

// What follows changes the table, and is done by one at a time.

// settle moves a counter that is not there into a free cell, and returns it.
func (t *table) settle(c id, counter stint.Counter, owner uint64) *cell {
	g := t.home(c)
	for {
		word := t.tags[g].Load()
		if free := ^word & highs; free != 0 {
			i := bits.TrailingZeros64(free) / 8
			if byte(word>>(8*i)) == empty {
				t.used++
			}
			x := &t.cells[g*group+i]
			x.Counter, x.place = counter, uint32(g*group+i)
			x.lo.Store(c.lo)
			x.owner.Store(owner)
			t.setTag(x, tagOf(c))
			return x
		}
		g = t.after(g)
	}
}

func (t *table) setTag(x *cell, tag uint64) {
	word, shift := &t.tags[x.place/group], 8*(x.place%group)
	word.Store(word.Load()&^(0xff<<shift) | tag<<shift)
}

// remove empties a cell that is locked. Its tag must go on leading those who
// search past it, unless there is no one to find behind it.
func (t *table) remove(x *cell) {
	if withTag(t.tags[x.place/group].Load(), empty) != 0 {
		t.setTag(x, empty)
		t.used--
	} else {
		t.setTag(x, left)
	}
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
