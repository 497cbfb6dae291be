package layer

import (
	"context"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// giveUp denies the asks that others were faster than, again and again.
func (p *parting) giveUp() {
	for i := range p.wants {
		if p.wants[i].view > 0 {
			p.wants[i].denied = p.wants[i].lost
		}
	}
}

// deny answers a take that split asks deny. The last call cannot pass, so that asks that are not split are described
// and penalties record what they have to. It also asks the parts when they will have gained what is missing.
func (p *parting) deny(ctx context.Context) error {
	p.empty()
	standIns := p.punishes()
	for i := range p.asks {
		switch w := &p.wants[i]; {
		case w.view == 0:
			p.add(p.asks[i], origin{int32(i), none})
		case standIns:
			p.addStandIn(i, w.denied)
		}
	}
	if i := slices.IndexFunc(p.wants, func(w want) bool { return w.denied }); !standIns {
		v := p.view(i)
		p.addStandIn(i, true).Key.Subject = v.parts[slices.Index(v.away, nil)].subject // one that can be reached
	}
	for i := range p.wants {
		if p.wants[i].denied {
			p.addWaits(i)
		}
	}
	const standIn = 1
	if len(p.sent) > standIn {
		if err := p.send(ctx, p.layer.next.Take); err != nil {
			return err
		}
	}
	for i := range p.asks {
		if v := p.view(i); v != nil {
			p.ds[i] = p.describe(i, v)
		}
	}
	for j := range p.out {
		switch d, from := &p.ds[p.from[j].ask], p.from[j]; {
		case from.part != none:
			d.RetryAfter = min(d.RetryAfter, max(p.out[j].RetryAfter, soon))
		case p.wants[from.ask].view == 0:
			*d = p.out[j]
		}
	}
	return nil
}

// addWaits asks the parts of a denied ask's counter when they will have gained their share of what is missing. When
// the ask passes, one of them will have, so none of them is late.
func (p *parting) addWaits(i int) {
	v, w, cost := p.view(i), &p.wants[i], p.asks[i].Cost
	if cost > v.cap || w.lost && cost <= w.left {
		return
	}
	parts := int64(len(v.parts))
	gain := (max(cost-w.left, 1) + parts - 1) / parts
	for k := range v.parts {
		if need := v.heard[k].Remaining + gain; v.away[k] == nil && need <= v.parts[k].plan.Cap() {
			p.addPart(origin{int32(i), int32(k)}, need)
		}
	}
}

// describe returns the decision about an ask of a take that is denied. If the ask denies, its RetryAfter is at most
// what was asked for, and otherwise the time after which all of the counter is back.
func (p *parting) describe(i int, v *view) stint.Decision {
	d, w := v.describe(), &p.wants[i]
	switch cost := p.asks[i].Cost; {
	case !w.denied:
		d.Allowed, d.RetryAfter = true, 0
		return d
	case cost > v.cap:
		d.RetryAfter = stint.Never
	case cost <= w.left && cost > 0:
		d.RetryAfter = soon // others were faster
	case cost > 0:
		d.RetryAfter = max(d.ResetAfter, soon)
	}
	if d.Allowed = false; d.RetryAfter != stint.Never && v.missing() != nil {
		d.RetryAfter = min(d.RetryAfter, time.Second)
	}
	d.Remaining = w.left
	return d
}

// conclude answers a take that is denied, and not by split asks. What they say stands; penalties record the
// violation, in a take that denies as they have.
func (p *parting) conclude(ctx context.Context) error {
	for i := range p.asks {
		if v := p.view(i); v != nil && v.heard != nil {
			p.ds[i] = p.describe(i, v)
		}
	}
	if !p.violates() {
		return nil
	}
	p.empty()
	for i := range p.asks {
		if p.asks[i].Penalty != nil {
			p.add(p.asks[i], origin{int32(i), none})
		} else {
			p.addStandIn(i, !p.ds[i].Allowed)
		}
	}
	if err := p.send(ctx, p.layer.next.Take); err != nil {
		return err
	}
	for i := range p.asks {
		if p.asks[i].Penalty != nil {
			p.ds[i] = p.out[i]
		}
	}
	return nil
}

// violates reports whether a penalty records the denial.
func (p *parting) violates() bool {
	for i := range p.asks {
		if p.asks[i].Penalty != nil && p.asks[i].Cost > 0 && p.ds[i].Allowed &&
			slices.ContainsFunc(p.ds[stint.Guarded(p.asks, i):i], func(d stint.Decision) bool { return !d.Allowed }) {
			return true
		}
	}
	return false
}
