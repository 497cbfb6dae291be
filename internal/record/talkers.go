package record

import "slices"

// talkers counts the most frequent names in a table of bounded size. When it is full, the
// median of the counts is subtracted from all, and the names that have nothing left, at least
// half of them, are dropped.
//
// A count is never too high, and too low by at most the sum of what was subtracted. Each
// subtraction took as much from half of the table, so that is at most 2/most of the total: a
// name with more than that is in the table.
type talkers struct {
	most     int // counters, at most 1<<15
	counters []counter
	index    []uint16 // by hash, the index of a counter plus 1; 0: none. At most half are used
	lost     int64    // what was subtracted from each
	counts   []int64  // to find the median without an allocation
}

// counter counts a name.
type counter struct {
	hash uint64
	n    int64
	name []byte // a copy, reused for other names
}

// longestName is how many bytes of a name are kept. No user has a longer one.
const longestName = 255

// hear counts a name. Names are identified by their hash, whose seed is random.
func hear[T string | []byte](t *talkers, hash uint64, name T) {
	if t.index == nil {
		size := 1
		for size < 2*t.most {
			size *= 2
		}
		t.index = make([]uint16, size)
	}
	at := t.find(hash)
	if place := t.index[at]; place != 0 {
		t.counters[place-1].n++
		return
	}
	if len(t.counters) == t.most {
		t.halve()
		at = t.find(hash)
	}
	n := len(t.counters)
	if n < cap(t.counters) {
		t.counters = t.counters[:n+1] // and reuse the memory of its name
	} else {
		t.counters = append(t.counters, counter{})
	}
	c := &t.counters[n]
	c.hash, c.n, c.name = hash, 1, append(c.name[:0], name[:min(len(name), longestName)]...)
	t.index[at] = uint16(n + 1)
}

// find returns where a hash is in the index, or would be.
func (t *talkers) find(hash uint64) uint64 {
	mask := uint64(len(t.index) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		if place := t.index[at]; place == 0 || t.counters[place-1].hash == hash {
			return at
		}
	}
}

// halve drops at least half of the counters.
func (t *talkers) halve() {
	t.counts = t.counts[:0]
	for i := range t.counters {
		t.counts = append(t.counts, t.counters[i].n)
	}
	slices.Sort(t.counts)
	median := t.counts[len(t.counts)/2]
	t.lost += median
	clear(t.index)
	kept := 0
	for i := range t.counters {
		if t.counters[i].n -= median; t.counters[i].n > 0 {
			t.counters[kept], t.counters[i] = t.counters[i], t.counters[kept]
			kept++
			t.index[t.find(t.counters[kept-1].hash)] = uint16(kept)
		}
	}
	t.counters = t.counters[:kept]
}

// reset drops all counters, and keeps their memory.
func (t *talkers) reset() {
	clear(t.index)
	t.counters, t.lost = t.counters[:0], 0
}
