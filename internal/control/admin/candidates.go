package admin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// Candidates is what would change if what is tried out took the place of a rule, or of its limits.
type Candidates struct {
	From   time.Time        `json:"from" doc:"The start of the time range: not before the rule was last changed." example:"2026-01-31T00:00:00Z"`
	To     time.Time        `json:"to" doc:"The end of the time range." example:"2026-02-01T00:00:00Z"`
	By     string           `json:"replaced_by,omitempty" doc:"The rule that may take the place of this one." example:"search-2"`
	Limits []CandidateLimit `json:"limits" nullable:"false" doc:"The limits that have a candidate."`
	More   int64            `json:"more_denied" doc:"How many requests passed that would have been denied." example:"120"`
	Less   int64            `json:"fewer_denied" doc:"How many requests were denied that would have passed." example:"7"`
	// Clients are at most maxClients.
	Clients []CandidateClient `json:"clients" nullable:"false" doc:"The clients for whom most would change, of the newest 1,000 requests for which it would."`
}

// CandidateLimit is a limit and what may take its place.
type CandidateLimit struct {
	Name      string `json:"name" doc:"The name of the limit." example:"requests"`
	Limit     string `json:"limit" doc:"The limit." example:"100/1m"`
	Candidate string `json:"candidate" doc:"What may take its place." example:"50/1m"`
}

// CandidateClient is a client for whom something would change.
type CandidateClient struct {
	Client string `json:"client" doc:"The client: a kind and a name." example:"user:alice"`
	More   int64  `json:"more_denied" doc:"How many of its requests passed that would have been denied." example:"100"`
	Less   int64  `json:"fewer_denied" doc:"How many of its requests were denied that would have passed." example:"0"`
}

func (a *API) addCandidates(rules *resource[rule.Rule, rule.Rule, RuleRecord], op operation) {
	addQuery(a, op, catalog.Viewer, func(ctx context.Context, in *struct {
		ByID
		During
	},
	) (Candidates, error) {
		out, err := a.candidates(ctx, rules, in.ID, in.at(a.now()))
		return out, asParameters(err)
	})
}

func (a *API) candidates(ctx context.Context, rules *resource[rule.Rule, rule.Rule, RuleRecord], name string, during query.Range) (out Candidates, err error) {
	r, err := rules.get(ctx, a, name)
	if err != nil {
		return out, err
	}
	s, err := a.record()
	if err != nil {
		return out, err
	}
	// What was decided under an earlier version of the rule says nothing about this one.
	if during.From.Before(r.Updated) {
		during.From = r.Updated
	}
	out = Candidates{From: during.From, To: during.To, Limits: []CandidateLimit{}, Clients: []CandidateClient{}}
	for _, l := range r.Value.Limits {
		if l.Candidate != "" {
			out.Limits = append(out.Limits, CandidateLimit{l.Name, l.Limit, l.Candidate})
		}
	}
	for _, c := range a.options.Engine.Rules().Rules() {
		if c.Name == name {
			out.By = c.ReplacedBy
		}
	}
	if len(out.Limits) == 0 && out.By == "" || !during.From.Before(during.To) {
		return out, nil
	}
	for _, of := range []struct {
		rule   string
		passed bool
		sum    *int64
	}{{cmp.Or(out.By, name), true, &out.More}, {name, false, &out.Less}} {
		all, err := s.Series(ctx, rollup.SeriesQuery{Range: during, By: "outcome", Rule: of.rule, Shadow: new(true)})
		if err != nil {
			return out, err
		}
		for _, one := range all {
			var o engine.Outcome
			if o.UnmarshalText([]byte(one.Name)) == nil && o.Passed() == of.passed {
				*of.sum += one.Whole.Total
			}
		}
	}
	var more, less int64
	out.Clients, more, less, err = candidateClients(ctx, s, &out, name, during)
	// The minute that is not over is in the events only, and what was before the newest ones in the minutes only.
	out.More, out.Less = max(out.More, more), max(out.Less, less)
	return out, err
}

// candidateClients returns for whom most would change, and how much of the newest events.
func candidateClients(ctx context.Context, s *rollup.Store, of *Candidates, name string, during query.Range) (out []CandidateClient, more, less int64, err error) {
	const newest, maxClients = 1000, 20
	byClient := map[string]*CandidateClient{}
	for _, from := range slices.Compact([]string{name, cmp.Or(of.By, name)}) {
		events, _, err := s.Find(ctx, record.EventQuery{Range: during, Rule: from, Shadow: new(true), Limit: newest})
		if err != nil {
			return nil, 0, 0, err
		}
		for i := range events {
			e := &events[i]
			passed := e.Outcome.Passed()
			if of.By != "" && passed != (e.Rule == of.By) {
				continue // another rule that is tried out
			}
			client := clientName(e)
			c := byClient[client]
			if c == nil {
				c = &CandidateClient{Client: client}
				byClient[client] = c
			}
			if passed {
				c.More, more = c.More+e.Weight, more+e.Weight
			} else {
				c.Less, less = c.Less+e.Weight, less+e.Weight
			}
		}
	}
	out = make([]CandidateClient, 0, len(byClient))
	for _, c := range byClient {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b CandidateClient) int {
		return cmp.Or(-cmp.Compare(a.More+a.Less, b.More+b.Less), cmp.Compare(a.Client, b.Client))
	})
	return out[:min(len(out), maxClients)], more, less, nil
}

// clientName returns who sent a request, as far as it is known.
func clientName(e *record.Event) string {
	switch {
	case e.User != "":
		return "user:" + e.User
	case e.Key != "":
		return "key:" + e.Key
	case e.Tenant != "":
		return "tenant:" + e.Tenant
	default:
		return "ip:" + e.IP
	}
}
