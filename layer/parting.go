package layer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// parting is a take or an adjustment with split asks, while it is decided.
type parting struct {
	layer  *split
	asks   []stint.Ask
	ds     []stint.Decision
	of     []int // the group of each ask, from 1; 0: it is not split
	groups []group
	sent   []stint.Ask
	out    []stint.Decision
}

// group is the asks of a take for one split counter, which all go to one part.
type group struct {
	*whole
	asks   int
	cost   int64 // of all of them; 0: they are peeks, which all parts answer
	at     int   // the part they go to
	lost   bool  // that part has denied them, or was not reached
	denied bool  // and so has each of the others
	said   int   // how many asks are answered by all parts
	// What each part has answered to each ask, if they were asked, and why a part has not.
	heard []stint.Decision
	away  []error
}

// groupOf returns the number of the group of an ask, or 0 if its counter has no parts.
func (p *parting) groupOf(a *stint.Ask) int {
	if !isSplit(a) {
		return 0
	}
	for n := range p.groups {
		if g := &p.groups[n]; g.key == a.Key && g.limit == a.Limit && g.split == a.Policy.Split {
			g.asks++
			g.cost += a.Cost
			return n + 1
		}
	}
	w := p.layer.find(a)
	if w == nil {
		return 0
	}
	p.groups = append(p.groups, group{whole: w, asks: 1, cost: a.Cost, at: int(w.at.Load())})
	return len(p.groups)
}

// group returns the group of an ask, or nil if it is not split.
func (p *parting) group(i int) *group {
	if n := p.of[i]; n > 0 {
		return &p.groups[n-1]
	}
	return nil
}

// some reports whether there is a group that is so.
func (p *parting) some(is func(*group) bool) bool {
	for n := range p.groups {
		if is(&p.groups[n]) {
			return true
		}
	}
	return false
}

func isPeek(g *group) bool   { return g.cost == 0 }
func isLost(g *group) bool   { return g.lost }
func isDenied(g *group) bool { return g.denied }

// take decides a take. At first each group goes to the part where takes begin.
func (p *parting) take(ctx context.Context) error {
	if p.some(isPeek) {
		if err := p.look(ctx, isPeek); err != nil {
			return err
		}
		if !slices.Contains(p.of, 0) && !p.some(func(g *group) bool { return !isPeek(g) }) {
			return p.conclude(ctx, true)
		}
	}
	for tries := 0; ; tries++ {
		failed := p.try(ctx)
		switch elsewhere := unreachable(failed) && errors.Is(failed, stint.ErrNotApplied) && ctx.Err() == nil; {
		case failed != nil && !elsewhere:
			return failed
		case failed == nil && !p.some(isLost):
			return p.conclude(ctx, true)
		}
		if err := p.look(ctx, isLost); err != nil {
			return err
		}
		if failed != nil && !p.some(func(g *group) bool { return g.lost && g.away[g.at] != nil }) {
			return failed // the server of another ask is away
		}
		for n := range p.groups {
			if g := &p.groups[n]; g.lost {
				g.denied = !g.choose() || tries == len(g.parts)
			}
		}
		if p.some(isDenied) {
			return p.conclude(ctx, failed == nil)
		}
	}
}

// empty makes room for the next call. It keeps nothing of the last one alive.
func (p *parting) empty() {
	clear(p.sent)
	p.sent = p.sent[:0]
}

// send calls the store with what was added.
func (p *parting) send(ctx context.Context, do call) error {
	p.out = slices.Grow(p.out[:0], len(p.sent))[:len(p.sent)]
	clear(p.out)
	return do(ctx, p.sent, p.out)
}

// addPart adds an ask for a part of a counter.
func (p *parting) addPart(i, at int, cost int64) *stint.Ask {
	a, of := p.asks[i], &p.group(i).parts[at]
	a.Client = cmp.Or(a.Client, a.Key.Subject)
	a.Key.Subject, a.Limit, a.Plan, a.Cost = of.subject, of.plan.Limit(), of.plan, cost
	p.sent = append(p.sent, a)
	return &p.sent[len(p.sent)-1]
}

// standIn turns an ask into one that takes its place, and passes, or denies for sure. So a take is denied by it, and
// penalties see what they would see. Its counter is never charged, and no valid key has its name.
func standIn(a *stint.Ask, denies bool) {
	a.Key.Name += "\xff"
	if a.Cost = 0; denies {
		a.Cost = maxUnits + 1
	}
}

// try takes from the parts that were chosen, as one take. Penalties record nothing yet.
func (p *parting) try(ctx context.Context) error {
	p.empty()
	for i := range p.asks {
		switch g, a := p.group(i), p.asks[i]; {
		case g == nil:
			if a.Penalty != nil {
				a.Cost = 0
			}
			p.sent = append(p.sent, a)
		case isPeek(g):
			d := g.describe(0)
			standIn(&a, !d.Allowed)
			p.sent = append(p.sent, a)
		default:
			p.addPart(i, g.at, a.Cost)
		}
	}
	err := p.send(ctx, p.layer.next.Take)
	for n := range p.groups {
		p.groups[n].lost = err != nil && !isPeek(&p.groups[n])
	}
	if err != nil {
		return err
	}
	passed := !denied(p.out)
	for i := range p.asks {
		g, d := p.group(i), &p.ds[i]
		if g != nil && isPeek(g) {
			continue
		}
		if *d = p.out[i]; g == nil {
			continue
		}
		if g.lost = g.lost || !d.Allowed; passed {
			g.passed(d)
		}
		g.widen(d, g.at)
	}
	return nil
}

// passed notes that a part has passed an ask.
func (g *group) passed(d *stint.Decision) {
	if g.heard == nil {
		g.moveOn(g.at, d)
		return
	}
	g.parts[g.at].hear(d)
	g.whole.at.Store(int32(g.at))
}

// looked is what is sent to a part to look at it.
type looked struct {
	*group
	part, from, to int
	err            error
}

// look asks all parts of some groups whether they would pass. A stand-in before each denies, so that none is
// charged, wherever it is. If one cannot be reached, each is asked by itself.
func (p *parting) look(ctx context.Context, at func(*group) bool) error {
	p.empty()
	var all []looked
	for n := range p.groups {
		g := &p.groups[n]
		if !at(g) {
			continue
		}
		g.heard, g.away = make([]stint.Decision, g.asks*len(g.parts)), make([]error, len(g.parts))
		first := slices.Index(p.of, n+1)
		for k := range g.parts {
			from := len(p.sent)
			if !isPeek(g) {
				standIn(p.addPart(first, k, 0), true)
			}
			for i, left := first, g.asks; left > 0; i++ {
				if p.of[i] == n+1 {
					cost := p.asks[i].Cost
					if isPeek(g) {
						cost = 0
					}
					p.addPart(i, k, cost).Charge = nil
					left--
				}
			}
			all = append(all, looked{group: g, part: k, from: from, to: len(p.sent)})
		}
	}
	if err := p.send(ctx, p.layer.next.Take); err != nil {
		if !unreachable(err) || ctx.Err() != nil {
			return unheard(err)
		}
		var wg sync.WaitGroup
		for n := range all {
			l := &all[n]
			wg.Go(func() { l.err = p.layer.next.Take(ctx, p.sent[l.from:l.to], p.out[l.from:l.to]) })
		}
		wg.Wait()
	}
	for _, l := range all {
		if l.err == nil {
			copy(l.heard[l.part*l.asks:], p.out[l.to-l.asks:l.to])
			l.parts[l.part].hear(&p.out[l.to-l.asks])
			continue
		}
		if !unreachable(l.err) || ctx.Err() != nil {
			return unheard(l.err)
		}
		if l.away[l.part] = l.err; !slices.Contains(l.away, nil) {
			return unheard(l.err)
		}
	}
	return nil
}

// missing returns why a part has not answered, if there is one.
func (g *group) missing() error {
	for _, err := range g.away {
		if err != nil {
			return err
		}
	}
	return nil
}

// passes reports whether a part would have passed all asks when it was looked at.
func (g *group) passes(k int) bool {
	return g.away[k] == nil && !denied(g.heard[k*g.asks:(k+1)*g.asks])
}

// left returns what a part had left when it was looked at.
func (g *group) left(k int) int64 { return g.heard[k*g.asks].Remaining }

// choose chooses a part that passes the group: from the last one on, the first that has at least half as much left as
// the one that has most. So nodes go to different parts, and not to one that is soon exhausted.
func (g *group) choose() bool {
	most := 0
	for k := range g.parts {
		if g.left(k) > g.left(most) {
			most = k
		}
	}
	for j := range g.parts {
		if k := (g.at + j) % len(g.parts); g.passes(k) && g.left(k) >= g.left(most)/2 {
			g.at = k
			return true
		}
	}
	g.at = most
	return false
}

// describe returns a decision about all parts that have answered the j-th ask. It is about a peek, or a denial.
func (g *group) describe(j int) stint.Decision {
	d := stint.Decision{Limit: g.cap, RetryAfter: stint.Never}
	full := false
	for k := range g.parts {
		h := g.heard[k*g.asks+j]
		if k != g.at {
			h.Remaining = g.left(k) // before the asks, which do not go there
		}
		d.At = max(d.At, h.At)
		d.Remaining += h.Remaining
		d.Before += h.Before
		d.ResetAfter = max(d.ResetAfter, h.ResetAfter)
		switch {
		case g.away[k] != nil:
		case !h.Allowed:
			full, d.RetryAfter = true, min(d.RetryAfter, h.RetryAfter)
		case !isPeek(g):
			d.RetryAfter = min(d.RetryAfter, soon) // others were faster
		}
	}
	switch {
	case isPeek(g):
		d.Allowed = d.Remaining > 0 || !full
	case g.denied: // of several asks, the last may be too much
		d.Allowed = g.heard[g.at*g.asks+j].Allowed && !g.passes(g.at)
	default:
		d.Allowed = true
	}
	switch {
	case d.Allowed:
		d.RetryAfter = 0
	case g.cost <= g.parts[0].plan.Cap() && g.missing() != nil:
		d.RetryAfter = min(d.RetryAfter, time.Second)
	}
	return d
}

// soon is the RetryAfter of a denial that may be over at once.
const soon = time.Microsecond

// conclude answers a take that has passed, or is denied. Penalties record a denial by a take that denies as it has. Known says
// that the last try has answered the asks that are not split.
func (p *parting) conclude(ctx context.Context, known bool) error {
	for i := range p.asks {
		if g := p.group(i); g != nil && (g.lost || isPeek(g)) {
			p.ds[i] = g.describe(g.said)
			g.said++
		}
	}
	if known && !p.violates() || !slices.Contains(p.of, 0) {
		return nil
	}
	p.empty()
	for i := range p.asks {
		a := p.asks[i]
		if a.Penalty == nil && (known || p.of[i] > 0) {
			standIn(&a, !p.ds[i].Allowed)
		}
		p.sent = append(p.sent, a)
	}
	if err := p.send(ctx, p.layer.next.Take); err != nil {
		return err
	}
	for i := range p.asks {
		if p.of[i] == 0 && (p.asks[i].Penalty != nil || !known) {
			p.ds[i] = p.out[i]
		}
	}
	return nil
}

// violates reports whether a penalty records the denial.
func (p *parting) violates() bool {
	for i := range p.asks {
		if p.asks[i].Penalty != nil && p.asks[i].Cost > 0 && p.ds[i].Allowed && denied(p.ds[stint.Guarded(p.asks, i):i]) {
			return true
		}
	}
	return false
}

// adjust makes adjustments. The change of a charge goes to the part that has made it.
func (p *parting) adjust(ctx context.Context) error {
	for n := range p.groups {
		p.groups[n].asks, p.groups[n].cost = 1, 0 // a look is a peek
	}
	for i := range p.asks {
		if g, c := p.group(i), p.asks[i].Charge; g != nil && (c == nil || g.charged(c.Counter) < 0) {
			g.lost = true
		}
	}
	if p.some(isLost) {
		if err := p.look(ctx, isLost); err != nil {
			return err
		}
	}
	p.empty()
	var parts, ends []int // the parts of what is sent, and where that of each ask ends
	for i := range p.asks {
		switch g, a := p.group(i), p.asks[i]; {
		case g == nil:
			p.sent, parts = append(p.sent, a), append(parts, 0)
		case a.Charge == nil || a.Charge.Counter == 0:
			to, err := p.divide(i, g)
			if err != nil {
				return err
			}
			parts = append(parts, to...)
		default:
			at := g.charged(a.Charge.Counter)
			if err := g.missing(); at < 0 && err != nil {
				return unheard(err) // that part may have made the charge
			}
			at = max(at, 0) // if none has, the first rejects it
			p.addPart(i, at, a.Cost)
			parts = append(parts, at)
		}
		ends = append(ends, len(parts))
	}
	if err := p.send(ctx, p.layer.next.Adjust); err != nil {
		return err
	}
	from := 0
	for i, to := range ends {
		if g := p.group(i); g == nil {
			p.ds[i] = p.out[from]
		} else {
			p.ds[i] = g.adjusted(parts[from:to], p.out[from:to])
		}
		from = to
	}
	return nil
}

// divide adds an adjustment without a charge, or of a charge that another store has made. It takes up what is left, or gives back
// what is used, and what is more than that is divided equally among the parts that can be reached. A change with an ID
// is told to all parts, so that it is made once. It returns the parts.
func (p *parting) divide(i int, g *group) (to []int, err error) {
	now, c := g.describe(0), p.asks[i].Charge
	if c != nil {
		if err := c.ValidateFor(0, now.At); err != nil {
			return nil, err // it is from the future by all clocks
		}
	}
	sign, rest := int64(1), min(p.asks[i].Cost, maxUnits)
	if rest < 0 {
		sign, rest = -1, min(-rest, maxUnits)
	}
	units, reached := make([]int64, len(g.parts)), make([]int, 0, len(g.parts))
	for j := range g.parts {
		k := (g.at + j) % len(g.parts)
		if g.away[k] != nil {
			continue
		}
		reached = append(reached, k)
		if room := g.left(k); sign > 0 {
			units[k] = min(room, rest)
		} else if now.Allowed { // or more is used than it says
			units[k] = min(g.parts[k].plan.Cap()-room, rest)
		}
		rest -= units[k]
	}
	for j, k := range reached {
		units[k] += equal(rest, len(reached), j)
		if units[k] == 0 && (c == nil || c.ID == "") {
			continue
		}
		a := p.addPart(i, k, sign*units[k])
		if to = append(to, k); c != nil {
			part := *c
			// By another clock it may be in the future. What was used of the part before is not known; at worst nothing.
			part.At, part.Cost, part.Reset = min(c.At, g.heard[k].At), max(units[k], 1), 0
			part.Together = false // another node divides it in another way
			a.Charge = &part
		}
		g.heard[k].Remaining = max(0, min(g.left(k)-sign*units[k], g.parts[k].plan.Cap()))
	}
	return to, nil
}

// adjusted answers an adjustment of some parts.
func (g *group) adjusted(parts []int, out []stint.Decision) (d stint.Decision) {
	for j, k := range parts {
		if g.parts[k].hear(&out[j]); g.heard != nil {
			g.heard[k] = out[j]
		}
	}
	if len(parts) == 1 {
		d = out[0]
		if g.widen(&d, parts[0]); d.Remaining > 0 { // of other parts
			d.Allowed, d.RetryAfter = true, 0
		}
		return d
	}
	d = g.describe(0)
	d.Repeated = len(parts) > 0
	for j := range out {
		d.Repeated = d.Repeated && out[j].Repeated
		d.Cost += out[j].Cost
	}
	return d
}
