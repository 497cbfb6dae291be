package rule

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// counterMark stands between the name of a limit and the number of its counters, where that is not 1. No name has it.
const counterMark = "~"

// maxCounter is the largest number of a limit's counters.
const maxCounter = 1_000_000

// counter returns the name of the limit in keys or, with next = 1, that of its candidate.
func (l *Limit) counter(next int) string {
	if n := max(l.Counter, 1) + next; n > 1 {
		return l.Name + counterMark + strconv.Itoa(n)
	}
	return l.Name
}

// Promote puts the candidates of the rule's limits in their place, with the counters that they have. It reports whether there
// were any.
func (r *Rule) Promote() (some bool) {
	r.Limits = slices.Clone(r.Limits)
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.Candidate == "" {
			continue
		}
		some = true
		l.Limit, l.Algorithm, l.Burst, l.Candidate = l.Candidate, "", 0, ""
		l.Counter = max(l.Counter, 1) + 1
	}
	return some
}

// Candidates returns the asks of the candidates of limits of hits, whose own asks are given: each in a hit of its own, to be taken
// by itself. Usually there are none.
func Candidates(hits []Hit, asks []stint.Ask) (tried []Hit, out []stint.Ask) {
	for i := range hits {
		h := &hits[i]
		for rest := h.tried; rest != 0; rest &= rest - 1 {
			tried, out = h.appendCandidate(tried, out, asks, h.From+bits.TrailingZeros32(rest))
		}
	}
	return tried, out
}

// CandidateOf is [Candidates] for the limit that the i-th ask is about.
func (h *Hit) CandidateOf(asks []stint.Ask, i int) (tried []Hit, out []stint.Ask) {
	if h.tried&(1<<(i-h.From)) == 0 {
		return nil, nil
	}
	return h.appendCandidate(nil, nil, asks, i)
}

func (h *Hit) appendCandidate(tried []Hit, out, asks []stint.Ask, i int) ([]Hit, []stint.Ask) {
	name := h.LimitOf(asks, i)
	l := &h.Rule.limits[slices.IndexFunc(h.Rule.limits, func(l limit) bool { return l.name == name })]
	a, before := asks[i], len(h.Rule.Name)+1
	a.Key.Name = a.Key.Name[:before] + l.candidate.counter + a.Key.Name[before+len(l.counter):]
	a.Limit, a.Plan, a.Policy = l.candidate.value, l.candidate.plan, l.candidate.policy
	trial := *h
	trial.Shadow, trial.Candidate, trial.tried = true, true, 0
	trial.From, trial.To = len(out), len(out)+1
	return append(tried, trial), append(out, a)
}

// sayCandidates says what may take the place of limits.
func (r *Rule) sayCandidates() string {
	var all []string
	for _, l := range r.Limits[:min(len(r.Limits), maxLimits)] {
		if l.Candidate != "" {
			text := "in place of the limit"
			if len(r.Limits) > 1 {
				text += " " + cmp.Or(printable(l.Name), `""`)
			}
			all = append(all, text+", "+printable(l.Candidate)+" is tried out")
		}
	}
	return strings.Join(all, "; ")
}

// checkCandidate checks what may take the place of a limit, and returns its value.
func (c *checker) checkCandidate(r *checked, l Limit) (v stint.Limit) {
	const path = "candidate"
	if l.Counter < 0 || l.Counter > maxCounter {
		c.refuseNumber("counter", int64(l.Counter), "from 1 to "+strconv.Itoa(maxCounter)+", or none for the first: it is one more for each candidate that has taken the place of the limit")
	}
	if l.Candidate == "" {
		return v
	}
	switch {
	case r.Action.Passes():
		c.Add(path, "the action "+string(r.Action)+" denies nothing yet: want no candidate, but another limit", "")
	case r.Action == Throttle:
		c.Add(path, "the action throttle holds requests, which cannot be done twice: want the action reject, or a preview of the rule", "")
	case r.Partial():
		c.Add(path, "the rule is in force for a part of clients (enforce, rollout), and tried out on the others: want one of both", "")
	case r.Replaces != "":
		c.Add(path, "the rule itself is tried out (replaces): want no candidate, but another limit", "")
	}
	before := len(c.Problems)
	next := Limit{Limit: l.Candidate, Lease: l.Lease, Split: l.Split}
	v, ok := c.checkLimit(next)
	if ok {
		v = r.held(v)
		c.checkLease(next, v)
		c.checkSplit(next, v)
	}
	for i := before; i < len(c.Problems); i++ {
		p := &c.Problems[i]
		if p.Path != "limit" {
			p.Message = "with the " + p.Path + " of the limit, " + p.Message
		}
		p.Path = path
	}
	return v
}

// checkReplaces checks the rules that may take the place of others.
func (c *checker) checkReplaces() {
	by := map[string]string{}
	for i := range c.rules {
		r := &c.rules[i]
		if r.Replaces == "" {
			continue
		}
		path := r.path() + ".replaces"
		n := slices.IndexFunc(c.file.Rules, func(o Rule) bool { return o.Name == r.Replaces })
		switch {
		case r.Action == Throttle:
			c.Add(path, "the action throttle holds requests, which cannot be done twice: want the action reject, or a preview of the rule", "")
		case r.Action != "" && r.Action != Reject:
			c.Add(path, "the action "+string(r.Action)+" cannot be tried out: want the action reject", "")
		case r.Partial():
			c.Add(path, "the rule is tried out on all clients: want no enforce and no rollout until it has taken the place of the other", "")
		case n < 0:
			names := make([]string, len(c.file.Rules))
			for j := range c.file.Rules {
				names[j] = c.file.Rules[j].Name
			}
			c.Refuse(path, r.Replaces, "the name of another rule", c.Closest(r.Replaces, names))
		case r.Replaces == r.Name:
			c.Refuse(path, r.Replaces, "the name of another rule", "")
		case c.file.Rules[n].Replaces != "":
			c.Refuse(path, r.Replaces, "a rule that decides: this one is tried out itself", "")
		case !c.file.Rules[n].counts():
			c.Refuse(path, r.Replaces, "a rule that counts: this one has the action "+string(c.file.Rules[n].Action), "")
		case by[r.Replaces] != "":
			c.Add(path, fmt.Sprintf("%s may already be replaced by %s: want one candidate", strict.Quote(r.Replaces), strict.Quote(by[r.Replaces])), "")
		default:
			by[r.Replaces] = r.Name
		}
	}
}
