package stint

// Fixed window: a count that starts anew at each edge of the window. Edges are
// aligned to the epoch or to the calendar.
//
// A count survives a change of the window while the window it was counted in
// began inside the current one.

func (p *plan) fixedAdvance(c *Counter, now int64) {
	if c.Aux == c.At+p.window && now >= c.At && now < c.Aux {
		return // in the window that it was written in, as nearly always
	}
	start, end := p.limit.Window.bounds(max(now, c.At))
	if c.At < start {
		c.Used = 0
	}
	c.At, c.Aux = start, end
}
