package rls

import (
	"cmp"
	"iter"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

// The bounds of names. With detailed_metric clients choose them, and they choose domains; hits of
// further names, and of longer ones, are counted under [Others].
const (
	maxStats   = 10_000
	maxDomains = 100
	maxName    = 1 << 10 // bytes
)

// Others is the name of the hits beyond the bounds of names.
const Others = "others"

// Hits counts the hits under one name. Each number is that of envoyproxy/ratelimit: of hits that
// cross a limit, those below it are near it or are not counted, and none is within it.
type Hits struct {
	Total      uint64
	Within     uint64 // passed
	Near       uint64 // above NearRatio, and not over the limit
	Over       uint64 // over the limit
	Remembered uint64 // of those over the limit, decided by a denial of a moment before
	Shadow     uint64 // over the limit, and passed because of shadow_mode
}

// countHits returns what n hits count as, if so many were used before them. Those above near are
// near the limit.
func countHits(n, used, limit, near uint64, remembered, shadow bool) Hits {
	h := Hits{Total: n}
	switch after := used + n; {
	case remembered:
		h.Over, h.Remembered = n, n
	case after > limit:
		h.Over = min(n, after-limit)
		if used < limit {
			h.Near = limit - max(near, used)
		}
	default:
		h.Within = n
		if after > near {
			h.Near = min(n, after-near)
		}
	}
	if shadow {
		h.Shadow = h.Over
	}
	return h
}

// Totals counts what has no name.
type Totals struct {
	Invalid   uint64 // calls that failed: they were invalid, or there were no limits yet
	Undecided uint64 // calls that failed: the store could not decide
	Alone     uint64 // calls that this process decided by itself: the store was out of reach
	Shadowed  uint64 // requests that passed because of Options.Shadow
	Folded    uint64 // hits, also of unknown domains, that are counted under Others
}

type hits struct{ total, within, near, over, remembered, shadow atomic.Uint64 }

// add adds hits. Most are 0, and adding those would be wasted work.
func (h *hits) add(n *Hits) {
	addTo(&h.total, n.Total)
	addTo(&h.within, n.Within)
	addTo(&h.near, n.Near)
	addTo(&h.over, n.Over)
	addTo(&h.remembered, n.Remembered)
	addTo(&h.shadow, n.Shadow)
}

func addTo(sum *atomic.Uint64, n uint64) {
	if n > 0 {
		sum.Add(n)
	}
}

func (h *hits) read() Hits {
	return Hits{
		Total: h.total.Load(), Within: h.within.Load(), Near: h.near.Load(), Over: h.over.Load(),
		Remembered: h.remembered.Load(), Shadow: h.shadow.Load(),
	}
}

// stats counts hits by name.
type stats struct {
	mu     sync.RWMutex
	fixed  map[string]*hits // names in the configuration
	varied map[string]*hits // names that depend on requests

	unknown                                     map[string]*atomic.Uint64 // descriptors of domains that do not exist
	invalid, undecided, alone, shadowed, folded atomic.Uint64
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

// at returns the hits of a name that depends on the request, and whether that is Others.
func (s *stats) at(name []byte) (h *hits, folded bool) {
	if len(name) > maxName {
		name = []byte(Others)
	}
	s.mu.RLock()
	h = cmp.Or(s.fixed[string(name)], s.varied[string(name)])
	s.mu.RUnlock()
	if h != nil {
		return h, string(name) == Others
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
	return h, string(name) == Others
}

// missing counts descriptors of a domain that does not exist.
func (s *stats) missing(domain string, descriptors int) {
	if len(domain) > maxName {
		domain = Others
	}
	s.mu.RLock()
	n := s.unknown[domain]
	s.mu.RUnlock()
	if n == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.unknown == nil {
			s.unknown = map[string]*atomic.Uint64{}
		}
		if len(s.unknown) >= maxDomains {
			domain = Others
		}
		if n = s.unknown[domain]; n == nil {
			n = new(atomic.Uint64)
			s.unknown[strings.Clone(domain)] = n // it is a part of the request
		}
	}
	n.Add(uint64(descriptors))
	if domain == Others {
		s.folded.Add(uint64(descriptors))
	}
}

// add counts the hits of an item.
func (s *stats) add(u *setup, w *work, i int, ratio float32) {
	it := &w.items[i]
	if it.limit.Unlimited || w.q.descriptors[i].negative {
		return
	}
	h, folded := u.hits[it.limit], false
	if h == nil {
		var buf [128]byte
		b := buf[:0]
		if it.brought {
			b = descriptor.AppendPath(b, w.q.domain, w.q.of(i))
		} else {
			b = it.limit.AppendStat(b, w.q.of(i))
		}
		h, folded = s.at(b)
	}
	n := it.hits(!w.over || it.apart, ratio)
	h.add(&n)
	if folded {
		s.folded.Add(n.Total)
	}
}

// hits returns what the hits of an item count as. charged means that they were, unless the item
// is over its limit.
func (it *item) hits(charged bool, ratio float32) Hits {
	n, limit := uint64(it.cost), uint64(it.limit.Requests)
	used := int64(limit) - it.decision.Remaining
	switch {
	case !it.over && charged:
		used -= it.cost
	case it.over && (it.banned || used+it.cost <= int64(limit)): // whatever remains
		used = int64(limit)
	}
	// In the precision of envoyproxy/ratelimit, so that the numbers are the same.
	near := uint64(float32(limit) * ratio)
	return countHits(n, uint64(max(used, 0)), limit, near, it.over && it.decision.Basis == stint.Remembered, it.limit.Shadow)
}

// Stats iterates over all hits by name. The names follow detailed_metric and
// value_to_metric.
func (s *Service) Stats() iter.Seq2[string, Hits] {
	return func(yield func(string, Hits) bool) {
		s.stats.mu.RLock()
		defer s.stats.mu.RUnlock()
		for _, names := range []map[string]*hits{s.stats.fixed, s.stats.varied} {
			for name, h := range names {
				if !yield(name, h.read()) {
					return
				}
			}
		}
	}
}

// UnknownDomains iterates over the domains without limits that descriptors were asked for, and
// how many these were.
func (s *Service) UnknownDomains() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		s.stats.mu.RLock()
		defer s.stats.mu.RUnlock()
		for domain, n := range s.stats.unknown {
			if !yield(domain, n.Load()) {
				return
			}
		}
	}
}

// Totals returns what has been counted without a name.
func (s *Service) Totals() Totals {
	t := &s.stats
	return Totals{Invalid: t.invalid.Load(), Undecided: t.undecided.Load(), Alone: t.alone.Load(), Shadowed: t.shadowed.Load(), Folded: t.folded.Load()}
}
