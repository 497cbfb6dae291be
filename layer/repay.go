package layer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
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
		case a.Charge != nil && !a.Charge.Local: // the store has not done it, and is to do it once
			once, c := *a, *a.Charge
			c.ID = l.payment.next()
			once.Charge = &c
			l.debts.change(&once)
		default:
			l.debts.add(l.debt(a, &ds[i], n))
		}
		l.pay()
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
	x := debt{key: a.Key, terms: terms{a.Limit, a.Policy, n}, span: span{units: a.Cost, at: at}}
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
		a.Charge = &stint.Charge{At: at, Cost: -x.units, ID: l.payment.next()}
	}
	l.debts.change(&a)
}

// A payment that fails is tried again after firstPause, and then ever later, but for lastPause at most. It takes at
// most longestCall, and what is left when the layer is closed, lastTry.
const (
	firstPause  = 100 * time.Millisecond
	lastPause   = time.Second
	longestCall = time.Second
	lastTry     = 5 * time.Second
)

// pay has a goroutine charge the debts in the store as soon as it is back. It is called after a debt was added.
func (l *fallback) pay() {
	if l.paying.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.paying.CompareAndSwap(false, true) {
		l.work.Go(l.repay)
	}
}

// hurry has a payment tried without a pause, unless one has just failed.
func (l *fallback) hurry() {
	select {
	case l.hurried <- struct{}{}:
	default:
	}
}

// repay tries to pay until nothing is owed, and a last time when the layer is closed.
func (l *fallback) repay() {
	for pause, deaf := firstPause, false; ; {
		var hurried <-chan struct{}
		if !deaf {
			hurried = l.hurried
		}
		timer, open := time.NewTimer(pause), true
		select {
		case <-timer.C:
			deaf = false
		case <-hurried:
			deaf = true // or each take would have it tried, while one of several servers is away
		case <-l.quit:
			open = false
		}
		timer.Stop()
		var r Return
		ctx, cancel := context.Background(), context.CancelFunc(func() {}) //nolint:forbidigo // no caller waits for this
		if !open {
			ctx, cancel = context.WithTimeout(ctx, lastTry)
		}
		away := l.payAll(ctx, &r)
		cancel()
		switch {
		case !away:
			pause, deaf = firstPause, false
		case deaf:
			pause = firstPause
		default:
			pause = min(2*pause, lastPause)
		}
		if !open {
			r.Lost += l.debts.takeAll()
		}
		if !away || !open {
			r.Lost += l.debts.takeLost()
		}
		if l.o.OnReturn != nil && r != (Return{}) {
			l.o.OnReturn(r)
		}
		// Whoever adds a debt looks at paying afterwards, and this looks at the debts after it.
		if l.paying.Store(false); !open || l.debts.none() || !l.paying.CompareAndSwap(false, true) {
			return
		}
	}
}

// payAll charges what is owed. It reports whether the store, or a server of it, is away: what it is owed is kept.
func (l *fallback) payAll(ctx context.Context, r *Return) (away bool) {
	servers := map[string]bool{} // those that were asked, and whether they are back
	for {
		const atOnce = 32 // small, since the store has just come back
		due := l.debts.some(atOnce, func(a *stint.Ask) bool {
			back, asked := servers[l.o.Server(a)]
			return back || !asked
		})
		if len(due) == 0 {
			break
		}
		if l.charge(ctx, due, servers, r) {
			return true
		}
	}
	for {
		change, ok := l.debts.takeChange()
		if !ok {
			return slices.Contains(slices.Collect(maps.Values(servers)), false)
		}
		if l.amend(ctx, change, r) {
			return true
		}
	}
}

// charge charges debts in the store, as far as they have not recovered. It reports whether the store
// failed again; then they are kept.
func (l *fallback) charge(ctx context.Context, due []debt, servers map[string]bool, r *Return) (away bool) {
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	var asks []stint.Ask
	var of []debt // of each ask
	for _, d := range due {
		if !l.isBack(ctx, &d, servers) {
			continue
		}
		if a := l.claim(ctx, &d); a.Cost != 0 {
			asks, of = append(asks, a), append(of, d)
		} else {
			r.Expired += max(d.units, 0)
			l.debts.done(d)
		}
	}
	if len(asks) == 0 {
		return false
	}
	if away = l.send(ctx, asks, of, r); !away || len(asks) == 1 {
		return away
	}
	// Perhaps only one server of several is away.
	for i := range asks {
		away = l.send(ctx, asks[i:i+1], of[i:i+1], r) && away
	}
	return away
}

// isBack reports whether the server of a debt answers, and hears what time it is there. It asks each once.
func (l *fallback) isBack(ctx context.Context, d *debt, servers map[string]bool) bool {
	peek := []stint.Ask{{Key: d.key, Limit: d.limit, Policy: d.policy}}
	name := l.o.Server(&peek[0])
	if _, asked := servers[name]; !asked {
		ds := make([]stint.Decision, 1)
		err := l.next.Take(ctx, peek, ds)
		if servers[name] = !unreachable(err); err == nil {
			l.clock.hear(time.Since(l.born), ds)
		}
	}
	return servers[name]
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
		a.Charge = &stint.Charge{At: at, Cost: a.Cost, ID: l.payment.next()}
	}
	return a
}

// payments gives each payment an ID, so that one of which it is not known whether it was made can be made again.
type payments struct {
	node string
	n    atomic.Uint64
}

func (p *payments) next() string { return p.node + strconv.FormatUint(p.n.Add(1), 36) }

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

// send charges asks in the store. It reports whether the store is away; then they stay owed.
func (l *fallback) send(ctx context.Context, asks []stint.Ask, of []debt, r *Return) (away bool) {
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
	if errors.Is(err, stint.ErrNotApplied) {
		return true
	}
	for i := range asks {
		a, d := &asks[i], of[i]
		l.debts.done(d)
		r.Expired += max(d.units, 0) - max(a.Cost, 0)
		d.units = a.Cost
		switch {
		case unreachable(err) && a.Charge != nil: // it may have been charged: it is sent again, under the same ID
			l.debts.change(a)
			l.debts.settled(d, time.Since(l.born))
		case err != nil:
			r.Lost += max(a.Cost, 0)
		default:
			r.Paid += max(a.Cost, 0)
			l.debts.settled(d, time.Since(l.born))
		}
	}
	return false
}

// amend changes a charge in the store. It reports whether the store is away again, so that it has to
// wait.
func (l *fallback) amend(ctx context.Context, a stint.Ask, r *Return) (away bool) {
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	switch err := l.next.Adjust(ctx, []stint.Ask{a}, make([]stint.Decision, 1)); {
	case errors.Is(err, stint.ErrNotApplied), unreachable(err) && a.Charge != nil && a.Charge.ID != "":
		l.debts.change(&a)
		return true
	case err != nil:
		r.Lost += max(a.Cost, 0)
	default:
		r.Paid += max(a.Cost, 0)
	}
	return false
}
