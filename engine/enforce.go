package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// enforce asks for all limits of the first n hits at once, and holds the request
// where rules say so.
func (e *Engine) enforce(ctx context.Context, w *work, v *Verdict, n int, peek bool) error {
	hits := w.hits[:n]
	w.asks, w.text = w.setup.rules.Asks(w.asks, hits, &w.attrs, w.text)
	if len(w.asks) == 0 {
		return nil
	}
	if peek {
		ds, err := e.look(ctx, w.asks)
		return e.judge(ctx, w, v, hits, ds, err, peek)
	}
	lenient(hits, w.asks, 0)
	for {
		ds, err := e.store.Take(ctx, w.asks)
		if err == nil && denied(ds) {
			if wait := hold(hits, ds, v.Waited); wait > 0 && e.wait(ctx, wait) {
				v.Waited += wait
				continue
			}
			if err := ctx.Err(); err != nil && errors.Is(err, context.Canceled) {
				return err // the client has left
			}
			if lenient(hits, w.asks, 1) {
				// It will not be held, so this is the one that counts.
				ds, err = e.store.Take(ctx, w.asks)
			}
		}
		return e.judge(ctx, w, v, hits, ds, err, peek)
	}
}

// lenient gives a cost to the penalties of rules that hold requests: one that is
// held and then passes has violated nothing. It reports whether there are any.
func lenient(hits []rule.Hit, asks []stint.Ask, cost int64) (found bool) {
	for i := range hits {
		h := &hits[i]
		if h.Rule.Action == rule.Throttle && h.Rule.Penalty != nil && h.From < h.To {
			asks[h.To-1].Cost = cost
			found = true
		}
	}
	return found
}

func denied(ds []stint.Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return true
		}
	}
	return false
}

// hold returns how long a request that was denied can be held so that it might
// pass, or 0 if it cannot: all that deny are limits of rules that throttle, and
// none of them has to wait for longer than its rule allows, with what it has
// waited already.
func hold(hits []rule.Hit, ds []stint.Decision, waited time.Duration) (wait time.Duration) {
	for i := range hits {
		h := &hits[i]
		for j := h.From; j < h.To; j++ {
			d := &ds[j]
			if d.Allowed {
				continue
			}
			banned := j == h.To-1 && h.Rule.Penalty != nil
			if banned || h.Rule.Action != rule.Throttle || d.RetryAfter > h.Rule.MaxDelay-waited || d.Basis > stint.Local {
				return 0
			}
			// What is denied without a wait must not make the request go round at once.
			wait = max(wait, d.RetryAfter, time.Millisecond)
		}
	}
	return wait
}

// wait holds the request. It returns false, at once, if too many are held already
// or if the context would end before, and when it does end.
func (e *Engine) wait(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(e.now()) < d {
		return false
	}
	if e.waiting.Add(1) > e.most {
		e.waiting.Add(-1)
		return false
	}
	defer e.waiting.Add(-1)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// look asks how things stand. What has a cost is judged by what remains.
func (e *Engine) look(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	free := make([]stint.Ask, len(asks))
	copy(free, asks)
	for i := range free {
		free[i].Cost = 0
	}
	ds, err := e.store.Take(ctx, free)
	if err != nil {
		return nil, err
	}
	for i := range ds {
		d := &ds[i]
		switch cost := asks[i].Cost; {
		case asks[i].Penalty != nil || cost <= d.Remaining || !d.Allowed:
		case cost > d.Limit:
			d.Allowed, d.RetryAfter = false, stint.Never
		default:
			d.Allowed, d.RetryAfter = false, d.ResetAfter
		}
	}
	return ds, nil
}

// judge makes the verdict of what the store has said of the hits' asks, or of its
// silence.
func (e *Engine) judge(ctx context.Context, w *work, v *Verdict, hits []rule.Hit, ds []stint.Decision, err error, peek bool) error {
	switch {
	case err != nil && (!errors.Is(err, stint.ErrUnavailable) || errors.Is(ctx.Err(), context.Canceled)):
		return err
	case err != nil:
		ds = make([]stint.Decision, len(w.asks))
		for i := range ds {
			t, _ := w.asks[i].Limit.Terms()
			ds[i] = stint.Decision{Allowed: true, Basis: stint.Open, Limit: t.Cap}
		}
	}
	// What this node has counted in the store's place is owed to the store.
	owed := !peek && ds[0].Basis == stint.Local && !denied(ds)
	closed := withoutStore(hits, ds)
	v.Limits = make([]Limit, 0, len(w.asks))
	v.add(hits, w.asks, ds, false)
	v.conclude()
	switch {
	case closed != nil:
		v.Rule, v.Outcome, v.Status, v.Reason, v.RetryAfter = closed, Unavailable, 503, "", time.Second
		if owed {
			e.refund(ctx, w.asks)
		}
	case v.Outcome == Allowed && !peek:
		return e.space(ctx, w, v)
	}
	return nil
}

// withoutStore applies what rules say of a store that could not be reached: to
// decisions that were made in its place. It returns a rule that refuses those, if
// there is one.
func withoutStore(hits []rule.Hit, ds []stint.Decision) (closed *rule.Compiled) {
	for i := range hits {
		h := &hits[i]
		for j := h.From; j < h.To; j++ {
			d := &ds[j]
			switch {
			case d.Basis < stint.Local:
			case h.Rule.OnFailure == rule.Closed:
				closed = h.Rule
			case h.Rule.OnFailure == rule.Open || d.Basis != stint.Local:
				d.Allowed, d.Basis, d.RetryAfter = true, stint.Open, 0
			}
		}
	}
	return closed
}

// space holds a request that has passed until it is its turn, which a leaky_bucket
// says. If that is longer than a rule allows, or it cannot be held, it is refused.
func (e *Engine) space(ctx context.Context, w *work, v *Verdict) error {
	if v.Waited > 0 {
		v.Outcome = Throttled
	}
	var wait time.Duration
	late := false
	for i := range v.Limits {
		d, most := &v.Limits[i].Decision, v.Limits[i].Rule.MaxDelay
		wait = max(wait, d.Delay)
		if left := most - v.Waited; most > 0 && d.Delay > left {
			late, d.Allowed, d.RetryAfter = true, false, d.Delay-left
		}
	}
	if wait == 0 {
		return nil
	}
	if !late && e.wait(ctx, wait) {
		v.Outcome = Throttled
		v.Waited += wait
		return nil
	}
	e.refund(ctx, w.asks)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	for i := range v.Limits {
		if d := &v.Limits[i].Decision; !late && d.Delay == wait {
			d.Allowed, d.RetryAfter = false, wait
		}
	}
	v.conclude()
	return nil
}

// refund gives back what a request was charged that does not pass after all. It may
// be because the client has left.
func (e *Engine) refund(ctx context.Context, asks []stint.Ask) {
	back := make([]stint.Ask, 0, len(asks))
	for _, a := range asks {
		if a.Penalty == nil && a.Cost > 0 {
			a.Cost = -a.Cost
			back = append(back, a)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = e.store.Adjust(ctx, back) // it has been charged, then: against the client, and not for it
}

// tryOut asks for the limits of rules that only log, each rule for itself and all at
// once.
func (e *Engine) tryOut(ctx context.Context, w *work, v *Verdict, hits []rule.Hit, peek bool) {
	if len(hits) == 0 {
		return
	}
	asks, _ := w.setup.rules.Asks(nil, hits, &w.attrs, nil)
	ds := make([]stint.Decision, len(asks))
	errs := make([]error, len(hits))
	var wg sync.WaitGroup
	for i := range hits {
		mine := asks[hits[i].From:hits[i].To]
		take := func() {
			ask := e.store.Take
			if peek {
				ask = e.look
			}
			out, err := ask(ctx, mine)
			copy(ds[hits[i].From:], out)
			errs[i] = err
		}
		if len(mine) == 0 {
			continue
		}
		if i == len(hits)-1 {
			take()
		} else {
			wg.Go(take)
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err == nil { // else it could not be tried, and no one has to know
			v.add(hits[i:i+1], asks, ds, true)
		}
	}
}
