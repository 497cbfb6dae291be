package layer

import (
	"context"
	"errors"
	"hash/maphash"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// LeaseOptions are the options of [Lease]. Zero values mean defaults.
type LeaseOptions struct {
	// Replicas returns how many nodes share the limits now, as for [FallbackOptions], which is its
	// default in [New]. Nil: one.
	Replicas func() int
	// Counters is how many counters may be leased at once. Default 4,096, at most 1 << 20.
	Counters int
	// Begin is how many takes of a counter in one term begin a lease. After a term that has fewer than half
	// of that, it gives back its units, and ends within a few terms. Default 8: a lease costs the store up
	// to two calls in a term.
	Begin int
	// Meter, if not nil, counts what is leased.
	Meter *LeaseMeter
}

// Lease takes units from the store before they are needed, for asks that allow it ([stint.Policy.Lease]),
// and spends them in memory. So a busy counter costs the store about 13 calls in ten terms, however many
// takes there are, and a decision takes no longer than one in memory. Decisions made that way have the basis
// [stint.Leased].
//
// Units are charged in the store before they are spent, and a lease ends with the window in which it was
// charged. So leases never admit more than a fixed_window or sliding_window allows, even if nodes crash, stall
// or lose the store: what a [Fallback] admits then is in addition. A unit of a token_bucket, leaky_bucket or
// sliding_log may be spent up to one term after it was charged, so that as much may be admitted in addition as
// the limit gives back in one term. Time is measured with the node's monotonic clock, from before the store was
// asked.
//
// The price is the opposite: while a node holds units that it has not spent, other nodes may be denied. They
// are held for at most one term, and then given back. A node that crashes does not give them back. To keep
// that small, a lease has what this node spends in three quarters of a term, and at most its part of half of
// what remains, so that all others hold less than half of the limit. Near the limit that is nothing, and the store
// decides every take. Before this node denies, it gives back its own units, and asks again.
//
// A counter is leased if it has enough takes in a term (Begin). A take of several asks spends units of all of
// them, or is decided by the store as a whole; so it is if one ask has no lease, is a penalty, a peek, or of
// [stint.Concurrency], or if there are more than eight. Counters whose asks have different limits are leased
// for one of them at a time.
//
// Decisions with the basis Leased describe the counter as it was when the units were charged, at the time At,
// except for Remaining, which has what this node still holds. A reset through another node does not end
// leases: what is held may still be spent for one term. Close gives all units back.
func Lease(next stint.Store, o LeaseOptions) (stint.Store, error) {
	if o.Counters == 0 {
		o.Counters = 1 << 12
	}
	if o.Begin == 0 {
		o.Begin = 8
	}
	if o.Replicas == nil {
		o.Replicas = func() int { return 1 }
	}
	if o.Meter == nil {
		o.Meter = NewLeaseMeter()
	}
	switch {
	case o.Counters < 0 || o.Counters > 1<<20:
		return nil, invalid("counters", o.Counters, "at most "+strconv.Itoa(1<<20))
	case o.Begin < 0 || o.Begin > maxHeat:
		return nil, invalid("begin", o.Begin, "from 1 to "+strconv.Itoa(maxHeat))
	case o.Replicas() < 1:
		return nil, invalid("replicas", o.Replicas(), "at least 1: this node")
	}
	if err := Check(PlaceLease, next); err != nil {
		return nil, err
	}
	l := &leases{next: next, o: o, born: time.Now(), seed: maphash.MakeSeed()}
	l.sets = make([]leaseSet, 1<<bits.Len(uint((o.Counters-1)/inSet)))
	l.heat = make([]atomic.Uint64, 1<<14)
	return l, nil
}

type leases struct {
	next stint.Store
	o    LeaseOptions
	born time.Time
	seed maphash.Seed

	// sets are the leases, by the hash of their counters. They are added under the lock.
	sets []leaseSet
	// heat is how often counters are taken from that are not leased, by their hash: half of the hash, the
	// number of the term, and the takes in it.
	heat []atomic.Uint64

	mu     sync.Mutex
	closed bool // nothing more is leased
	work   sync.WaitGroup
}

type leaseSet [inSet]atomic.Pointer[lease]

func (*leases) Place() Place { return PlaceLease }

func (l *leases) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	some, all := leased(asks)
	if !some {
		return l.next.Take(ctx, asks, ds)
	}
	if all && len(asks) == len(ds) && l.spendAll(ctx, asks, ds) {
		return nil
	}
	return l.takeStored(ctx, asks, ds, all)
}

// leased reports whether some or all asks may be answered by leases.
func leased(asks []stint.Ask) (some, all bool) {
	all = len(asks) <= onStack
	for i := range asks {
		a := &asks[i]
		if a.Policy == nil || a.Policy.Lease <= 0 {
			all = false
			continue
		}
		some = true
		all = all && a.Penalty == nil && a.Cost > 0 && a.Limit.Algorithm != stint.Concurrency
	}
	return some, all
}

const (
	// maxWaits is how many fetches a take waits for before the store decides it.
	maxWaits = 16
	// yieldEvery is how many takes of a lease it is until one gives way to the fetch that is under way. Where
	// many more goroutines than processors never block, an answer of the store otherwise waits about 50 ms
	// for a processor: half a term. With 512 on 2, a second then has 36 calls to the store instead of 20.
	yieldEvery = 512
)

// spendAll answers a take by leases. It reports false if one of them does not suffice; then nothing is spent.
func (l *leases) spendAll(ctx context.Context, asks []stint.Ask, ds []stint.Decision) bool {
	waits := 0
	for i := 0; i < len(asks); i++ {
		a := &asks[i]
		e := l.find(a)
		if e == nil {
			l.putBack(asks[:i], ds)
			return false
		}
		ok, fetched := l.spend(e, a, &ds[i])
		if ok {
			if fetched != nil && e.hurried.Add(1)%yieldEvery == 0 {
				runtime.Gosched()
			}
			continue
		}
		l.putBack(asks[:i], ds)
		if fetched == nil || waits == maxWaits {
			return false
		}
		// More units are on their way. To ask the store for one would take as long. Others may spend them
		// first, if there are many more callers than processors.
		select {
		case <-fetched:
		case <-ctx.Done():
			return false
		}
		waits, i = waits+1, -1
	}
	return true
}

// spend spends units of a lease, and fetches more before it runs out. If there are not enough but more are
// on their way, it returns a channel that is closed when they are here.
func (l *leases) spend(e *lease, a *stint.Ask, d *stint.Decision) (ok bool, fetched <-chan struct{}) {
	now := time.Since(l.born)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false, nil
	}
	if !e.is(a) {
		e.replace(a)
		return false, nil
	}
	e.inTerm++
	e.takes++
	e.units += a.Cost
	ok, left := e.spend(now, a.Cost, d)
	if left <= e.low {
		l.extend(e, now)
	}
	return ok, e.fetched
}

// putBack puts units back into the leases that they were spent from.
func (l *leases) putBack(asks []stint.Ask, ds []stint.Decision) {
	for i := range asks {
		e := l.find(&asks[i])
		if e != nil && e.putBack(&ds[i]) {
			continue
		}
		a, c := asks[i], ds[i].Charge() // the lease has ended meanwhile
		a.Cost, a.Charge = -c.Cost, &c
		l.o.Meter.of(&a.Key).spent.Add(-c.Cost)
		l.do(func() { l.giveBack([]stint.Ask{a}) })
	}
}

// takeStored has the store decide a take. All says that it could have been answered by leases.
func (l *leases) takeStored(ctx context.Context, asks []stint.Ask, ds []stint.Decision, all bool) error {
	if slices.ContainsFunc(asks, func(a stint.Ask) bool { return a.Penalty != nil }) {
		l.surrender(ctx, asks, nil) // or it might record a violation, though there are units
	}
	err := l.next.Take(ctx, asks, ds)
	if err != nil {
		return err
	}
	// A denial that is remembered was one of the store before, when this node gave back what it held.
	if denied(ds) && ds[0].Basis != stint.Remembered && l.surrender(ctx, asks, ds) {
		if err = l.next.Take(ctx, asks, ds); err != nil {
			return err
		}
	}
	l.heard(asks, ds, all)
	return nil
}

func denied(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed })
}

// heard notes what the store has said of counters. If begin is true, those that are taken from often enough
// are leased from now on.
func (l *leases) heard(asks []stint.Ask, ds []stint.Decision, begin bool) {
	now := time.Since(l.born)
	for i := range asks {
		a, d := &asks[i], &ds[i]
		if a.Policy == nil || a.Policy.Lease <= 0 || a.Penalty != nil {
			continue
		}
		e := l.find(a)
		if e == nil && begin && d.Basis == stint.Counted && l.warm(a, now) {
			e = l.begin(a, now)
		}
		if !d.Allowed { // without a lock of the lease, since there may be very many
			l.deny(a, e)
		}
		if e != nil && d.Basis == stint.Counted {
			e.mu.Lock()
			if e.heard(now, a, d); begin && e.is(a) {
				l.extend(e, now)
			}
			e.mu.Unlock()
		}
	}
}

// deny counts a denial. The lease may be nil: other nodes may have some of the counter.
func (l *leases) deny(a *stint.Ask, e *lease) {
	switch others := most(a, int64(l.o.Replicas())); {
	case e != nil:
		e.meter.deny(others)
	case others > 0:
		l.o.Meter.of(&a.Key).deny(others)
	}
}

func (l *leases) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	// Without a charge, a refund gives back whatever is used, and what is charged may leave nothing: neither
	// must be about what is held here.
	if slices.ContainsFunc(asks, func(a stint.Ask) bool { return a.Cost != 0 && a.Charge == nil }) {
		l.surrender(ctx, asks, nil)
	}
	err := l.next.Adjust(ctx, asks, ds)
	if err == nil {
		l.told(asks, ds)
	}
	return err
}

// Reset also ends the leases of the counters. What they hold is given back, which is nothing if it was charged
// before the reset.
func (l *leases) Reset(ctx context.Context, asks []stint.Ask) error {
	err := l.next.Reset(ctx, asks)
	l.surrender(ctx, asks, nil)
	return err
}

// Close gives all units back.
func (l *leases) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.work.Wait()
	var back []stint.Ask
	for i := range l.sets {
		for j := range l.sets[i] {
			if e := l.sets[i][j].Load(); e != nil {
				back = append(back, e.end()...)
				l.o.Meter.end(e)
			}
		}
	}
	for some := range slices.Chunk(back, 32) {
		l.giveBack(some)
	}
	return l.next.Close()
}

// do runs f in the background, unless the layer is closed.
func (l *leases) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.work.Go(f)
	}
	return !l.closed
}

// extend fetches more units for a lease in the background, if it needs some. The caller holds the lease.
func (l *leases) extend(e *lease, now time.Duration) {
	n := e.need(now, int64(l.o.Replicas()))
	if n == 0 {
		return
	}
	fetched := make(chan struct{})
	if l.do(func() { l.fetch(e, n); close(fetched) }) {
		e.fetched = fetched
	}
}

// background is how long calls may take that no caller waits for.
const background = time.Second

// fetch takes units ahead.
func (l *leases) fetch(e *lease, n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), background) //nolint:forbidigo // no caller waits for this
	defer cancel()
	begin := time.Since(l.born) // before the store decides, so that no deadline is too late
	asks, ds := []stint.Ask{e.ask}, make([]stint.Decision, 1)
	asks[0].Cost = n
	err := l.next.Take(ctx, asks, ds)
	now := time.Since(l.born)
	e.mu.Lock()
	e.trip = max(now-begin, e.trip-e.trip/8)
	e.fetched = nil
	var back []stint.Ask
	switch {
	case err != nil:
		e.pause = now + e.term
		if !errors.Is(err, stint.ErrNotApplied) { // it may have been charged
			e.meter.lent.Add(n)
			e.meter.kept.Add(n)
		}
	case ds[0].Basis == stint.Remembered: // it says nothing about now
	case ds[0].Basis != stint.Counted:
		e.pause = now + e.term // the store is away; what was counted without it is not for later
		if !denied(ds) {
			back = stint.Refund(asks, ds)
		}
	case denied(ds):
		e.heard(now, &e.ask, &ds[0])
	case e.closed:
		back = stint.Refund(asks, ds)
	default:
		e.heard(now, &e.ask, &ds[0])
		e.add(e.newBatch(ds[0], begin, now))
		e.timer.Reset(e.next(now))
	}
	if back != nil {
		e.meter.lent.Add(n) // and given back at once
	}
	e.mu.Unlock()
	l.giveBack(back)
}

// turn ends the batches of a lease whose time is over. If it has few takes, it ends all of them, and the lease itself,
// unless units are being fetched.
func (l *leases) turn(e *lease) {
	now := time.Since(l.born)
	e.mu.Lock()
	few := e.few(now, int64(l.o.Begin))
	back := e.remove(func(b *batch) bool { return few || now >= b.deadline })
	over := few && e.fetched == nil
	if over {
		e.closed = true // it fetches nothing more
	} else if !e.closed {
		e.timer.Reset(e.next(now))
	}
	e.meter.note(e)
	e.mu.Unlock()
	if over {
		back = append(back, l.end(e)...)
	}
	l.giveBack(back)
}

// surrender gives back what this node holds of the counters of asks, or of those that ds denies, and what it
// is about to hold. It reports whether there was anything.
func (l *leases) surrender(ctx context.Context, asks []stint.Ask, ds []stint.Decision) bool {
	var back []stint.Ask
	for i := range asks {
		if ds != nil && ds[i].Allowed {
			continue
		}
		e := l.find(&asks[i])
		if e == nil {
			continue
		}
		if fetched := e.fetching(); fetched != nil {
			select {
			case <-fetched:
			case <-ctx.Done():
			}
		}
		back = append(back, e.empty()...)
	}
	l.giveBack(back)
	return len(back) > 0
}

// giveBack changes charges in the store. If that fails, the units stay charged.
func (l *leases) giveBack(back []stint.Ask) {
	if len(back) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), background) //nolint:forbidigo // units of no caller
	defer cancel()
	ds := make([]stint.Decision, len(back))
	if l.next.Adjust(ctx, back, ds) != nil {
		ds = nil
	}
	l.o.Meter.back(back, ds)
	if ds != nil {
		l.told(back, ds)
	}
}

// told notes what the store has said of counters that were adjusted.
func (l *leases) told(asks []stint.Ask, ds []stint.Decision) {
	now := time.Since(l.born)
	for i := range asks {
		if e := l.find(&asks[i]); e != nil && ds[i].Basis == stint.Counted {
			e.mu.Lock()
			e.heard(now, &asks[i], &ds[i])
			e.mu.Unlock()
		}
	}
}
