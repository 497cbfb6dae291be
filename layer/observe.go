package layer

import (
	"context"
	"time"

	"github.com/stintdev/stint"
)

// Observer is notified of every call through a layer that [Observe] returns. Its method is called on the
// caller's goroutine and must be fast.
type Observer interface {
	Observe(ctx context.Context, c Call)
}

// Call is a call that has ended.
type Call struct {
	Layer string // as given to Observe
	Verb  Verb
	Asks  int
	// For a take: whether it was allowed, and the basis of that.
	Allowed bool
	Basis   stint.Basis
	Err     error
	Took    time.Duration
}

// Verb is what a call does.
type Verb uint8

// The calls of a store.
const (
	Take Verb = iota
	Adjust
	Reset
)

// String returns the verb.
func (v Verb) String() string {
	switch v {
	case Take:
		return "take"
	case Adjust:
		return "adjust"
	default:
		return "reset"
	}
}

// Observe wraps a store, or any layer, and notifies an observer of all calls.
func Observe(next stint.Store, name string, o Observer) (stint.Store, error) {
	if next == nil || o == nil {
		return nil, invalid("observer", name, "a store and an observer")
	}
	return &observed{next: next, name: name, o: o}, nil
}

type observed struct {
	next stint.Store
	name string
	o    Observer
}

func (l *observed) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	start := time.Now()
	err := l.next.Take(ctx, asks, ds)
	c := Call{Layer: l.name, Verb: Take, Asks: len(asks), Err: err, Allowed: err == nil, Took: time.Since(start)}
	if err == nil {
		for i := range ds {
			c.Allowed = c.Allowed && ds[i].Allowed
			c.Basis = max(c.Basis, ds[i].Basis)
		}
	}
	l.o.Observe(ctx, c)
	return err
}

func (l *observed) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	start := time.Now()
	err := l.next.Adjust(ctx, asks, ds)
	l.o.Observe(ctx, Call{Layer: l.name, Verb: Adjust, Asks: len(asks), Err: err, Allowed: err == nil, Took: time.Since(start)})
	return err
}

func (l *observed) Reset(ctx context.Context, asks []stint.Ask) error {
	start := time.Now()
	err := l.next.Reset(ctx, asks)
	l.o.Observe(ctx, Call{Layer: l.name, Verb: Reset, Asks: len(asks), Err: err, Allowed: err == nil, Took: time.Since(start)})
	return err
}

// Place returns the place of the wrapped store, since an observer may be anywhere.
func (l *observed) Place() Place { return PlaceOf(l.next) }

func (l *observed) Close() error { return l.next.Close() }
