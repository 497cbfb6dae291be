package engine

import (
	"sync/atomic"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Watched is what rules that are rolled out, and taken back if they deny too much, have decided. It counts the requests of
// clients for whom they are in force.
type Watched struct {
	Requests uint64
	Denied   uint64 // by the rule
}

// watch counts what one rule decides.
type watch struct{ requests, denied atomic.Uint64 }

// watches are the watches of all rules that are watched, by name. They are replaced with the rules; counts are kept.
type watches struct {
	atomic.Pointer[map[string]*watch]
}

// keep follows a change of rules.
func (w *watches) keep(rules *rule.Set) {
	before, next := w.Load(), map[string]*watch{}
	for _, r := range rules.Rules() {
		if o := r.Rollout(); o == nil || o.BackIf == 0 {
			continue
		}
		next[r.Name] = new(watch)
		if before != nil && (*before)[r.Name] != nil {
			next[r.Name] = (*before)[r.Name]
		}
	}
	w.Store(&next)
}

// count counts a decision about a request by the enforced rules.
func (w *watches) count(hits []rule.Hit, ds []stint.Decision) {
	all := *w.Load()
	if len(all) == 0 {
		return // the usual case
	}
	for i := range hits {
		h := &hits[i]
		one := all[h.Rule.Name]
		if one == nil || h.From == h.To {
			continue
		}
		one.requests.Add(1)
		for j := h.From; j < h.To; j++ {
			if d := &ds[j]; !d.Allowed && d.Basis != stint.Closed { // that the store is away is not the rule's doing
				one.denied.Add(1)
				break
			}
		}
	}
}

// Watched returns what rules that are rolled out have decided since they are, by name: those that are taken back if they deny too
// much.
func (e *Engine) Watched() map[string]Watched {
	out := map[string]Watched{}
	for name, w := range *e.watches.Load() {
		denied := w.denied.Load() // first: it is never more than the requests
		out[name] = Watched{w.requests.Load(), denied}
	}
	return out
}
