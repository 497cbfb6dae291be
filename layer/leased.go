package layer

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// lease is what this node holds of one counter.
type lease struct {
	id    uint64
	ask   stint.Ask // for units of the counter, without a cost
	term  time.Duration
	meter *limitMeter
	timer *time.Timer // calls turn

	mu        sync.Mutex
	closed    bool
	replaced  bool          // the limit has another policy now: the lease ends
	batches   []batch       // oldest first
	low       int64         // more is fetched when no more than that is held
	trip      time.Duration // how long a fetch takes, at most, lately
	remaining int64         // in the store, as it last said
	recovered time.Duration // when all is back, if nothing was taken since

	fetched chan struct{} // closed when the units are here that are being fetched; nil: none are
	pause   time.Duration // nothing is fetched before
	hurried atomic.Int64  // takes while units were being fetched

	// What callers have asked for since the last fetch, and the rate before that, in units per nanosecond.
	since        time.Duration
	takes, units int64
	rate         float64

	turned time.Duration // when the current term began
	inTerm int64         // takes in it

	// For the meter: what it has not been told yet.
	spent, told int64
}

// batch is units that were charged together.
type batch struct {
	size, left int64
	begin      time.Duration // when the store was asked
	arrived    time.Duration // when it had answered
	deadline   time.Duration // no unit is spent from then on
	decision   stint.Decision
}

// maxBatch is how many units a batch has at most.
const maxBatch = 1 << 30

func newLease(a *stint.Ask, id uint64, now time.Duration) *lease {
	e := &lease{id: id, term: min(max(a.Policy.Lease, stint.MinLease), stint.MaxLease), since: now, turned: now}
	e.since -= e.term // what is known of the rate is that there were enough takes in a term
	e.ask = *a
	e.ask.Cost = 0
	// Clone, since the caller's strings may be parts of larger ones.
	e.ask.Key = stint.Key{Subject: strings.Clone(a.Key.Subject), Name: strings.Clone(a.Key.Name)}
	e.ask.Client = strings.Clone(a.Client)
	if !a.Compiled() {
		e.ask.Plan, _ = a.Limit.Compile() // the store has accepted it
	}
	return e
}

// newBatch returns the units that a take of e.ask has charged.
func (e *lease) newBatch(d stint.Decision, begin, now time.Duration) batch {
	life := min(e.term, WindowLeft(&e.ask, &d))
	life -= life / 1000 // the store's clock may be faster
	return batch{size: d.Cost, left: d.Cost, begin: begin, arrived: now, deadline: begin + life, decision: d}
}

// WindowLeft returns how long it is until the window ends in which a was charged, if d is the decision: units that are
// taken before they are needed must not be spent later. It goes by the instant of the charge alone: ResetAfter may be
// about other parts of a split counter. Limits without windows have [stint.Never]. The Plan of a must be that of its
// limit.
func WindowLeft(a *stint.Ask, d *stint.Decision) time.Duration {
	p, at := a.Plan, d.At
	switch p.Limit().Algorithm {
	case stint.FixedWindow:
		return time.Duration(recovers(p, at)-at) * time.Microsecond
	case stint.SlidingWindow: // which recovers one window after its own
		terms := p.Terms()
		return time.Duration(recovers(p, at)-at-terms.Window*terms.Tick) * time.Microsecond
	case stint.TokenBucket, stint.LeakyBucket, stint.SlidingLog, stint.Concurrency:
	}
	return stint.Never
}

// is reports whether the lease is for asks like a. It is not for another limit of the same key, and not for another
// policy: by that, the counter may be divided differently.
func (e *lease) is(a *stint.Ask) bool {
	return a.Limit == e.ask.Limit && a.Policy != nil && (a.Policy == e.ask.Policy || *a.Policy == *e.ask.Policy)
}

// replace ends the lease soon if a, for which it is not, is its limit with another policy. The caller holds it.
func (e *lease) replace(a *stint.Ask) {
	if a.Limit == e.ask.Limit && !e.replaced {
		e.replaced = true
		e.timer.Reset(0)
	}
}

// spend spends units of the oldest batch that has enough. It also returns how many are left in all.
func (e *lease) spend(now time.Duration, cost int64, d *stint.Decision) (ok bool, left int64) {
	var from *batch
	for i := range e.batches {
		b := &e.batches[i]
		if now >= b.deadline {
			continue
		}
		if from == nil && b.left >= cost {
			from = b
			b.left -= cost
		}
		left += b.left
	}
	if from == nil {
		return false, left
	}
	*d = from.decision
	d.Basis, d.Cost, d.Remaining = stint.Leased, cost, min(e.remaining+left, d.Limit)
	if e.ask.Limit.Algorithm == stint.LeakyBucket {
		before := from.size - from.left - cost // units that go first
		pace := e.ask.Limit.Window.Length() / time.Duration(e.ask.Limit.Max)
		d.Delay = max(d.Delay+time.Duration(before)*pace-(now-from.arrived), 0)
	}
	e.spent += cost
	return true, left
}

// putBack puts units back that were spent. It reports false if their batch is gone.
func (e *lease) putBack(d *stint.Decision) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.batches {
		if b := &e.batches[i]; b.decision.At == d.At && b.decision.Counter == d.Counter {
			b.left += d.Cost
			e.spent -= d.Cost
			return true
		}
	}
	return false
}

// spendable returns how many units may be spent now.
func (e *lease) spendable(now time.Duration) (left int64) {
	for i := range e.batches {
		if b := &e.batches[i]; now < b.deadline {
			left += b.left
		}
	}
	return left
}

// heard notes what the store has said of the counter, and adds to it what this node holds.
func (e *lease) heard(now time.Duration, a *stint.Ask, d *stint.Decision) {
	if e.is(a) {
		e.remaining, e.recovered = d.Remaining, later(now, d.ResetAfter)
		e.meter.used(d.Limit-d.Remaining, d.Limit)
	}
	d.Remaining = min(d.Remaining+e.spendable(now), d.Limit)
}

// need returns how many units to fetch now: what callers take in three quarters of a term, less what is
// left. They are fetched when the rest lasts for an eighth of a term, so that a batch is spent before its
// deadline, and the next one is here before that.
//
// With what is left, it is at most this node's part of half of what remains, so that other nodes find some, and what
// the part of a split counter has that has most. If that is not worth a call, it is 0: the store decides.
func (e *lease) need(now time.Duration, nodes int64) int64 {
	if e.closed || e.replaced || e.fetched != nil || now < e.pause || e.takes == 0 {
		return 0
	}
	left := e.spendable(now)
	e.rate = max(float64(e.units)/float64(max(now-e.since, e.term/16)), e.rate/2)
	inTerm := e.rate * float64(e.term)
	remaining := e.remaining
	if now >= e.recovered {
		remaining = e.ask.Plan.Cap()
	}
	n := min(int64(inTerm*3/4), share(remaining, nodes), maxBatch) - left
	if e.ask.Policy.Split > 1 {
		n = min(n, remaining/int64(e.ask.Policy.Split))
	}
	const worth = 4 // takes
	if n < worth*max(e.units/e.takes, 1) {
		return 0
	}
	// What is held must last until more is here, also from a store that is far away.
	// At most a quarter of the term: then a fetch is for half of one, and there are few.
	e.low = int64(e.rate * float64(min(max(e.term/8, 2*e.trip), e.term/4)))
	e.since, e.takes, e.units = now, 0, 0
	return n
}

// share returns how much of what remains each of several nodes takes ahead at most: together, half.
func share(remaining, nodes int64) int64 { return remaining / (2 * nodes) }

// most returns how many units other nodes hold of a counter at most. Those of other regions are not known.
func most(a *stint.Ask, nodes int64) int64 {
	if a.Policy.Regions == stint.RegionsCentral {
		return a.Limit.Cap()
	}
	return (nodes - 1) * share(a.Limit.Cap(), nodes)
}

// fetching returns a channel that is closed when the units are here that are being fetched, or nil.
func (e *lease) fetching() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fetched
}

// add adds a batch.
func (e *lease) add(b batch) {
	e.batches = append(slices.DeleteFunc(e.batches, func(b batch) bool { return b.left == 0 }), b)
	e.meter.lent.Add(b.size)
}

// empty removes all batches, and returns what is to be given back.
func (e *lease) empty() []stint.Ask {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.remove(func(*batch) bool { return true })
}

// end ends the lease, and returns what is to be given back.
func (e *lease) end() []stint.Ask {
	e.timer.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return e.remove(func(*batch) bool { return true })
}

// remove removes batches, and returns what is to be given back.
func (e *lease) remove(gone func(*batch) bool) (back []stint.Ask) {
	keep := e.batches[:0]
	for i := range e.batches {
		b := &e.batches[i]
		if !gone(b) {
			keep = append(keep, *b)
			continue
		}
		if b.left == 0 {
			continue
		}
		a, c := e.ask, b.decision.Charge()
		a.Cost, a.Charge = -b.left, &c
		back = append(back, a)
	}
	e.batches = keep
	return back
}

// few reports, at the end of a term, whether it had too few takes, or whether the lease is replaced.
func (e *lease) few(now time.Duration, begin int64) bool {
	if e.replaced {
		return true
	}
	if now-e.turned < e.term {
		return false
	}
	few := 2*e.inTerm < begin
	e.turned, e.inTerm = now, 0
	return few
}

// next returns how long it is until the next batch expires, or the term ends.
func (e *lease) next(now time.Duration) time.Duration {
	if e.replaced {
		return stint.MinLease // until nothing is being fetched
	}
	at := e.turned + e.term
	for i := range e.batches {
		if b := &e.batches[i]; b.left > 0 {
			at = min(at, b.deadline)
		}
	}
	return max(at-now, 0)
}
