package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// enforce takes the asks of the first n hits from the store in one call, and holds the request where
// rules say so. The decisions are made by a [Step].
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
			e.watches.count(s.Hits, w.ds)
			return nil
		}
		defer e.waits.leave(w.client)
	}
	if key, most, found := e.lineFor(s); found {
		e.standInLine(ctx, w, key, most) // no one overtakes those who wait
	}
	defer e.leaveLine(w)
	for s.Begin(); ; {
		if err := e.take(ctx, s.Asks, w.ds); err != nil {
			return err
		}
		if !denied(w.ds) {
			break
		}
		if e.hold(ctx, w) {
			if banned := e.bans.find(&v.Subject, e.now()); banned != nil {
				v.Waited = s.Waited
				v.ban(banned)
				return nil
			}
			continue
		}
		if err := ctx.Err(); errors.Is(err, context.Canceled) {
			return err // the client has gone
		}
		if s.Denied(w.ds) {
			if err := e.take(ctx, s.Asks, w.ds); err != nil {
				return err
			}
		}
		break
	}
	s.Conclude(v, w.ds)
	e.watches.count(s.Hits, w.ds)
	if v.Outcome.Passed() {
		e.reserve(w, s.Hits, s.Asks, w.ds, false)
		e.leaveLine(w)
		return e.space(ctx, v)
	}
	return nil
}

// hold holds a request that is denied, until it is time to take again. It returns false if it is not held.
func (e *Engine) hold(ctx context.Context, w *work) bool {
	s := &w.step
	if key, most := s.missing(w.ds); most > 0 {
		return e.standInLine(ctx, w, key, most)
	}
	wait := s.Hold(w.ds)
	held := wait > 0 && e.wait(ctx, w.client, wait)
	if held {
		s.Waited += wait
	}
	return held
}

// penalized reports whether a penalty bans another identity that the request presents beside its
// subject, and which loses to it. The rules are matched as for that identity alone, and its counters
// are only read.
func (e *Engine) penalized(ctx context.Context, w *work, v *Verdict) (bool, error) {
	for i := range v.Subject.Others {
		o, a := &v.Subject.Others[i], w.attrs
		a.User, a.Tenant, a.APIKey, a.Tier = o.User, o.Tenant, o.Key, o.Tier
		a.Claims, a.KeyLimits, a.UserLimits = o.Claims, o.KeyLimits, o.UserLimits
		hits := slices.DeleteFunc(w.setup.rules.Match(nil, &a), func(h rule.Hit) bool { return h.Rule.Penalty == nil || h.Shadow })
		if len(hits) == 0 {
			continue
		}
		asks, _ := w.setup.rules.Asks(nil, hits, &a, nil)
		for j := range asks {
			asks[j].Cost = 0
		}
		ds := make([]stint.Decision, len(asks))
		if err := e.take(ctx, asks, ds); err != nil {
			return false, err
		}
		for _, h := range hits {
			for j := h.From; j < h.To; j++ {
				if d := &ds[j]; asks[j].Penalty != nil && !d.Allowed && d.Basis < stint.Open {
					v.Rule, v.Outcome, v.Status, v.Reason, v.RetryAfter = h.Rule, Banned, h.Rule.Status, h.Rule.Message, d.RetryAfter
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// take calls the store. It returns the error of ctx if that is done.
func (e *Engine) take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := e.store.Take(ctx, asks, ds)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the caller has gone; the store may be fine
	}
	return err
}

// spaced reports whether a leaky bucket may delay the request.
func spaced(asks []stint.Ask) bool {
	for i := range asks {
		if asks[i].Limit.Algorithm == stint.LeakyBucket {
			return true
		}
	}
	return false
}

// queue reserves a place for a request that may have to wait for its turn, before it is charged. If it
// cannot wait, because too many requests do or because its deadline is too early, it is denied: then
// queue returns false, and the decisions are in w.ds. A request that gives up while it waits stays
// charged.
func (e *Engine) queue(ctx context.Context, w *work, v *Verdict) (queued bool, err error) {
	entered := e.waits.enter(w.client)
	deadline, hasDeadline := ctx.Deadline()
	if entered && !hasDeadline {
		return true, nil
	}
	err = e.look(ctx, w.step.Asks, w.ds)
	tooLate := false
	for i := range w.ds {
		if d := &w.ds[i]; err == nil && d.Delay > 0 && (!entered || deadline.Sub(v.At) < d.Delay) {
			d.Allowed, d.RetryAfter, tooLate = false, d.Delay, true
		}
	}
	if !tooLate && err == nil {
		if !entered {
			e.waits.force(w.client) // it does not have to wait
		}
		return true, nil
	}
	if entered {
		e.waits.leave(w.client)
	}
	return false, err
}

// wait holds the request for d. It returns false if too many are held already, if the deadline is too
// early, or when ctx is done.
func (e *Engine) wait(ctx context.Context, c client, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(e.now()) < d {
		return false
	}
	if !e.waits.enter(c) {
		return false
	}
	defer e.waits.leave(c)
	return e.timers.Pause(ctx, d, nil)
}

// look peeks at the counters, and decides the costs by what remains.
func (e *Engine) look(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	free := slices.Clone(asks)
	for i := range free {
		free[i].Cost = 0
	}
	if err := e.take(ctx, free, ds); err != nil {
		return err
	}
	var denied []int
	for i := range ds {
		a, d := &asks[i], &ds[i]
		fits := a.Cost <= d.Remaining
		if a.Penalty != nil || fits && (a.Cost <= 1 || !split(a)) || d.Basis == stint.Open || d.Basis == stint.Closed {
			continue
		}
		if d.Allowed = fits; a.Cost > d.Limit {
			d.RetryAfter = stint.Never
		} else {
			denied = append(denied, i)
		}
	}
	if len(denied) == 0 {
		return nil
	}
	return e.lookAhead(ctx, asks, ds, denied)
}

// split reports whether the counter is divided. Then what remains is not all in one part, which has to hold a cost.
func split(a *stint.Ask) bool { return a.Policy != nil && a.Policy.Split > 1 }

// lookAhead finds out when costs will pass that do not pass now, and whether parts of counters can hold them. It asks
// for them, together with more than there is of a limit for each subject, or of the counter if it is divided: so the
// take is denied in every slot of a cluster, and nothing is charged whatever has happened meanwhile.
func (e *Engine) lookAhead(ctx context.Context, asks []stint.Ask, ds []stint.Decision, denied []int) error {
	var ahead []stint.Ask
	for _, i := range denied {
		ahead = append(ahead, asks[i])
	}
	for i := range denied {
		bar := stint.Ask{Key: stint.Key{Subject: ahead[i].Key.Subject, Name: "none"}, Limit: stint.PerSecond(1), Cost: 2}
		if split(&ahead[i]) {
			bar = ahead[i]
			bar.Cost, bar.Policy = bar.Limit.Cap()+1, &stint.Policy{Split: bar.Policy.Split}
		}
		if !slices.ContainsFunc(ahead[len(denied):], func(a stint.Ask) bool { return a.Key == bar.Key && a.Limit == bar.Limit }) {
			ahead = append(ahead, bar)
		}
	}
	out := make([]stint.Decision, len(ahead))
	if err := e.take(ctx, ahead, out); err != nil {
		return err
	}
	for n, i := range denied {
		if d := &ds[i]; !d.Allowed || !out[n].Allowed {
			// What passes now has recovered since it was looked at.
			d.Allowed, d.RetryAfter = false, max(out[n].RetryAfter, time.Microsecond)
		}
	}
	return nil
}

// space holds an allowed request until its turn in a leaky_bucket. The request has a place in the queue.
func (e *Engine) space(ctx context.Context, v *Verdict) error {
	var turn time.Duration
	for i := range v.Limits {
		turn = max(turn, v.Limits[i].Decision.Delay)
	}
	if turn == 0 {
		return nil
	}
	if !e.timers.Pause(ctx, turn, nil) {
		return ctx.Err()
	}
	v.Outcome = Throttled
	v.Waited += turn
	return nil
}
