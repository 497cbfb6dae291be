package layer

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// What other nodes hold of a counter is known from its companion, a counter of what all nodes have taken ahead. A
// batch is charged to it by the call that fetches the batch. When the batch is over it is given back whole, spent or
// not, by the next call that gives units back or asks what others hold. If there is none, it recovers by itself one
// or two terms after it was charged.
//
// What this node has charged itself is not held by others. It may be in the companion if it was charged, even if no
// answer said so, until the store has said that it was given back. So nothing of this node is ever taken for
// another's: rather, units of others are overlooked while this node does not know of its own.

// lentName begins the names of companions. The name of no rule does.
const lentName = "~lent:"

// companion returns the ask for what all nodes have taken ahead of the counter of a.
func companion(a *stint.Ask, term time.Duration) stint.Ask {
	// A key may have counters of several limits, which have leases of their own.
	of := a.Limit.Algorithm.String() + "/" + a.Limit.Window.String() + ":"
	lent := stint.Ask{
		Key:   stint.Key{Subject: a.Key.Subject, Name: lentName + of + a.Key.Name},
		Limit: stint.Limit{Algorithm: stint.SlidingWindow, Max: 2 * maxBatch, Window: stint.Every(term)}, Client: a.Client,
	}
	lent.Plan, _ = lent.Limit.Compile()
	return lent
}

// ahead is what this node has, or may have, charged to the companion with one batch.
type ahead struct {
	units    int64
	charge   stint.Charge  // its Cost is 0 if there was no answer
	until    time.Duration // nothing of it is left in the store from then on
	released bool          // it was given back, or was tried to be: never twice, which would give back what is another's
	waiting  bool          // there is no answer to that yet
}

// charging notes that units are about to be charged to the companion.
func (e *lease) charging(now time.Duration, units int64) *ahead {
	e.own(now)
	c := &ahead{units: units, until: math.MaxInt64}
	e.aheads = append(e.aheads, c)
	e.charged += units
	return c
}

// notCharged notes that they were not.
func (e *lease) notCharged(c *ahead) {
	e.aheads = slices.DeleteFunc(e.aheads, func(x *ahead) bool { return x == c })
}

// recoveredBy returns when a charge to the companion has recovered that was made by now: after two windows of it, and
// some time for clocks that differ.
func (e *lease) recoveredBy(now time.Duration) time.Duration { return now + 3*e.term }

// own returns how much of the companion may be of this node.
func (e *lease) own(now time.Duration) (units int64) {
	e.aheads = slices.DeleteFunc(e.aheads, func(c *ahead) bool { return now >= c.until })
	for _, c := range e.aheads {
		units += c.units
	}
	return units
}

// release returns what is to be given back to the companion: all batches that are over.
func (e *lease) release() (back []stint.Ask) {
	for _, c := range e.aheads {
		held := slices.ContainsFunc(e.batches, func(b batch) bool { return b.ahead == c && b.left > 0 })
		if held || c.released || c.charge.Cost == 0 {
			continue
		}
		c.released, c.waiting = true, true
		a := e.lent
		a.Cost, a.Charge = -c.charge.Cost, &c.charge
		back = append(back, a)
	}
	return back
}

// answered notes the answer to an adjustment that gave back what release has returned: nil if there was none.
func (e *lease) answered(back []stint.Ask, ds []stint.Decision) {
	e.aheads = slices.DeleteFunc(e.aheads, func(c *ahead) bool {
		i := slices.IndexFunc(back, func(a stint.Ask) bool { return a.Charge == &c.charge })
		if i < 0 {
			return false
		}
		c.waiting = false
		return ds != nil && ds[i].Basis == stint.Counted
	})
}

// unsettled reports whether a call is under way that changes the companion.
func (e *lease) unsettled() bool {
	return e.fetched != nil || slices.ContainsFunc(e.aheads, func(c *ahead) bool { return c.waiting })
}

// askOthers is called before a denial is counted. At most once in two terms it finds out how many units other nodes
// hold: that says of this denial, and of those within two terms after it, whether they are early.
func (l *leases) askOthers(e *lease, now time.Duration) {
	next := e.asked.Load()
	if int64(now) < next || !e.asked.CompareAndSwap(next, int64(now+2*e.term)) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.meter.denials(e)
	e.asking = true
	// In the middle of a change the answer would be unclear. The next denial asks instead.
	if e.unsettled() || !l.do(func() { l.hearOthers(e) }) {
		e.asked.Store(next)
	}
}

func (l *leases) hearOthers(e *lease) {
	ctx, cancel := context.WithTimeout(context.Background(), background) //nolint:forbidigo // no caller waits for this
	defer cancel()
	e.mu.Lock()
	own, charged := e.own(time.Since(l.born)), e.charged
	asks := append(e.release(), e.lent)
	e.mu.Unlock()
	ds := make([]stint.Decision, len(asks))
	err := l.next.Adjust(ctx, asks, ds)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asking, e.out = false, 0
	if d := &ds[len(ds)-1]; err != nil {
		e.answered(asks, nil)
	} else if e.answered(asks, ds); d.Basis == stint.Counted {
		for i := range asks {
			own += asks[i].Cost // what it has given back
		}
		e.out = max(d.Limit-d.Remaining-own-(e.charged-charged), 0)
	}
	e.meter.denials(e)
}
