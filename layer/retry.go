package layer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/deadline"
)

// RetryOptions are the options of [Retry]. Zero values mean defaults.
type RetryOptions struct {
	// Budget is how long a call may take with all its attempts. Default 50 ms.
	Budget time.Duration
	// Dial is how long the store may take to connect, if it is known. A budget
	// below it is refused: on a slow day no connection would ever be made.
	Dial time.Duration
	// Pause bounds the first pause between attempts; it doubles from there, up to
	// a quarter of the budget. Pauses are drawn between nothing and the bound.
	// Default 2 ms.
	Pause time.Duration
}

// Retry gives every call a time limit, and makes another attempt, within it, at
// calls that have changed nothing: those of which the store says so
// ([stint.ErrNotApplied]), peeks, and resets, which may be applied twice.
//
// A take that timed out is neither. It fails, and may have been charged; whoever
// decides instead charges once more somewhere else. So a client may be charged
// twice for one request, and never less than once for what was admitted.
func Retry(next stint.Store, o RetryOptions) (stint.Store, error) {
	if o.Budget == 0 {
		o.Budget = 50 * time.Millisecond
	}
	if o.Pause == 0 {
		o.Pause = 2 * time.Millisecond
	}
	switch {
	case o.Budget < 0:
		return nil, invalid("budget", o.Budget, "some time")
	case o.Pause < 0:
		return nil, invalid("pause", o.Pause, "some time")
	case o.Dial < 0:
		return nil, invalid("dial", o.Dial, "some time")
	case o.Budget < o.Dial:
		return nil, invalid("budget", o.Budget, "at least "+o.Dial.String()+", which the store may take to connect; or a shorter dial timeout")
	}
	if err := Check(PlaceRetry, next); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the layer's own life, which ends with Close
	return &retry{next: next, pause: o.Pause, budget: deadline.New(ctx, o.Budget), cancel: cancel}, nil
}

type retry struct {
	next   stint.Store
	pause  time.Duration
	budget *deadline.Shared
	cancel context.CancelFunc
}

func (*retry) Place() Place { return PlaceRetry }

func (l *retry) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	ctx, cancel := l.budget.Within(ctx)
	defer cancel()
	err := l.next.Take(ctx, asks, ds)
	if err == nil {
		return nil
	}
	return l.again(ctx, err, peeks(asks), func() error { return l.next.Take(ctx, asks, ds) })
}

func (l *retry) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	ctx, cancel := l.budget.Within(ctx)
	defer cancel()
	err := l.next.Adjust(ctx, asks, ds)
	if err == nil {
		return nil
	}
	return l.again(ctx, err, peeks(asks), func() error { return l.next.Adjust(ctx, asks, ds) })
}

func (l *retry) Reset(ctx context.Context, asks []stint.Ask) error {
	ctx, cancel := l.budget.Within(ctx)
	defer cancel()
	err := l.next.Reset(ctx, asks)
	if err == nil {
		return nil
	}
	return l.again(ctx, err, true, func() error { return l.next.Reset(ctx, asks) })
}

func (l *retry) Close() error {
	err := l.next.Close()
	l.cancel()
	return err
}

// again makes attempts at a call that has failed, as long as that is safe and
// there is time. Harmless calls may be applied twice.
func (l *retry) again(ctx context.Context, err error, harmless bool, call func() error) error {
	longest := max(l.pause, l.budget.Length()/4) // so that the budget is used
	for bound := l.pause; unreachable(err) && (harmless || errors.Is(err, stint.ErrNotApplied)); bound = min(2*bound, longest) {
		pause := rand.N(bound)
		if d, ok := ctx.Deadline(); ok && time.Until(d) <= pause {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		err = call()
	}
	return err
}

// peeks reports whether the asks change nothing.
func peeks(asks []stint.Ask) bool {
	for i := range asks {
		if asks[i].Cost != 0 {
			return false
		}
	}
	return true
}
