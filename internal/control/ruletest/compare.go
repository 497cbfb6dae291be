package ruletest

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/engine"
)

// tally is how many requests of a step had an outcome, and by what.
type tally struct {
	outcome     engine.Outcome
	rule, limit string // empty: none
	count       int
}

// by returns what the outcome is by, in as many words as a term has.
func (t *tally) by(like string) string {
	switch {
	case like == "":
		return ""
	case t.rule == "":
		return none
	case strings.Contains(like, "/") && t.limit != "":
		return t.rule + "/" + t.limit
	}
	return t.rule
}

// happened returns what has happened, in the form of what is expected.
func (s *step) happened(tallies []tally, last *engine.Verdict, headers http.Header) expectation {
	want := &s.want
	if len(want.terms) == 0 {
		want = usual(tallies, last)
	}
	got := expectation{terms: want.terms}
	if !agree(want.terms, tallies) {
		got.terms = termsOf(want.terms, tallies)
	}
	for _, x := range want.items {
		x.value = x.in(last, headers)
		got.items = append(got.items, x)
	}
	return got
}

// usual is what an update writes where nothing was expected.
func usual(tallies []tally, last *engine.Verdict) *expectation {
	e := &expectation{terms: make([]term, 1)}
	if slices.ContainsFunc(tallies, func(x tally) bool { return x.rule != "" }) {
		e.terms[0].by = none // so that rules are told
	}
	add := func(field string) { e.items = append(e.items, item{field: field}) }
	switch {
	case last.Outcome == engine.Throttled:
		add("delay")
	case last.RetryAfter > 0:
		add("retry")
	case last.Binding() != nil:
		add("remaining")
	}
	return e
}

// agree reports whether there are as many requests of each outcome as the terms say. Terms that say less of by what count what
// no other term counts.
func agree(terms []term, tallies []tally) bool {
	if len(terms) == 0 {
		return false
	}
	rest := slices.Clone(tallies)
	for detail := 2; detail >= 0; detail-- {
		for _, t := range terms {
			if t.detail() != detail {
				continue
			}
			n := 0
			for i := range rest {
				if x := &rest[i]; x.outcome == t.outcome && x.by(t.by) == t.by {
					n += x.count
					x.count = 0
				}
			}
			if n == 0 || t.count > 0 && n != t.count {
				return false
			}
		}
	}
	return !slices.ContainsFunc(rest, func(x tally) bool { return x.count > 0 })
}

// detail returns how much the term says of by what its outcome is: nothing, the rule, or the limit.
func (t *term) detail() int {
	switch {
	case t.by == "":
		return 0
	case strings.Contains(t.by, "/"):
		return 2
	}
	return 1
}

// termsOf returns the terms of what has happened, with as much detail as those that were expected.
func termsOf(like []term, tallies []tally) []term {
	var most term
	for _, t := range like {
		if t.detail() > most.detail() {
			most = t
		}
	}
	var out []term
next:
	for i := range tallies {
		x := &tallies[i]
		by := x.by(most.by)
		for j := range out {
			if out[j].outcome == x.outcome && out[j].by == by {
				out[j].count += x.count
				continue next
			}
		}
		out = append(out, term{x.outcome, by, x.count})
	}
	if len(out) == 1 {
		out[0].count = 0
	}
	return out
}

// in returns the value of the item in a verdict.
func (x *item) in(v *engine.Verdict, headers http.Header) string {
	switch x.kind {
	case header:
		if values, ok := headers[textproto.CanonicalMIMEHeaderKey(x.of)]; ok {
			return "=" + strings.Join(values, ", ")
		}
		return none
	case shadow:
		return shadowOf(v, x.of)
	case field:
	}
	switch x.field {
	case "delay":
		return formatWait(v.Waited)
	case "status":
		if v.Status == 0 {
			return none
		}
		return strconv.Itoa(v.Status)
	case "reason":
		return v.Reason
	case "user":
		return v.Subject.User
	case "tenant":
		return v.Subject.Tenant
	case "key":
		return v.Subject.Key
	case "tier":
		return v.Subject.Tier
	case "ip":
		if !v.Subject.IP.IsValid() {
			return ""
		}
		return v.Subject.IP.String()
	case "retry":
		if x.of == "" {
			return formatRetry(v.RetryAfter)
		}
	}
	l := v.Binding()
	if x.of != "" {
		l = limitOf(v, x.of)
	}
	if l == nil {
		return none
	}
	return limitFields[x.field](l)
}

// limitOf returns a limit by its name, LIMIT or RULE/LIMIT, or nil if it did not apply.
func limitOf(v *engine.Verdict, named string) *engine.Limit {
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Name == named || l.Rule.Name+"/"+l.Name == named {
			return l
		}
	}
	return nil
}

// shadowOf returns what a rule in the shadow would have done: allow, deny, or none if it did not apply.
func shadowOf(v *engine.Verdict, rule string) string {
	out := none
	for i := range v.Limits {
		switch l := &v.Limits[i]; {
		case !l.Shadow || l.Rule.Name != rule:
		case !l.Decision.Allowed:
			return "deny"
		default:
			out = "allow"
		}
	}
	return out
}
