package engine

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// Verdict is what became of a request, and why.
type Verdict struct {
	ID      ID
	At      time.Time // by the engine's clock, when it began
	Outcome Outcome
	Subject identity.Subject
	Method  string // as rules count it

	// Rule is the one that decided: that of the binding limit, or the one that blocks
	// or allows. Nil if no rule has.
	Rule *rule.Compiled
	// Limits are all limits that applied, the binding one first, and after them
	// those that were only tried out.
	Limits []Limit
	// RetryAfter is how long until the request could pass, if it was refused and can;
	// or [stint.Never].
	RetryAfter time.Duration
	// Waited is how long the request was held.
	Waited time.Duration

	// Status is how HTTP says it, if the request was refused, and Reason is for the
	// client to read. It may be empty.
	Status int
	Reason string
}

// Limit is one limit of a rule, and how it stands.
type Limit struct {
	Rule     *rule.Compiled
	Name     string
	Endpoint string // the path of the rule that matched, if it has any
	Limit    stint.Limit
	Cost     int64
	Decision stint.Decision
	// Penalty says that this is no limit but the rule's penalty, which denies while
	// the subject is banned. Decision.Remaining is the violations left until then.
	Penalty *stint.Penalty
	// Shadow says that it was only tried out.
	Shadow bool
}

// Outcome is what became of a request.
type Outcome uint8

const (
	// Allowed means that the request passes.
	Allowed Outcome = iota
	// Throttled means that it passes, after it was held.
	Throttled
	// Exempt means that it passes uncounted, by a list or a rule.
	Exempt
	// Denied means that a limit refuses it.
	Denied
	// Banned means that its subject is banned, by a list or a penalty.
	Banned
	// Blocked means that a rule refuses it.
	Blocked
	// Unauthorized means that its credentials were not good.
	Unauthorized
	// Unavailable means that it could not be counted, and a rule that applies lets
	// nothing pass uncounted.
	Unavailable
)

var outcomes = [...]string{
	Allowed: "allowed", Throttled: "throttled", Exempt: "exempt", Denied: "denied",
	Banned: "banned", Blocked: "blocked", Unauthorized: "unauthorized", Unavailable: "unavailable",
}

// String returns the outcome in a word.
func (o Outcome) String() string { return outcomes[o] }

// MarshalText implements [encoding.TextMarshaler].
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Passed reports whether the request may pass.
func (o Outcome) Passed() bool { return o <= Exempt }

// Binding returns the limit that matters to the client, or nil if none applied.
func (v *Verdict) Binding() *Limit {
	if len(v.Limits) == 0 || v.Limits[0].Shadow {
		return nil
	}
	return &v.Limits[0]
}

// Shadowed returns the limit that would have refused the request, had its rule not
// been log_only, or nil.
func (v *Verdict) Shadowed() *Limit {
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Shadow && !l.Decision.Allowed {
			return l
		}
	}
	return nil
}

// ban makes it the verdict about one who is on a list.
func (v *Verdict) ban(entry *identity.Entry) {
	v.Outcome, v.Status, v.Reason, v.RetryAfter = Banned, 403, entry.Reason, stint.Never
	if !entry.Until.IsZero() {
		v.RetryAfter = entry.Until.Sub(v.At)
	}
}

// add adds the limits of hits, as the store has decided them.
func (v *Verdict) add(hits []rule.Hit, asks []stint.Ask, ds []stint.Decision, shadow bool) {
	for i := range hits {
		h := &hits[i]
		for j := h.From; j < h.To; j++ {
			v.Limits = append(v.Limits, Limit{
				Rule: h.Rule, Name: h.LimitOf(asks, j), Endpoint: h.Endpoint, Limit: asks[j].Limit, Cost: asks[j].Cost,
				Penalty: asks[j].Penalty, Decision: ds[j], Shadow: shadow,
			})
		}
	}
}

// conclude brings the binding limit to the front, and derives the rest from it.
func (v *Verdict) conclude() {
	if len(v.Limits) == 0 {
		return
	}
	first := 0
	for i := range v.Limits {
		if v.Limits[i].binds(&v.Limits[first]) {
			first = i
		}
	}
	v.Limits[0], v.Limits[first] = v.Limits[first], v.Limits[0]
	b := &v.Limits[0]
	v.Rule = b.Rule
	if b.Decision.Allowed {
		return
	}
	v.Outcome, v.Status, v.Reason, v.RetryAfter = Denied, b.Rule.Status, b.Rule.Message, b.Decision.RetryAfter
	for i := range v.Limits {
		l := &v.Limits[i]
		switch {
		case l.Decision.Basis == stint.Closed:
			v.Rule, v.Outcome, v.Status, v.Reason, v.RetryAfter = l.Rule, Unavailable, 503, "", l.Decision.RetryAfter
			return
		case l.Penalty != nil && !l.Decision.Allowed:
			v.Outcome = Banned // though another limit may take longer
		}
	}
}

// binds reports whether the limit matters more than another to the client: it
// denies for longer, or less of it is left.
func (l *Limit) binds(than *Limit) bool {
	a, b := &l.Decision, &than.Decision
	switch {
	case a.Allowed != b.Allowed:
		return !a.Allowed
	case !a.Allowed && a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	case (l.Penalty != nil) != (than.Penalty != nil):
		return !a.Allowed == (l.Penalty != nil)
	}
	// The shares are compared as fractions: a/b < c/d if ad < cb, in floating point,
	// since a hair's breadth does not matter here.
	return float64(a.Remaining)*float64(b.Limit) < float64(b.Remaining)*float64(a.Limit)
}
