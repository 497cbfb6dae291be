package engine

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Step is what rules make of one request: asks for a store, and of the store's decisions
// a verdict, or that the request is held and asks again. It is the one implementation of
// what a rule means. It reads no clock, waits for nothing and asks no one: an [Engine]
// does that around it, and so does whoever replays requests at a time of their own.
//
//	s := engine.Step{Hits: hits, Asks: asks}
//	for s.Begin(); ; {
//		... put s.Asks to a store, which answers in ds ...
//		if wait := s.Hold(ds); wait > 0 && ... the request can be held ... {
//			s.Waited += wait // and ask again after it
//			continue
//		}
//		if s.Denied(ds) {
//			... put s.Asks to the store once more: violations count ...
//		}
//		s.Conclude(&verdict, ds)
//		break
//	}
type Step struct {
	// Hits are the rules that are enforced. Their asks are those of Asks from From to To.
	Hits []rule.Hit
	Asks []stint.Ask
	// Waited is how long the request was held.
	Waited time.Duration
}

// Begin prepares the asks for the first take. The penalties of rules that hold requests
// look on at first: a request that is held and then passes has violated nothing.
func (s *Step) Begin() {
	for i := range s.Hits {
		if h := &s.Hits[i]; h.Rule.Action == rule.Throttle && h.Rule.Penalty != nil && h.From < h.To {
			s.Asks[h.To-1].Cost = 0
		}
	}
}

// Hold returns how long the request is to be held so that it might pass, or 0 if it is
// not held. It is held if all that deny it are limits of rules that throttle, and none of
// them has to wait for longer than its rule allows, with what it has waited already.
func (s *Step) Hold(ds []stint.Decision) (wait time.Duration) {
	for i := range s.Hits {
		h := &s.Hits[i]
		for j := h.From; j < h.To; j++ {
			d := &ds[j]
			if d.Allowed {
				continue
			}
			if s.Asks[j].Penalty != nil || h.Rule.Action != rule.Throttle || d.RetryAfter > h.Rule.MaxDelay-s.Waited || d.Basis > stint.Local {
				return 0
			}
			// What is denied without a wait must not make the request go round at once.
			wait = max(wait, d.RetryAfter, time.Millisecond)
		}
	}
	return wait
}

// Denied has a request that will not be held counted as a violation by those penalties
// that looked on and whose own limits have denied it. It reports whether there are any:
// then the asks have to be put to the store once more. The other penalties have counted
// already, and look on.
func (s *Step) Denied(ds []stint.Decision) (again bool) {
	for i := range s.Hits {
		h := &s.Hits[i]
		if h.Rule.Penalty == nil || h.From == h.To {
			continue
		}
		last := h.To - 1
		s.Asks[last].Cost = 0
		if h.Rule.Action == rule.Throttle && ds[last].Allowed && denied(ds[h.From:last]) {
			s.Asks[last].Cost = 1
			again = true
		}
	}
	return again
}

// Conclude makes the verdict of the store's decisions. A request that passes may have to
// wait for its turn, which a leaky_bucket says: for the longest Delay of its limits.
func (s *Step) Conclude(v *Verdict, ds []stint.Decision) {
	v.Waited = s.Waited
	v.add(s.Hits, s.Asks, ds, false)
	v.conclude()
	if v.Outcome == Allowed && v.Waited > 0 {
		v.Outcome = Throttled
	}
}

func denied(ds []stint.Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return true
		}
	}
	return false
}

// decided reports whether a rule blocks or allows the request. Hits are by
// priority.
func decided(hits []rule.Hit, v *Verdict) bool {
	var first *rule.Compiled
	for i := range hits {
		r := hits[i].Rule
		switch {
		case r.Action != rule.Block && r.Action != rule.Allow:
		case first == nil, r.Priority == first.Priority && r.Action == rule.Block && first.Action == rule.Allow:
			first = r
		}
	}
	if first == nil {
		return false
	}
	v.Rule = first
	if first.Action == rule.Allow {
		v.Outcome = Exempt
	} else {
		v.Outcome, v.Status, v.Reason = Blocked, first.Status, first.Message
	}
	return true
}

// partition puts the rules that only log behind the others, and returns how many
// the others are.
func partition(hits []rule.Hit) int {
	n := 0
	for i := range hits {
		if hits[i].Rule.Action != rule.LogOnly {
			hits[n], hits[i] = hits[i], hits[n]
			n++
		}
	}
	return n
}
