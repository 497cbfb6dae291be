package region

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// Store decides asks of central counters in the central region, and all others at home. A take of both is
// charged in both, or in neither. It is safe for concurrent use.
//
// A take of both asks the central region first, so that a request which is denied there is one call. If the store
// at home denies it, or fails, what was charged there is given back, by its charge: for a moment it was missing to
// others.
type Store struct {
	home, central stint.Store
}

// NewStore returns a store. Closing it closes both.
func NewStore(home, central stint.Store) *Store { return &Store{home, central} }

// isCentral reports whether an ask is about a counter, or a ban, of the central region.
func isCentral(a *stint.Ask) bool {
	return a.Policy != nil && a.Policy.Regions == stint.RegionsCentral
}

// divide reports whether there are asks of central counters, and others.
func divide(asks []stint.Ask) (central, home bool) {
	for i := range asks {
		if isCentral(&asks[i]) {
			central = true
		} else {
			home = true
		}
	}
	return central, home
}

// Take decides a take.
func (s *Store) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	switch central, home := divide(asks); {
	case !central:
		return s.home.Take(ctx, asks, ds)
	case !home:
		return s.central.Take(ctx, asks, ds)
	}
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	far, near := newPart(asks, true), newPart(asks, false)
	if err := s.central.Take(ctx, far.asks, far.ds); err != nil {
		return err
	}
	var err error
	if denied(far.ds) {
		err = s.home.Take(ctx, near.withDenial(), near.room(1))
	} else if err = s.home.Take(ctx, near.asks, near.ds); err != nil || denied(near.ds) {
		err = errors.Join(err, s.undo(ctx, far))
	}
	if err != nil {
		return err
	}
	far.answer(ds)
	near.answer(ds)
	return nil
}

func denied(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed })
}

// undo gives back what a take has charged. The decisions then describe the counters as they stand.
func (s *Store) undo(ctx context.Context, p *part) error {
	ctx = context.WithoutCancel(ctx)
	if back := stint.Refund(p.asks, p.ds); len(back) > 0 {
		if err := s.central.Adjust(ctx, back, make([]stint.Decision, len(back))); err != nil {
			return err
		}
	}
	return s.central.Take(ctx, p.withDenial(), p.room(1))
}

// Adjust adjusts each counter where it is.
func (s *Store) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	switch central, home := divide(asks); {
	case !central:
		return s.home.Adjust(ctx, asks, ds)
	case !home:
		return s.central.Adjust(ctx, asks, ds)
	}
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	far, near := newPart(asks, true), newPart(asks, false)
	err := errors.Join(s.central.Adjust(ctx, far.asks, far.ds), s.home.Adjust(ctx, near.asks, near.ds))
	if err != nil {
		return err
	}
	far.answer(ds)
	near.answer(ds)
	return nil
}

// Reset resets each counter where it is.
func (s *Store) Reset(ctx context.Context, asks []stint.Ask) error {
	switch central, home := divide(asks); {
	case !central:
		return s.home.Reset(ctx, asks)
	case !home:
		return s.central.Reset(ctx, asks)
	}
	return errors.Join(s.central.Reset(ctx, newPart(asks, true).asks), s.home.Reset(ctx, newPart(asks, false).asks))
}

// Close closes both stores.
func (s *Store) Close() error { return errors.Join(s.central.Close(), s.home.Close()) }

// part is those of several asks that one of the stores decides.
type part struct {
	asks []stint.Ask
	ds   []stint.Decision
	from []int
}

func newPart(asks []stint.Ask, central bool) *part {
	p := new(part)
	for i := range asks {
		if isCentral(&asks[i]) == central {
			p.asks, p.from = append(p.asks, asks[i]), append(p.from, i)
		}
	}
	p.ds = make([]stint.Decision, len(p.asks))
	return p
}

// withDenial returns the asks and one more, that is denied for sure, after all penalties: so nothing is charged, and
// no penalty answers for it.
func (p *part) withDenial() []stint.Ask {
	l := stint.Limit{Algorithm: stint.FixedWindow, Max: 1, Window: stint.Every(time.Second)}
	return append(p.asks, stint.Ask{
		Key: stint.Key{Subject: p.asks[0].Key.Subject, Name: "~denied"}, Limit: l, Cost: l.Cap() + 1,
	})
}

// room returns the room for the decisions, and for more of them.
func (p *part) room(more int) []stint.Decision {
	p.ds = make([]stint.Decision, len(p.asks)+more)
	return p.ds
}

// answer copies the decisions to where they belong.
func (p *part) answer(ds []stint.Decision) {
	for i, to := range p.from {
		ds[to] = p.ds[i]
	}
}
