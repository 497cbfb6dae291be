package gossip

import (
	"context"

	"github.com/stintdev/stint"
)

// How far a counter is beyond its limit is measured when units are charged that another region has admitted, and nothing
// is left. It is what the store has counted in the window, less the limit: all of that was admitted by then. And it is no more
// than what the other regions have told since something was left: changes of charges, which are made whatever is left, do
// not count, and of a cost above the credit no more than the credit does.
//
// So it is never more than is true, and may be less. Only windows are measured. What was told of a bucket or a log comes
// later than it was admitted, when some of it would have recovered.

// Measured reports whether it is measured how far counters of a limit are beyond it.
func Measured(l *stint.Limit) bool {
	return l.Algorithm == stint.FixedWindow || l.Algorithm == stint.SlidingWindow
}

// charged notes what other regions have admitted, and how far beyond a limit that is.
func (s *Store) charged(ctx context.Context, asks []stint.Ask, ds []stint.Decision) {
	var peeks []stint.Ask
	var of []*stint.Ask
	for i := range asks {
		a := &asks[i]
		s.meters.of(a.Key.Limit()).received.Add(max(a.Cost, 0))
		if ds[i].Remaining > 0 || a.Cost < 0 || a.Charge.ID != "" || windowStart(&a.Limit, a.Charge.At) != windowStart(&a.Limit, ds[i].At) {
			continue
		}
		if l, ok := wider(&a.Limit); ok {
			peeks, of = append(peeks, stint.Ask{Key: a.Key, Limit: l, Policy: gossipPolicy}), append(of, a)
		}
	}
	if len(peeks) == 0 {
		return
	}
	out := make([]stint.Decision, len(peeks))
	if s.next.Take(ctx, peeks, out) != nil {
		return
	}
	for i, a := range of {
		if d := &out[i]; d.Basis == stint.Counted {
			s.exceed(a, d.At, d.Limit-d.Remaining-a.Limit.Max)
		}
	}
}

// wider returns a limit that counts like another one, and has room for what is beyond that. It is not ok if there is none.
func wider(l *stint.Limit) (out stint.Limit, ok bool) {
	plan, err := l.Compile()
	if err != nil || !Measured(l) {
		return out, false
	}
	for out = *l; out.Max < 4*l.Max; {
		next := out
		next.Max += l.Max
		p, err := next.Compile()
		if err != nil || p.Terms().Tick != plan.Terms().Tick { // its windows may be others
			break
		}
		out = next
	}
	return out, out.Max > l.Max
}

// exceed notes that units were charged that another region has admitted, and that the counter is that far beyond its limit.
func (s *Store) exceed(a *stint.Ask, at, beyond int64) {
	acc := s.account(a, at)
	if acc == nil {
		return
	}
	defer acc.shard.mu.Unlock()
	if start := windowStart(&a.Limit, at); start != acc.overIn {
		acc.over, acc.overIn = 0, start
	}
	// As long as nothing was asked here, the credit is not known.
	told := min(a.Cost, acc.meter.bound.Load()/int64(len(s.peers)))
	acc.over = max(min(acc.over+told, beyond), 0)
	raise(&acc.meter.beyond, acc.over)
}
