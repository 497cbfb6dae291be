package engine

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Step applies rules to one request: it has the asks for a store, and turns the store's decisions into a
// verdict, or into a wait before the next take. It is the only implementation of what a rule means. It
// does not read a clock, wait, or call a store: an [Engine] does that, and so does a simulation that
// replays requests.
//
//	s := engine.Step{Hits: hits, Asks: asks}
//	for s.Begin(); ; {
//		... take s.Asks from a store, with the decisions in ds ...
//		if wait := s.Hold(ds); wait > 0 && ... the request can be held ... {
//			s.Waited += wait // and take again after that
//			continue
//		}
//		if s.Denied(ds) {
//			... take s.Asks once more, to record violations ...
//		}
//		s.Conclude(&verdict, ds)
//		break
//	}
type Step struct {
	// Hits are the enforced rules. The asks of each are Asks[From:To].
	Hits []rule.Hit
	Asks []stint.Ask
	// Waited is how long the request was held.
	Waited time.Duration
}

// Begin prepares the asks for the first take. The penalties of throttle rules only peek at first: a
// request that is held and then passes is no violation.
func (s *Step) Begin() {
	for i := range s.Hits {
		if h := &s.Hits[i]; h.Rule.Action == rule.Throttle && h.Rule.Penalty != nil && h.From < h.To {
			s.Asks[h.To-1].Cost = 0
		}
	}
}

// Hold returns how long to hold the request before the next take, or 0 if it is not held. It is held if
// only limits of throttle rules deny it, and none of them requires a longer wait than its rule allows,
// including the time it has waited already.
func (s *Step) Hold(ds []stint.Decision) (wait time.Duration) {
	for i := range s.Hits {
		h := &s.Hits[i]
		for j := h.From; j < h.To; j++ {
			d := &ds[j]
			if d.Allowed {
				continue
			}
			need := d.RetryAfter
			if s.Asks[j].Limit.Algorithm == stint.Concurrency {
				need = min(need, pollPlace) // it may be released at any time
			}
			if s.Asks[j].Penalty != nil || h.Rule.Action != rule.Throttle || need > h.Rule.MaxDelay-s.Waited || d.Basis > stint.Local {
				return 0
			}
			// At least a millisecond, so that a denial without a wait does not cause a busy loop.
			wait = max(wait, need, time.Millisecond)
		}
	}
	return wait
}

// Denied prepares the asks to record violations of a request that is not held. It reports whether there
// are penalties that have only peeked and whose own limits have denied the request: then the asks have
// to be taken once more. The other penalties have counted already, and only peek now.
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

// Conclude turns the store's decisions into a verdict. A request that passes may still have to wait for
// its turn in a leaky_bucket: for the longest Delay of its limits.
func (s *Step) Conclude(v *Verdict, ds []stint.Decision) {
	v.Waited = s.Waited
	v.add(s.Hits, s.Asks, ds)
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

// decided reports whether a rule blocks or allows the request. Hits are sorted by priority.
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
		v.Outcome, v.Status, v.Reason, v.RetryAfter = Blocked, first.Status, first.Message, first.RetryAfter
	}
	return true
}

// partition moves the rules that are tried out to the end, and returns the number of other rules.
func partition(hits []rule.Hit) int {
	n := 0
	for i := range hits {
		if !hits[i].Shadow {
			hits[n], hits[i] = hits[i], hits[n]
			n++
		}
	}
	return n
}
