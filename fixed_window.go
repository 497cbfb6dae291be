package stint

// Fixed window: a count that starts anew at each edge of the window. Edges are
// aligned to the epoch or to the calendar.
//
// A count survives a change of the window while the window it was counted in
// began inside the current one.

// fixedSame reports whether the counter was written under this limit, in the window that it is
// still in.
func (p *Plan) fixedSame(c *Counter, now int64) bool {
	if p.window > 0 {
		return c.Aux == c.At+p.window && now >= c.At && now < c.Aux
	}
	start, end := p.limit.Window.period(now)
	return c.At == start && c.Aux == end
}

// fixedTake is the short way of take.
func (p *Plan) fixedTake(c *Counter, now, cost int64, d *Decision) bool {
	if cost <= 0 || !p.fixedSame(c, now) {
		return false
	}
	left := p.cap - c.Used
	*d = Decision{Limit: p.cap, Remaining: max(left, 0), ResetAfter: until(c.Until, now)}
	switch {
	case cost <= left:
		c.Used += cost
		d.Allowed, d.Remaining = true, left-cost
	case cost > p.cap:
		d.RetryAfter = Never
	default:
		d.RetryAfter = d.ResetAfter
	}
	return true
}

func (p *Plan) fixedAdvance(c *Counter, now int64) {
	if p.fixedSame(c, now) {
		return
	}
	start, end := p.limit.Window.bounds(max(now, c.At))
	if c.At < start {
		c.Used = 0
	}
	c.At, c.Aux = start, end
}
