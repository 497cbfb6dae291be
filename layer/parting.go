package layer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/stintdev/stint"
)

// parting is a take or an adjustment with split asks, while it is decided.
type parting struct {
	layer *split
	asks  []stint.Ask
	ds    []stint.Decision

	wants  []want
	views  []view
	shares []share // what is to be charged, in the order of the asks

	// What is sent to the store: from says which ask and which part each is of.
	sent []stint.Ask
	from []origin
	out  []stint.Decision
}

// want is an ask on its way to a decision.
type want struct {
	view   int   // of its counter, from 1; 0: it is not split
	denied bool  // no parts can pass it
	lost   bool  // the last try was denied by it, or by one of its parts
	left   int64 // if it is denied, what the asks before it have left
	run    run   // the parts that are to be charged
}

// share is how many units of an ask are charged to a part.
type share struct {
	origin
	units int64
}

// origin is the ask, and the part of its counter, that a question to the store is about.
type origin struct{ ask, part int32 }

// none is the part of an ask that is not split, or that stands in for one that is.
const none = -1

// viewOf returns the number of the counter of an ask, or 0 if it has no parts. Asks of one counter share it.
func (p *parting) viewOf(i int) int {
	w := p.layer.find(&p.asks[i])
	if w == nil {
		return 0
	}
	for n := range p.views {
		if v := p.views[n].whole; v == w || v.key == w.key && v.limit == w.limit && v.split == w.split {
			return n + 1
		}
	}
	p.views = append(p.views, view{whole: w})
	return len(p.views)
}

// punishes reports whether there are penalties, to which it matters which asks are directly before them.
func (p *parting) punishes() bool {
	return slices.ContainsFunc(p.asks, func(a stint.Ask) bool { return a.Penalty != nil })
}

// view returns the counter of an ask, or nil if it is not split.
func (p *parting) view(i int) *view {
	if n := p.wants[i].view; n > 0 {
		return &p.views[n-1]
	}
	return nil
}

// take decides a take. At first every ask is at the part where takes begin, if that can hold its cost.
func (p *parting) take(ctx context.Context) error {
	var failed error
	if p.begins() {
		done, err := p.try(ctx)
		if done || !retries(ctx, err) {
			return err
		}
		failed = err
	}
	for tries := 0; ; tries++ {
		if err := p.hear(ctx); err != nil {
			return err
		}
		if failed != nil && !p.wasAway() {
			return failed // of another ask
		}
		p.choose()
		if p.some(func(w *want) bool { return w.denied }) {
			return p.deny(ctx)
		}
		if p.some(func(w *want) bool { return w.view == 0 && w.lost }) {
			return p.conclude(ctx)
		}
		if tries > p.mostParts() {
			if failed != nil {
				return failed
			}
			p.giveUp()
			return p.deny(ctx)
		}
		done, err := p.try(ctx)
		if done || !retries(ctx, err) {
			return err
		}
		failed = err
	}
}

// retries reports whether a take may go to other parts after a call with this error, or with none.
func retries(ctx context.Context, err error) bool {
	return err == nil || unreachable(err) && errors.Is(err, stint.ErrNotApplied) && ctx.Err() == nil
}

func (p *parting) some(is func(*want) bool) bool {
	for i := range p.wants {
		if is(&p.wants[i]) {
			return true
		}
	}
	return false
}

func (p *parting) mostParts() (n int) {
	for i := range p.views {
		n = max(n, len(p.views[i].parts))
	}
	return n
}

// begins gives every split ask to the part where takes begin. It reports false if one cannot be decided there:
// a peek, or a cost that only several parts can hold.
func (p *parting) begins() bool {
	p.shares = p.shares[:0]
	for i := range p.asks {
		v, cost := p.view(i), p.asks[i].Cost
		if v == nil {
			continue
		}
		at := v.at.Load()
		if cost == 0 || cost > v.parts[at].plan.Cap() {
			return false
		}
		p.shares = append(p.shares, share{origin{int32(i), at}, cost})
	}
	return true
}

// send calls the store with what was added.
func (p *parting) send(ctx context.Context, call func(context.Context, []stint.Ask, []stint.Decision) error) error {
	p.out = slices.Grow(p.out[:0], len(p.sent))[:len(p.sent)]
	clear(p.out)
	return call(ctx, p.sent, p.out)
}

// empty makes room for the next call. It keeps nothing of the last one alive.
func (p *parting) empty() {
	clear(p.sent)
	p.sent, p.from, p.out = p.sent[:0], p.from[:0], p.out[:0]
}

func (p *parting) add(a stint.Ask, from origin) {
	p.sent, p.from = append(p.sent, a), append(p.from, from)
}

// addPart adds a question about a part of an ask's counter.
func (p *parting) addPart(from origin, cost int64) *stint.Ask {
	a, at := p.asks[from.ask], &p.view(int(from.ask)).parts[from.part]
	a.Client = cmp.Or(a.Client, a.Key.Subject)
	a.Key.Subject, a.Limit, a.Plan, a.Cost = at.subject, at.limit, at.plan, cost
	p.add(a, from)
	return &p.sent[len(p.sent)-1]
}

// addStandIn adds an ask in the place of another, which passes, or denies for sure. So a take is denied by it,
// and penalties see what they would see. Its counter is never charged, and no valid key has its name.
func (p *parting) addStandIn(i int, denies bool) *stint.Ask {
	a := p.asks[i]
	a.Key.Name += "\xff"
	if a.Cost = 0; denies {
		a.Cost = maxUnits + 1
	}
	p.add(a, origin{int32(i), none})
	return &p.sent[len(p.sent)-1]
}

// try takes what was chosen, as one take. It reports whether that has decided it: it has passed, or asks that are
// not split have denied it. Penalties record nothing yet.
func (p *parting) try(ctx context.Context) (done bool, err error) {
	p.empty()
	next := 0
	for i := range p.asks {
		switch a := p.asks[i]; {
		case p.wants[i].view > 0 && a.Cost > 0:
			for ; next < len(p.shares) && int(p.shares[next].ask) == i; next++ {
				p.addPart(p.shares[next].origin, p.shares[next].units)
			}
		case p.wants[i].view > 0:
			if p.punishes() {
				p.addStandIn(i, false)
			}
		default:
			if a.Penalty != nil {
				a.Cost = 0
			}
			p.add(a, origin{int32(i), none})
		}
	}
	if len(p.sent) == 0 {
		p.pass() // peeks
		return true, nil
	}
	if err := p.send(ctx, p.layer.next.Take); err != nil {
		return false, err
	}
	for i := range p.wants {
		p.wants[i].lost = false
	}
	denied, lost := false, false
	for j, from := range p.from {
		if !p.out[j].Allowed {
			p.wants[from.ask].lost, denied, lost = true, true, lost || from.part != none
		}
	}
	for j, from := range p.from {
		if p.wants[from.ask].view == 0 {
			p.ds[from.ask] = p.out[j]
		}
	}
	switch {
	case !denied:
		p.pass()
		return true, nil
	case lost:
		return false, nil
	}
	for j, from := range p.from { // they would have passed
		if v := p.view(int(from.ask)); v != nil && from.part != none {
			p.ds[from.ask] = p.out[j]
			v.widen(&p.ds[from.ask], int(from.part))
		}
	}
	return true, p.conclude(ctx)
}

// groups calls f for every ask, with the bounds of what was sent for it.
func (p *parting) groups(f func(i, from, to int)) {
	for from := 0; from < len(p.from); {
		to := from + 1
		for to < len(p.from) && p.from[to].ask == p.from[from].ask {
			to++
		}
		f(int(p.from[from].ask), from, to)
		from = to
	}
}

// pass answers a take that has passed.
func (p *parting) pass() {
	for i := range p.asks {
		if v := p.view(i); v != nil && p.asks[i].Cost == 0 {
			p.ds[i] = v.describe()
		}
	}
	p.groups(func(i, from, to int) {
		v, d := p.view(i), &p.ds[i]
		if v == nil || p.from[from].part == none {
			return
		}
		p.listen(v, from, to)
		if to == from+1 {
			*d = p.out[from]
			at := p.from[from].part
			if v.heard == nil {
				v.moveOn(at, d)
			} else {
				v.at.Store(at)
			}
			v.widen(d, int(at))
			return
		}
		*d = v.describe()
		d.Allowed, d.RetryAfter = true, 0
		v.date(d, p.out[from:to])
		d.Cost, d.Counter = p.asks[i].Cost, v.markOf(p.wants[i].run)
		v.at.Store(int32(v.most()))
	})
}

// listen notes what the store has said of parts. As long as takes begin at the same part, which nothing else is said of,
// its mark is enough.
func (p *parting) listen(v *view, from, to int) {
	for j := from; j < to; j++ {
		at, d := p.from[j].part, &p.out[j]
		if v.heard == nil {
			v.parts[at].name(d)
			continue
		}
		v.parts[at].hear(d)
		v.heard[at] = *d
	}
}

// hear asks all parts of all counters for what remains. If one cannot be reached, each is asked by itself.
func (p *parting) hear(ctx context.Context) error {
	p.empty()
	for n := range p.views {
		v := &p.views[n]
		first := slices.IndexFunc(p.wants, func(w want) bool { return w.view == n+1 })
		if v.heard == nil {
			v.heard, v.left, v.away = make([]stint.Decision, len(v.parts)), make([]int64, len(v.parts)), make([]error, len(v.parts))
		}
		for i := range v.parts {
			p.addPart(origin{int32(first), int32(i)}, 0).Charge = nil
		}
	}
	errs := make([]error, len(p.sent))
	if err := p.send(ctx, p.layer.next.Take); err != nil {
		if !unreachable(err) || ctx.Err() != nil {
			return unheard(err)
		}
		var wg sync.WaitGroup
		for j := range p.sent {
			wg.Go(func() { errs[j] = p.layer.next.Take(ctx, p.sent[j:j+1], p.out[j:j+1]) })
		}
		wg.Wait()
	}
	reached := make([]bool, len(p.views))
	for j, from := range p.from {
		n, err := p.wants[from.ask].view-1, errs[j]
		v := &p.views[n]
		if err != nil {
			if !unreachable(err) || ctx.Err() != nil {
				return unheard(err)
			}
			p.out[j] = stint.Decision{}
		} else {
			v.parts[from.part].hear(&p.out[j])
			reached[n] = true
		}
		v.heard[from.part], v.away[from.part], v.left[from.part] = p.out[j], err, p.out[j].Remaining
	}
	if n := slices.Index(reached, false); n >= 0 {
		return unheard(p.views[n].away[0])
	}
	return nil
}

// wasAway reports whether one of the parts that were tried cannot be reached.
func (p *parting) wasAway() bool {
	return slices.ContainsFunc(p.shares, func(s share) bool { return p.view(int(s.ask)).away[s.part] != nil })
}

// choose gives every split ask to parts that can pass it, or notes that none can.
func (p *parting) choose() {
	p.shares = p.shares[:0]
	for i := range p.asks {
		v := p.view(i)
		if v == nil {
			continue
		}
		w, cost := &p.wants[i], p.asks[i].Cost
		w.left = v.total()
		switch w.denied = false; {
		case cost == 0:
			d := v.describe()
			w.denied = !d.Allowed
		case cost > w.left:
			w.denied = true
		default:
			p.gather(i, v, cost)
		}
	}
}

// gather gives an ask to one part. The part where takes begin comes first, and then, from there on, those that have at
// least half as much left as the one that has most: so nodes go to different parts, and not to one that is soon
// exhausted. If no part has enough left, as few as possible share the cost evenly, and if that does not do, unevenly.
func (p *parting) gather(i int, v *view, cost int64) {
	n := len(v.left)
	give := func(at int, units int64) {
		v.left[at] -= units
		p.shares = append(p.shares, share{origin{int32(i), int32(at)}, units})
	}
	at, most := int(v.at.Load()), v.left[v.most()]
	for k := range n {
		if k := (at + k) % n; v.left[k] >= cost && (k == at || v.left[k] >= most/2) {
			give(k, cost)
			return
		}
	}
	for parts := 2; parts <= n; parts++ {
		for k := range n {
			if r := (run{at: (at + k) % n, parts: parts}); v.fits(r, cost) {
				p.wants[i].run = r
				for j := range parts {
					give((r.at+j)%n, equal(cost, parts, j))
				}
				return
			}
		}
	}
	p.wants[i].run = run{parts: n, uneven: true}
	for cost > 0 {
		k := v.most()
		units := min(cost, v.left[k])
		give(k, units)
		cost -= units
	}
}
