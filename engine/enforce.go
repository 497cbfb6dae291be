package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// enforce puts the asks of the first n hits to the store, at once, and holds the request
// where rules say so: the waiter around a [Step].
func (e *Engine) enforce(ctx context.Context, w *work, v *Verdict, n int, peek bool) error {
	s := &w.step
	s.Hits = w.hits[:n]
	s.Asks, w.text = w.setup.rules.Asks(s.Asks, s.Hits, &w.attrs, w.text)
	if len(s.Asks) == 0 {
		return nil
	}
	w.ds = slices.Grow(w.ds[:0], len(s.Asks))[:len(s.Asks)]
	v.Limits = slices.Grow(v.Limits, len(s.Asks))
	if peek {
		err := e.look(ctx, s.Asks, w.ds)
		if err == nil {
			s.Conclude(v, w.ds)
		}
		return err
	}
	if spaced(s.Asks) {
		queued, err := e.queue(ctx, w, v)
		if err != nil {
			return err
		}
		if !queued {
			s.Conclude(v, w.ds)
			return nil
		}
		defer e.waits.leave(w.client)
	}
	for s.Begin(); ; {
		if err := e.take(ctx, s.Asks, w.ds); err != nil {
			return err
		}
		if !denied(w.ds) {
			break
		}
		if wait := s.Hold(w.ds); wait > 0 && e.wait(ctx, w.client, wait) {
			s.Waited += wait
			if banned := e.bans.find(&v.Subject, e.now()); banned != nil {
				v.Waited = s.Waited
				v.ban(banned)
				return nil
			}
			continue
		}
		if err := ctx.Err(); errors.Is(err, context.Canceled) {
			return err // the client has left
		}
		if s.Denied(w.ds) {
			if err := e.take(ctx, s.Asks, w.ds); err != nil {
				return err
			}
		}
		break
	}
	s.Conclude(v, w.ds)
	if v.Outcome.Passed() {
		return e.space(ctx, v)
	}
	return nil
}

// take asks the store.
func (e *Engine) take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := e.store.Take(ctx, asks, ds)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // it is the caller that is gone, and not the store
	}
	return err
}

// spaced reports whether the request may have to wait for its turn.
func spaced(asks []stint.Ask) bool {
	for i := range asks {
		if asks[i].Limit.Algorithm == stint.LeakyBucket {
			return true
		}
	}
	return false
}

// queue takes a place for a request that may have to wait for its turn, before it is
// charged. If it could not wait, because too many do or because its context would end
// before, it is denied: then queue returns false, and decisions that say how limits stand.
// What has waited and then leaves stays charged. Of what it was charged some has recovered
// by then, and to give that back, too, would be to give it twice.
func (e *Engine) queue(ctx context.Context, w *work, v *Verdict) (queued bool, err error) {
	entered := e.waits.enter(w.client)
	deadline, hurried := ctx.Deadline()
	if entered && !hurried {
		return true, nil
	}
	err = e.look(ctx, w.step.Asks, w.ds)
	late := false
	for i := range w.ds {
		if d := &w.ds[i]; err == nil && d.Delay > 0 && (!entered || deadline.Sub(v.At) < d.Delay) {
			d.Allowed, d.RetryAfter, late = false, d.Delay, true
		}
	}
	if !late && err == nil {
		if !entered {
			e.waits.force(w.client) // its turn is now, or was a moment ago
		}
		return true, nil
	}
	if entered {
		e.waits.leave(w.client)
	}
	return false, err
}

// wait holds the request. It returns false, at once, if too many are held already
// or if the context would end before, and when it does end.
func (e *Engine) wait(ctx context.Context, c client, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(e.now()) < d {
		return false
	}
	if !e.waits.enter(c) {
		return false
	}
	defer e.waits.leave(c)
	return pause(ctx, d)
}

func pause(ctx context.Context, d time.Duration) bool {
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
func (e *Engine) look(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	free := slices.Clone(asks)
	for i := range free {
		free[i].Cost = 0
	}
	if err := e.take(ctx, free, ds); err != nil {
		return err
	}
	for i := range ds {
		d := &ds[i]
		switch cost := asks[i].Cost; {
		case asks[i].Penalty != nil || cost <= d.Remaining || !d.Allowed || d.Basis == stint.Open:
		case cost > d.Limit:
			d.Allowed, d.RetryAfter = false, stint.Never
		default:
			d.Allowed, d.RetryAfter = false, d.ResetAfter
		}
	}
	return nil
}

// space holds a request that has passed until it is its turn, which a leaky_bucket
// says. It has a place.
func (e *Engine) space(ctx context.Context, v *Verdict) error {
	var turn time.Duration
	for i := range v.Limits {
		turn = max(turn, v.Limits[i].Decision.Delay)
	}
	if turn == 0 {
		return nil
	}
	if !pause(ctx, turn) {
		return ctx.Err()
	}
	v.Outcome = Throttled
	v.Waited += turn
	return nil
}

// tryOut asks for the limits of rules that only log, each rule for itself and all at
// once.
func (e *Engine) tryOut(ctx context.Context, w *work, v *Verdict, hits []rule.Hit, peek bool) {
	if len(hits) == 0 {
		return
	}
	ask := e.take
	if peek {
		ask = e.look
	}
	asks, _ := w.setup.rules.Asks(nil, hits, &w.attrs, nil)
	ds := make([]stint.Decision, len(asks))
	errs := make([]error, len(hits))
	var wg sync.WaitGroup
	for i := range hits {
		from, to := hits[i].From, hits[i].To
		if from == to {
			continue
		}
		try := func() { errs[i] = ask(ctx, asks[from:to], ds[from:to]) }
		if i == len(hits)-1 {
			try()
		} else {
			wg.Go(try)
		}
	}
	wg.Wait()
	for i := range hits {
		counted := errs[i] == nil && !slices.ContainsFunc(ds[hits[i].From:hits[i].To], func(d stint.Decision) bool { return d.Basis == stint.Closed })
		if counted { // else it could not be tried, and no one has to know
			v.add(hits[i:i+1], asks, ds, true)
		}
	}
}
