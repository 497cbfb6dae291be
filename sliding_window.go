package stint

// Sliding window: two counts, of the current window and of the one before. At
// e ticks into a window of w ticks, the part of the previous window that still
// lies within the last w ticks is (w-e)/w, and so much of its count is carried,
// rounded up:
//
//	carried = ceil(previous * (w-e) / w)
//	allowed when carried + current + cost <= max
//
// Windows that no tick divides begin elsewhere when a changed max needs another
// tick, and so do those of a counter that was moved to now. Counts are then placed
// on the grid by the start of the window they were counted in: in the current window,
// in the previous one, or forgotten. Of a window that began in the middle of one of
// the grid, both counts go together, now and in the window after, so that what was
// promised of the time after holds.

// slidingSame reports whether the counter was written under this limit, in the window that it is
// still in.
func (p *Plan) slidingSame(c *Counter, now int64) bool {
	return c.Until == c.At+2*p.span && c.Used != 0 && now >= c.At && now < c.At+p.span
}

// slidingTake is the short way of take.
func (p *Plan) slidingTake(c *Counter, now, cost int64, d *Decision) bool {
	if cost <= 0 || !p.slidingSame(c, now) {
		return false
	}
	left := p.cap - c.Used
	if c.Aux != 0 {
		left -= p.carried(c, now)
	}
	*d = Decision{At: now, Limit: p.cap, Remaining: max(left, 0), Before: c.Aux, ResetAfter: until(c.Until, now)}
	switch {
	case cost <= left:
		c.Used += cost
		d.Allowed, d.Remaining, d.Cost = true, left-cost, cost
	case cost > p.cap:
		d.RetryAfter = Never
	default:
		d.RetryAfter = until(p.slidingPassAt(c, cost), now)
	}
	return true
}

func (p *Plan) slidingAdvance(c *Counter, now int64) {
	start := p.byWindow.floor(p.ticks(now)) * p.span
	switch {
	case c.At == start:
		return
	case c.At > start:
		c.Used, c.Aux = clamp(c.Used+c.Aux, maxInt), 0
	case c.At == start-p.span:
		c.Used, c.Aux = 0, c.Used
	case c.At > start-p.span:
		c.Used, c.Aux = 0, clamp(c.Used+c.Aux, maxInt)
	default:
		c.Used, c.Aux = 0, 0
	}
	c.At = start
}

// carried returns how much of the previous window's count still weighs.
func (p *Plan) carried(c *Counter, now int64) int64 {
	e := p.ticks(now - c.At)
	return p.byWindow.ceil(min(c.Aux, p.maxCarried) * (p.window - e))
}

// slidingCharge gives back from the current window first: a refund follows its
// take.
func (p *Plan) slidingCharge(c *Counter, units int64) {
	if units < -c.Used {
		c.Aux = max(c.Aux+units+c.Used, 0)
	}
	c.Used = clamp(c.Used+units, maxInt)
}

// slidingAmend changes a charge that was made in the current window, or in the one before. Of
// others nothing is left.
func (p *Plan) slidingAmend(c *Counter, at, by int64) {
	switch {
	case at >= c.At+p.span:
	case at >= c.At:
		c.Used = clamp(c.Used+by, maxInt)
	case at >= c.At-p.span:
		c.Aux = clamp(c.Aux+by, maxInt)
	}
}

// slidingPassAt solves the condition for e: carried <= room when
// e >= w - floor(room*w/previous). If the current count leaves no room, it is
// solved in the next window, where the current count is the previous one.
func (p *Plan) slidingPassAt(c *Counter, cost int64) int64 {
	start, previous, room := c.At, c.Aux, p.cap-c.Used-cost
	if room < 0 {
		start, previous, room = c.At+p.span, c.Used, p.cap-cost
	}
	e := p.window - room*p.window/min(previous, p.maxCarried)
	return start + e*p.tick
}

func (p *Plan) slidingEmptyAt(c *Counter) int64 {
	switch {
	case c.Used > 0:
		return c.At + 2*p.span
	case c.Aux > 0:
		return c.At + p.span
	}
	return 0
}
