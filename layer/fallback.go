package layer

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// FallbackOptions are the options of [Fallback].
type FallbackOptions struct {
	// Local is where this node counts while the store is out of reach: a memory
	// store of its own. It is closed with the layer.
	Local stint.Store
	// Replicas is how many nodes share the limits now. It is asked for each
	// decision, so it must be quick. Nil: one.
	Replicas func() int
	// MaxDebts is how many counters are remembered that were charged here and
	// not in the store. Default 10,000; what does not fit is not given back.
	MaxDebts int
	// OnReturn is told what was charged in the store when it came back. It must
	// not close the layer.
	OnReturn func(Return)
}

// Return is what became of the units that were admitted while a store was out of
// reach.
type Return struct {
	Paid    int64 // charged in the store
	Lost    int64 // not charged: the store failed again, or there were too many counters
	Expired int64 // not charged: they have recovered meanwhile
}

// Fallback decides by a store of this node's own while the store is out of reach
// (errors that wrap [stint.ErrUnavailable], unless the caller has left): each
// limit divided by the number of nodes, at least one unit. So the nodes together
// admit about the limit, and at most one unit for each node beyond it, on top of
// what the store had admitted before. Decisions have the basis [stint.Local].
//
// When the store is back its counts hold again, and what was admitted here and has
// not recovered is charged there ([stint.Store.Adjust]), in the background:
// bounded, once, at best. What the store may have charged for takes that timed out
// stays charged, so the client may pay twice, and not too little.
//
// Violations that penalties record here stay here.
//
// Resets go to both. Adjustments that the store cannot take go to the local one.
func Fallback(next stint.Store, o FallbackOptions) (stint.Store, error) {
	if o.MaxDebts == 0 {
		o.MaxDebts = 10_000
	}
	switch {
	case o.Local == nil || o.Local == next:
		return nil, invalid("local", o.Local, "a store of this node's own")
	case o.MaxDebts < 0:
		return nil, invalid("max debts", o.MaxDebts, "0 or more")
	case o.Replicas != nil && o.Replicas() < 1:
		return nil, invalid("replicas", o.Replicas(), "at least 1: this node")
	}
	if _, ok := o.Local.(placed); ok {
		return nil, invalid("local", o.Local, "a store without layers, which cannot be out of reach")
	}
	if err := check(atFallback, next); err != nil {
		return nil, err
	}
	return &fallback{next: next, o: o, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}, nil
}

type fallback struct {
	next  stint.Store
	o     FallbackOptions
	asks  sync.Pool // of *[]stint.Ask
	seeds [2]maphash.Seed

	away  atomic.Bool // the store was out of reach the last time
	owing atomic.Bool // there are debts, and no one pays them yet

	books [16]book
	count atomic.Int64 // of debts
	lost  atomic.Int64 // units

	mu     sync.Mutex
	paying bool
	closed bool // no more payments may begin
	work   sync.WaitGroup
}

func (l *fallback) debtor(k *stint.Key, a stint.Algorithm) debtor {
	const odd = 0x9e3779b97f4a7c15
	subject, name := maphash.String(l.seeds[0], k.Subject), maphash.String(l.seeds[1], k.Name)
	return debtor{subject, name + odd*uint64(a)}
}

func (*fallback) position() position { return atFallback }

func (l *fallback) Take(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := l.next.Take(ctx, asks)
	if err == nil || !out(err) || left(ctx) {
		if err == nil && l.away.Load() {
			l.away.Store(false)
		}
		if err == nil && l.owing.Load() {
			l.pay()
		}
		return ds, err
	}
	if !l.away.Load() {
		l.away.Store(true)
	}
	n := l.replicas()
	if n == 1 {
		ds, err = l.o.Local.Take(ctx, asks)
	} else {
		if err := stint.ValidateTake(asks); err != nil { // its share may be sound
			return nil, err
		}
		mine := l.shares(asks, n)
		ds, err = l.o.Local.Take(ctx, *mine)
		l.put(mine)
	}
	if err != nil {
		return nil, err
	}
	passed := true
	for i := range ds {
		d := &ds[i]
		d.Basis = stint.Local
		passed = passed && d.Allowed
		if d.RetryAfter == stint.Never && asks[i].Penalty == nil {
			// It is too much for this node, and perhaps not for the limit.
			if t, _ := asks[i].Limit.Terms(); asks[i].Cost <= t.Cap {
				d.RetryAfter = time.Second
			}
		}
	}
	if passed {
		l.owe(asks, n, true)
	}
	return ds, nil
}

func (l *fallback) Adjust(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := l.next.Adjust(ctx, asks)
	if err == nil || !out(err) || left(ctx) {
		return ds, err
	}
	// What may have been given back already is not given back again.
	refunds := errors.Is(err, stint.ErrNotApplied)
	n := l.replicas()
	mine := l.shares(asks, n)
	ds, err = l.o.Local.Adjust(ctx, *mine)
	l.put(mine)
	if err != nil {
		return nil, err
	}
	for i := range ds {
		ds[i].Basis = stint.Local
	}
	l.owe(asks, n, refunds)
	return ds, nil
}

func (l *fallback) Reset(ctx context.Context, keys ...stint.Key) error {
	err := l.next.Reset(ctx, keys...)
	if local := l.o.Local.Reset(ctx, keys...); err == nil {
		err = local
	}
	for i := range keys {
		for _, a := range stint.Algorithms() {
			who := l.debtor(&keys[i], a)
			if l.book(who).forget(who) {
				l.count.Add(-1)
			}
		}
	}
	return err
}

// Close waits for a payment that is on its way. What is owed after that stays
// unpaid.
func (l *fallback) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.next.Close()
	l.work.Wait()
	if local := l.o.Local.Close(); err == nil {
		err = local
	}
	return err
}

// shares returns asks under one of n parts of their limits, until they are put back.
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

// Share returns one of n parts of a limit: at least one unit.
func Share(l stint.Limit, n int64) stint.Limit {
	if _, ok := l.Terms(); !ok || n <= 1 {
		return l
	}
	l.Max = max(l.Max/n, 1)
	if l.Burst > 0 {
		// No burst is a burst of the whole; for a leaky bucket it is none.
		l.Burst /= n
		if l.Algorithm == stint.TokenBucket {
			l.Burst = max(l.Burst, 1)
		}
	}
	if _, ok := l.Terms(); !ok {
		l.Burst = 0 // another rate, and now it is too large a burst to be exact
	}
	return l
}

// most is as much as a counter can hold.
const most = 1<<53 - 1

// owe remembers what the store does not know.
func (l *fallback) owe(asks []stint.Ask, n int64, refunds bool) {
	for i := range asks {
		if a := &asks[i]; a.Penalty == nil && (a.Cost > 0 || (a.Cost < 0 && refunds)) {
			l.add(&a.Key, a.Cost, &a.Limit, n)
		}
	}
}

func (l *fallback) book(who debtor) *book { return &l.books[who[0]%uint64(len(l.books))] }

// add adds to the debt of a counter, of whose limit this node has one of n parts.
func (l *fallback) add(k *stint.Key, units int64, limit *stint.Limit, n int64) {
	who := l.debtor(k, limit.Algorithm)
	b := l.book(who)
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.find(who)
	if d == nil {
		if l.count.Add(1) > int64(l.o.MaxDebts) {
			l.count.Add(-1)
			l.lost.Add(max(units, 0))
			return
		}
		// The caller's strings may be parts of something large.
		d = b.enter(who, stint.Key{Subject: strings.Clone(k.Subject), Name: strings.Clone(k.Name)}, terms{*limit, n})
	}
	d.units = max(-most, min(d.units+max(-most, min(units, most)), most))
	if d.terms.n != n || d.terms.limit != *limit {
		d.terms = b.shared(terms{*limit, n})
	}
	if !l.owing.Load() {
		l.owing.Store(true)
	}
}

// pay charges in the store, in the background, what was admitted without it.
func (l *fallback) pay() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.paying || !l.owing.Swap(false) {
		return
	}
	l.paying = true
	l.work.Go(func() {
		r, again := Return{}, false
		for i := range l.books {
			for !again {
				const few = 32 // nobody waits for it, and the store has just come back
				due := l.books[i].take(few)
				if len(due) == 0 {
					break
				}
				l.count.Add(-int64(len(due)))
				again = l.charge(due, &r)
			}
		}
		l.mu.Lock()
		r.Lost += l.lost.Swap(0)
		l.paying = false
		l.mu.Unlock()
		if l.o.OnReturn != nil && r != (Return{}) {
			l.o.OnReturn(r)
		}
	})
}

// charge charges debts in the store, as far as they have not recovered. It reports
// whether the store is away again, so that they have to wait.
func (l *fallback) charge(due []debt, r *Return) (again bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // no caller waits for this
	defer cancel()
	var asks []stint.Ask
	var parts []int64 // of each
	for i := range due {
		d := &due[i]
		if d.units > 0 {
			// The local counter knows what has recovered.
			ds, err := l.o.Local.Take(ctx, []stint.Ask{{Key: d.key, Limit: Share(d.terms.limit, d.terms.n)}})
			if err == nil {
				left := min(d.units, ds[0].Limit-ds[0].Remaining)
				r.Expired += d.units - left
				d.units = left
			}
		}
		if d.units != 0 {
			asks, parts = append(asks, stint.Ask{Key: d.key, Limit: d.terms.limit, Cost: d.units}), append(parts, d.terms.n)
		}
	}
	if len(asks) == 0 {
		return false
	}
	_, err := l.next.Adjust(ctx, asks)
	if errors.Is(err, stint.ErrNotApplied) {
		for i := range asks {
			a := &asks[i]
			l.add(&a.Key, a.Cost, &a.Limit, parts[i])
		}
		return true
	}
	for i := range asks {
		if err != nil {
			r.Lost += max(asks[i].Cost, 0)
		} else {
			r.Paid += max(asks[i].Cost, 0)
		}
	}
	return false
}
