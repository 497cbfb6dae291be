package engine

import (
	"context"
	"maps"
	"math/bits"
	"sync"

	"github.com/stintdev/stint/rule"
)

// estimate finds out what to reserve for a request to a language model.
func (e *Engine) estimate(ctx context.Context, q *Request, w *work) error {
	if q.Estimate == nil || w.purpose < reserving || !rule.OfModels(w.hits) {
		return nil
	}
	began := e.now()
	got, err := q.Estimate(ctx)
	w.estimating = e.since(began)
	if err != nil {
		return err
	}
	if w.attrs.Estimate = got.Meters; got.Open {
		who := payerOf(&w.attrs)
		w.attrs.Usual = func(rule string) int64 { return e.usual.of(historyKey{rule, who}) }
	}
	return nil
}

// payerOf returns whose requests a request is like: its tenant's, or else its user's, its API key's, or its address's.
func payerOf(a *rule.Attrs) string {
	switch {
	case a.Tenant != "":
		return "tenant:" + a.Tenant
	case a.User != "":
		return "user:" + a.User
	case a.APIKey != "":
		return "key:" + a.APIKey
	}
	return a.Net.String()
}

// learn notes what a request without a cap has used.
func (e *Engine) learn(r *Reservation, receipt *Receipt) {
	if r.like == "" || receipt.Repeated {
		return
	}
	before := ""
	for i := range receipt.Limits {
		if s := &receipt.Limits[i]; s.Rule != before && s.Meter.OfModels() && s.Used > 0 { // all limits of a rule have the same cost
			e.usual.note(historyKey{s.Rule, r.like}, s.Used)
			before = s.Rule
		}
	}
}

// histories are what requests without a cap have used, by rule and client: no one changes what is reserved for others.
// When there are too many, any one is forgotten. It is safe for concurrent use.
type histories struct {
	mu  sync.Mutex
	all map[historyKey]*history
}

// historyKey is a rule's name, and whose requests they are.
type historyKey struct{ rule, who string }

const (
	maxHistories = 4096
	minHistory   = 20   // with fewer requests, nothing is known
	maxHistory   = 1000 // then what was before counts half
)

// note adds what a request has used.
func (h *histories) note(key historyKey, units int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.all[key]
	if one == nil {
		if h.all == nil {
			h.all = map[historyKey]*history{}
		}
		for other := range h.all {
			if len(h.all) < maxHistories {
				break
			}
			delete(h.all, other)
		}
		one = new(history)
		h.all[key] = one
	}
	one.note(units)
}

// of returns what 95 of 100 requests have used at most, or 0 if that is not known.
func (h *histories) of(key historyKey) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.all[key]; one != nil {
		return one.most()
	}
	return 0
}

// keep forgets rules that are not in the set.
func (h *histories) keep(rules *rule.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 {
		return
	}
	known := map[string]bool{}
	for _, r := range rules.Rules() {
		known[r.Name] = true
	}
	maps.DeleteFunc(h.all, func(key historyKey, _ *history) bool { return !known[key.rule] })
}

// history counts requests by the units that they have used, in buckets that are an eighth of a power of two wide.
type history struct {
	n       int
	buckets [62 * 8]uint16
}

func (h *history) note(units int64) {
	if h.n >= maxHistory {
		h.n = 0
		for i := range h.buckets {
			h.buckets[i] /= 2
			h.n += int(h.buckets[i])
		}
	}
	h.n++
	h.buckets[bucketOf(units)]++
}

// most returns the upper bound of the bucket that 95 of 100 requests do not exceed.
func (h *history) most() int64 {
	if h.n < minHistory {
		return 0
	}
	rest := h.n - h.n*95/100
	for i := len(h.buckets) - 1; ; i-- {
		if rest -= int(h.buckets[i]); rest < 0 || i == 0 {
			return boundOf(i)
		}
	}
}

// bucketOf returns the bucket of a number: small ones have their own, of others the highest four bits count.
func bucketOf(units int64) int {
	n := uint64(max(units, 0))
	if n < 16 {
		return int(n)
	}
	shift := bits.Len64(n) - 4
	return shift*8 + int(n>>shift)
}

// boundOf returns the largest number of a bucket.
func boundOf(bucket int) int64 {
	if bucket < 16 {
		return int64(bucket)
	}
	shift := bucket/8 - 1
	return int64(8+bucket%8+1)<<shift - 1
}
