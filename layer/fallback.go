package layer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// FallbackOptions are the options of [Fallback].
type FallbackOptions struct {
	// Local is where this node counts while the store cannot be reached: a memory store of its
	// own. It is closed with the layer.
	Local stint.Store
	// Replicas returns how many nodes share the limits now. It is called for each local
	// decision, so it must be fast. Nil: one.
	Replicas func() int
	// MaxDebts is for how many counters the units are remembered that were charged here and not
	// in the store. Default 10,000. The units of further counters are never charged in the store.
	MaxDebts int
	// Remember is for how many counters and bans the last answer of the store is remembered, about;
	// the oldest make room. Default 65,536, which takes 2.7 MB. At most 1 << 24. Negative: none.
	Remember int
	// Settle is for how long after an outage a take must also pass by this node's share, since other nodes
	// may still be without the store, and admit theirs. Default 2 s. Negative: not at all.
	Settle time.Duration
	// Server returns the name of the server that has the counter of an ask, if the store has several, like
	// [BreakerOptions.Server], which is its default in [New]. Nil: there is one server.
	Server func(*stint.Ask) string
	// OnReturn is called after the store has come back and was charged. It must not close the
	// layer.
	OnReturn func(Return)
}

// Return says what happened to the units that were admitted while a store could not be reached.
type Return struct {
	Paid    int64 // charged in the store
	Lost    int64 // not charged: the store failed again, or there were too many counters
	Expired int64 // not charged: they had already recovered
}

// Fallback decides with a local store while the store cannot be reached (errors that wrap
// [stint.ErrUnavailable], unless the caller's context is done). Each limit is divided by the number of
// nodes, to at least one unit. Decisions have the basis [stint.Local].
//
// No one begins anew by that: the layer remembers what the store has last said of a counter, and the local
// counter begins with a share of what remained then, rounded down, and recovers as the limit says. So one
// that is exhausted stays so until it would have recovered, and so do bans. What is not known is what other
// nodes have admitted since, counters that were pushed out or of which less than a tenth was used, and all
// that was before a restart: as much may be admitted in addition. With more nodes than units, each node
// admits a unit.
//
// When the store is back it decides again, and for a while (Settle) this node's share holds, too: a take
// beyond it is denied here. What was admitted here and has not recovered is charged there
// ([stint.Store.Adjust]) once, and as of when it was admitted: in its window, and in a log at most an eighth
// of the window and 0.1 s late. That is done in the background, within about a second after the store is back,
// and when the layer is closed. What the store may have
// charged for takes that timed out stays charged, so a client may be charged twice, but not too little.
//
// Violations that penalties record locally are not sent to the store.
//
// Resets go to both stores. Adjustments that fail in the store go to the local one, and the store is told when it
// is back. If the policy of an ask is [stint.FailError], all of them are made in the store, or fail: units that a
// node has charged alone are changed there, on any node, once they have been charged there. Places of concurrency
// that were taken locally are not charged in the store.
func Fallback(next stint.Store, o FallbackOptions) (stint.Store, error) {
	if o.MaxDebts == 0 {
		o.MaxDebts = 10_000
	}
	if o.Settle == 0 {
		o.Settle = 2 * time.Second
	}
	if o.Remember == 0 {
		o.Remember = 1 << 16
	}
	switch {
	case o.Local == nil || o.Local == next:
		return nil, invalid("local", o.Local, "a store of this node's own")
	case o.MaxDebts < 0:
		return nil, invalid("max debts", o.MaxDebts, "0 or more")
	case o.Remember > 1<<24:
		return nil, invalid("remember", o.Remember, "at most "+strconv.Itoa(1<<24))
	case o.Replicas != nil && o.Replicas() < 1:
		return nil, invalid("replicas", o.Replicas(), "at least 1: this node")
	}
	if PlaceOf(o.Local) > 0 {
		return nil, invalid("local", o.Local, "a local store without layers")
	}
	if err := Check(PlaceFallback, next); err != nil {
		return nil, err
	}
	if o.Server == nil {
		o.Server = func(*stint.Ask) string { return "" }
	}
	l := &fallback{
		next: next, o: o, debts: debts{max: o.MaxDebts}, born: time.Now(), outages: outages{of: map[string]*outage{}},
		payment: payments{node: "repay." + rand.Text() + "."}, hurried: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	if o.Remember > 0 {
		l.memory = newMemory(o.Remember)
	}
	return l, nil
}

type fallback struct {
	next    stint.Store
	o       FallbackOptions
	born    time.Time
	memory  memory
	outages outages
	asks    sync.Pool // of *[]stint.Ask
	debts   debts
	clock   clock
	payment payments
	paying  atomic.Bool   // a goroutine pays, or waits for the store to be back: something may be owed
	hurried chan struct{} // the store may be back
	quit    chan struct{} // closed with the layer

	mu     sync.Mutex
	closed bool // no more payments may begin
	work   sync.WaitGroup
}

func (*fallback) Place() Place { return PlaceFallback }

func (l *fallback) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if l.settling(asks) {
		return l.settle(ctx, asks, ds)
	}
	err := l.next.Take(ctx, asks, ds)
	if err == nil {
		if l.answered(asks, ds); l.settling(asks) { // it was not when the call began
			return l.confirm(ctx, asks, ds)
		}
		l.heard(asks, ds)
		return nil
	}
	// A caller whose context is done gets an error: otherwise clients could avoid the store by
	// giving up early.
	if !unreachable(err) || ctx.Err() != nil {
		return err
	}
	n := l.replicas()
	if n > 1 {
		if err := stint.ValidateTake(asks, ds); err != nil { // the share of an invalid limit may be valid
			return err
		}
	}
	if err := l.takeHere(ctx, asks, ds, n); err != nil {
		return err
	}
	l.away(asks)
	if !slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed }) {
		l.owe(asks, ds, n, true)
	}
	return nil
}

// takeHere decides a take by this node's share of the limits.
func (l *fallback) takeHere(ctx context.Context, asks []stint.Ask, ds []stint.Decision, n int64) error {
	l.recall(ctx, asks, n)
	denied, err := l.banned(ctx, asks, ds, n)
	switch {
	case denied:
	case n == 1:
		err = l.o.Local.Take(ctx, asks, ds)
	default:
		mine := l.shares(asks, n)
		err = l.o.Local.Take(ctx, *mine, ds)
		l.put(mine)
	}
	if err != nil {
		return err
	}
	for i := range ds {
		d := &ds[i]
		d.Basis = stint.Local
		if d.RetryAfter == stint.Never && asks[i].Penalty == nil && asks[i].Cost <= asks[i].Limit.Cap() {
			d.RetryAfter = time.Second // too much for this node's share, but perhaps not for the limit
		}
	}
	return nil
}

// answered notes that the store has decided a take.
func (l *fallback) answered(asks []stint.Ask, ds []stint.Decision) {
	l.back(asks)
	if len(asks) > 0 && l.paying.Load() {
		l.clock.hear(time.Since(l.born), ds)
		l.hurry()
	}
}

// heard remembers an answer of the store, unless there is something that it does not know of yet.
func (l *fallback) heard(asks []stint.Ask, ds []stint.Decision) {
	if l.memory.sets != nil && !l.paying.Load() {
		now := time.Since(l.born)
		l.clock.hear(now, ds)
		l.remember(asks, ds, now)
	}
}

func (l *fallback) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if slices.ContainsFunc(asks, fails) {
		return l.adjustThere(ctx, asks, ds)
	}
	if slices.ContainsFunc(asks, chargedHere) {
		return l.adjustApart(ctx, asks, ds)
	}
	err := l.next.Adjust(ctx, asks, ds)
	if err == nil {
		if !l.settling(asks) {
			l.heard(asks, ds)
		}
		return nil
	}
	if !unreachable(err) || ctx.Err() != nil {
		return err
	}
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	// What may have been given back already is not given back again.
	return l.adjustHere(ctx, asks, ds, errors.Is(err, stint.ErrNotApplied))
}

// fails reports whether the caller wants an error while the store is out of reach. It makes the change again then.
func fails(a stint.Ask) bool { return a.OnFailure() == stint.FailError }

// adjustThere adjusts charges in the store, or fails. Places that this node has given are released here: the store
// does not know of them.
func (l *fallback) adjustThere(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	var there []stint.Ask
	var of []int // the asks
	for i, a := range asks {
		if placedHere(a) {
			continue
		}
		if chargedHere(a) {
			c, err := l.chargeThere(ctx, &a)
			if err != nil {
				return err
			}
			a.Charge = c
		}
		there, of = append(there, a), append(of, i)
	}
	out := make([]stint.Decision, len(there))
	if len(there) > 0 {
		if err := l.next.Adjust(ctx, there, out); err != nil {
			return err
		}
	}
	for i := range out {
		ds[of[i]] = out[i]
	}
	for i := range asks {
		if placedHere(asks[i]) {
			if err := l.adjustHere(ctx, asks[i:i+1], ds[i:i+1], true); err != nil {
				return err
			}
		}
	}
	return nil
}

// placedHere reports whether the ask changes a place that this node has given.
func placedHere(a stint.Ask) bool { return chargedHere(a) && a.Limit.Algorithm == stint.Concurrency }

// errOwed is the error of a change of units that the store has not been charged yet.
var errOwed = fmt.Errorf("%w: it has not been charged yet for what was admitted without it; %w", stint.ErrUnavailable, stint.ErrNotApplied)

// chargeThere returns the charge of the store for one of a node, as of the store's clock.
func (l *fallback) chargeThere(ctx context.Context, a *stint.Ask) (*stint.Charge, error) {
	if l.debts.owes(a) {
		l.hurry()
		return nil, errOwed
	}
	plan, err := a.Limit.Compile()
	if err != nil {
		return nil, err
	}
	peek := *a
	peek.Cost, peek.Charge = 0, nil
	ds := make([]stint.Decision, 1)
	if err := l.next.Take(ctx, []stint.Ask{peek}, ds); err != nil {
		return nil, err
	}
	now := time.Since(l.born)
	l.clock.hear(now, ds)
	age := time.Duration(time.Now().UnixMicro()-a.Charge.At) * time.Microsecond
	there := l.clock.ahead.Load() + now.Microseconds()
	at := past(plan, there-age.Microseconds(), there)
	if at <= 0 {
		return nil, errOwed
	}
	return &stint.Charge{At: at, Cost: a.Charge.Cost, ID: a.Charge.ID, Together: a.Charge.Together}, nil
}

// chargedHere reports whether the ask changes a charge that was made by this node alone.
func chargedHere(a stint.Ask) bool { return a.Charge != nil && a.Charge.Local }

// adjustApart adjusts charges of this node here, and the others in the store.
func (l *fallback) adjustApart(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	for _, here := range []bool{true, false} {
		var part []stint.Ask
		var from []int
		for i := range asks {
			if chargedHere(asks[i]) == here {
				part, from = append(part, asks[i]), append(from, i)
			}
		}
		out := make([]stint.Decision, len(part))
		var err error
		if here {
			err = l.adjustHere(ctx, part, out, true)
			l.hurry() // the store may have been back for long
		} else if len(part) > 0 {
			err = l.Adjust(ctx, part, out)
		}
		if err != nil {
			return err
		}
		for i := range out {
			ds[from[i]] = out[i]
		}
	}
	return nil
}

// adjustHere adjusts the counters of this node, and remembers what the store does not know. A charge
// that the store has made is changed when it is back. Refunds says that it has not been given back yet.
func (l *fallback) adjustHere(ctx context.Context, asks []stint.Ask, ds []stint.Decision, refunds bool) error {
	n := l.replicas()
	l.recall(ctx, asks, n)
	mine := l.shares(asks, n)
	defer l.put(mine)
	for i := range *mine {
		if a := &(*mine)[i]; a.Charge != nil && !a.Charge.Local {
			a.Cost, a.Charge = 0, nil
		}
	}
	if err := l.o.Local.Adjust(ctx, *mine, ds); err != nil {
		return err
	}
	for i := range ds {
		ds[i].Basis = stint.Local
	}
	l.owe(asks, ds, n, refunds)
	return nil
}

func (l *fallback) Reset(ctx context.Context, asks []stint.Ask) error {
	err := l.next.Reset(ctx, asks)
	if local := l.o.Local.Reset(ctx, asks); err == nil {
		err = local
	}
	for i := range asks {
		l.memory.forget(&asks[i])
		if asks[i].Penalty == nil {
			l.debts.forget(&asks[i])
		}
	}
	return err
}

// Close tries a last time to pay what is owed, for at most lastTry. What the store does not take then is never paid.
func (l *fallback) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	l.work.Wait()
	err := l.next.Close()
	if local := l.o.Local.Close(); err == nil {
		err = local
	}
	return err
}

// shares returns the asks with one of n shares of their limits. The caller returns them with put.
func (l *fallback) shares(asks []stint.Ask, n int64) *[]stint.Ask {
	mine, ok := l.asks.Get().(*[]stint.Ask)
	if !ok {
		mine = new([]stint.Ask)
	}
	*mine = append((*mine)[:0], asks...)
	for i := range *mine {
		(*mine)[i].Limit = Share((*mine)[i].Limit, n)
	}
	return mine
}

func (l *fallback) put(asks *[]stint.Ask) {
	clear(*asks)
	l.asks.Put(asks)
}

func (l *fallback) replicas() int64 {
	if l.o.Replicas == nil {
		return 1
	}
	return int64(l.o.Replicas())
}

// Share returns one of n shares of a limit: at least one unit.
func Share(l stint.Limit, n int64) stint.Limit { return Portion(l, 1, n) }

// Portion returns so many of n shares of a limit: at least one unit.
func Portion(l stint.Limit, shares, n int64) stint.Limit {
	if l.Validate() != nil || n <= shares {
		return l
	}
	l.Max = max(portion(l.Max, shares, n), 1)
	if l.Burst > 0 {
		// In a token bucket, a burst of 0 would mean a burst of Max.
		l.Burst = portion(l.Burst, shares, n)
		if l.Algorithm == stint.TokenBucket {
			l.Burst = max(l.Burst, 1)
		}
	}
	if l.Validate() != nil {
		l.Burst = 0 // with the lower rate, the burst is too large to be exact
	}
	return l
}

// portion returns units * shares / n, rounded down.
func portion(units, shares, n int64) int64 {
	hi, lo := bits.Mul64(uint64(units), uint64(shares))
	part, _ := bits.Div64(hi, lo, uint64(n)) // shares are fewer than n
	return int64(part)
}
