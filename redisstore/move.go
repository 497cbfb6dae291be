package redisstore

import (
	"context"
	"errors"

	"github.com/stintdev/stint"
)

// While a ring is changed (was=), the counters of a slot that moves are in two places: where they belong
// now, and where they were. Takes are charged in both, all or nothing, and denied if either denies. So what
// was used before the change is not forgotten, and neither is what processes charge that know the old ring
// only: until the last of them has the new URL, the old place has counted everything. From then on both
// have, and after the longest window the new place alone has what matters.
//
// A charge is named by the new place: its instant, its cost and when it recovers. A change of it is made
// there first, and then in the old place as well as possible. In a window or a bucket the name differs by
// no more than the servers' clocks do. In a log, more is added, but nothing is given back, unless the name
// is the same. Of places that are held (concurrency), as many are released, whichever they are; a renewal
// is not repeated: the new place has the hold, and in the old one it expires. A charge from before the
// change is found in the old place alone, and a place that is held since then is held in the new one, too,
// when it is renewed. So of the two, one has at least what is in use, except for places that are held for
// longer than their window while other processes still know the old ring only.

// moved returns the asks of a request about counters that are moved, and the index of each in the request.
func (s *Store) moved(r *request) (old *request, from []int) {
	old = &request{kind: r.kind, ctx: r.ctx}
	for i := range r.items {
		if s.home(r.items[i].key).was >= 0 {
			old.items = append(old.items, r.items[i])
			from = append(from, i)
		}
	}
	return old, from
}

// nowAt returns the place where the counters of a home belong, and wasAt the one where they were.
func nowAt(h home) int { return h.now }
func wasAt(h home) int { return h.was }

// gatherMoved decides a request some of whose counters may be moved. The parts are those of the places
// where counters belong now.
func (s *Store) gatherMoved(ctx context.Context, r *request, parts []*part) error {
	if r.kind == adjust {
		return s.adjustMoved(ctx, r, parts)
	}
	old, from := s.moved(r)
	for _, p := range s.cut(old, wasAt) {
		p.old = true
		for i := range p.from {
			p.from[i] = from[p.from[i]]
		}
		parts = append(parts, p)
	}
	return s.gather(ctx, r, parts, s.start)
}

// adjustMoved adjusts the counters where they belong, and then where they were.
func (s *Store) adjustMoved(ctx context.Context, r *request, parts []*part) error {
	track(parts)
	if err := s.gather(ctx, r, parts, s.start); err != nil || r.err != nil {
		return err
	}
	changed := make([]bool, len(r.items))
	for _, p := range parts {
		for i := range p.from {
			changed[p.from[i]] = p.held[i] > 0
		}
	}
	old, from := s.moved(r)
	parts = s.cut(old, wasAt)
	track(parts)
	var gone error
	var failed []*part
	convoy(parts, s.start, func(p *part) bool {
		if gone == nil {
			gone = s.await(ctx, p.request)
		}
		if gone == nil {
			gone = s.adjustUnnamed(ctx, p, func(i int) bool { return changed[from[p.from[i]]] })
		}
		if gone != nil || p.err != nil {
			failed = append(failed, p)
		}
		return gone == nil
	})
	if gone != nil {
		return s.blame(gone, failed[:1])
	}
	s.adopt(ctx, r, parts, func(p *part, i int) int { return from[p.from[i]] })
	for _, p := range parts {
		r.other = r.other || p.other
		for i, d := range p.out {
			tighten(&r.out[from[p.from[i]]], d)
		}
	}
	if len(failed) > 0 {
		r.err = s.blame(unavailable(errors.New("one of two servers failed: "+failed[0].err.Error())), failed)
	}
	return nil
}

func track(parts []*part) {
	for _, p := range parts {
		p.track = true
	}
}

// adjustUnnamed changes charges of a part, which was sent, without their names, where these mean nothing to
// the old place: if its clock is behind, charges that were just made are in its future, and places that
// were changed where they belong now are held there since another instant. It returns an error if ctx is
// done first.
func (s *Store) adjustUnnamed(ctx context.Context, p *part, changed func(i int) bool) error {
	var future *stint.InvalidError
	all := errors.As(p.err, &future)
	if p.err != nil && !all {
		return nil
	}
	again := &request{kind: adjust, place: p.place, ctx: p.ctx, done: make(chan struct{}, 1)}
	var from []int
	for i, it := range p.items {
		if all || it.limit.Algorithm == stint.Concurrency && it.charge.Cost > 0 && it.cost != 0 && p.held[i] == 0 && changed(i) {
			it.charge = stint.Charge{}
			again.items, from = append(again.items, it), append(from, i)
		}
	}
	if len(from) == 0 {
		return nil
	}
	s.start(again)
	if err := s.await(ctx, again); err != nil {
		return err
	}
	p.err = again.err
	if all {
		p.out, p.held = again.out, make([]int64, len(p.items)) // no place was found by its name
		return nil
	}
	for i, d := range again.out {
		p.out[from[i]] = d
	}
	return nil
}

// adopt holds places where they belong that are held since before the change, and were just renewed where
// they were. If it cannot, the next renewal does.
func (s *Store) adopt(ctx context.Context, r *request, old []*part, index func(p *part, i int) int) {
	adopted := &request{kind: adjust, ctx: r.ctx}
	var from []int
	for _, p := range old {
		for i, it := range p.items {
			if at := index(p, i); p.err == nil && it.limit.Algorithm == stint.Concurrency && it.charge.Cost > 0 && it.cost == 0 &&
				p.held[i] > 0 && r.out[at].Cost == 0 {
				it.charge, it.cost = stint.Charge{}, p.held[i]
				adopted.items, from = append(adopted.items, it), append(from, at)
			}
		}
	}
	if len(from) == 0 || s.gather(ctx, adopted, s.cut(adopted, nowAt), s.start) != nil || adopted.err != nil {
		return
	}
	for i, d := range adopted.out {
		r.out[from[i]] = d
	}
}

// tighten adds what the old place says about a counter to what the new one says. The result is the tighter
// of the two, but names the charge of the new place, if there is one.
func tighten(d *stint.Decision, old stint.Decision) {
	named, repeated := *d, d.Repeated && old.Repeated
	if named.Cost == 0 {
		named = old
	}
	if tighter(&old, d) {
		*d = old
	}
	if named.Cost > 0 {
		d.At, d.Cost, d.ResetAfter = named.At, named.Cost, named.ResetAfter
	}
	d.Repeated = repeated
}

// tighter reports whether a leaves less than b.
func tighter(a, b *stint.Decision) bool {
	switch {
	case a.Allowed != b.Allowed:
		return !a.Allowed
	case a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	case a.Remaining != b.Remaining:
		return a.Remaining < b.Remaining
	}
	return a.ResetAfter > b.ResetAfter
}
