package quota

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Options are the options of a layer.
type Options struct {
	Table *Table // required
	// Weights are those that follow demand. Nil: limits whose weights follow have the lowest part that a
	// region can have, since other regions may have all the rest.
	Weights *Weights
}

// New returns a store in which this region has its part of the limits of asks whose policy is
// [stint.RegionsQuota]. Others are passed on as they are, and so are penalties and resets. Closing it closes
// next.
//
// Decisions describe the part. A cost that is above the part is denied with a RetryAfter of [stint.Never], or
// of a minute if the part may grow to it, because weights follow demand. A part of nothing denies every cost.
//
// It belongs outside of all layers of package layer, so that these lease, remember, split and share the part.
func New(next stint.Store, o Options) (stint.Store, error) {
	switch {
	case next == nil:
		return nil, invalid("store", "", "one whose limits are divided")
	case o.Table == nil:
		return nil, invalid("table", "", "the regions among which limits are divided")
	}
	return &quota{next: next, table: o.Table, weights: o.Weights}, nil
}

type quota struct {
	next    stint.Store
	table   *Table
	weights *Weights
	parts   [cached]atomic.Pointer[part]
	calls   sync.Pool // of *call
}

// cached is how many parts are remembered, in at most 2 MB. One takes the place of another whose hash is the
// same, and is made anew for that.
const cached = 1 << 12

// part is a part of a limit.
type part struct {
	whole stint.Limit
	cap   int64 // of the whole
	of    *division
	class int // in which the whole follows demand, or -1

	limit stint.Limit
	plan  *stint.Plan
	none  bool // then the limit is one that any cost above it is sent to
}

// call is a take or an adjustment on its way.
type call struct {
	asks  []stint.Ask
	parts []*part // nil: the ask is passed on as it is
}

func isQuota(a *stint.Ask) bool {
	return a.Policy != nil && a.Policy.Regions == stint.RegionsQuota && a.Penalty == nil
}

func anyQuota(asks []stint.Ask) bool {
	for i := range asks {
		if isQuota(&asks[i]) {
			return true
		}
	}
	return false
}

// Take implements [stint.Store].
func (q *quota) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if !anyQuota(asks) {
		return q.next.Take(ctx, asks, ds)
	}
	c := q.begin(asks, true)
	defer q.end(c)
	if err := q.next.Take(ctx, c.asks, ds); err != nil {
		return err
	}
	for i, p := range c.parts {
		if p == nil {
			continue
		}
		p.describe(&ds[i])
		if d := &ds[i]; d.RetryAfter == stint.Never && !d.Allowed && asks[i].Cost <= p.cap && asks[i].Policy.Follow && p.class >= 0 {
			d.RetryAfter = round // until then it may have grown
		}
	}
	return nil
}

// Adjust implements [stint.Store].
func (q *quota) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if !anyQuota(asks) {
		return q.next.Adjust(ctx, asks, ds)
	}
	c := q.begin(asks, false)
	defer q.end(c)
	if err := q.next.Adjust(ctx, c.asks, ds); err != nil {
		return err
	}
	for i, p := range c.parts {
		if p != nil {
			p.describe(&ds[i])
		}
	}
	return nil
}

// Reset implements [stint.Store]. Parts have the counters of their limits.
func (q *quota) Reset(ctx context.Context, asks []stint.Ask) error { return q.next.Reset(ctx, asks) }

// Close implements [stint.Store].
func (q *quota) Close() error { return q.next.Close() }

// begin returns the asks with the parts in place of the limits. The caller returns it with end.
func (q *quota) begin(asks []stint.Ask, take bool) *call {
	c, ok := q.calls.Get().(*call)
	if !ok {
		c = new(call)
	}
	c.asks = append(c.asks[:0], asks...)
	for i := range c.asks {
		a := &c.asks[i]
		if !isQuota(a) {
			c.parts = append(c.parts, nil)
			continue
		}
		p := q.partOf(a, take)
		c.parts = append(c.parts, p)
		if p == nil {
			continue
		}
		a.Limit, a.Plan = p.limit, p.plan
		if p.none && take && a.Cost > 0 {
			a.Cost = p.plan.Cap() + 1 // whatever was used, it is denied
		}
	}
	return c
}

func (q *quota) end(c *call) {
	clear(c.asks)
	clear(c.parts)
	c.asks, c.parts = c.asks[:0], c.parts[:0]
	q.calls.Put(c)
}

// partOf returns this region's part of the ask's limit, or nil if that is not valid. It counts the demand of a
// take.
func (q *quota) partOf(a *stint.Ask, take bool) *part {
	p := q.find(&a.Limit, q.table.fixed)
	if p == nil || !a.Policy.Follow || p.class < 0 {
		return p
	}
	if q.weights == nil {
		return q.find(&a.Limit, q.table.lowest)
	}
	cost := a.Cost
	if !take {
		cost = 0
	}
	return q.find(&a.Limit, q.weights.division(a.Policy.Rule, p.class, cost))
}

// find returns a part, as it was made before if it is remembered.
func (q *quota) find(l *stint.Limit, of *division) *part {
	h := (uint64(l.Max) ^ l.Kind()<<1 ^ uint64(l.Burst)<<32 ^ of.id<<48) * 0x9E3779B97F4A7C15
	at := &q.parts[h>>(64-12)]
	if p := at.Load(); p != nil && p.of == of && p.whole == *l {
		return p
	}
	p := q.newPart(l, of)
	if p != nil {
		at.Store(p)
	}
	return p
}

func (q *quota) newPart(l *stint.Limit, of *division) *part {
	if l.Validate() != nil {
		return nil
	}
	p := &part{whole: *l, cap: l.Cap(), of: of, class: -1}
	if class, ok := q.table.follows(l); ok {
		p.class = class
	}
	var some bool
	if p.limit, some = of.part(*l); !some {
		p.none, p.limit = true, *l
		p.limit.Max, p.limit.Burst = 1, 0
	}
	plan, err := p.limit.Compile()
	if err != nil {
		return nil // it is never invalid
	}
	p.plan = plan
	return p
}

// describe corrects what a decision says of a part of nothing.
func (p *part) describe(d *stint.Decision) {
	if p.none {
		d.Limit, d.Remaining = 0, 0
	}
}

// round is how often weights follow demand.
const round = time.Minute
