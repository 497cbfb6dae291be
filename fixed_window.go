package stint

// Fixed window: a count that starts anew at each edge of the window. Edges are
// aligned to the epoch or to the calendar.
//
// A count survives a change of the window while the window it was counted in
// began inside the current one.

// fixedTake is take in fewer steps, in the case that is nearly all of them: the counter was
// written under this limit, in the window that it is still in.
func (p *Plan) fixedTake(c *Counter, now, cost int64, d *Decision) {
	if c.Until != c.Aux || now < c.At || now >= c.Aux || cost <= 0 || (c.Aux != c.At+p.window && !p.isPeriod(c, now)) {
		p.take(c, nil, now, cost, d)
		return
	}
	left := p.cap - c.Used
	if cost > left {
		*d = Decision{Limit: p.cap, Remaining: max(left, 0), RetryAfter: Never, ResetAfter: until(c.Until, now)}
		if cost <= p.cap {
			d.RetryAfter = d.ResetAfter
		}
		return
	}
	c.Used += cost
	*d = Decision{Allowed: true, Limit: p.cap, Remaining: left - cost, ResetAfter: until(c.Until, now)}
}

// isPeriod reports whether the counter's window is that period of the calendar which now is in.
func (p *Plan) isPeriod(c *Counter, now int64) bool {
	if p.window > 0 {
		return false
	}
	start, end := p.limit.Window.period(now)
	return c.At == start && c.Aux == end
}

func (p *Plan) fixedAdvance(c *Counter, now int64) {
	if c.Aux == c.At+p.window && now >= c.At && now < c.Aux {
		return // in the window that it was written in, as nearly always
	}
	start, end := p.limit.Window.bounds(max(now, c.At))
	if c.At < start {
		c.Used = 0
	}
	c.At, c.Aux = start, end
}
