package fitting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/rule"
)

// Overview is advice about all rules, and about the busiest endpoints that none of them is about.
type Overview struct {
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	OneIn     int64     `json:"one_in"`
	Requests  int64     `json:"requests"`
	Rules     []Advice  `json:"rules" nullable:"false"`     // by name
	Endpoints []Advice  `json:"endpoints" nullable:"false"` // the busiest first
	Notes     []string  `json:"notes" nullable:"false"`
}

// The bounds of an overview.
const (
	mostRules    = 100
	mostListed   = 10     // endpoints
	mostUnlisted = 20_000 // endpoints that are counted to find those
)

// AdviseEndpoint is [Advise] about a path pattern that has no rule, whose name is not among those of others. Clients are told apart by
// user, tenant, api_key or ip; if that is empty, by user if most requests have one, or else by ip.
func AdviseEndpoint(ctx context.Context, o AdviceOptions, pattern, by string, others map[string]bool, requests iter.Seq2[recorded.Request, error]) (Advice, error) {
	l := Limit{Endpoint: pattern}
	name := l.name(others)
	o.Rule = rule.Rule{
		Name: name, Match: rule.Match{Paths: []string{pattern}}, CountBy: []rule.Dimension{rule.Dimension(by)},
		// Their sizes are to be found. Tiers have values by the names of limits, so these must be new, too.
		Limits: []rule.Limit{{Name: name + "-minute", Limit: "1/1m"}, {Name: name + "-second", Limit: "1/1s"}},
	}
	if by == "" {
		o.Rule.CountBy[0] = "ip"
		m, err := matcherOf(&o)
		if err != nil {
			return Advice{}, err
		}
		var named, all int64
		for q, err := range requests {
			if err != nil {
				return Advice{}, err
			}
			if _, found := m.Match(&q); found == recorded.Yes {
				if all += q.Times(); q.User != "" {
					named += q.Times()
				}
			}
		}
		if 2*named > all {
			o.Rule.CountBy[0] = "user"
		}
	}
	o.endpoint = pattern
	return Advise(ctx, o, requests)
}

// matcherOf returns what tells the requests of the rule of an advice.
func matcherOf(o *AdviceOptions) (*recorded.Matcher, error) {
	f := alone(&o.Rule, o.Tiers)
	f.Case = o.Case
	f.Rules[0].Enabled = nil
	set, err := rule.Compile(f)
	if err != nil {
		return nil, err
	}
	return recorded.NewMatcher(&f.Rules[0], set, set.Rules()[0].CountBy())
}

// AdviseAll is [Advise] about each of these rules that is enabled and counts, and about the endpoints with most requests that none of
// them matches.
func AdviseAll(ctx context.Context, o AdviceOptions, rules []rule.Rule, requests iter.Seq2[recorded.Request, error]) (Overview, error) {
	o.OneIn = cmp.Or(o.OneIn, 1000)
	out := Overview{From: o.From.UTC(), To: o.To.UTC(), OneIn: o.OneIn, Rules: []Advice{}, Endpoints: []Advice{}, Notes: []string{}}
	rules = slices.SortedFunc(slices.Values(rules), func(x, y rule.Rule) int { return strings.Compare(x.Name, y.Name) })
	rules = slices.DeleteFunc(rules, func(r rule.Rule) bool { return r.Enabled != nil && !*r.Enabled })
	names, matchers, more := map[string]bool{}, []*recorded.Matcher{}, 0
	for _, r := range rules {
		o.Rule, names[r.Name] = r, true
		m, err := matcherOf(&o)
		if err != nil {
			return Overview{}, err
		}
		if matchers = append(matchers, m); len(r.Limits) == 0 {
			continue
		}
		if len(out.Rules) == mostRules {
			more++
			continue
		}
		found, err := Advise(ctx, o, requests)
		if err != nil {
			return Overview{}, err
		}
		out.Rules = append(out.Rules, found)
	}
	u, err := unlimited(ctx, matchers, requests)
	if err != nil {
		return Overview{}, err
	}
	for _, name := range u.busiest() {
		found, err := AdviseEndpoint(ctx, o, name, "", names, those(u.endpoints[name].requests))
		if errors.As(err, new(rule.Problems)) {
			continue // paths of requests may have characters that no rule has a way to write
		}
		if err != nil {
			return Overview{}, err
		}
		if s := found.Suggestion; s != nil {
			names[s.Rule.Name] = true
		}
		out.Endpoints = append(out.Endpoints, found)
	}
	out.Requests = recorded.Whole(u.all)
	for _, n := range []struct {
		applies bool
		text    string
	}{
		{o.Unsampled, "Requests that passed are not recorded, so it is not known how much clients use: record a sample of them."},
		{u.sampled > 0, recorded.SampledNote(u.sampled, u.sampledFor)},
		{o.Stretch > 0, fmt.Sprintf("Not all events were read: of each part of the time, only those of about %v, which stand for the others.", o.Stretch.Round(time.Millisecond))},
		{u.pathless > 0, fmt.Sprintf("No path was recorded of %s that no rule matches: their endpoints are not known.", recorded.Requests(recorded.Whole(u.pathless)))},
		{more > 0, fmt.Sprintf("There are %s more than %d: ask for those one by one.", recorded.Count(int64(more), "rule"), mostRules)},
	} {
		if n.applies {
			out.Notes = append(out.Notes, n.text)
		}
	}
	return out, nil
}

// uncovered is what is known of the requests that no rule matches.
type uncovered struct {
	all, pathless, sampledFor float64
	sampled                   int64
	endpoints                 map[string]*endpoint
}

type endpoint struct {
	count    float64
	requests []recorded.Request
}

func unlimited(ctx context.Context, matchers []*recorded.Matcher, requests iter.Seq2[recorded.Request, error]) (*uncovered, error) {
	u := &uncovered{endpoints: map[string]*endpoint{}}
	for q, err := range requests {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		n := q.Counts(q.Times())
		if u.all += n; q.Times() > 1 {
			u.sampled++
			u.sampledFor += n
		}
		if slices.ContainsFunc(matchers, func(m *recorded.Matcher) bool { _, a := m.Match(&q); return a != recorded.No }) {
			continue
		}
		if q.Path == "" {
			u.pathless += n
			continue
		}
		name := record.EndpointOf(q.Path)
		e := u.endpoints[name]
		if e == nil && len(u.endpoints) < mostUnlisted {
			e = new(endpoint)
			u.endpoints[name] = e
		}
		if e != nil {
			e.count += n
			e.requests = append(e.requests, q)
		}
	}
	return u, nil
}

// busiest returns the endpoints with the most requests, of those with enough.
func (u *uncovered) busiest() []string {
	maps.DeleteFunc(u.endpoints, func(_ string, e *endpoint) bool { return e.count < leastRequests })
	names := slices.SortedFunc(maps.Keys(u.endpoints), func(x, y string) int {
		return cmp.Or(cmp.Compare(u.endpoints[y].count, u.endpoints[x].count), strings.Compare(x, y))
	})
	return names[:min(len(names), mostListed)]
}
