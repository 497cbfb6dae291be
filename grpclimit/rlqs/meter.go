package rlqs

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Requests is what became of the requests under a limit. What was assigned and is neither passed nor given back was not
// reported yet, or stays charged.
type Requests struct {
	Assigned   int64 // may pass
	Passed     int64 // have passed, as Envoys report
	Denied     int64 // were denied, as Envoys report
	Back       int64 // of Assigned, given back
	Unassigned int64 // of Passed, without an assignment, or beyond it
}

type counts struct{ assigned, passed, denied, back, unassigned atomic.Int64 }

// maxMetered is how many limits are counted one by one. The others are counted as [Others].
const maxMetered = 10_000

// Others is the name of limits beyond the number of those that are counted one by one.
const Others = "others"

// meter counts requests by limit.
type meter struct {
	mu     sync.Mutex
	limits map[string]*counts
}

func (m *meter) of(limit string) *counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limits[limit] == nil && len(m.limits) >= maxMetered {
		limit = Others
	}
	c := m.limits[limit]
	if c == nil {
		c = new(counts)
		m.limits[limit] = c
	}
	return c
}

// Stats iterates over the requests by limit, in the order of names, which are those of [descriptor.Limit.Path].
func (s *Server) Stats() iter.Seq2[string, Requests] {
	s.meter.mu.Lock()
	all := maps.Clone(s.meter.limits)
	s.meter.mu.Unlock()
	return func(yield func(string, Requests) bool) {
		for _, limit := range slices.Sorted(maps.Keys(all)) {
			c := all[limit]
			if !yield(limit, Requests{
				Assigned: c.assigned.Load(), Passed: c.passed.Load(), Denied: c.denied.Load(), Back: c.back.Load(), Unassigned: c.unassigned.Load(),
			}) {
				return
			}
		}
	}
}
