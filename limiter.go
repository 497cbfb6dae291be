package stint

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Options are a Limiter's settings.
type Options struct {
	// Limit is what each subject is held to. Required.
	Limit Limit
	// Name tells this limiter's counters from others in the same store.
	// Defaults to "default".
	Name string
	// Policy is for the layers around the store, if there are any (package layer). Nil is the
	// zero Policy.
	Policy *Policy
}

// Limiter holds subjects to one limit, for programs that need no rules. It is
// safe for concurrent use. It does not own its store.
type Limiter struct {
	store Store
	ask   Ask       // without a subject and a cost
	calls sync.Pool // of *call
}

// call is what a store is given, and where it answers. A store keeps neither, so calls
// are used again.
type call struct {
	asks [1]Ask
	ds   [1]Decision
}

// New returns a limiter over a store.
func New(store Store, o Options) (*Limiter, error) {
	if store == nil {
		return nil, invalid("store", "nil", "a store, such as memstore.New returns")
	}
	plan, err := o.Limit.Compile()
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "default"
	}
	if err := validPart("name", o.Name); err != nil {
		return nil, err
	}
	l := &Limiter{store: store, ask: Ask{Key: Key{Name: o.Name}, Limit: o.Limit, Plan: plan, Policy: o.Policy}}
	l.calls.New = func() any { return &call{asks: [1]Ask{l.ask}} }
	return l, nil
}

// Take asks for one unit.
func (l *Limiter) Take(ctx context.Context, subject string) (d Decision, err error) {
	err = l.call(ctx, subject, 1, &d)
	return d, err
}

// TakeN asks for n units, all or none.
func (l *Limiter) TakeN(ctx context.Context, subject string, n int64) (d Decision, err error) {
	if n < 0 {
		return d, invalid("cost", strconv.FormatInt(n, 10), "0 or more; Refund undoes a decision")
	}
	err = l.call(ctx, subject, n, &d)
	return d, err
}

// Peek reports how the subject stands and charges nothing. Allowed says that
// its usage is within the limit; Remaining says what would pass.
func (l *Limiter) Peek(ctx context.Context, subject string) (Decision, error) {
	return l.TakeN(ctx, subject, 0)
}

// Usage returns the units counted against the subject now, at most the limit's
// capacity. What has partly recovered counts as a whole unit.
func (l *Limiter) Usage(ctx context.Context, subject string) (int64, error) {
	d, err := l.Peek(ctx, subject)
	return d.Limit - d.Remaining, err
}

// Refund undoes a decision of Take or TakeN for the subject, as if nothing had been charged then. A
// decision that charged nothing changes nothing.
func (l *Limiter) Refund(ctx context.Context, subject string, d Decision) (Decision, error) {
	charge := d.Charge()
	if charge.Cost == 0 {
		return l.Peek(ctx, subject)
	}
	return l.Amend(ctx, subject, charge, -charge.Cost)
}

// Amend changes a charge of the subject afterwards, as if its cost had been known then: see
// [Limit.Amend]. With [Charge.ID] set, it does so once, however often it is called.
func (l *Limiter) Amend(ctx context.Context, subject string, charge Charge, by int64) (d Decision, err error) {
	if err := validSubject(subject); err != nil {
		return d, err
	}
	ask := l.ask
	ask.Key.Subject, ask.Cost, ask.Charge = subject, by, &charge
	ds := []Decision{{}}
	if err := l.store.Adjust(ctx, []Ask{ask}, ds); err != nil {
		return d, err
	}
	return ds[0], nil
}

// Reset forgets what the subject has used.
func (l *Limiter) Reset(ctx context.Context, subject string) error {
	if err := validSubject(subject); err != nil {
		return err
	}
	ask := l.ask
	ask.Key.Subject = subject
	return l.store.Reset(ctx, []Ask{ask})
}

// Wait takes one unit, and blocks until it is allowed or ctx ends. If ctx's
// deadline would come first, Wait returns at once, with an error that is
// [context.DeadlineExceeded], and nothing is charged. Under a leaky_bucket it
// also waits for the request's slot.
func (l *Limiter) Wait(ctx context.Context, subject string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := l.Take(ctx, subject)
		if err != nil {
			return err
		}
		if !d.Allowed {
			// A store that denies without a wait must not make this loop spin.
			if err := sleep(ctx, max(d.RetryAfter, time.Millisecond)); err != nil {
				return err
			}
			continue
		}
		if d.Delay == 0 {
			return nil
		}
		if err = sleep(ctx, d.Delay); err != nil {
			// The slot will not be used. ctx may have ended, and giving back
			// should still be tried.
			_, _ = l.Refund(context.WithoutCancel(ctx), subject, d)
		}
		return err
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && d > time.Until(deadline) {
		return fmt.Errorf("stint: allowed only in %v: %w", d, context.DeadlineExceeded)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call takes a cost, and answers in d.
func (l *Limiter) call(ctx context.Context, subject string, cost int64, d *Decision) error {
	if err := validSubject(subject); err != nil {
		return err
	}
	c := l.calls.Get().(*call)
	c.asks[0].Key.Subject, c.asks[0].Cost = subject, cost
	err := l.store.Take(ctx, c.asks[:], c.ds[:])
	if err == nil {
		*d = c.ds[0]
	}
	c.asks[0].Key.Subject = "" // may be large
	l.calls.Put(c)
	return err
}
