package gossip

import (
	"context"
	"time"

	"github.com/stintdev/stint"
)

// The times of the protocol, which the package describes. A tick is every half second.
const (
	// maxConsent is how long after a tick this node consents at most that others go on.
	maxConsent = 3 * time.Second
	// marked is how long the mark of a node that admits shares is kept, unless it removes it. It is renewed at every
	// sixth of that, and relied on for two thirds. A node that is killed, or stands still for longer, is not waited for.
	marked  = 30 * time.Second
	renewed = marked / 6
	trusted = marked / 3 * 2
)

// Tick finds out which regions this one is cut off from, and whether its nodes may admit shares or others may go on. It
// forgets what is not needed any more. It must be called every half second.
func (s *Store) Tick(ctx context.Context) {
	for _, p := range s.peers {
		s.tick(ctx, p)
	}
	s.sweep()
	s.tickShares(ctx)
}

// sweep forgets what has recovered, in some of the shards: there may be very many counters. While there are open shares,
// it looks at all of them, and closes those that are not needed any more.
func (s *Store) sweep() {
	const atOnce = 4
	elapsed, open := s.elapsed(), s.opened.Load() > 0
	for i := range s.ledger.shards {
		sh := &s.ledger.shards[i]
		due := i/atOnce == s.swept
		if !due && !open {
			continue
		}
		sh.mu.Lock()
		if open {
			for _, acc := range sh.accounts {
				s.close(acc, elapsed)
			}
		}
		if due {
			sh.sweep(s.clockAt(elapsed))
		}
		sh.mu.Unlock()
	}
	s.swept = (s.swept + 1) % (len(s.ledger.shards) / atOnce)
}

// mark returns the ask of a mark that nodes of this region see for so long.
func (s *Store) mark(name string, kept time.Duration) stint.Ask {
	return stint.Ask{
		Key:   stint.Key{Subject: "region:" + s.o.Self.Region, Name: "~" + name},
		Limit: stint.Limit{Algorithm: stint.SlidingLog, Max: 1 << 12, Window: stint.Every(kept)},
	}
}

// look sets a mark, or only looks whether there is one. It returns false if the store does not say.
func (s *Store) look(ctx context.Context, a stint.Ask, set bool) (d stint.Decision, counted bool) {
	if set {
		a.Cost = 1
	}
	var ds [1]stint.Decision
	began := s.elapsed()
	err := s.next.Take(ctx, []stint.Ask{a}, ds[:])
	s.hear(began, ds[:], err)
	// Only a failure counts, and not the time since the last answer: this node may have stood still.
	switch counted = err == nil && ds[0].Basis == stint.Counted; {
	case counted:
		s.failing = 0
	case s.failing == 0:
		s.failing = max(began, 1)
	case began-s.failing > s.o.Cut.Microseconds():
		s.blind.Store(true)
	}
	return ds[0], counted
}

func (s *Store) tick(ctx context.Context, p *peer) {
	began := s.elapsed()
	s.meters.lost.Add(p.forget(began))
	d, counted := s.look(ctx, s.mark("heard:"+p.name, s.o.Cut), s.hears(p, began))
	p.cut.Store(counted && d.Remaining == d.Limit)
}

// tickShares marks that this node may admit shares, or has admitted some that others may not know of yet. If no node
// of this region does, others may go on.
func (s *Store) tickShares(ctx context.Context) {
	began, mark := s.elapsed(), s.mark("shares", marked)
	if s.opened.Load() > 0 || s.divided(began) {
		s.consent.Store(never)
		if began-s.sharing.Load() > renewed.Microseconds() {
			s.renew(ctx, mark, began)
		}
		return
	}
	s.unmark(ctx, mark, s.shareMark)
	s.shareMark = stint.Charge{}
	s.sharing.Store(never)
	if d, counted := s.look(ctx, mark, false); counted && d.Remaining < d.Limit {
		s.consent.Store(never)
	} else { // without the store, no node can admit shares
		s.consent.Store(began + maxConsent.Microseconds())
	}
}

// renew sets this node's mark again, and removes the last one.
func (s *Store) renew(ctx context.Context, mark stint.Ask, began int64) {
	d, counted := s.look(ctx, mark, true)
	if !counted || !d.Allowed {
		return // the last one is good for a while
	}
	if began-s.sharing.Load() >= trusted.Microseconds() {
		s.sharingSince.Store(s.elapsed())
	}
	s.sharing.Store(began)
	s.unmark(ctx, mark, s.shareMark)
	s.shareMark = d.Charge()
}

// unmark removes a mark, which otherwise goes by itself.
func (s *Store) unmark(ctx context.Context, mark stint.Ask, c stint.Charge) {
	if c.Cost > 0 {
		mark.Cost, mark.Charge = -c.Cost, &c
		_ = s.next.Adjust(ctx, []stint.Ask{mark}, make([]stint.Decision, 1))
	}
}

// Consents returns for how long this region consents that others go on: so long none of its nodes admits shares.
func (s *Store) Consents() time.Duration {
	return time.Duration(max(s.consent.Load()-s.elapsed(), 0)) * time.Microsecond
}

// Standing returns what [Store.Alone] and [Store.Consents] do.
func (s *Store) Standing() (alone bool, consent time.Duration) { return s.Alone(), s.Consents() }

// mayShare reports whether this node may admit shares: it has marked that for so long that no other region has this
// one's consent any more.
func (s *Store) mayShare(now int64) bool {
	return now-s.sharing.Load() < trusted.Microseconds() && now-s.sharingSince.Load() > maxConsent.Microseconds()
}

// close closes the share of an account, whose shard is locked, if it is not needed any more: the regions are together
// and the others know of all that was admitted, or that has recovered.
func (s *Store) close(acc *account, elapsed int64) {
	if acc.begun && !s.divided(elapsed) && acc.everyoneKnows(s.clockAt(elapsed)) {
		acc.begun = false
		s.opened.Add(-1)
	}
}
