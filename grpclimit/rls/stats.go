package rls

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// maxStats is how many names hits are counted under. With detailed_metric they are
// clients' making; those that come later are counted under [Others].
const maxStats = 10_000

// Others is the name of hits for whose own there was no room.
const Others = "others"

// Hits are the hits of a limit, or of a part of them that is counted by itself.
type Hits struct {
	Total  uint64
	Within uint64 // those that passed
	Near   uint64 // of what passed, those beyond the share that is near the limit
	Over   uint64 // those that did not fit
	Shadow uint64 // of those, the ones that passed in shadow_mode
}

type hits struct{ total, within, near, over, shadow atomic.Uint64 }

// stats counts hits by name.
type stats struct {
	mu     sync.RWMutex
	byName map[string]*hits
}

// of returns the hits of a name.
func (s *stats) of(name string) *hits { return s.at([]byte(name)) }

func (s *stats) at(name []byte) *hits {
	s.mu.RLock()
	h := s.byName[string(name)]
	s.mu.RUnlock()
	if h != nil {
		return h
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]*hits{}
	}
	if h = s.byName[string(name)]; h != nil {
		return h
	}
	if len(s.byName) >= maxStats {
		name = []byte(Others)
		if h = s.byName[Others]; h != nil {
			return h
		}
	}
	h = new(hits)
	s.byName[string(name)] = h
	return h
}

// keep forgets the names of limits that there are not any more.
func (s *stats) keep(c *descriptor.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[string]*hits{}
	for l := range c.Limits() {
		if h := s.byName[l.Path]; h != nil {
			kept[l.Path] = h
		}
	}
	s.byName = kept
}

// add counts the hits of an item.
func (s *stats) add(u *setup, w *work, i int, near float64) {
	it := &w.items[i]
	if it.limit.Unlimited || w.q.descriptors[i].negative {
		return
	}
	h := u.hits[it.limit]
	if h == nil {
		var room [128]byte
		b := room[:0]
		if it.brought {
			b = descriptor.AppendPath(b, w.q.domain, w.q.of(i))
		} else {
			b = it.limit.AppendStat(b, w.q.of(i))
		}
		h = s.at(b)
	}
	n := uint64(it.cost)
	if n == 0 {
		return
	}
	h.total.Add(n)
	switch {
	case !it.over:
		h.within.Add(n)
		used := int64(it.limit.Requests) - it.decision.Remaining
		if over := used - int64(float64(it.limit.Requests)*near); over > 0 {
			h.near.Add(min(n, uint64(over)))
		}
	case it.limit.Shadow:
		h.over.Add(n)
		h.shadow.Add(n)
	default:
		h.over.Add(n)
	}
}

// Stats returns the hits by the names of limits, as detailed_metric and
// value_to_metric have them.
func (s *Service) Stats() iter.Seq2[string, Hits] {
	return func(yield func(string, Hits) bool) {
		s.stats.mu.RLock()
		defer s.stats.mu.RUnlock()
		for name, h := range s.stats.byName {
			if !yield(name, Hits{h.total.Load(), h.within.Load(), h.near.Load(), h.over.Load(), h.shadow.Load()}) {
				return
			}
		}
	}
}
