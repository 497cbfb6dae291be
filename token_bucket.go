package stint

import "math"

// Token bucket: so much was used, and it comes back at max per window. The
// state counts parts of units, small enough that every tick gives back a whole
// number of them: no fraction is ever lost or made.
//
//	allowed when used - refilled + cost <= burst
//
// With a tick above a microsecond, a tick is credited only when all of it has
// passed, and a bucket that may have been full at a charge begins to refill at the
// next whole tick. Where it was not full, what it held before and the charge drain
// one after the other, and the tick that had begun is credited to both as one.

// bucketTake is the short way of take, for ticks of a microsecond and counters that were written
// at this rate or have recovered.
func (p *Plan) bucketTake(c *Counter, now, cost int64, d *Decision) bool {
	if p.tick != 1 || cost <= 0 {
		return false
	}
	var used int64
	if now < c.Until {
		if now < c.At || c.Aux != p.unit || c.Until != c.At+p.byRate.ceil(c.Used) { // see sameRate
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
		*d = Decision{At: now, Limit: p.cap, Remaining: max(left, 0), RetryAfter: Never, ResetAfter: until(min(now+p.byRate.ceil(used), c.Until), now)}
		if cost <= p.cap {
			over := used - (p.cap-cost)*p.unit
			d.RetryAfter = until(min(now+p.byRate.ceil(over), c.Until), now)
		}
		return true
	}
	*d = Decision{At: now, Allowed: true, Limit: p.cap, Remaining: left - cost, Cost: cost}
	if p.limit.Algorithm == LeakyBucket {
		d.Delay = until(min(now+p.byRate.ceil(used), maxInt), now)
	}
	used += cost * p.unit
	*c = Counter{At: now, Used: used, Aux: p.unit, Until: min(now+p.byRate.ceil(used), maxInt)}
	d.ResetAfter = until(c.Until, now)
	return true
}

// sameRate reports whether the counter, which has not recovered, was written at this rate: then it
// will be empty when it was said to be.
func (p *Plan) sameRate(c *Counter) bool {
	return c.Aux == p.unit && c.Until == p.bucketEmptyAt(c)
}

// bucketAdvance reports whether the counter was written at another rate.
func (p *Plan) bucketAdvance(c *Counter, now int64) (moved bool) {
	if c.Used > 0 && !p.sameRate(c) {
		p.changeRate(c, now)
		return true
	}
	c.Aux = p.unit
	last := p.ticks(c.At + p.tick - 1)
	t := max(p.ticks(now), last)
	if back, ok := times(t-last, p.rate); !ok || back >= c.Used {
		c.Used, t = 0, p.ticks(now+p.tick-1)
	} else {
		c.Used -= back
	}
	c.At = t * p.tick
	return false
}

// changeRate lets a counter of another rate drain until now at that rate, by which it would have
// been empty at Until, and makes it one of this rate. The product may be far beyond 53 bits, and
// doubles give the same result in every language: there is no sum in it that a processor might
// round differently. They are off by less than a part in 2^50, which the factor takes away, so that
// a whole number of parts stays one.
func (p *Plan) changeRate(c *Counter, now int64) {
	now = max(now, c.At)
	used := float64(c.Used) / float64(c.Aux) * float64(p.unit)
	used = used * float64(c.Until-now) / float64(c.Until-c.At) * (1 - 0x1p-50)
	c.Used = int64(math.Ceil(min(used, maxInt)))
	c.At, c.Aux = p.ticks(now+p.tick-1)*p.tick, p.unit
}

func (p *Plan) bucketLeft(c *Counter) int64 { return p.cap - p.byUnit.ceil(c.Used) }

// bucketCharge adds units.
//
// A charge within a coarse tick counts as made at the tick's start, if what was used before lasts until
// its end: then it makes no difference at the end. Otherwise the bucket may have been empty already, and
// the charge would drain from before it was made. So it counts as made at the tick's end.
func (p *Plan) bucketCharge(c *Counter, now, units int64) {
	if units > 0 && c.Used < p.rate && now > c.At {
		c.At += p.tick
	}
	c.Used = min(c.Used+p.parts(units), maxInt)
}

// bucketRefund gives back parts of a charge, and notes it.
func (p *Plan) bucketRefund(s *State, now, from, parts int64) {
	if parts = min(parts, s.Used); parts > 0 {
		s.Past = s.Past.at(now).in(p.unit)
		s.Past.refund(Refunded{From: from, At: now, Parts: parts}, s.Until)
		s.Used -= parts
	}
}

// bucketAmend changes a charge. More is charged in full. Less is given back as far as it has not
// drained, which is the charge less max(0, rate*(now-at) - b), where b was used before it, and has not
// been given back since.
//
// Proof that the bucket then never shows less than it would without the charge: let what was used first
// drain first. Then a charge begins to drain when b has drained, or was given back, and what comes after it
// makes no difference to it. So at most what the rate gives back beyond b has drained of the charge, and in
// a loaded bucket that is nothing. (Old refunds are noted roughly, so that b may come out too small. Then a
// refund gives back too little, by at most what the rate gave back since the charge.)
//
// The charge says when the bucket would have recovered from it, rounded up to a tick. So b is at least
// what drains until the tick before, less the charge.
func (p *Plan) bucketAmend(s *State, now int64, charge *Charge, by int64) {
	if by >= 0 {
		p.bucketCharge(&s.Counter, now, by)
		return
	}
	charged := p.parts(charge.Cost)
	at := p.ticks(charge.At)
	before, ok := times(max(p.ticks(charge.Until())-at-1, 0), p.rate)
	if !ok {
		before = maxInt
	}
	past := s.Past.at(now).in(p.unit)
	before = max(before-charged-past.refunded(charge.At), 0)
	drained, ok := times(max(p.ticks(now)-at, 0), p.rate)
	if !ok {
		drained = maxInt
	}
	drained = max(drained-before, 0)
	p.bucketRefund(s, now, charge.At, min(p.parts(-by), max(charged-drained, 0)))
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
