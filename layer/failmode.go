package layer

import (
	"context"
	"time"

	"github.com/stintdev/stint"
)

// FailModeOptions are the options of [FailMode].
type FailModeOptions struct {
	// Closed says of an ask that it must not pass uncounted. Nil: all may.
	Closed func(*stint.Ask) bool
	// Retry is when a closed ask is told to come back. Default 1 s.
	Retry time.Duration
}

// FailMode answers takes that no one could decide: those whose error wraps
// [stint.ErrUnavailable]. They pass, unless one of their asks is closed. The
// decisions say so: their basis is [stint.Open] or [stint.Closed], and what
// remains is not known, so it is 0. Adjustments and resets fail as before: no one
// waits for them.
func FailMode(next stint.Store, o FailModeOptions) (stint.Store, error) {
	if o.Retry == 0 {
		o.Retry = time.Second
	}
	if o.Retry < 0 {
		return nil, invalid("retry", o.Retry, "some time")
	}
	if err := check(atFailMode, next); err != nil {
		return nil, err
	}
	return &failMode{Store: next, o: o}, nil
}

type failMode struct {
	stint.Store
	o FailModeOptions
}

func (*failMode) position() position { return atFailMode }

func (l *failMode) Take(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := l.Store.Take(ctx, asks)
	if err == nil || !out(err) || left(ctx) {
		return ds, err
	}
	if err := stint.ValidateTake(asks); err != nil {
		return nil, err
	}
	ds = make([]stint.Decision, len(asks))
	for i := range asks {
		d := &ds[i]
		if t, ok := asks[i].Limit.Terms(); ok {
			d.Limit = t.Cap
		}
		d.Allowed, d.Basis = true, stint.Open
		if l.o.Closed != nil && l.o.Closed(&asks[i]) {
			d.Allowed, d.Basis, d.RetryAfter = false, stint.Closed, l.o.Retry
		}
	}
	return ds, nil
}
