package stint

import (
	"math/bits"
	"strconv"
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

// Plan is a limit made ready for arithmetic: times in ticks, products within 53
// bits. Making one takes longer than a decision, so whoever asks often makes it
// once, with [Limit.Compile], and puts it into [Ask.Plan].
//
// A Plan does not change, and may be used by many goroutines at once.
type Plan struct {
	limit Limit
	kind  uint64
	cap   int64 // the largest cost that can pass

	tick   int64 // microseconds; 1 unless a product would not fit
	window int64 // ticks, for all but calendar windows
	span   int64 // window in microseconds

	// Buckets gain rate parts of a unit per tick, and a unit has unit parts:
	// max and window divided by their greatest common divisor.
	rate, unit int64

	byWindow, byRate, byUnit divisor
	// maxCarried is the largest previous count whose product with window fits,
	// and maxUnits the most units of a bucket whose parts do.
	maxCarried, maxUnits int64
}

// Terms are the numbers that a limit is judged by, for a store that counts in
// another language.
type Terms struct {
	Cap    int64 // the largest cost that can pass
	Tick   int64 // microseconds; times are whole ticks
	Window int64 // ticks; 0 for a calendar window
	// A bucket gains Rate parts of a unit per tick, and a unit has Unit parts.
	Rate, Unit int64
	// MaxCarried is the largest previous count that a sliding_window weighs in full.
	MaxCarried int64
}

// Compile makes the limit's plan, or reports what is wrong with the limit as an
// [*InvalidError].
func (l Limit) Compile() (*Plan, error) {
	p := new(Plan)
	if err := l.compile(p); err != nil {
		return nil, err
	}
	return p, nil
}

// Limit returns the limit that the plan was made of.
func (p *Plan) Limit() Limit { return p.limit }

// Kind returns the limit's kind.
func (p *Plan) Kind() uint64 { return p.kind }

// Terms returns the limit's terms.
func (p *Plan) Terms() Terms {
	return Terms{Cap: p.cap, Tick: p.tick, Window: p.window, Rate: p.rate, Unit: p.unit, MaxCarried: p.maxCarried}
}

// Cap returns the largest cost that can pass.
func (p *Plan) Cap() int64 { return p.cap }

// compile fills in the plan. It allocates nothing unless the limit is not valid.
func (l *Limit) compile(p *Plan) error {
	if err := l.check(); err != nil {
		return err
	}
	*p = Plan{limit: *l, kind: l.Kind(), cap: l.Max, tick: 1, window: l.Window.span.Microseconds()}
	p.span = p.window
	switch l.Algorithm {
	case TokenBucket:
		if l.Burst > 0 {
			p.cap = l.Burst
		}
	case LeakyBucket:
		p.cap = l.Burst + 1
	case FixedWindow, SlidingLog, Concurrency:
		return nil // no products
	case SlidingWindow:
	}
	// The finest tick at which the largest product fits.
	span := p.window
	for ; p.tick <= min(maxTick, span); p.tick *= 10 {
		p.window = ceilDiv(span, p.tick)
		p.span = p.window * p.tick
		if l.Algorithm == SlidingWindow {
			p.byWindow = newDivisor(p.window)
			if p.maxCarried = maxInt / p.window; l.Max <= p.maxCarried {
				return nil
			}
			continue
		}
		g := gcd(l.Max, p.window)
		p.rate, p.unit = l.Max/g, p.window/g
		p.byRate, p.byUnit = newDivisor(p.rate), newDivisor(p.unit)
		if p.maxUnits = maxInt / p.unit; p.cap <= p.maxUnits {
			return nil
		}
	}
	field, value := "max", l.Max
	if l.Burst > 0 {
		field, value = "burst", l.Burst
	}
	return invalid(field, strconv.FormatInt(value, 10), "less: over "+l.Window.String()+
		" it fits into 53 bits at no tick; "+strconv.FormatInt(maxInt/p.window, 10)+" does")
}

// Take judges the cost and answers in d. If the cost passes and is not 0, c is charged;
// otherwise it stays as it is, unless it had to be moved (see [Limit.Take]). The time is in
// microseconds since the Unix epoch. A negative cost is denied. For a counter that goes with a
// log, there is TakeState.
func (p *Plan) Take(c *Counter, now, cost int64, d *Decision) {
	now = clamp(now, maxTime)
	short := false
	switch p.limit.Algorithm {
	case SlidingWindow:
		short = p.slidingTake(c, now, cost, d)
	case FixedWindow:
		short = p.fixedTake(c, now, cost, d)
	case TokenBucket, LeakyBucket:
		short = p.bucketTake(c, now, cost, d)
	case SlidingLog, Concurrency:
	}
	if !short {
		p.take(c, nil, now, cost, d)
	}
}

// TakeLog is Take with the log that goes with the counter of a sliding_log or of concurrency. The
// log's upkeep is the caller's: to drop what has left, and to append the charge, at the counter's
// new At. It reports false, and has done nothing, if the counter must be moved first, which
// TakeState does.
func (p *Plan) TakeLog(c *Counter, log []Entry, now, cost int64, d *Decision) bool {
	now = clamp(now, maxTime)
	if p.ahead(c, now) {
		return false
	}
	p.take(c, log, now, cost, d)
	return true
}

// take is Take of any algorithm, in all cases. The short ways of the algorithms are
// for the case that is nearly all of them: the counter was written under this limit,
// in the window that it is still in. There they answer the same in fewer steps (a
// test holds them to it), and otherwise they report false and have changed nothing.
func (p *Plan) take(c *Counter, log []Entry, now, cost int64, d *Decision) {
	next := *c
	if p.decide(&next, &log, now, cost, d) {
		*c = next
	}
}

// decide judges the cost, charges it if it passes, and answers in d. It reports whether the
// counter is to be written: it was charged, or moved. A log is only read: its charge is left to
// the caller.
func (p *Plan) decide(c *Counter, log *[]Entry, now, cost int64, d *Decision) (write bool) {
	if cost < 0 {
		*d = Decision{At: now, RetryAfter: Never}
		return false
	}
	moved := p.advance(c, log, now)
	// What was written under another limit recovers, at the latest, when it
	// would have recovered under that one.
	recovered := c.Until
	left := p.left(c, now)
	*d = Decision{At: now, Limit: p.cap, Remaining: max(left, 0), Before: p.before(c)}
	switch {
	case cost <= left:
		d.Allowed = true
		if p.limit.Algorithm == LeakyBucket {
			d.Delay = until(p.emptyAt(c), now)
		}
		if cost > 0 {
			d.Remaining, d.Cost = left-cost, cost
			p.charge(c, now, cost)
			p.settle(c)
			d.ResetAfter = until(c.Until, now)
			if p.limit.Algorithm == Concurrency {
				d.At = c.At
			}
			return true
		}
	case cost > p.cap:
		d.RetryAfter = Never
	default:
		d.RetryAfter = until(min(p.passAt(c, *log, cost), recovered), now)
	}
	d.ResetAfter = until(min(p.emptyAt(c), recovered), now)
	return moved
}

// settle notes when the counter will have recovered. One that has is zero.
func (p *Plan) settle(c *Counter) {
	if c.Until = p.emptyAt(c); c.Until == 0 {
		*c = Counter{}
	}
}

// advance brings the counter to now: one that has recovered becomes fresh,
// windows roll, buckets drain. It reports whether the counter was moved: one that was written by a
// clock ahead of now, or at another rate, must be written again even if nothing is charged, or what
// is promised now would not hold later.
func (p *Plan) advance(c *Counter, log *[]Entry, now int64) (moved bool) {
	if now >= c.Until {
		*c, *log = Counter{}, nil
	} else if p.ahead(c, now) {
		if p.limit.Algorithm == FixedWindow {
			c.Aux -= c.At - now
		}
		moveBack(c, log, c.At-now)
		moved = true
	}
	switch p.limit.Algorithm {
	case SlidingWindow:
		p.slidingAdvance(c, now)
	case FixedWindow:
		p.fixedAdvance(c, now)
	case SlidingLog, Concurrency:
		p.logAdvance(c, log, now)
	case TokenBucket, LeakyBucket:
		if p.bucketAdvance(c, now) {
			moved = true
		}
	}
	if moved {
		p.settle(c)
	}
	return moved
}

// ahead reports whether the counter was written by a clock that is ahead of now. A bucket may be
// a tick ahead, and concurrency as many microseconds as it has places.
func (p *Plan) ahead(c *Counter, now int64) bool {
	ahead := c.At - now
	if ahead <= 0 || now >= c.Until {
		return false
	}
	switch p.limit.Algorithm {
	case TokenBucket, LeakyBucket:
		return ahead >= p.tick
	case Concurrency:
		return ahead > MaxPlaces
	default:
		return true
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

// before returns what was charged in the window before.
func (p *Plan) before(c *Counter) int64 {
	if p.limit.Algorithm != SlidingWindow {
		return 0
	}
	return c.Aux
}

// charge adds units, or takes them back if negative.
func (p *Plan) charge(c *Counter, now, units int64) {
	switch p.limit.Algorithm {
	case SlidingWindow:
		p.slidingCharge(c, units)
	case FixedWindow:
		c.Used = clamp(c.Used+units, maxInt)
	case SlidingLog, Concurrency:
		c.At, c.Used = p.logAt(c, now), clamp(c.Used+units, maxInt)
	case TokenBucket, LeakyBucket:
		p.bucketCharge(c, now, units)
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
	case SlidingLog, Concurrency:
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
	case p.limit.Algorithm.hasLog():
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
