package layer

import (
	"cmp"
	"context"
	"slices"

	"github.com/stintdev/stint"
)

// adjust makes adjustments. Changes of charges go to the parts that have made them. For the others it must be known
// how much each part has used.
func (p *parting) adjust(ctx context.Context) error {
	for i := range p.asks {
		if p.needsHearing(i) {
			if err := p.hear(ctx); err != nil {
				return err
			}
			break
		}
	}
	p.empty()
	for i := range p.asks {
		switch v := p.view(i); {
		case v == nil:
			p.add(p.asks[i], origin{int32(i), none})
		case p.asks[i].Charge != nil:
			if err := p.amend(i, v); err != nil {
				return err
			}
		default:
			p.spread(i, v)
		}
	}
	if err := p.send(ctx, p.layer.next.Adjust); err != nil {
		return err
	}
	p.groups(func(i, from, to int) {
		v := p.view(i)
		if v == nil {
			p.ds[i] = p.out[from]
			return
		}
		for j := from; j < to; j++ {
			v.parts[p.from[j].part].hear(&p.out[j])
		}
		p.listen(v, from, to)
		p.adjusted(i, v, from, to)
	})
	return nil
}

// needsHearing reports whether the parts have to be asked before an adjustment can be made.
func (p *parting) needsHearing(i int) bool {
	v, c := p.view(i), p.asks[i].Charge
	if v == nil {
		return false
	}
	if c == nil || p.asks[i].Cost > 0 {
		return true
	}
	return v.charged(c.Counter).parts != 1
}

// amend adds the change of a charge. One that no part has made goes to the first, which rejects it; if a part cannot be
// reached it may be that one's.
//
// What is charged in addition goes to other parts, if its own has nothing left. With an ID it must go to the same
// parts each time, so it goes to all.
func (p *parting) amend(i int, v *view) error {
	c, by := p.asks[i].Charge, p.asks[i].Cost
	r := v.charged(c.Counter)
	if r.parts == 0 || r.parts == 1 && by <= 0 {
		if err := v.missing(); err != nil && r.parts == 0 {
			return unheard(err)
		}
		p.addPart(origin{int32(i), int32(r.at)}, by)
		return nil
	}
	if err := c.ValidateFor(c.Counter, v.describe().At); err != nil {
		return err // it is from the future by all clocks
	}
	charged := v.dividedAs(r, c.Cost)
	var units []int64
	switch {
	case by < 0:
		units = v.dividedAs(r, -by)
	case c.ID != "":
		units = v.dividedAs(run{parts: len(v.parts), uneven: true}, by)
	default:
		units = make([]int64, len(v.parts))
		if !r.uneven {
			units[r.at] = min(v.left[r.at], by)
		}
		v.fill(units, by)
	}
	for k, n := range units {
		if n == 0 {
			continue
		}
		part := *c
		part.Counter, part.Cost = uint32(v.parts[k].mark.Load()), max(charged[k], n)
		if r.parts > 1 {
			part.Reset = 0 // it is not known when each would have recovered; at worst, nothing was used of it before
		}
		if v.away[k] == nil {
			part.At = min(part.At, v.heard[k].At) // by another clock it may be in the future
		}
		if by < 0 {
			n = -n
		}
		p.addPart(origin{int32(i), int32(k)}, n).Charge = &part
	}
	return nil
}

// dividedAs returns how many units each part has of a charge to a run of parts. If it is uneven they are in proportion to
// the limits, and those of buckets are rounded down, since the larger part of a slow one drains no faster.
func (w *whole) dividedAs(r run, units int64) []int64 {
	out := make([]int64, len(w.parts))
	if !r.uneven {
		for j := range r.parts {
			out[(r.at+j)%len(out)] = equal(units, r.parts, j)
		}
		return out
	}
	rest := units
	for i := range out {
		out[i] = w.proportion(units, i)
		rest -= out[i]
	}
	if w.limit.Algorithm != stint.TokenBucket {
		for i := range out[:rest] { // it is less than a unit for each
			out[i]++
		}
	}
	return out
}

// spread adds an adjustment without a charge. Parts that cannot be reached are left out.
func (p *parting) spread(i int, v *view) {
	units := make([]int64, len(v.parts))
	cost := max(-maxUnits, min(p.asks[i].Cost, maxUnits))
	switch most := v.most(); {
	case cost > 0 && v.left[v.at.Load()] >= cost:
		units[v.at.Load()] = cost
	case cost > 0 && v.left[most] >= cost:
		units[most] = cost
	case cost > 0:
		v.fill(units, cost)
	case cost < 0:
		v.drain(units, -cost)
	}
	for k := range units {
		if v.away[k] == nil {
			v.left[k] = max(v.left[k]-units[k], 0)
			p.addPart(origin{int32(i), int32(k)}, units[k])
		}
	}
}

// fill divides units to be charged, of which some may be divided already: what remains of each part, and then in
// proportion.
func (v *view) fill(units []int64, cost int64) {
	for _, n := range units {
		cost -= n
	}
	for k, left := range v.left {
		n := min(left-units[k], cost)
		units[k] += n
		cost -= n
	}
	v.divide(units, cost)
}

// drain divides units to be given back: where most is used, and then, since more may have been charged than the
// limit, in proportion.
func (v *view) drain(units []int64, back int64) {
	if d := v.describe(); d.Allowed {
		order := make([]int, len(units))
		used := make([]int64, len(units))
		for k := range units {
			order[k] = k
			if v.away[k] == nil {
				used[k] = v.parts[k].plan.Cap() - v.left[k]
			}
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(used[b], used[a]) })
		for _, k := range order {
			units[k] = -min(used[k], back)
			back += units[k]
		}
	}
	v.divide(units, -back)
}

// divide adds units, or takes them away, in proportion to the limits of the parts that can be reached. What is left
// after that goes to the first of them.
func (v *view) divide(units []int64, all int64) {
	sign := int64(1)
	if all < 0 {
		sign, all = -1, -all
	}
	rest, first := all, -1
	for k := range units {
		if v.away[k] == nil {
			n := v.proportion(all, k)
			units[k] += sign * n
			rest -= n
			if first < 0 {
				first = k
			}
		}
	}
	units[first] += sign * rest
}

// adjusted answers an adjustment that was sent from j to end.
func (p *parting) adjusted(i int, v *view, j, end int) {
	d := &p.ds[i]
	if v.heard == nil && end == j+1 {
		*d = p.out[j]
		v.widen(d, int(p.from[j].part))
		return
	}
	*d = v.describe()
	d.Repeated = j < end
	var charges []stint.Decision
	for _, out := range p.out[j:end] {
		d.Repeated = d.Repeated && out.Repeated
		if d.Cost += out.Cost; out.Cost > 0 {
			charges = append(charges, out)
		}
	}
	switch len(charges) {
	case 0:
	case 1:
		d.At, d.ResetAfter, d.Counter = charges[0].At, charges[0].ResetAfter, charges[0].Counter
	default:
		d.Counter = v.markOf(run{uneven: true})
	}
}
