package gossip

import (
	"context"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
)

// takeShares takes from this node's shares what has to be taken from them. It returns the number of the first
// ask that its share denies, or -1.
func (s *Store) takeShares(ctx context.Context, asks []stint.Ask, holds []hold) (int, error) {
	for i := range holds {
		h := &holds[i]
		if !h.share {
			continue
		}
		passed, err := s.takeShare(ctx, &asks[i], h)
		if err != nil || !passed {
			s.giveBackShares(ctx, asks, holds)
			return i, err
		}
	}
	return -1, nil
}

func (s *Store) takeShare(ctx context.Context, a *stint.Ask, h *hold) (passed bool, err error) {
	if h.account != nil {
		if err := s.begin(ctx, a, h.account); err != nil {
			return false, err
		}
	}
	var ds [1]stint.Decision
	if err := s.o.Local.Take(ctx, []stint.Ask{s.share(a, a.Cost)}, ds[:]); err != nil {
		return false, err
	}
	if c := ds[0].Charge(); c.Cost > 0 {
		h.charge = &c
	}
	return ds[0].Allowed, nil
}

// giveBackShares gives back what was taken from shares.
func (s *Store) giveBackShares(ctx context.Context, asks []stint.Ask, holds []hold) {
	for i := range holds {
		if h := &holds[i]; h.charge != nil {
			a := s.share(&asks[i], -h.charge.Cost)
			a.Charge = h.charge
			var ds [1]stint.Decision
			_ = s.o.Local.Adjust(ctx, []stint.Ask{a}, ds[:]) // of memory: it does not fail
		}
	}
}

// share returns the ask of this node's share of a limit.
func (s *Store) share(a *stint.Ask, cost int64) stint.Ask {
	return stint.Ask{Key: a.Key, Limit: layer.Portion(a.Limit, int64(s.o.Weight), s.shares()), Cost: cost}
}

// shares returns how many shares there are, of which this node has as many as its region has weight.
func (s *Store) shares() int64 { return int64(s.o.Weights) * int64(s.o.Nodes()) }

// begin opens this node's share of a counter, unless it is open: with a share of what remains now, which recovers
// as the limit says. It stays open until the others know of all that was admitted here.
func (s *Store) begin(ctx context.Context, a *stint.Ask, acc *account) error {
	acc.open.Lock()
	defer acc.open.Unlock()
	acc.shard.mu.Lock()
	begun := acc.begun
	acc.shard.mu.Unlock()
	if begun {
		return nil
	}
	peek := *a
	peek.Cost = 0
	var ds [1]stint.Decision
	if err := s.next.Take(ctx, []stint.Ask{peek}, ds[:]); err != nil {
		return err
	}
	if err := s.o.Local.Reset(ctx, []stint.Ask{s.share(a, 0)}); err != nil {
		return err
	}
	local := s.share(a, 0)
	if local.Cost = local.Limit.Cap() - ds[0].Remaining*int64(s.o.Weight)/s.shares(); local.Cost > 0 {
		if err := s.o.Local.Adjust(ctx, []stint.Ask{local}, ds[:]); err != nil {
			return err
		}
	}
	acc.shard.mu.Lock()
	acc.begun = true
	acc.shard.mu.Unlock()
	s.opened.Add(1)
	return nil
}
