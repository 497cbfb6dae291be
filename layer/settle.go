package layer

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// shortest is how long a store must have been away at least for other nodes to be expected to come back
// later. Single calls that fail are no outage.
const shortest = 100 * time.Millisecond

// outages notes when this node was without the store. Times are since the layer was made, and 0 for none.
type outages struct {
	since, last atomic.Int64 // the first local decision since the store's last answer, and the latest
	until       atomic.Int64 // the node settles
}

// away notes a local decision.
func (o *outages) away(now time.Duration) {
	o.since.CompareAndSwap(0, max(int64(now), 1))
	o.last.Store(int64(now))
}

// back notes an answer of the store.
func (o *outages) back(settle time.Duration) {
	since := o.since.Load()
	if since == 0 || !o.since.CompareAndSwap(since, 0) {
		return
	}
	if last := o.last.Load(); last-since >= int64(shortest) && settle > 0 {
		o.until.Store(last + int64(settle))
	}
}

// settling reports whether other nodes may still be without the store.
func (l *fallback) settling() bool {
	until := l.outages.until.Load()
	if until == 0 {
		return false
	}
	if int64(time.Since(l.born)) < until {
		return l.replicas() > 1
	}
	l.outages.until.CompareAndSwap(until, 0)
	return false
}

// settle decides a take right after an outage, when others may still admit their shares without the store:
// it passes if both this node's share and the store allow it.
func (l *fallback) settle(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	n := l.replicas()
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	if err := l.takeHere(ctx, asks, ds, n); err != nil {
		return err
	}
	here := slices.Clone(ds)
	denied := func(d stint.Decision) bool { return !d.Allowed }
	if slices.ContainsFunc(here, denied) {
		return nil
	}
	err := l.next.Take(ctx, asks, ds)
	switch {
	case err != nil && unreachable(err) && ctx.Err() == nil:
		copy(ds, here)
		l.outages.away(time.Since(l.born))
		l.owe(asks, n, true)
		return nil
	case err == nil:
		l.answered() // and the local counter knows it, so nothing is remembered
		if !slices.ContainsFunc(ds, denied) {
			return nil
		}
	}
	// It was charged here only.
	mine := l.shares(asks, n)
	defer l.put(mine)
	back := stint.Refund(*mine, here)
	_ = l.o.Local.Adjust(ctx, back, make([]stint.Decision, len(back))) // if it fails, this node admits less
	return err
}
