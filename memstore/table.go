package memstore

import (
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// table holds the cells of a shard, in groups of seven. Each group has a word with a byte for each
// cell. The byte is zero if the cell is free, otherwise it is the corresponding byte of the counter's
// fingerprint with its top bit set. The top byte of the word counts the counters that were placed in a
// later group because this one was full. A search starts at the group that the fingerprint selects,
// and continues with the next while that count is not zero. So it usually reads only the right cell,
// and the words of a million counters fit into a processor's cache. Removing a counter leaves no
// tombstone.
//
// A new table is 85 % full, or less if the allocator rounds up, and grows at 92 %, so that a counter
// takes less than 80 bytes in total. While there are few counters, it is roomy: a new table is a third
// full and grows at a half, and hardly one counter in a hundred is outside of its first group.
//
// Tables are searched without a lock while counters are inserted and removed. A search may miss a
// counter that exists, but never finds one that does not.
type table struct {
	words []uint64 // accessed atomically once the table is visible
	cells []cell
	shard *shard
	live  int
	bans  int // of live
	limit int // of live; beyond it, a larger table is needed
}

const (
	group = 7
	lows  = 0x0001010101010101
	highs = 0x0080808080808080 // set in the bytes of used cells
	past  = 1 << 56            // one in the top byte
	stuck = 0xff               // in the top byte: too many, no longer counted
)

// newTable returns an empty table for a number of counters.
func newTable(counters int, roomy bool) *table {
	n := counters * 20 / 17
	if roomy {
		n = 3 * counters
	}
	// The allocator rounds up by as much as an eighth. Use all of it.
	cells := slices.Grow([]cell(nil), n+group)
	groups := cap(cells) / group
	t := &table{words: make([]uint64, groups), cells: cells[:groups*group]}
	t.limit = len(t.cells) * 23 / 25
	if roomy {
		t.limit = len(t.cells) / 2
	}
	return t
}

// full reports whether a larger table is needed for the next counter.
func (t *table) full() bool { return t.live >= t.limit }

// home returns the group where the search for a fingerprint starts.
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

// acquire finds and locks the counter's cell, or returns nil.
func (t *table) acquire(c id) *cell {
	g := t.home(c.lo)
	for range t.words { // bounded, since concurrent changes could make a search endless
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

// alike returns a bit for each byte of a word that matches the fingerprint. There may be false
// positives.
func alike(word, lo uint64) uint64 {
	x := word ^ (lo | highs)
	return (x - lows) &^ x & highs
}

// The methods below change the table, and are called with the shard's lock held.

// seat finds a free cell for a counter that has none. It returns the cell, the word of its group, and
// the new value of that word.
func (t *table) seat(c id) (x *cell, word *uint64, next uint64) {
	g := t.home(c.lo)
	for {
		word, now := &t.words[g], atomic.LoadUint64(&t.words[g])
		if free := ^now & highs; free != 0 {
			i := bits.TrailingZeros64(free) / 8
			x := &t.cells[g*group+i]
			t.live++
			return x, word, now | (c.lo|highs)&(0xff<<(8*i))
		}
		if now>>56 != stuck {
			atomic.StoreUint64(word, now+past)
		}
		g = t.after(g)
	}
}

// settle puts a new counter into a free cell, and returns it locked.
func (t *table) settle(c id, counter stint.Counter, k kept) *cell {
	x, word, next := t.seat(c)
	x.Counter, x.decided, x.worth = counter, 0, 0
	t.give(x, k.from, k.ban)
	atomic.StoreUint64(&x.lo, c.lo)
	atomic.StoreUint64(&x.owner, c.hi|held)
	atomic.StoreUint64(word, next)
	return x
}

// give sets where the counter of a cell comes from, and whether it is a ban.
func (t *table) give(x *cell, f from, ban bool) {
	if x.from, x.ban = f, ban; ban {
		t.bans++
	}
}

// remove frees a locked cell.
func (t *table) remove(x *cell) {
	if x.ban {
		t.bans--
	}
	for g := t.home(x.id().lo); ; g = t.after(g) {
		word := atomic.LoadUint64(&t.words[g])
		if i := t.index(g, x); i >= 0 {
			atomic.StoreUint64(&t.words[g], word&^(0xff<<(8*i)))
			break
		}
		if word>>56 != stuck {
			atomic.StoreUint64(&t.words[g], word-past)
		}
	}
	t.live--
	atomic.StoreUint64(&x.owner, 0)
}

// index returns which cell of a group it is, or -1.
func (t *table) index(g int, x *cell) int {
	for i := range group {
		if x == &t.cells[g*group+i] {
			return i
		}
	}
	return -1
}

// moveTo moves all counters to other tables, which are not visible yet. choose returns the table for
// each.
func (t *table) moveTo(choose func(c id) *table) {
	for x := range t.all() {
		c := x.id()
		x.leave(c)
		table := choose(c)
		to, word, next := table.seat(c)
		to.Counter, to.decided, to.worth = x.Counter, x.decided, x.worth
		table.give(to, x.from, x.ban)
		to.lo, to.owner, *word = c.lo, c.hi, next
	}
}

// all yields the cells of all counters, and does not read free cells.
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
