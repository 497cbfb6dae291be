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

// bucketTake is the short way of take, for ticks of a microsecond and counters that were written
// at this rate or have recovered.
func (p *Plan) bucketTake(c *Counter, now, cost int64, d *Decision) bool {
	if p.tick != 1 || cost <= 0 {
		return false
	}
	var used int64
	if now < c.Until {
		if c.Aux != p.unit || now < c.At {
			return false
		}
		back, ok := times(now-c.At, p.rate)
		if !ok {
			return false
		}
		used = max(c.Used-back, 0)
	}
	left := p.cap - p.byUnit.ceil(used)
	if cost > left {
		*d = Decision{Limit: p.cap, Remaining: max(left, 0), RetryAfter: Never, ResetAfter: until(min(now+p.byRate.ceil(used), c.Until), now)}
		if cost <= p.cap {
			over := used - (p.cap-cost)*p.unit
			d.RetryAfter = until(min(now+p.byRate.ceil(over), c.Until), now)
		}
		return true
	}
	*d = Decision{Allowed: true, Limit: p.cap, Remaining: left - cost}
	if p.limit.Algorithm == LeakyBucket {
		d.Delay = until(min(now+p.byRate.ceil(used), maxInt), now)
	}
	used += cost * p.unit
	*c = Counter{At: now, Used: used, Aux: p.unit, Until: min(now+p.byRate.ceil(used), maxInt)}
	d.ResetAfter = until(c.Until, now)
	return true
}

func (p *Plan) bucketAdvance(c *Counter, now int64) {
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
	if back, ok := times(t-last, p.rate); !ok || back >= c.Used {
		c.Used, t = 0, p.ticks(now+p.tick-1)
	} else {
		c.Used -= back
	}
	c.At = t * p.tick
}

func (p *Plan) bucketLeft(c *Counter) int64 { return p.cap - p.byUnit.ceil(c.Used) }

func (p *Plan) bucketCharge(c *Counter, units int64) {
	if units >= 0 {
		c.Used = min(c.Used+p.parts(units), maxInt)
	} else {
		c.Used = max(c.Used-p.parts(-units), 0)
	}
}

func (p *Plan) bucketPassAt(c *Counter, cost int64) int64 {
	return p.drained(c, c.Used-(p.cap-cost)*p.unit)
}

func (p *Plan) bucketEmptyAt(c *Counter) int64 { return p.drained(c, c.Used) }

// drained returns when that many parts will have come back.
func (p *Plan) drained(c *Counter, parts int64) int64 {
	took, ok := times(p.byRate.ceil(parts), p.tick)
	if !ok {
		return maxInt
	}
	return min(c.At+took, maxInt)
}

// parts converts units to parts, as far as they fit.
func (p *Plan) parts(units int64) int64 {
	if units > p.maxUnits {
		return maxInt
	}
	return units * p.unit
}
