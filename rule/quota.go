package rule

import (
	"slices"

	"github.com/stintdev/stint"
)

// Quota is a limit, or a penalty, that may apply to requests of a subject.
type Quota struct {
	Rule *Compiled
	Name string // of the limit; that of a penalty is penalty!
	// Endpoint is the pattern that is counted, if the rule counts by endpoint.
	Endpoint string
	// Source is where the limit comes from: api_key, user, tier NAME, or rule.
	Source string
	// Shadow says that the rule is only tried out on the subject.
	Shadow bool
	// Ask reads the counter and takes nothing. If the subject is unlimited, its Limit
	// is zero and the key is empty.
	Ask stint.Ask
	// Unknown is a dimension whose value only a request has. There is a counter for
	// each value, so the key is empty.
	Unknown Dimension
}

// Unlimited reports whether the subject is not limited.
func (q *Quota) Unlimited() bool { return q.Ask.Penalty == nil && q.Ask.Limit == stint.Limit{} }

// Quotas returns every limit that may apply to a request of a subject, by the priority and
// name of rules, including those that others share and those whose counter is not known.
// Attrs hold what is known of its user, tenant, API key, address and tier. A rule that
// counts by endpoint has a quota of each limit for each endpoint.
//
// Conditions other than tiers and, if the address is known, networks are assumed to hold. A
// rule is left out if another rule of its group provably always comes first, or if a block
// or allow rule always decides. Quotas walks all rules: it is for people, not for requests.
func (s *Set) Quotas(a *Attrs) []Quota {
	groups := map[int32][]*entry{} // entries that may apply to the subject
	var deciding []*entry
	var rules []*Compiled
	for _, r := range s.rules {
		if !r.Enabled || !r.takesTier(a) || (a.IP.IsValid() && !r.takesAddress(a)) {
			continue
		}
		rules = append(rules, r)
		for _, e := range r.entries {
			switch {
			case r.Group != "":
				group := e.groupFor(a)
				groups[group] = append(groups[group], e)
			case r.Action == Block || r.Action == Allow:
				deciding = append(deciding, e)
			}
		}
	}
	var out []Quota
	for _, r := range rules {
		if len(r.limits) == 0 {
			continue
		}
		entries := slices.DeleteFunc(slices.Clone(r.entries), func(e *entry) bool {
			return e.hiddenBy(groups[e.groupFor(a)], true, a) || e.hiddenBy(deciding, false, a)
		})
		lacks := r.lacksDim(a)
		if lacks != nil || !r.countsEndpoint() {
			entries = entries[:min(len(entries), 1)]
		}
		for _, e := range entries {
			endpoint := ""
			if lacks == nil && r.countsEndpoint() {
				endpoint = e.path.text
			}
			out = s.appendQuotas(out, e, endpoint, lacks, a)
		}
	}
	return out
}

// appendQuotas appends the quotas of a rule with one of its paths.
func (s *Set) appendQuotas(dst []Quota, e *entry, endpoint string, lacks *dim, a *Attrs) []Quota {
	hits := []Hit{e.hit}
	var asks []stint.Ask
	unknown := Dimension("")
	if lacks != nil {
		unknown = lacks.dimension()
	} else {
		asks, _ = s.Asks(nil, hits, a, nil)
	}
	shadow := lacks == nil && e.rule.triedOut(a)
	next := 0
	for i := range e.rule.limits {
		l := &e.rule.limits[i]
		v, source := e.rule.valueOf(l, a, s.tiers[a.Tier])
		if source == fromTier {
			source += " " + a.Tier
		}
		q := Quota{Rule: e.rule, Name: l.name, Endpoint: endpoint, Source: source, Shadow: shadow, Ask: stint.Ask{Limit: v}, Unknown: unknown}
		if lacks == nil && !q.Unlimited() {
			q.Ask = asks[next]
			Peek(&q.Ask)
			next++
		}
		dst = append(dst, q)
	}
	if next < len(asks) {
		p := asks[next]
		Peek(&p)
		dst = append(dst, Quota{Rule: e.rule, Name: hits[0].LimitOf(asks, next), Endpoint: endpoint, Source: fromRule, Shadow: shadow, Ask: p})
	}
	return dst
}

// Peek makes an ask one that reads its counter and takes nothing. While the store is out of
// reach it fails neither open nor closed, since whoever looks wants to know.
func Peek(a *stint.Ask) {
	a.Cost = 0
	if a.Policy != nil {
		a.Policy = new(*a.Policy)
		a.Policy.OnFailure = stint.FailLocal
	}
}

// hiddenBy reports whether one of the others applies to every request of the subject that
// the entry matches and, if they are rivals, comes first. The subject's tier and address
// meet their conditions.
func (e *entry) hiddenBy(others []*entry, rivals bool, a *Attrs) bool {
	const maxCompared = 1000 // of more, nothing is claimed
	return slices.ContainsFunc(others[:min(len(others), maxCompared)], func(w *entry) bool {
		return w.rule != e.rule && (!rivals || w.hit.place < e.hit.place) && w.covers(e, a)
	})
}

// covers reports whether the entry matches every request of the subject that the other
// matches.
func (e *entry) covers(other *entry, a *Attrs) bool {
	for _, w := range e.headers {
		if !slices.ContainsFunc(other.headers, func(o wanted) bool { return o.name == w.name && w.is(o.value) }) {
			return false
		}
	}
	for _, d := range e.countedBy(a) {
		if !d.in(a) && !slices.ContainsFunc(other.countedBy(a), func(o dim) bool { return o == d }) {
			return false
		}
	}
	return (len(e.methods) == 0 || within(other.methods, e.methods, equal)) &&
		(len(e.ranges) == 0 || a.IP.IsValid() || within(other.ranges, e.ranges, contains)) &&
		(len(e.rule.match.Paths) == 0 || len(other.rule.match.Paths) > 0 && e.path.covers(other.path))
}

// CountBy returns the dimensions that the rule counts by, in the order of keys, or global.
func (r *Compiled) CountBy() []Dimension {
	dims := r.dims[1]
	if len(dims) == 0 {
		return []Dimension{"global"}
	}
	out := make([]Dimension, len(dims))
	for i := range dims {
		out[i] = dims[i].dimension()
	}
	return out
}

// dimension returns the dimension as it is written in files.
func (d *dim) dimension() Dimension {
	if d.name == "" {
		return Dimension(kinds[d.kind])
	}
	return Dimension(kinds[d.kind] + ":" + d.name)
}
