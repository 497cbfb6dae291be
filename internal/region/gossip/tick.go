package gossip

import (
	"context"

	"github.com/stintdev/stint"
)

// Tick finds out which regions this one is cut off from, and forgets what is not needed any more. It must be
// called at least five times in the time of Options.Cut.
func (s *Store) Tick(ctx context.Context) {
	for _, p := range s.peers {
		s.tick(ctx, p)
	}
	now := s.clock()
	for i := range s.ledger.shards {
		sh := &s.ledger.shards[i]
		sh.mu.Lock()
		sh.sweep(now)
		sh.mu.Unlock()
	}
}

func (s *Store) tick(ctx context.Context, p *peer) {
	began := s.elapsed()
	s.meters.lost.Add(p.forget(began))
	hears, a := s.hears(p, began), s.mark(p)
	if hears {
		a.Cost = 1
	}
	var ds [1]stint.Decision
	err := s.next.Take(ctx, []stint.Ask{a}, ds[:])
	s.hear(began, ds[:], err)
	switch d := &ds[0]; {
	case err != nil || d.Basis != stint.Counted:
		// Without the store no node can find that the region is cut off.
		p.cut.Store(false)
		if hears {
			p.linked.Store(began + s.o.Cut.Microseconds()/2)
		}
	default:
		// The last mark is forgotten then, and not before. The clocks may differ by a little.
		p.linked.Store(began + d.ResetAfter.Microseconds()*9/10)
		p.cut.Store(d.Remaining == d.Limit)
	}
}
