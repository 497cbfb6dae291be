package stint

// Fixed window: a count that starts anew at each edge of the window. Edges are
// aligned to the epoch or to the calendar.
//
// A counter belongs to one window, so whoever finds a count knows its edges: At
// and Aux.

// fixedSame reports whether the counter was written in the window that it is still in.
func fixedSame(c *Counter, now int64) bool { return c.At <= now && now < c.Aux }

// fixedTake is the short way of take.
func (p *Plan) fixedTake(c *Counter, now, cost int64, d *Decision) bool {
	if cost <= 0 || !fixedSame(c, now) {
		return false
	}
	left := p.cap - c.Used
	*d = Decision{At: now, Limit: p.cap, Remaining: max(left, 0), ResetAfter: until(c.Until, now)}
	switch {
	case cost <= left:
		c.Used += cost
		d.Allowed, d.Remaining, d.Cost = true, left-cost, cost
	case cost > p.cap:
		d.RetryAfter = Never
	default:
		d.RetryAfter = d.ResetAfter
	}
	return true
}

func (p *Plan) fixedAdvance(c *Counter, now int64) {
	if !fixedSame(c, now) {
		start, end := p.limit.Window.bounds(now)
		*c = Counter{At: start, Aux: end}
	}
}

// fixedAmend changes a charge that was made in the current window. Of others nothing is left.
func fixedAmend(c *Counter, at, by int64) {
	if c.At <= at && at < c.Aux {
		c.Used = clamp(c.Used+by, maxInt)
	}
}
