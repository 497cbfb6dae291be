package rls

import (
	"cmp"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// maxStats is how many names hits are counted under. With detailed_metric clients choose
// names; hits of further names are counted under [Others].
const maxStats = 10_000

// Others is the name of the hits beyond the maximum number of names.
const Others = "others"

// Hits counts the hits under one name.
type Hits struct {
	Total  uint64
	Within uint64 // passed
	Near   uint64 // passed, above NearRatio
	Over   uint64 // over the limit
	Shadow uint64 // over the limit, and passed because of shadow_mode
}

type hits struct{ total, within, near, over, shadow atomic.Uint64 }

// stats counts hits by name.
type stats struct {
	mu     sync.RWMutex
	fixed  map[string]*hits // names in the configuration
	varied map[string]*hits // names that depend on requests
}

// use returns the hits of the limits whose names are in the configuration, and drops those
// of other limits.
func (s *stats) use(c *descriptor.Config) map[*descriptor.Limit]*hits {
	s.mu.Lock()
	defer s.mu.Unlock()
	byLimit, fixed := map[*descriptor.Limit]*hits{}, map[string]*hits{}
	for l := range c.Limits() {
		if l.StatVaries() {
			continue
		}
		h := cmp.Or(fixed[l.Path], s.fixed[l.Path], s.varied[l.Path], new(hits))
		delete(s.varied, l.Path)
		fixed[l.Path], byLimit[l] = h, h
	}
	s.fixed = fixed
	if len(s.varied) > maxStats/2 {
		s.varied = nil // many may no longer be in use
	}
	return byLimit
}

// at returns the hits of a name that depends on the request.
func (s *stats) at(name []byte) *hits {
	s.mu.RLock()
	h := cmp.Or(s.fixed[string(name)], s.varied[string(name)])
	s.mu.RUnlock()
	if h != nil {
		return h
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.varied == nil {
		s.varied = map[string]*hits{}
	}
	if len(s.varied) >= maxStats {
		name = []byte(Others)
	}
	h = cmp.Or(s.fixed[string(name)], s.varied[string(name)])
	if h == nil {
		h = new(hits)
		s.varied[string(name)] = h
	}
	return h
}

// add counts the hits of an item.
func (s *stats) add(u *setup, w *work, i int, near float64) {
	it := &w.items[i]
	if it.limit.Unlimited || w.q.descriptors[i].negative {
		return
	}
	h := u.hits[it.limit]
	if h == nil {
		var buf [128]byte
		b := buf[:0]
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

// Stats iterates over all hits by name. The names follow detailed_metric and
// value_to_metric.
func (s *Service) Stats() iter.Seq2[string, Hits] {
	return func(yield func(string, Hits) bool) {
		s.stats.mu.RLock()
		defer s.stats.mu.RUnlock()
		for _, names := range []map[string]*hits{s.stats.fixed, s.stats.varied} {
			for name, h := range names {
				if !yield(name, Hits{h.total.Load(), h.within.Load(), h.near.Load(), h.over.Load(), h.shadow.Load()}) {
					return
				}
			}
		}
	}
}
