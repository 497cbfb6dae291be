package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// Verdict is the decision about a request, and the reasons.
type Verdict struct {
	ID      ID
	At      time.Time // by the engine's clock, at the start of the decision
	Outcome Outcome
	Subject identity.Subject
	Method  string // as rules see it

	// Rule is the rule that decided: that of the binding limit, or the one that blocks or allows
	// the request. Nil if there is none.
	Rule *rule.Compiled
	// Limits are all limits that applied, the binding one first. Those that are only tried out come
	// last.
	Limits []Limit
	// Eased means that the request is denied, and would pass if the candidate of the limit, or of the rule, were in its place.
	Eased bool
	// RetryAfter is how long until a denied request could pass, or [stint.Never]; or what the rule says in its place.
	RetryAfter time.Duration
	// Waited is how long the request was held.
	Waited time.Duration

	// Status is the HTTP status of a request that does not pass, and Reason a text for the
	// client, which may be empty.
	Status int
	Reason string
}

// Limit is one limit of a rule, and its current state.
type Limit struct {
	Rule     *rule.Compiled
	Name     string
	Endpoint string // the rule's path that matched, if it has paths
	Limit    stint.Limit
	Cost     int64
	Decision stint.Decision
	// Penalty, if not nil, means that this is not a limit but the rule's penalty, which denies
	// while the subject is banned. Decision.Remaining is the number of violations until a ban.
	Penalty *stint.Penalty
	// Shadow means that the rule decides nothing on the request, or that this is the candidate of a limit. See [rule.Hit].Shadow.
	Shadow    bool
	Candidate bool
}

// Outcome is the outcome of a request.
type Outcome uint8

const (
	// Allowed means that the request passes.
	Allowed Outcome = iota
	// Throttled means that it passes after it was held.
	Throttled
	// Exempt means that it passes uncounted, because of a list or a rule.
	Exempt
	// Denied means that it is over a limit.
	Denied
	// Banned means that its subject is banned by a list or a penalty.
	Banned
	// Blocked means that a rule blocks it.
	Blocked
	// Unauthorized means that its credentials were rejected, with 401, or with 429 if too many
	// from its address were rejected before.
	Unauthorized
	// Unavailable means that it could not be counted, and a rule that applies fails closed.
	Unavailable
)

var outcomes = [...]string{
	Allowed: "allowed", Throttled: "throttled", Exempt: "exempt", Denied: "denied",
	Banned: "banned", Blocked: "blocked", Unauthorized: "unauthorized", Unavailable: "unavailable",
}

// String returns the outcome's name.
func (o Outcome) String() string { return outcomes[o] }

// MarshalText implements [encoding.TextMarshaler].
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *Outcome) UnmarshalText(text []byte) error {
	n := slices.Index(outcomes[:], string(text))
	if n < 0 {
		return fmt.Errorf("outcome %q: want %s", text, strings.Join(outcomes[:], ", "))
	}
	*o = Outcome(n)
	return nil
}

// Passed reports whether the request may pass.
func (o Outcome) Passed() bool { return o <= Exempt }

// Binding returns the limit that matters to the client, or nil if none applied.
func (v *Verdict) Binding() *Limit {
	if len(v.Limits) == 0 || v.Limits[0].Shadow {
		return nil
	}
	return &v.Limits[0]
}

// Shadowed returns the limit that is only tried out and would have denied the request, which has passed, or nil.
func (v *Verdict) Shadowed() *Limit {
	if !v.Outcome.Passed() {
		return nil
	}
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Shadow && !l.Decision.Allowed {
			return l
		}
	}
	return nil
}

// Marks reports whether the limit is one of a mark rule, and the request, which passes, is over it: its target is to be told.
func (l *Limit) Marks() bool { return l.Rule.Action == rule.Mark && !l.Decision.Allowed }

// ban sets the verdict for a subject on a ban list.
func (v *Verdict) ban(entry *identity.Entry) {
	v.Outcome, v.Status, v.Reason, v.RetryAfter = Banned, 403, entry.Reason, stint.Never
	if !entry.Until.IsZero() {
		v.RetryAfter = entry.Until.Sub(v.At)
	}
}

// refuse sets the verdict for credentials that were rejected.
func (v *Verdict) refuse(why *identity.RefusedError) {
	v.Outcome, v.Status, v.Reason, v.Rule = Unauthorized, 401, why.Error(), nil
	if why.RetryAfter > 0 {
		v.Status, v.RetryAfter = 429, why.RetryAfter
	}
}

// add adds the limits of hits with the store's decisions.
func (v *Verdict) add(hits []rule.Hit, asks []stint.Ask, ds []stint.Decision) {
	for i := range hits {
		h := &hits[i]
		for j := h.From; j < h.To; j++ {
			v.Limits = append(v.Limits, Limit{
				Rule: h.Rule, Name: h.LimitOf(asks, j), Endpoint: h.Endpoint, Limit: asks[j].Limit, Cost: asks[j].Cost,
				Penalty: asks[j].Penalty, Decision: ds[j], Shadow: h.Shadow, Candidate: h.Candidate,
			})
		}
	}
}

// conclude moves the binding limit to the front, and derives the other fields from it.
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
			v.Outcome = Banned // even if another limit takes longer
		}
	}
	if own := b.Rule.RetryAfter; own > 0 && v.Outcome == Denied && v.RetryAfter != stint.Never {
		v.RetryAfter = own
	}
}

// binds reports whether the limit matters more to the client than another: it denies for longer, or a
// smaller share of it is left.
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
	// Compare the shares as fractions: a/b < c/d if ad < cb. Rounding does not matter here.
	return float64(a.Remaining)*float64(b.Limit) < float64(b.Remaining)*float64(a.Limit)
}
