package layer

import (
	"context"
	"math"
	"time"

	"github.com/stintdev/stint"
)

// remember keeps what the store has said of the counters of asks.
func (l *fallback) remember(asks []stint.Ask, ds []stint.Decision, now time.Duration) {
	for i := range asks {
		a, d := &asks[i], &ds[i]
		switch {
		case d.Basis != stint.Counted:
			return // another layer decided
		case a.Penalty != nil:
			l.memory.keep(a, memorized{at: now, until: later(now, d.RetryAfter)}, !d.Allowed)
		case a.Limit.Algorithm != stint.Concurrency:
			// A tenth of the limit is not worth it, unless it was too much for a cost.
			used := d.Limit - d.Remaining
			l.memory.keep(a, memorized{now, later(now, d.ResetAfter), used, d.Before}, used > d.Limit/10 || !d.Allowed)
		}
	}
}

func later(now, after time.Duration) time.Duration {
	if after > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + after
}

// recall has the local counters of asks begin where the store's were, as far as this node knows: what remains
// of each is one of n shares of what remained.
func (l *fallback) recall(ctx context.Context, asks []stint.Ask, n int64) {
	if l.memory.sets == nil {
		return
	}
	now := time.Since(l.born)
	for i := range asks {
		if a := &asks[i]; a.Penalty == nil {
			l.memory.use(a, now, func(e memorized) { l.begin(ctx, a, e, n, now) })
		}
	}
}

// begin charges a local counter with what was used of it. What it held from an outage before is cleared: the
// store has known of it when it answered.
func (l *fallback) begin(ctx context.Context, a *stint.Ask, e memorized, n int64, now time.Duration) {
	share := Share(a.Limit, n)
	plan, err := share.Compile()
	if err != nil {
		return // the take fails, too
	}
	var room [3]stint.Decision
	bare := stint.Ask{Key: a.Key, Limit: share, Plan: plan}
	if l.o.Local.Take(ctx, []stint.Ask{bare}, room[:1]) != nil {
		return
	}
	here := room[0]
	var asks []stint.Ask
	charge := func(units, at int64) {
		ask := bare
		if ask.Cost = units; at > 0 {
			ask.Charge = &stint.Charge{At: at, Cost: 1, Counter: here.Counter}
		}
		asks = append(asks, ask)
	}
	if here.Remaining < here.Limit {
		charge(-maxUnits, 0)
	}
	// The store's answer came that long ago, so it is of that instant of the local clock.
	at := max(here.At-(now-e.at).Microseconds(), 1)
	used := plan.Cap() - max(a.Limit.Cap()-e.used, 0)/n
	switch share.Algorithm {
	case stint.SlidingWindow:
		// What was charged in the window before fades, and the rest does not until the window ends.
		start, before := max(at-share.Window.Length().Microseconds(), 1), (e.before+n-1)/n
		old, _ := plan.AdjustState(stint.State{}, start, before)
		_, d := plan.TakeState(old, at, 0)
		charge(before, start)
		charge(max(used-(d.Limit-d.Remaining), 0), at)
	case stint.SlidingLog:
		charge(max(used, 0), at) // the last of it was charged then, or before
	case stint.FixedWindow, stint.TokenBucket, stint.LeakyBucket, stint.Concurrency:
		old, _ := plan.AdjustState(stint.State{}, at, max(used, 0))
		_, d := plan.TakeState(old, here.At, 0)
		charge(d.Limit-d.Remaining, 0) // what has not recovered since
	}
	_ = l.o.Local.Adjust(ctx, asks, room[:len(asks)]) // if the local store is closed, the take fails, too
}

// banned answers a take that a ban denies which the store has told of. It reports whether there is one.
func (l *fallback) banned(ctx context.Context, asks []stint.Ask, ds []stint.Decision, n int64) (denied bool, err error) {
	if l.memory.sets == nil {
		return false, nil
	}
	now := time.Since(l.born)
	for i := range asks {
		denied = denied || asks[i].Penalty != nil && l.memory.look(&asks[i], now) > 0
	}
	if !denied {
		return false, nil
	}
	mine := l.shares(asks, n)
	defer l.put(mine)
	for i := range *mine {
		(*mine)[i].Cost = 0 // nothing is charged, and there is no violation during a ban
	}
	if err := l.o.Local.Take(ctx, *mine, ds); err != nil {
		return true, err
	}
	for i := range asks {
		a, d := &asks[i], &ds[i]
		if a.Penalty == nil {
			if a.Cost > d.Remaining {
				d.Allowed, d.RetryAfter = false, d.ResetAfter
			}
		} else if left := l.memory.look(a, now); left > 0 {
			d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter = false, 0, left, max(left, d.ResetAfter)
		}
	}
	return true, nil
}
