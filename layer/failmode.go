package layer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// FailModeOptions are the options of [FailMode].
type FailModeOptions struct {
	// Retry is the RetryAfter of takes that are denied because they could not be counted.
	// Default 1 s.
	Retry time.Duration
}

// FailMode decides takes while the store cannot be reached: those whose error wraps
// [stint.ErrUnavailable], and those that a [Fallback] has decided instead of the store. It follows the
// policy of each ask ([stint.FailMode]):
//
//   - FailLocal: the decision of the fallback is used. Without a fallback, the ask passes.
//   - FailOpen: the ask passes. The other asks of the take are still counted.
//   - FailClosed: the take is denied, and what was counted for it is given back.
//   - FailError: the take fails, and what was counted for it is given back.
//
// An ask that passes this way has the basis [stint.Open], one that is denied [stint.Closed]. Remaining
// is unknown then, and is 0. Adjustments and resets still fail.
func FailMode(next stint.Store, o FailModeOptions) (stint.Store, error) {
	if o.Retry == 0 {
		o.Retry = time.Second
	}
	if o.Retry < 0 {
		return nil, invalid("retry", o.Retry, "a positive duration")
	}
	if err := Check(PlaceFailMode, next); err != nil {
		return nil, err
	}
	return &failMode{Store: next, retry: o.Retry}, nil
}

type failMode struct {
	stint.Store
	retry time.Duration
}

// errLocal is the error of a take that was decided locally, but must not be.
var errLocal = fmt.Errorf("%w: only a local decision was possible", stint.ErrUnavailable)

func (*failMode) Place() Place { return PlaceFailMode }

func (l *failMode) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := l.Store.Take(ctx, asks, ds)
	switch {
	case err == nil && !local(ds):
		return nil
	case err != nil && (!unreachable(err) || ctx.Err() != nil):
		return err
	case err != nil:
		if invalid := stint.ValidateTake(asks, ds); invalid != nil {
			return invalid
		}
	}
	has := func(mode stint.FailMode) bool {
		return slices.ContainsFunc(asks, func(a stint.Ask) bool { return a.OnFailure() == mode })
	}
	switch {
	case has(stint.FailError):
		if err == nil {
			l.giveBack(ctx, asks, ds)
			err = errLocal
		}
		return err
	case has(stint.FailClosed):
		if err == nil {
			l.giveBack(ctx, asks, ds)
		}
		l.uncounted(asks, ds)
	case err != nil:
		l.uncounted(asks, ds)
	case has(stint.FailOpen):
		return l.passOpen(ctx, asks, ds)
	}
	return nil
}

// uncounted answers a take that was not counted anywhere.
func (l *failMode) uncounted(asks []stint.Ask, ds []stint.Decision) {
	for i := range asks {
		a := &asks[i]
		ds[i] = stint.Decision{Allowed: true, Basis: stint.Open}
		if a.OnFailure() == stint.FailClosed {
			ds[i] = stint.Decision{Basis: stint.Closed, RetryAfter: l.retry}
		}
		if a.Penalty == nil {
			ds[i].Limit = a.Limit.Cap()
		}
	}
}

// passOpen lets the FailOpen asks of a locally decided take pass. If one of them denied the take, the
// others were not counted, and are asked again without it.
func (l *failMode) passOpen(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	var rest []stint.Ask
	var from []int
	again := false
	for i := range asks {
		if a := asks[i]; a.OnFailure() != stint.FailOpen {
			if a.Penalty != nil {
				a.Cost = 0 // it has counted the violation already
			}
			rest, from = append(rest, a), append(from, i)
			continue
		}
		again = again || !ds[i].Allowed
		ds[i] = stint.Decision{Allowed: true, Basis: stint.Open, Limit: ds[i].Limit}
	}
	if !again || len(rest) == 0 {
		return nil
	}
	out := make([]stint.Decision, len(rest))
	if err := l.Take(ctx, rest, out); err != nil {
		return err
	}
	for i, d := range out {
		ds[from[i]] = d
	}
	return nil
}

// giveBack refunds what a take has charged locally. If that fails, the client stays charged.
func (l *failMode) giveBack(ctx context.Context, asks []stint.Ask, ds []stint.Decision) {
	if slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed }) {
		return // nothing was charged
	}
	refund := stint.Refund(asks, ds)
	for i := range refund {
		if fails(refund[i]) { // the take fails, but what this node has charged is given back at once
			p := *refund[i].Policy
			p.OnFailure = stint.FailLocal
			refund[i].Policy = &p
		}
	}
	_ = l.Adjust(ctx, refund, make([]stint.Decision, len(refund)))
}

// local reports whether a fallback made the decisions. If it made one, it made all.
func local(ds []stint.Decision) bool { return len(ds) > 0 && ds[0].Basis == stint.Local }
