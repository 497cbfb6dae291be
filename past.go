package stint

import "time"

// Past is what the state of a counter does not tell: when it was reset, and what was given back of it.
// Without it, a refund might give back what had drained, or was forgotten, long before.
type Past struct {
	// Reset is when the counter was last reset, in microseconds since the Unix epoch, or 0.
	// A charge from before gives nothing back.
	Reset int64
	// Refunds is what was given back to a bucket, oldest first, and Unit is how many parts a
	// unit then had. It is never changed in place.
	Refunds []Refunded
	Unit    int64
	// Until is from when on none of it matters, because all charges from then have recovered.
	Until int64
}

// Refunded is how many parts of units were given back at an instant, of a charge from an earlier one. A
// charge from between the two was made to a bucket that held them, and has them no longer before it.
type Refunded struct{ From, At, Parts int64 }

// at returns the past as far as it matters now. What does not is only dropped by a store, or by the next
// refund or reset: the clock might be set back.
func (p Past) at(now int64) Past {
	if now >= p.Until {
		return Past{}
	}
	return p
}

// in returns the past of a bucket whose units have that many parts. What was given back at another rate is
// rounded up to whole units.
func (p Past) in(unit int64) Past {
	if p.Unit != unit && len(p.Refunds) > 0 {
		old := p.Refunds
		p.Refunds = make([]Refunded, len(old))
		for i, r := range old {
			units := (r.Parts-1)/p.Unit + 1
			r.Parts = maxInt
			if units <= maxInt/unit {
				r.Parts = units * unit
			}
			p.Refunds[i] = r
		}
	}
	p.Unit = unit
	return p
}

// refunded returns how much of what was used before a charge of that instant was given back after it.
func (p *Past) refunded(charged int64) (parts int64) {
	for _, r := range p.Refunds {
		if r.From <= charged && charged <= r.At {
			parts = min(parts+r.Parts, maxInt)
		}
	}
	return parts
}

// refund notes a refund of now. Without it, the counter would have recovered at the time until.
//
// The latest are kept one by one. An older one becomes one with the next, which then counts for every
// charge for which one of the two does, if what lies between the refund before it and the next is at most
// three times as long as what lies between the next and now. So the age of each is more than four times
// that of the one after the next, and few are kept.
func (p *Past) refund(r Refunded, until int64) {
	p.Until = max(p.Until, until)
	now, all := r.At, make([]Refunded, 0, len(p.Refunds)+1)
	for i, r := range append(p.Refunds[:len(p.Refunds):len(p.Refunds)], r) {
		if n := len(all); n > 1 && i <= len(p.Refunds)-latest && r.At-all[n-2].At <= 3*(now-r.At) {
			r.From = min(r.From, all[n-1].From)
			r.Parts = min(r.Parts+all[n-1].Parts, maxInt)
			all = all[:n-1]
		}
		all = append(all, r)
	}
	p.Refunds = all
}

// latest is how many refunds are kept one by one.
const latest = 32

// Reset forgets what was used. As long as a charge from before might be given back, the state's past
// says when that was.
func (l Limit) Reset(s State, now time.Time) State {
	t := micros(now)
	past := s.Past.at(t)
	if s.Until > t {
		past = Past{Reset: t, Until: max(past.Until, s.Until, t+2*l.Window.Length().Microseconds())}
	}
	return State{Past: past}
}
