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
	if spaced(w.asks) {
		ds, err := e.queue(ctx, w, v)
		if ds != nil || err != nil {
			return e.judge(ctx, w, v, hits, ds, err, true)
		}
		defer e.waits.leave(w.client)
	}
	lenient(hits, w.asks)
	for {
		ds, err := e.take(ctx, hits, w.asks)
		if err == nil && denied(ds) {
			if wait := hold(hits, ds, v.Waited); wait > 0 && e.wait(ctx, w.client, wait) {
				v.Waited += wait
				if banned := e.bans.find(&v.Subject, e.now()); banned != nil {
					v.ban(banned)
					return nil
				}
				continue
			}
			if err := ctx.Err(); errors.Is(err, context.Canceled) {
				return err // the client has left
			}
			if blame(hits, w.asks, ds) {
				// It will not be held, so this is the one that counts.
				ds, err = e.take(ctx, hits, w.asks)
			}
		}
		return e.judge(ctx, w, v, hits, ds, err, peek)
	}
}

// take asks the store. While this node decides in its place, rules that are open do
// not refuse, and must not keep the others from counting.
func (e *Engine) take(ctx context.Context, hits []rule.Hit, asks []stint.Ask) ([]stint.Decision, error) {
	ds, err := e.store.Take(ctx, asks)
	if err != nil || ds[0].Basis != stint.Local || !denied(ds) {
		return ds, err
	}
	var rest []stint.Ask
	var from []int
	open := false
	for i := range hits {
		h := &hits[i]
		for j := h.From; j < h.To; j++ {
			if h.Rule.OnFailure != rule.Open {
				rest, from = append(rest, asks[j]), append(from, j)
				continue
			}
			open = open || !ds[j].Allowed
			ds[j] = stint.Decision{Allowed: true, Basis: stint.Open, Limit: ds[j].Limit}
		}
	}
	if !open || len(rest) == 0 {
		return ds, nil
	}
	out, err := e.store.Take(ctx, rest)
	for i, d := range out {
		ds[from[i]] = d
	}
	return ds, err
}

// lenient has the penalties of rules that hold requests look on: one that is held
// and then passes has violated nothing.
func lenient(hits []rule.Hit, asks []stint.Ask) {
	for i := range hits {
		if h := &hits[i]; h.Rule.Action == rule.Throttle && h.Rule.Penalty != nil && h.From < h.To {
			asks[h.To-1].Cost = 0
		}
	}
}

// blame has those of these penalties count whose own limits have denied. Others have
// counted already. It reports whether there are any.
func blame(hits []rule.Hit, asks []stint.Ask, ds []stint.Decision) (found bool) {
	for i := range hits {
		h := &hits[i]
		if h.Rule.Penalty == nil || h.From == h.To {
			continue
		}
		last := h.To - 1
		asks[last].Cost = 0
		if h.Rule.Action == rule.Throttle && ds[last].Allowed && denied(ds[h.From:last]) {
			asks[last].Cost = 1
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
// before, it is refused: then queue returns how limits stand. What has waited and then
// leaves stays charged. Of what it was charged some has recovered by then, and to give
// that back, too, would be to give it twice.
func (e *Engine) queue(ctx context.Context, w *work, v *Verdict) ([]stint.Decision, error) {
	entered := e.waits.enter(w.client)
	deadline, hurried := ctx.Deadline()
	if entered && !hurried {
		return nil, nil
	}
	ds, err := e.look(ctx, w.asks)
	refused := false
	for i := range ds {
		if d := &ds[i]; d.Delay > 0 && (!entered || deadline.Sub(v.At) < d.Delay) {
			d.Allowed, d.RetryAfter, refused = false, d.Delay, true
		}
	}
	if !refused && err == nil {
		if !entered {
			e.waits.force(w.client) // its turn is now, or was a moment ago
		}
		return nil, nil
	}
	if entered {
		e.waits.leave(w.client)
	}
	return ds, err
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
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // it is the caller that is gone, and not the store
	case err != nil && !errors.Is(err, stint.ErrUnavailable):
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
	v.Limits = slices.Grow(v.Limits, len(w.asks))
	v.add(hits, w.asks, ds, false)
	v.conclude()
	switch {
	case closed != nil:
		v.Rule, v.Outcome, v.Status, v.Reason, v.RetryAfter = closed, Unavailable, 503, "", time.Second
		if owed {
			e.refund(ctx, w.asks)
		}
	case v.Outcome == Allowed && !peek:
		return e.space(ctx, v)
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
// says. It has a place.
func (e *Engine) space(ctx context.Context, v *Verdict) error {
	if v.Waited > 0 {
		v.Outcome = Throttled
	}
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

// refund gives back, at once, what this node has counted for a request that does not
// pass after all.
func (e *Engine) refund(ctx context.Context, asks []stint.Ask) {
	_, _ = e.store.Adjust(ctx, stint.Refund(asks)) // if not, it stays charged: against the client, and not for it
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
