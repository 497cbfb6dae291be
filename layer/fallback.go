package layer

import (
	"context"
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
	// OnReturn is told what was charged in the store when it came back.
	OnReturn func(Return)
}

// Return is what became of the units that were admitted while a store was out of
// reach.
type Return struct {
	Paid    int64 // charged in the store
	Lost    int64 // not charged: the store failed again, or there were too many counters
	Expired int64 // not charged: their windows were over
}

// Fallback decides by a store of this node's own while the store is out of reach
// (errors that wrap [stint.ErrUnavailable]): each limit divided by the number of
// nodes, at least one unit. So the nodes together admit about the limit, and at
// most one unit for each node beyond it. Decisions have the basis [stint.Local].
//
// When the store is back its counts hold again, and what was admitted here is
// charged there ([stint.Store.Adjust]), in the background: bounded, once, at best.
// What the store may have charged for takes that timed out stays charged, so the
// client may pay twice, and not too little.
//
// Resets go to both. Adjustments that the store cannot take go to the local one.
func Fallback(next stint.Store, o FallbackOptions) (stint.Store, error) {
	if o.MaxDebts == 0 {
		o.MaxDebts = 10_000
	}
	switch {
	case o.Local == nil:
		return nil, invalid("local", o.Local, "a store")
	case o.MaxDebts < 0:
		return nil, invalid("max debts", o.MaxDebts, "0 or more")
	case o.Replicas != nil && o.Replicas() < 1:
		return nil, invalid("replicas", o.Replicas(), "at least 1: this node")
	}
	if err := check(atFallback, next); err != nil {
		return nil, err
	}
	return &fallback{next: next, o: o, debts: map[debtor]*debt{}}, nil
}

type fallback struct {
	next stint.Store
	o    FallbackOptions
	asks sync.Pool // of *[]stint.Ask

	owing atomic.Bool // there are debts, and no one pays them yet
	mu    sync.Mutex
	debts map[debtor]*debt
	lost  int64
	// now is when it was last looked at the clock, every so many charges.
	now     time.Time
	charges uint64
	// closed is set when no more payments may begin.
	closed bool
	paying sync.WaitGroup
}

// debtor is a counter.
type debtor struct {
	key       stint.Key
	algorithm stint.Algorithm
}

// debt is what was admitted of a counter, when last, and under which limit.
type debt struct {
	units int64
	last  time.Time
	limit stint.Limit
}

func (*fallback) position() position { return atFallback }

func (l *fallback) Take(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := l.next.Take(ctx, asks)
	if err == nil || !out(err) {
		if err == nil && l.owing.Load() {
			l.pay()
		}
		return ds, err
	}
	mine := l.shares(asks)
	ds, err = l.o.Local.Take(ctx, *mine)
	l.asks.Put(mine)
	if err != nil {
		return nil, err
	}
	passed := true
	for i := range ds {
		ds[i].Basis = stint.Local
		passed = passed && ds[i].Allowed
	}
	if passed {
		l.owe(asks)
	}
	return ds, nil
}

func (l *fallback) Adjust(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := l.next.Adjust(ctx, asks)
	if err == nil || !out(err) {
		return ds, err
	}
	mine := l.shares(asks)
	ds, err = l.o.Local.Adjust(ctx, *mine)
	l.asks.Put(mine)
	if err != nil {
		return nil, err
	}
	for i := range ds {
		ds[i].Basis = stint.Local
	}
	l.owe(asks)
	return ds, nil
}

func (l *fallback) Reset(ctx context.Context, keys ...stint.Key) error {
	err := l.next.Reset(ctx, keys...)
	if local := l.o.Local.Reset(ctx, keys...); err == nil {
		err = local
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		for d := range l.debts {
			if d.key == k {
				delete(l.debts, d)
			}
		}
	}
	return err
}

// Close waits for payments that are on their way.
func (l *fallback) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.next.Close()
	l.paying.Wait()
	if local := l.o.Local.Close(); err == nil {
		err = local
	}
	return err
}

// shares returns the asks under this node's share of their limits.
func (l *fallback) shares(asks []stint.Ask) *[]stint.Ask {
	mine, ok := l.asks.Get().(*[]stint.Ask)
	if !ok {
		mine = new([]stint.Ask)
	}
	n := int64(1)
	if l.o.Replicas != nil {
		n = int64(max(l.o.Replicas(), 1))
	}
	*mine = append((*mine)[:0], asks...)
	for i := range *mine {
		(*mine)[i].Limit = Share((*mine)[i].Limit, n)
	}
	return mine
}

// Share returns one of n parts of a limit: at least one unit.
func Share(l stint.Limit, n int64) stint.Limit {
	l.Max = max(l.Max/n, 1)
	if l.Burst > 0 {
		// No burst is a burst of the whole; for a leaky bucket it is none.
		l.Burst /= n
		if l.Algorithm == stint.TokenBucket {
			l.Burst = max(l.Burst, 1)
		}
	}
	return l
}

// owe remembers what the store does not know.
func (l *fallback) owe(asks []stint.Ask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// About the time is enough, and a look at the clock costs as much as the rest.
	if l.charges%64 == 0 {
		l.now = time.Now()
	}
	l.charges++
	for i := range asks {
		a := &asks[i]
		if a.Cost == 0 {
			continue
		}
		k := debtor{a.Key, a.Limit.Algorithm}
		d := l.debts[k]
		if d == nil {
			if len(l.debts) >= l.o.MaxDebts {
				l.lost += max(a.Cost, 0)
				continue
			}
			d = new(debt)
			l.debts[k] = d
		}
		d.units += a.Cost
		d.last, d.limit = l.now, a.Limit
	}
	if len(l.debts) > 0 && !l.owing.Load() {
		l.owing.Store(true)
	}
}

// pay charges in the store, in the background, what was admitted without it.
func (l *fallback) pay() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.owing.Swap(false) {
		return
	}
	debts, lost := l.debts, l.lost
	l.debts, l.lost = map[debtor]*debt{}, 0
	l.paying.Go(func() {
		r := Return{Lost: lost}
		// A few at a time: nobody waits for it, and the store has just come back.
		const some = 32
		var asks []stint.Ask
		flush := func() {
			if len(asks) == 0 {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // no caller waits for this
			_, err := l.next.Adjust(ctx, asks)
			cancel()
			for i := range asks {
				if err != nil {
					r.Lost += max(asks[i].Cost, 0)
				} else {
					r.Paid += max(asks[i].Cost, 0)
				}
			}
			asks = asks[:0]
		}
		now := time.Now()
		for k, d := range debts {
			if over(&d.limit, d.units, d.last, now) {
				r.Expired += max(d.units, 0)
				continue
			}
			if d.units != 0 {
				asks = append(asks, stint.Ask{Key: k.key, Limit: d.limit, Cost: d.units})
			}
			if len(asks) == some {
				flush()
			}
		}
		flush()
		if l.o.OnReturn != nil {
			l.o.OnReturn(r)
		}
	})
}

// over reports whether so many units that were charged then have recovered.
func over(l *stint.Limit, units int64, then, now time.Time) bool {
	length := l.Window.Length()
	switch {
	case length == 0:
		_, end := l.Window.Bounds(then)
		return !now.Before(end)
	case l.Algorithm == stint.SlidingWindow:
		length *= 2
	case l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket:
		length = time.Duration(float64(length) * float64(units) / float64(l.Max))
	}
	return now.Sub(then) >= length
}
