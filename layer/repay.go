package layer

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// clock is by how many microseconds the store's clock is ahead of the time since the layer was made, or 0 if
// that is not known.
type clock struct{ ahead atomic.Int64 }

// hear notes the time of an answer of the store. It was a little earlier when the store looked at its clock, so
// of two answers the one that is further ahead is right, unless the clock was set back.
func (c *clock) hear(now time.Duration, ds []stint.Decision) {
	if len(ds) == 0 || ds[0].At == 0 || ds[0].Basis != stint.Counted {
		return
	}
	const set = 10_000 // microseconds: an answer that took longer is as good as a clock that was set back
	if ahead, before := ds[0].At-now.Microseconds(), c.ahead.Load(); ahead > before || ahead < before-set || before == 0 {
		c.ahead.Store(ahead)
	}
}

// apart is how far the clocks of a store's servers may be apart. A charge from the future would be rejected.
const apart = 100 * time.Millisecond

// recovers returns when a unit that is charged at an instant has recovered. It is the same for all instants of a
// window. Of a bucket it is never: that depends on what else is charged.
func recovers(p *stint.Plan, at int64) int64 {
	switch p.Limit().Algorithm {
	case stint.FixedWindow, stint.SlidingWindow:
		_, d := p.TakeState(stint.State{}, at, 1)
		return at + d.ResetAfter.Microseconds()
	case stint.SlidingLog:
		return at + p.Limit().Window.Length().Microseconds()
	default:
		return math.MaxInt64
	}
}

// owe records what was not charged in the store, to be paid when it is back.
func (l *fallback) owe(asks []stint.Ask, ds []stint.Decision, n int64, refunds bool) {
	for i := range asks {
		a := &asks[i]
		switch {
		case a.Penalty != nil || a.Limit.Algorithm == stint.Concurrency || a.Cost == 0:
			continue // what is held here is held here only
		case ds[i].Repeated:
			continue // it was owed before
		case a.Charge != nil && a.Charge.ID != "" && !a.Charge.Local:
			l.debts.change(a) // it is made once
		case a.Cost < 0 && chargedHere(*a):
			x := l.debt(a, &ds[i], n)
			if x.units = -l.debts.giveBack(x); x.units == 0 {
				continue
			}
			l.reclaim(&x)
		case a.Cost < 0 && !refunds:
			continue // it may have been given back already
		case a.Charge != nil && !a.Charge.Local:
			l.debts.change(a)
		default:
			l.debts.add(l.debt(a, &ds[i], n))
		}
		if !l.owing.Load() {
			l.owing.Store(true)
		}
	}
}

// debt returns what this node has charged for an ask, or given back, while n nodes share the limit.
func (l *fallback) debt(a *stint.Ask, d *stint.Decision, n int64) debt {
	at := time.Since(l.born)
	// As long as the store's clock is not known, this node's tells the windows apart.
	ahead := cmp.Or(l.clock.ahead.Load(), d.At-at.Microseconds())
	if chargedHere(*a) {
		at -= time.Duration(max(d.At-a.Charge.At, 0)) * time.Microsecond // it was charged then
	}
	x := debt{a.Key, terms{a.Limit, a.Policy, n}, span{units: a.Cost, at: at}}
	var room stint.Plan
	if plan, err := a.CompileIn(&room); err == nil {
		x.until = recovers(plan, ahead+at.Microseconds())
	}
	return x
}

// reclaim has units given back that the store was paid, when it can be reached.
func (l *fallback) reclaim(x *debt) {
	plan, err := x.limit.Compile()
	ahead := l.clock.ahead.Load()
	if err != nil || ahead == 0 {
		return // without the store's clock, nothing was paid for an instant
	}
	a := stint.Ask{Key: x.key, Limit: x.limit, Plan: plan, Policy: x.policy, Cost: x.units}
	if at := past(plan, ahead+x.at.Microseconds(), ahead+time.Since(l.born).Microseconds()); at > 0 {
		a.Charge = &stint.Charge{At: at, Cost: -x.units}
	}
	l.debts.change(&a)
}

// pay charges the debts in the store, in the background.
func (l *fallback) pay() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.paying.Load() || time.Now().Before(l.again) || !l.owing.Swap(false) {
		return
	}
	l.paying.Store(true)
	l.work.Go(func() {
		var r Return
		for away := false; !away; {
			const atOnce = 32 // small, since the store has just come back
			due := l.debts.takeSome(atOnce)
			if len(due) == 0 {
				break
			}
			away = l.charge(due, &r)
		}
		for away := false; !away; {
			change, ok := l.debts.takeChange()
			if !ok {
				break
			}
			away = l.amend(change, &r)
		}
		r.Lost += l.debts.takeLost()
		l.mu.Lock()
		l.paying.Store(false)
		if l.owing.Load() {
			const pause = 100 * time.Millisecond // or every take would try, while one server is away
			l.again = time.Now().Add(pause)
		}
		l.mu.Unlock()
		if l.o.OnReturn != nil && r != (Return{}) {
			l.o.OnReturn(r)
		}
	})
}

// charge charges debts in the store, as far as they have not recovered. It reports whether the store
// failed again; then they are kept.
func (l *fallback) charge(due []debt, r *Return) (away bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // no caller waits for this
	defer cancel()
	var asks []stint.Ask
	var of []debt // of each ask
	for _, d := range due {
		a := l.claim(ctx, &d)
		r.Expired += max(d.units, 0) - max(a.Cost, 0)
		if d.units = a.Cost; a.Cost != 0 {
			asks, of = append(asks, a), append(of, d)
		}
	}
	if len(asks) == 0 {
		return false
	}
	if away = l.send(ctx, asks, of, r, len(asks) == 1); !away || len(asks) == 1 {
		return away
	}
	// Perhaps only one server of several is away.
	paid := r.Paid
	for i := range asks {
		l.send(ctx, asks[i:i+1], of[i:i+1], r, true)
	}
	return r.Paid == paid
}

// claim returns the ask that charges what has not recovered of a debt.
func (l *fallback) claim(ctx context.Context, d *debt) stint.Ask {
	a := stint.Ask{Key: d.key, Limit: d.limit, Policy: d.policy, Cost: d.units}
	plan, err := d.limit.Compile()
	if err != nil {
		return a // the store says what is wrong with it
	}
	a.Plan = plan
	ahead := l.clock.ahead.Load()
	now, at := ahead+time.Since(l.born).Microseconds(), ahead+d.at.Microseconds()
	switch until := recovers(plan, at); {
	case ahead != 0 && until <= now:
		a.Cost = 0
	case a.Cost > 0 && (ahead == 0 || until == math.MaxInt64):
		// The local counter says how much has not recovered. What it began with is older, and
		// recovers before what was charged here.
		var peek [1]stint.Decision
		if l.o.Local.Take(ctx, []stint.Ask{{Key: d.key, Limit: Share(d.limit, d.nodes)}}, peek[:]) == nil {
			a.Cost = min(a.Cost, peek[0].Limit-peek[0].Remaining)
		}
	}
	if at = past(plan, at, now); ahead != 0 && at > 0 && a.Cost > 0 {
		a.Charge = &stint.Charge{At: at, Cost: a.Cost}
	}
	return a
}

// past returns the instant that a charge is to name, so that it is in the future of no server, or 0 if it is to
// be made as of now: an instant that is too close to now is either of the same window as now, or of the one
// before, of which there is an earlier one.
func past(p *stint.Plan, at, now int64) int64 {
	early, until := now-apart.Microseconds(), recovers(p, at)
	switch {
	case at <= early:
		return at
	case recovers(p, now) != until && recovers(p, early) == until:
		return early
	}
	return 0
}

// send charges asks in the store. It reports whether the store is away; then they are kept, if keep is true.
func (l *fallback) send(ctx context.Context, asks []stint.Ask, of []debt, r *Return, keep bool) (away bool) {
	ds := make([]stint.Decision, len(asks))
	err := l.next.Adjust(ctx, asks, ds)
	var future *stint.InvalidError
	if errors.As(err, &future) {
		// A clock was set back. If there are several servers, others may have charged theirs, and do so again.
		for i := range asks {
			asks[i].Charge = nil
		}
		err = l.next.Adjust(ctx, asks, ds)
	}
	if away = errors.Is(err, stint.ErrNotApplied); away && !keep {
		return true
	}
	for i := range asks {
		switch a := &asks[i]; {
		case away:
			l.debts.add(of[i])
			l.owing.Store(true)
		case err != nil:
			r.Lost += max(a.Cost, 0)
		default:
			r.Paid += max(a.Cost, 0)
			l.debts.settled(of[i], time.Since(l.born))
		}
	}
	return away
}

// amend changes a charge in the store. It reports whether the store is away again, so that it has to
// wait.
func (l *fallback) amend(a stint.Ask, r *Return) (away bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // no caller waits for this
	defer cancel()
	switch err := l.next.Adjust(ctx, []stint.Ask{a}, make([]stint.Decision, 1)); {
	case errors.Is(err, stint.ErrNotApplied):
		l.debts.change(&a)
		l.owing.Store(true)
		return true
	case err != nil:
		r.Lost += max(a.Cost, 0)
	default:
		r.Paid += max(a.Cost, 0)
	}
	return false
}
