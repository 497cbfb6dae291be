package stint

// Token bucket: so much was used, and it comes back at max per window. The
// state counts parts of units, small enough that every tick gives back a whole
// number of them: no fraction is ever lost or made.
//
//	allowed when used - refilled + cost <= burst
//
// After a change of the rate the parts have another size: usage is rounded up
// to a whole unit and goes on from there at the new rate.
//
// With a tick above a microsecond, a bucket that was full begins to refill at
// the next whole tick: a tick is credited only when all of it has passed.

func (p *plan) bucketAdvance(c *Counter, now int64) {
	now = max(now, c.At)
	if c.Aux != p.unit {
		if c.Used > 0 {
			units := ceilDiv(c.Used, c.Aux)
			c.Used = p.parts(units)
		}
		c.Aux = p.unit
	}
	last := p.ticks(c.At + p.tick - 1)
	t := max(p.ticks(now), last)
	if passed := t - last; passed >= ceilDiv(c.Used, p.rate) {
		c.Used, t = 0, p.ticks(now+p.tick-1)
	} else {
		c.Used -= passed * p.rate
	}
	c.At = t * p.tick
}

func (p *plan) bucketLeft(c *Counter) int64 { return p.cap - ceilDiv(c.Used, p.unit) }

func (p *plan) bucketCharge(c *Counter, units int64) {
	if units >= 0 {
		c.Used = min(c.Used+p.parts(units), maxInt)
	} else {
		c.Used = max(c.Used-p.parts(-units), 0)
	}
}

func (p *plan) bucketPassAt(c *Counter, cost int64) int64 {
	return p.drained(c, c.Used-(p.cap-cost)*p.unit)
}

func (p *plan) bucketEmptyAt(c *Counter) int64 { return p.drained(c, c.Used) }

// drained returns when that many parts will have come back.
func (p *plan) drained(c *Counter, parts int64) int64 {
	ticks := ceilDiv(parts, p.rate)
	if ticks > (maxInt-c.At)/p.tick {
		return maxInt
	}
	return c.At + ticks*p.tick
}

// parts converts units to parts, as far as they fit.
func (p *plan) parts(units int64) int64 {
	if units > maxInt/p.unit {
		return maxInt
	}
	return units * p.unit
}
