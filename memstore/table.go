package memstore

import (
	"math/bits"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// slot is one counter. A slot whose Until is zero is empty: no counter that is
// worth keeping has recovered at the epoch. The Aux of a sliding_log is minus
// one minus the index of its log.
type slot struct {
	id
	stint.Counter
}

// table holds slots by linear probing from the place that the fingerprint
// names. It is at most four fifths full and grows by a quarter, so a counter
// costs between 60 and 75 bytes.
type table struct {
	slots []slot
	live  int
	logs  []log
	free  []int // indices of unused logs
}

// shard is a table under a lock. What a take needs comes first, in one cache
// line.
type shard struct {
	mu    sync.Mutex
	calls uint32
	table
	hand           int // where the sweep goes on
	quota          int
	swept, evicted uint64
}

// home returns where a fingerprint's probe begins. Places are in the order of
// lo, so a growing table is copied front to back.
func (t *table) home(lo uint64) int {
	h, _ := bits.Mul64(lo, uint64(len(t.slots)))
	return int(h)
}

// find returns the counter's slot, or else the empty one where it would go.
func (t *table) find(c id) (int, bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	for i := t.home(c.lo); ; {
		s := &t.slots[i]
		if s.id == c && s.Until != 0 {
			return i, true
		}
		if s.Until == 0 {
			return i, false
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

// counter returns the counter in the slot and its log, if it has one.
func (t *table) counter(i int, found bool) (c stint.Counter, log []stint.Entry) {
	if !found {
		return c, nil
	}
	c = t.slots[i].Counter
	if c.Aux < 0 {
		log = t.logs[-1-c.Aux].live()
		c.Aux = 0
	}
	return c, log
}

// state is counter as one value.
func (t *table) state(i int, found bool) stint.State {
	c, log := t.counter(i, found)
	return stint.State{Counter: c, Log: log}
}

// commit writes what a take has charged to the counter.
func (t *table) commit(i int, a *stint.Ask, next *stint.Counter) {
	s := &t.slots[i]
	if a.Limit.Algorithm != stint.SlidingLog {
		s.Counter = *next
		return
	}
	l := t.logOf(s)
	aux, left := s.Aux, s.Used+a.Cost-next.Used
	l.forget(left)
	l.push(stint.Entry{At: next.At, Units: a.Cost})
	s.Counter = *next
	s.Aux = aux
}

// put writes a whole state.
func (t *table) put(i int, st stint.State) {
	s := &t.slots[i]
	if st.Log != nil {
		*t.logOf(s) = log{buf: st.Log}
		st.Aux = s.Aux
	}
	s.Counter = st.Counter
}

// logOf returns the slot's log, a new one if it has none.
func (t *table) logOf(s *slot) *log {
	if s.Aux >= 0 {
		n := len(t.free)
		if n == 0 {
			t.logs = append(t.logs, log{})
			s.Aux = int64(-len(t.logs))
		} else {
			s.Aux = int64(-1 - t.free[n-1])
			t.free = t.free[:n-1]
		}
	}
	return &t.logs[-1-s.Aux]
}

// remove empties a slot and moves up those behind it that it kept from their
// places.
func (t *table) remove(i int) {
	if a := t.slots[i].Aux; a < 0 {
		t.logs[-1-a] = log{}
		t.free = append(t.free, int(-1-a))
	}
	t.live--
	n := len(t.slots)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		if t.slots[j].Until == 0 {
			break
		}
		// How far j is from its home, and from the hole.
		far, gap := j-t.home(t.slots[j].lo), j-i
		if far < 0 {
			far += n
		}
		if gap < 0 {
			gap += n
		}
		if far >= gap {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
}

func (t *table) resize(n int) {
	old := t.slots
	t.slots = make([]slot, n)
	for k := range old {
		if old[k].Until != 0 {
			i, _ := t.find(old[k].id)
			t.slots[i] = old[k]
		}
	}
}

// insert makes a slot for a counter that has none. The slot counts as empty
// until a state is written to it.
func (s *shard) insert(c id, now time.Time) int {
	micros := now.UnixMicro()
	s.sweep(4, micros)
	if s.live >= s.quota {
		s.evict(micros)
	}
	s.live++
	if n := len(s.slots); s.live > n/5*4 {
		s.resize(n + max(n/4, 10)/5*5)
	}
	i, _ := s.find(c)
	s.slots[i].id = c
	return i
}

// grace is how long after its recovery a counter is swept, so that a clock
// that steps back a little finds what it left.
const grace = int64(time.Second / time.Microsecond)

// sweep looks at the next n slots and drops those that have recovered.
func (s *shard) sweep(n int, now int64) {
	for ; n > 0 && s.live > 0; n-- {
		if s.hand >= len(s.slots) {
			s.hand = 0
		}
		if u := s.slots[s.hand].Until; u != 0 && u+grace <= now {
			s.remove(s.hand)
			s.swept++
		} else {
			s.hand++
		}
	}
	if n := len(s.slots); n > 64 && s.live < n/4 {
		s.resize(n / 2 / 5 * 5)
	}
}

// evict makes room: it drops all counters that have recovered, or else the one
// nearest to it.
func (s *shard) evict(now int64) {
	nearest, recovered := -1, false
	for i := 0; i < len(s.slots); {
		u := s.slots[i].Until
		if u != 0 && u <= now {
			s.remove(i) // and look at what moved into its place
			s.swept++
			recovered = true
			continue
		}
		if u != 0 && (nearest < 0 || u < s.slots[nearest].Until) {
			nearest = i
		}
		i++
	}
	if !recovered {
		s.remove(nearest)
		s.evicted++
	}
}

// tick sweeps a little now and then.
func (s *shard) tick(now time.Time) {
	if s.calls++; s.calls%64 == 0 {
		s.sweep(16, now.UnixMicro())
	}
}
