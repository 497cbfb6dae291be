package stint

// Fixed window: a count that starts anew at each edge of the window. Edges are
// aligned to the epoch or to the calendar.
//
// A count survives a change of the window while the window it was counted in
// began inside the current one.

// fixedSame reports whether the counter was written under this limit, in the window that it is
// still in, if that is not of the calendar.
func (p *Plan) fixedSame(c *Counter, now int64) bool {
	return c.Aux == c.At+p.window && now >= c.At && now < c.Aux
}

// periodSame is fixedSame of windows of the calendar.
func (p *Plan) periodSame(c *Counter, now int64) bool {
	if p.window > 0 {
		return false
	}
	start, end := p.limit.Window.period(now)
	return c.At == start && c.Aux == end
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
