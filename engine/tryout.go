package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// tryOut takes what only counts, after the request is decided: the limits of log_only rules, those of rules that may replace
// another, and the candidates of limits, each by itself and all in parallel. What may take the place of a limit, or of a rule, is
// asked in its place: also about a request that nothing else denies. Penalties are only read: what is not denied is no violation, and
// no client is banned before it was told.
func (e *Engine) tryOut(ctx context.Context, w *work, v *Verdict, enforced int, peek bool) {
	hits, asks, eased := w.tried(v, enforced)
	v.Eased = eased
	if len(hits) == 0 {
		return
	}
	ask := e.take
	if peek {
		ask = e.look
	}
	for i := range asks {
		if asks[i].Penalty != nil {
			asks[i].Cost = 0
		}
	}
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
	passed := v.Outcome.Passed()
	for i := range hits {
		of := ds[hits[i].From:hits[i].To]
		counted := errs[i] == nil && !slices.ContainsFunc(of, func(d stint.Decision) bool { return d.Basis == stint.Closed })
		if !counted {
			continue // it is left out silently
		}
		v.add(hits[i:i+1], asks, ds)
		if !denied(of) {
			v.Eased = v.Eased || !passed
			e.reserve(w, hits[i:i+1], asks, ds, true)
		}
	}
}

// tried returns what to try out, and its asks. Eased says that a request that is denied would pass if a rule were replaced: that in
// its place does not apply.
func (w *work) tried(v *Verdict, enforced int) (hits []rule.Hit, asks []stint.Ask, eased bool) {
	s, shadows := &w.step, w.hits[enforced:]
	switch v.Outcome {
	case Allowed, Throttled, Exempt:
		hits, asks = rule.Candidates(s.Hits, s.Asks)
	case Denied:
		by, i := s.denier(w.ds)
		if by == nil {
			return nil, nil, false
		}
		if i >= 0 {
			hits, asks = by.CandidateOf(s.Asks, i)
		}
		n := slices.IndexFunc(shadows, func(h rule.Hit) bool { return h.Rule.Replaces == by.Rule.Name })
		if n < 0 {
			return hits, asks, by.Rule.ReplacedBy != ""
		}
		shadows = shadows[n : n+1]
	default:
		return nil, nil, false
	}
	if len(shadows) > 0 {
		from := len(hits)
		hits = append(hits, shadows...)
		asks, _ = w.setup.rules.Asks(asks, hits[from:], &w.attrs, nil)
	}
	return hits, asks, false
}

// denier returns the rule that denies the request, if no other does, and its only ask that denies it, or -1.
func (s *Step) denier(ds []stint.Decision) (by *rule.Hit, ask int) {
	for i := range s.Hits {
		h := &s.Hits[i]
		for j := h.From; j < h.To; j++ {
			switch {
			case ds[j].Allowed:
			case by == nil:
				by, ask = h, j
			case by == h:
				ask = -1
			default:
				return nil, -1
			}
		}
	}
	return by, ask
}
