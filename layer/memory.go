package layer

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// memory is what a store last said of counters that are used noticeably, and of bans, for as many as fit.
// Writing takes no memory and never waits.
//
// It is a table of sets. A counter belongs to one set by its hash, and the oldest of the set makes room
// for it. A counter of which little is used is not remembered, since it gains nothing by that: so made-up
// keys, of which each is used once, do not push out those that matter. Two counters with the same hash of
// 64 bits would be taken for each other; the hash is seeded, so no one can choose them.
type memory struct {
	seed maphash.Seed
	sets []memorySet // a power of two
}

const inSet = 4

type memorySet struct {
	mu sync.Mutex
	// ids are the hashes of the counters, 0 for a place that is free. They are written under the
	// lock, and may be read without it.
	ids [inSet]atomic.Uint64
	all [inSet]memorized
}

// memorized is what is remembered of a counter. Times are since the layer was made.
type memorized struct {
	at, until time.Duration // when the store had answered, and when the counter has recovered or the ban is over
	used      int64
	before    int64 // of used, what [stint.Decision.Before] says
}

func newMemory(size int) memory {
	n := 1
	if size > inSet {
		n = 1 << bits.Len(uint((size-1)/inSet))
	}
	return memory{seed: maphash.MakeSeed(), sets: make([]memorySet, n)}
}

// id returns the hash of the ask's counter, and its set.
func (m *memory) id(a *stint.Ask) (uint64, *memorySet) {
	h := max(hash(m.seed, a), 1)
	return h, &m.sets[h&uint64(len(m.sets)-1)]
}

// hash returns the hash of the ask's counter.
func hash(seed maphash.Seed, a *stint.Ask) uint64 {
	kind := uint64(1) // of penalties: no limit has it
	if a.Penalty == nil {
		kind = a.Limit.Kind()
	}
	h := maphash.String(seed, a.Key.Subject)
	return bits.RotateLeft64(h, 32) ^ maphash.String(seed, a.Key.Name) ^ kind*0x9e3779b97f4a7c15
}

// find returns the place of a counter in its set, or -1.
func (s *memorySet) find(id uint64) int {
	for i := range s.ids {
		if s.ids[i].Load() == id {
			return i
		}
	}
	return -1
}

// keep remembers a counter, or forgets it if it is not worth it.
func (m *memory) keep(a *stint.Ask, e memorized, worth bool) {
	id, s := m.id(a)
	if !worth && s.find(id) < 0 {
		return
	}
	if !s.mu.TryLock() {
		return // another take is doing this
	}
	defer s.mu.Unlock()
	i := s.find(id)
	switch {
	case !worth && i >= 0:
		s.ids[i].Store(0)
		return
	case !worth:
		return
	case i < 0:
		i = s.oldest(e.at)
	}
	s.all[i] = e
	s.ids[i].Store(id)
}

// oldest returns the place to be used next: one that is free, has recovered, or was written first.
func (s *memorySet) oldest(now time.Duration) int {
	place := 0
	for i := range s.ids {
		if s.ids[i].Load() == 0 || s.all[i].until <= now {
			return i
		}
		if s.all[i].at < s.all[place].at {
			place = i
		}
	}
	return place
}

// forget forgets a counter.
func (m *memory) forget(a *stint.Ask) {
	if m.sets == nil {
		return
	}
	id, s := m.id(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(id); i >= 0 {
		s.ids[i].Store(0)
	}
}

// use calls f with what is remembered of a counter that has not recovered, and forgets it. It returns when
// this was done, by whomever, so that no one uses the counter before.
func (m *memory) use(a *stint.Ask, now time.Duration, f func(memorized)) {
	id, s := m.id(a)
	if s.find(id) < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.find(id)
	if i < 0 {
		return
	}
	if s.all[i].until > now {
		f(s.all[i])
	}
	s.ids[i].Store(0)
}

// look returns how long a ban lasts that is remembered, or 0.
func (m *memory) look(a *stint.Ask, now time.Duration) time.Duration {
	id, s := m.id(a)
	if s.find(id) < 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(id); i >= 0 {
		return max(s.all[i].until-now, 0)
	}
	return 0
}
