package stint

import (
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// maxInt is the largest integer that a double holds with all below it.
	maxInt = 1<<53 - 1
	// maxTime is the year 2200, which leaves the sums of times and windows
	// below maxInt. Times outside [0, maxTime] are moved to its ends.
	maxTime = 7258118400 * 1_000_000

	maxTick = 1_000_000
)

// Plan is a valid limit made ready for arithmetic: times in ticks, products within 53 bits. It
// is for stores, which find it with [Limit.Plan] before they lock a counter.
type Plan struct {
	limit Limit
	cap   int64 // the largest cost that can pass

	tick   int64 // microseconds; 1 unless a product would not fit
	window int64 // ticks, for all but calendar windows
	span   int64 // window in microseconds

	// Buckets gain rate parts of a unit per tick, and a unit has unit parts:
	// max and window divided by their greatest common divisor.
	rate, unit int64
	one        int64 // ticks, until a unit has come back
	// A unit passes early ticks before a bucket has recovered, if the tick in which it recovers
	// gives back fewer than slack parts too many, or else a tick before that: the parts of all units
	// but one are early*rate + rate-slack.
	early int64
	slack uint64
	// nextUnit is how long after its start a window that is used up lets a unit pass, in microseconds.
	nextUnit int64

	byCap, byWindow, byRate, byUnit divisor
	// most is the largest previous count whose product with window fits, and fit
	// the most units of a bucket whose parts do.
	most, fit int64
}

// Terms are the numbers that a limit is judged by, for a store that counts in
// another language.
type Terms struct {
	Cap    int64 // the largest cost that can pass
	Tick   int64 // microseconds; times are whole ticks
	Window int64 // ticks; 0 for a calendar window
	// A bucket gains Rate parts of a unit per tick, and a unit has Unit parts.
	Rate, Unit int64
	// Most is the largest previous count that a sliding_window weighs in full.
	Most int64
}

// Terms returns the limit's terms, or false if the limit is not valid.
func (l *Limit) Terms() (Terms, bool) {
	p := l.Plan()
	if p == nil {
		return Terms{}, false
	}
	return Terms{Cap: p.cap, Tick: p.tick, Window: p.window, Rate: p.rate, Unit: p.unit, Most: p.most}, true
}

// Compiling a limit costs more than a decision, so plans are remembered by the
// limit's hash. It is a cache and nothing more: bounded, lock-free, and a
// collision only costs time.
var plans [1 << 10]atomic.Pointer[Plan]

// Plan returns the limit's plan, or nil if the limit is not valid.
func (l *Limit) Plan() *Plan {
	h := uint64(l.Max) + uint64(l.Window.span)<<1 + uint64(l.Burst)<<3 + uint64(l.Algorithm)<<40
	if l.Window.span == 0 {
		h ^= uint64(l.Window.anchor)<<24 ^ uint64(l.Window.unit)<<44
	}
	h = h * 0xD6E8FEB86659FD93 >> 54
	if p := plans[h].Load(); p != nil && p.limit.is(l) {
		return p
	}
	return l.plan(&plans[h])
}

// plan makes the limit's plan, and remembers it.
func (l *Limit) plan(slot *atomic.Pointer[Plan]) *Plan {
	p, err := newPlan(*l)
	if err != nil {
		return nil
	}
	slot.Store(p)
	return p
}

func newPlan(l Limit) (*Plan, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	p := &Plan{limit: l, cap: l.Max, tick: 1, window: l.Window.span.Microseconds()}
	p.span = p.window
	switch l.Algorithm {
	case TokenBucket:
		if l.Burst > 0 {
			p.cap = l.Burst
		}
	case LeakyBucket:
		p.cap = l.Burst + 1
	case FixedWindow, SlidingLog:
		return p, nil // no products
	case SlidingWindow:
	}
	// The finest tick at which the largest product fits.
	span := p.window
	for ; p.tick <= min(maxTick, span); p.tick *= 10 {
		p.window = ceilDiv(span, p.tick)
		p.span = p.window * p.tick
		if l.Algorithm == SlidingWindow {
			p.byCap, p.byWindow = newDivisor(p.cap), newDivisor(p.window)
			p.nextUnit = p.span + ceilDiv(p.window, p.cap)*p.tick
			p.most = maxInt / p.window
			if l.Max <= p.most {
				return p, nil
			}
			continue
		}
		g := gcd(l.Max, p.window)
		p.rate, p.unit = l.Max/g, p.window/g
		p.byRate, p.byUnit = newDivisor(p.rate), newDivisor(p.unit)
		p.one = p.byRate.ceil(p.unit)
		if p.fit = maxInt / p.unit; p.cap <= p.fit {
			rest := (p.cap - 1) * p.unit
			p.early, p.slack = rest/p.rate, uint64(p.rate-rest%p.rate)
			return p, nil
		}
	}
	field, value := "max", l.Max
	if l.Burst > 0 {
		field, value = "burst", l.Burst
	}
	return nil, invalid(field, strconv.FormatInt(value, 10), "less: over "+l.Window.String()+
		" it fits into 53 bits at no tick; "+strconv.FormatInt(maxInt/p.window, 10)+" does")
}

// Take judges the cost and answers in d. If the cost passes and is not 0, c is charged;
// otherwise it stays as it is. The time is in microseconds since the Unix epoch. A negative cost
// is denied. For a counter that goes with a log, there is TakeLog.
func (p *Plan) Take(c *Counter, now, cost int64, d *Decision) {
	if uint64(now) > maxTime { // or is negative
		now = clamp(now, maxTime)
	}
	// take does all of this, too. In the case that is nearly all of them this takes fewer steps: a
	// window's counter that was written under this limit, in the window that it is still in.
	var left, passAt int64
	switch p.limit.Algorithm {
	case SlidingWindow:
		if cost <= 0 || !p.slidingSame(c, now) {
			p.take(c, nil, now, cost, d)
			return
		}
		left, passAt = p.cap-c.Used, c.At+p.nextUnit
		if left == 0 && cost == 1 {
			break
		}
		if c.Aux != 0 {
			left -= p.carried(c, now)
		}
		if left < cost && cost <= p.cap {
			passAt = p.slidingPassAt(c, cost)
		}
	case FixedWindow:
		if cost <= 0 || !p.fixedSame(c, now) && !p.periodSame(c, now) {
			p.take(c, nil, now, cost, d)
			return
		}
		left, passAt = p.cap-c.Used, c.Until
	case TokenBucket, LeakyBucket:
		p.bucketTake(c, now, cost, d)
		return
	case SlidingLog:
		p.take(c, nil, now, cost, d)
		return
	}
	if cost <= left {
		c.Used += cost
		*d = Decision{Allowed: true, Limit: p.cap, Remaining: left - cost, ResetAfter: until(c.Until, now)}
		return
	}
	*d = Decision{Limit: p.cap, Remaining: max(left, 0), RetryAfter: Never, ResetAfter: until(c.Until, now)}
	if cost <= p.cap {
		d.RetryAfter = until(passAt, now)
	}
}

// TakeLog is Take with the log that goes with the counter of a sliding_log. The log's upkeep is the
// caller's.
func (p *Plan) TakeLog(c *Counter, log []Entry, now, cost int64, d *Decision) {
	if p.limit.Algorithm == SlidingLog {
		p.take(c, log, clamp(now, maxTime), cost, d)
	} else {
		p.Take(c, now, cost, d)
	}
}

// take is Take of any algorithm, in all cases.
func (p *Plan) take(c *Counter, log []Entry, now, cost int64, d *Decision) {
	next := *c
	p.decide(&next, &log, now, cost, d)
	if d.Allowed && cost > 0 {
		*c = next
	}
}

// decide judges the cost, charges it if it passes, and answers in d. A log is
// only read: its charge is left to the caller.
func (p *Plan) decide(c *Counter, log *[]Entry, now, cost int64, d *Decision) {
	if cost < 0 {
		*d = Decision{RetryAfter: Never}
		return
	}
	// What was written under another limit recovers, at the latest, when it
	// would have recovered under that one.
	recovered := c.Until
	p.advance(c, log, now)
	left := p.left(c, now)
	*d = Decision{Limit: p.cap, Remaining: max(left, 0)}
	switch {
	case cost <= left:
		d.Allowed = true
		if p.limit.Algorithm == LeakyBucket {
			d.Delay = until(p.emptyAt(c), now)
		}
		if cost > 0 {
			d.Remaining = left - cost
			p.charge(c, now, cost)
			p.settle(c)
			d.ResetAfter = until(c.Until, now)
			return
		}
	case cost > p.cap:
		d.RetryAfter = Never
	default:
		d.RetryAfter = until(min(p.passAt(c, *log, cost), recovered), now)
	}
	d.ResetAfter = until(min(p.emptyAt(c), recovered), now)
}

// settle notes when the counter will have recovered. One that has is zero.
func (p *Plan) settle(c *Counter) {
	if c.Until = p.emptyAt(c); c.Until == 0 {
		*c = Counter{}
	}
}

// advance brings the counter to now: one that has recovered becomes fresh,
// windows roll, buckets drain.
func (p *Plan) advance(c *Counter, log *[]Entry, now int64) {
	if now >= c.Until {
		*c, *log = Counter{}, nil
	}
	switch p.limit.Algorithm {
	case SlidingWindow:
		p.slidingAdvance(c, now)
	case FixedWindow:
		p.fixedAdvance(c, now)
	case SlidingLog:
		p.logAdvance(c, log, now)
	case TokenBucket, LeakyBucket:
		p.bucketAdvance(c, now)
	}
}

// left returns the largest cost that would pass, negative if more is used than
// the limit allows.
func (p *Plan) left(c *Counter, now int64) int64 {
	switch p.limit.Algorithm {
	case SlidingWindow:
		return p.cap - c.Used - p.carried(c, now)
	case TokenBucket, LeakyBucket:
		return p.bucketLeft(c)
	default:
		return p.cap - c.Used
	}
}

// charge adds units, or takes them back if negative.
func (p *Plan) charge(c *Counter, now, units int64) {
	switch p.limit.Algorithm {
	case SlidingWindow:
		p.slidingCharge(c, units)
	case FixedWindow:
		c.Used = clamp(c.Used+units, maxInt)
	case SlidingLog:
		c.At, c.Used = max(now, c.At), clamp(c.Used+units, maxInt)
	case TokenBucket, LeakyBucket:
		p.bucketCharge(c, units)
	}
}

// passAt returns when the cost, which does not pass now but is within the
// capacity, will pass.
func (p *Plan) passAt(c *Counter, log []Entry, cost int64) int64 {
	switch p.limit.Algorithm {
	case SlidingWindow:
		return p.slidingPassAt(c, cost)
	case FixedWindow:
		return c.Aux
	case SlidingLog:
		return p.logPassAt(c, log, cost)
	default:
		return p.bucketPassAt(c, cost)
	}
}

// emptyAt returns when nothing will be used any more, or zero if nothing is.
func (p *Plan) emptyAt(c *Counter) int64 {
	switch {
	case p.limit.Algorithm == SlidingWindow:
		return p.slidingEmptyAt(c)
	case c.Used == 0:
		return 0
	case p.limit.Algorithm == FixedWindow:
		return c.Aux
	case p.limit.Algorithm == SlidingLog:
		return c.At + p.window
	default:
		return p.bucketEmptyAt(c)
	}
}

// ticks converts microseconds to whole ticks.
func (p *Plan) ticks(micros int64) int64 {
	if p.tick == 1 { // nearly always, and a division costs
		return micros
	}
	return micros / p.tick
}

// until returns the time from now to at, zero if it is past.
func until(at, now int64) time.Duration {
	return duration(max(at-now, 0))
}

func duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

func micros(t time.Time) int64 { return clamp(t.UnixMicro(), maxTime) }

func clamp(n, most int64) int64 { return max(0, min(n, most)) }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// times multiplies numbers that are not negative, and reports whether the product is within
// maxInt. A division would tell that, too, and costs more.
func times(a, b int64) (product int64, ok bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int64(low), high == 0 && low <= maxInt
}

// divisor is a number that much is divided by. To multiply by its inverse takes a third of the
// time, and is exact for numbers from 0 to 2^54: the inverse is floor(2^(64+shift)/n)+1, and what
// that is too much comes to less than a part in n.
type divisor struct {
	n       int64
	inverse uint64 // 0: n is 1
	shift   uint8
}

func newDivisor(n int64) divisor {
	if n == 1 {
		return divisor{n: 1}
	}
	shift := max(bits.Len64(uint64(n))-10, 0)
	inverse, _ := bits.Div64(1<<shift, 0, uint64(n))
	return divisor{n: n, inverse: inverse + 1, shift: uint8(shift)}
}

func (d *divisor) floor(a int64) int64 {
	if d.inverse == 0 {
		return a
	}
	q, _ := bits.Mul64(uint64(a), d.inverse)
	return int64(q >> (d.shift & 63))
}

func (d *divisor) ceil(a int64) int64 { return d.floor(a + d.n - 1) }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
