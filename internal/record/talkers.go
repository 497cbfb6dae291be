package record

import "slices"

// talkers are how often names were heard, of those that were heard most: a counter for
// each, in a table that is bounded. When it is full, the median of its counts is
// subtracted from all, and those that have nothing left, half of them or more, make room.
//
// A count is never too high, and is too low by at most what was subtracted in all. As
// each subtraction took as much from half of the table, that is at most 2/most of all
// that was heard: who was heard more often than that is here.
type talkers struct {
	most     int // so many have room; at most 1<<15
	counters []counter
	index    []uint16 // places of counters, from 1, by hash; 0: none. At most half are taken
	lost     int64    // what was subtracted from each
	counts   []int64  // to find the median, or it would be allocated
}

// counter is that of a name.
type counter struct {
	hash uint64
	n    int64
	name []byte // its own, and used again for another name
}

// longestName is how many bytes of a name are kept. Names of users are no longer.
const longestName = 255

// hear counts a name. Names are told apart by their hashes, of which no one outside can
// know the seed.
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
		t.counters = t.counters[:n+1] // with the room that the name there has left
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

// halve makes room for half of what there can be, or more.
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

// reset forgets all, and keeps the room.
func (t *talkers) reset() {
	clear(t.index)
	t.counters, t.lost = t.counters[:0], 0
}
