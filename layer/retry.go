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
	// Dial is how long the store may take to connect, if known. A smaller Budget is rejected: on
	// a slow network, no connection would ever succeed.
	Dial time.Duration
	// Pause is the longest first pause between attempts. It doubles with each attempt, up to a
	// quarter of the budget. Actual pauses are random, between zero and this. Default 2 ms.
	Pause time.Duration
	// Random returns a random duration from zero to below its argument. Simulations that must be
	// repeatable have their own. Default [rand.N].
	Random func(time.Duration) time.Duration
}

// Retry gives every call a time limit, and repeats it within that limit if this is safe: if the error says
// that nothing was applied ([stint.ErrNotApplied]), and for peeks, resets, and changes of charges that all
// have an ID ([stint.Charge]).
//
// A take that timed out is not repeated. It fails, and may have been charged; a [Fallback] then charges
// it again in the local store. So a client may be charged twice for one request, but never less than
// once for what was admitted.
func Retry(next stint.Store, o RetryOptions) (stint.Store, error) {
	if o.Budget == 0 {
		o.Budget = 50 * time.Millisecond
	}
	if o.Pause == 0 {
		o.Pause = 2 * time.Millisecond
	}
	if o.Random == nil {
		o.Random = rand.N[time.Duration]
	}
	switch {
	case o.Budget < 0:
		return nil, invalid("budget", o.Budget, "a positive duration")
	case o.Pause < 0:
		return nil, invalid("pause", o.Pause, "a positive duration")
	case o.Dial < 0:
		return nil, invalid("dial", o.Dial, "a positive duration, or 0 if unknown")
	case o.Budget < o.Dial:
		return nil, invalid("budget", o.Budget, "at least "+o.Dial.String()+", the time that the store may take to connect; or a shorter dial timeout")
	}
	if err := Check(PlaceRetry, next); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // lives until Close
	return &retry{next: next, pause: o.Pause, random: o.Random, budget: deadline.New(ctx, o.Budget), cancel: cancel}, nil
}

type retry struct {
	next   stint.Store
	pause  time.Duration
	random func(time.Duration) time.Duration
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
	return l.again(ctx, err, repeatable(asks), func() error { return l.next.Adjust(ctx, asks, ds) })
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

// again repeats a call that has failed, as long as that is safe and there is time. Harmless calls may be
// applied twice.
func (l *retry) again(ctx context.Context, err error, harmless bool, call func() error) error {
	longest := max(l.pause, l.budget.Length()/4) // so that the budget is used
	for bound := l.pause; unreachable(err) && (harmless || errors.Is(err, stint.ErrNotApplied)); bound = min(2*bound, longest) {
		pause := l.random(bound)
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

// repeatable reports whether an adjustment may be made twice: it changes nothing, or charges that it
// changes once. (A change by 0 renews a hold, which has another name then.)
func repeatable(asks []stint.Ask) bool {
	for i := range asks {
		if a := &asks[i]; (a.Charge == nil && a.Cost != 0) || (a.Charge != nil && a.Charge.ID == "") {
			return false
		}
	}
	return true
}
