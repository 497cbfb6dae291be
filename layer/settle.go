package layer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// shortest is how long a store must have been away at least for other nodes to be expected to come back
// later, and how long it must have answered for the outage to be over: one in which some calls succeed is
// still one. Single calls that fail are no outage.
const shortest = 100 * time.Millisecond

// outages notes when this node was without the servers of a store.
type outages struct {
	some atomic.Bool // there are any
	mu   sync.Mutex
	of   map[string]*outage // by server
}

// outage is that of one server. Times are since the layer was made, and 0 for none.
type outage struct {
	since, last time.Duration // its first local decision, and the latest
	until       time.Duration // the node settles
}

// away notes a local decision.
func (l *fallback) away(asks []stint.Ask) {
	now, o := max(time.Since(l.born), 1), &l.outages
	o.mu.Lock()
	defer o.mu.Unlock()
	o.some.Store(true)
	for i := range asks {
		name := l.o.Server(&asks[i])
		x := o.of[name]
		if x == nil {
			x = new(outage)
			o.of[name] = x
		}
		if x.since == 0 {
			x.since = now
		}
		x.last = now
	}
}

// back notes an answer of the store.
func (l *fallback) back(asks []stint.Ask) {
	o := &l.outages
	if !o.some.Load() {
		return
	}
	now := time.Since(l.born)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range asks {
		x := o.of[l.o.Server(&asks[i])]
		if x == nil || x.since == 0 {
			continue
		}
		if x.last-x.since >= shortest && l.o.Settle > 0 {
			x.until = x.last + l.o.Settle
		}
		if now-x.last >= shortest {
			x.since = 0
		}
	}
}

// settling reports whether other nodes may still be without a server that has one of these counters.
func (l *fallback) settling(asks []stint.Ask) (settling bool) {
	o := &l.outages
	if !o.some.Load() {
		return false
	}
	now := time.Since(l.born)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range asks {
		name := l.o.Server(&asks[i])
		switch x := o.of[name]; {
		case x == nil:
		case now < x.until:
			settling = true
		case x.since == 0:
			delete(o.of, name)
		}
	}
	o.some.Store(len(o.of) > 0)
	return settling && l.replicas() > 1
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
		l.away(asks)
		l.owe(asks, ds, n, true)
		return nil
	case err == nil:
		l.answered(asks, ds) // and the local counter knows it, so nothing is remembered
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

// confirm decides a take that the store has answered first after an outage: if it is more than this node's
// share, it is denied, and what the store has charged is given back.
func (l *fallback) confirm(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	denied := func(d stint.Decision) bool { return !d.Allowed }
	if slices.ContainsFunc(ds, denied) {
		return nil
	}
	stored := slices.Clone(ds)
	if err := l.takeHere(ctx, asks, ds, l.replicas()); err != nil {
		return err
	}
	if !slices.ContainsFunc(ds, denied) {
		copy(ds, stored)
		return nil
	}
	back := stint.Refund(asks, stored)
	_ = l.next.Adjust(ctx, back, make([]stint.Decision, len(back))) // if it fails, the client stays charged
	return nil
}
