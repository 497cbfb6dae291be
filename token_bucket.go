package stint

import "math/bits"

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

// bucketTake is take in fewer steps, in the case that is nearly all of them: a tick is a
// microsecond, and the counter was written at this rate or has recovered.
func (p *Plan) bucketTake(c *Counter, now, cost int64, d *Decision) {
	if p.tick != 1 || cost <= 0 {
		p.take(c, nil, now, cost, d)
		return
	}
	if cost == 1 {
		if now >= c.Until {
			*c = Counter{At: now, Used: p.unit, Aux: p.unit, Until: now + p.one}
			*d = Decision{Allowed: true, Limit: p.cap, Remaining: p.cap - 1, ResetAfter: until(c.Until, now)}
			return
		}
		// If Until was found at this rate, it tells when a unit passes, without a division.
		if pass := c.Until - p.early; now < pass && c.Aux == p.unit && now >= c.At {
			high, all := bits.Mul64(uint64(c.Until-c.At), uint64(p.rate))
			if spare := all - uint64(c.Used); high == 0 && spare < p.slack {
				*d = Decision{Limit: p.cap, RetryAfter: duration(pass - now), ResetAfter: duration(c.Until - now)}
				return
			}
		}
	}
	var used int64
	if now < c.Until {
		if c.Aux != p.unit || now < c.At {
			p.take(c, nil, now, cost, d)
			return
		}
		back, ok := times(now-c.At, p.rate)
		if !ok {
			p.take(c, nil, now, cost, d)
			return
		}
		used = max(c.Used-back, 0)
	}
	over := used - (p.cap-cost)*p.unit
	if cost > p.cap || over > 0 {
		*d = Decision{Limit: p.cap, RetryAfter: Never, ResetAfter: until(min(now+p.byRate.ceil(used), c.Until), now)}
		if cost <= p.cap {
			d.RetryAfter = until(min(now+p.byRate.ceil(over), c.Until), now)
		}
		if cost > 1 { // of less than one nothing remains
			d.Remaining = max(p.cap-p.byUnit.ceil(used), 0)
		}
		return
	}
	*d = Decision{Allowed: true, Limit: p.cap, Remaining: p.cap - p.byUnit.ceil(used) - cost}
	if p.limit.Algorithm == LeakyBucket {
		d.Delay = until(min(now+p.byRate.ceil(used), maxInt), now)
	}
	used += cost * p.unit
	*c = Counter{At: now, Used: used, Aux: p.unit, Until: min(now+p.byRate.ceil(used), maxInt)}
	d.ResetAfter = until(c.Until, now)
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
	if units > p.fit {
		return maxInt
	}
	return units * p.unit
}
