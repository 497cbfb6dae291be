package admin

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/rule"
)

// maxAdvised is how many advices are made at once. Each has the events of a preview in memory.
const maxAdvised = 2

// Advised is what advice is based on.
type Advised struct {
	During
	Clients int64 `query:"clients" default:"1000" minimum:"2" maximum:"1000000000" doc:"The suggested limits may deny one client in so many." example:"1000"`
}

func (a *API) addAdvice(rules *resource[rule.Rule, rule.Rule, RuleRecord]) {
	const about = " It replays up to 20,000 recorded events; of more, a part is read evenly from the whole time. It changes nothing."
	advise := func(op operation) operation {
		op.Timeout = 30 * time.Second
		op.Problems = append(op.Problems, http.StatusConflict)
		return op
	}
	addQuery(a, advise(rules.op(http.MethodGet, "/{id}/advice", "getRuleAdvice", "Get advice about a rule",
		"Returns how much clients use of the limits of a rule, what these deny, whether they ever bind, and the limits that would have denied at most one client in so many, with what they would have denied."+about)),
		catalog.Viewer, func(ctx context.Context, in *struct {
			ByID
			Advised
		},
		) (out fitting.Advice, err error) {
			r, err := rules.get(ctx, a, in.ID)
			if err != nil {
				return out, a.nearly(err, in.ID)
			}
			if len(r.Value.Limits) == 0 {
				return out, fail(http.StatusConflict, "the rule "+strict.Quote(in.ID)+" has no limits: its action is "+string(r.Value.Action))
			}
			err = a.advise(ctx, &in.Advised, []rule.Rule{r.Value}, func(o fitting.AdviceOptions, requests iter.Seq2[recorded.Request, error]) error {
				o.Rule = r.Value
				out, err = fitting.Advise(ctx, o, requests)
				return err
			})
			return out, err
		})
	addQuery(a, advise(rules.op(http.MethodGet, "", "getEndpointAdvice", "Get advice about an endpoint",
		"Returns how often clients send requests to an endpoint, and the limits of a new rule that would have denied at most one client in so many, with what they would have denied."+about).at("/advice/endpoint")),
		catalog.Viewer, func(ctx context.Context, in *struct {
			Advised
			Path string `query:"path" required:"true" maxLength:"512" doc:"The endpoint: a path pattern, as in a rule." example:"/v1/search/{index}"`
			By   string `query:"by" enum:"user,tenant,api_key,ip" doc:"What clients are told apart by. Default: user if most requests have one, or else ip." example:"user"`
		},
		) (out fitting.Advice, err error) {
			all, err := a.allRules(ctx)
			if err != nil {
				return out, err
			}
			names := map[string]bool{}
			for i := range all {
				names[all[i].Name] = true
			}
			err = a.advise(ctx, &in.Advised, nil, func(o fitting.AdviceOptions, requests iter.Seq2[recorded.Request, error]) error {
				out, err = fitting.AdviseEndpoint(ctx, o, in.Path, in.By, names, requests)
				return err
			})
			return out, ofPath(err)
		})
	all := advise(rules.op(http.MethodGet, "", "getAdvice", "Get advice about all rules",
		"Returns advice about each rule that is enabled and has limits, at most 100, and about the busiest endpoints that no rule matches."+about).at("/advice"))
	all.Timeout = time.Minute
	addQuery(a, all,
		catalog.Viewer, func(ctx context.Context, in *Advised) (out fitting.Overview, err error) {
			all, err := a.allRules(ctx)
			if err != nil {
				return out, err
			}
			err = a.advise(ctx, in, all, func(o fitting.AdviceOptions, requests iter.Seq2[recorded.Request, error]) error {
				out, err = fitting.AdviseAll(ctx, o, all, requests)
				return err
			})
			return out, err
		})
}

// at returns the operation with another path, which has no id.
func (op operation) at(path string) operation {
	op.Path, op.ExampleID = path, ""
	return op
}

// advise reads what the record has of a time, and calls a function with it. The rules are those that the advice is about, or none.
func (a *API) advise(ctx context.Context, in *Advised, rules []rule.Rule, do func(fitting.AdviceOptions, iter.Seq2[recorded.Request, error]) error) error {
	store, err := a.record()
	if err != nil {
		return err
	}
	leave, ok := occupy(&a.advised, maxAdvised)
	if !ok {
		return fail(http.StatusServiceUnavailable, "advice is given to "+strconv.Itoa(maxAdvised)+" others, which is the maximum").with("Retry-After", "5")
	}
	defer leave()
	tiers, err := a.tiers(ctx)
	if err != nil {
		return err
	}
	during := in.at(a.now())
	var p strict.Report
	if during.Check(&p, a.now()); len(p.Problems) > 0 {
		return asParameters(p.Problems)
	}
	o := fitting.AdviceOptions{
		Options: sim.Options{Tiers: tiers, Case: a.options.Engine.Rules().Case(), From: during.From, To: during.To, Unsampled: a.options.Unsampled},
		OneIn:   in.Clients,
		Check: func(r *rule.Rule) (strict.Problems, error) {
			replacing := ""
			if slices.ContainsFunc(rules, func(known rule.Rule) bool { return known.Name == r.Name }) {
				replacing = r.Name
			}
			return a.checkRule(ctx, r, replacing)
		},
	}
	window := time.Minute
	for i := range rules {
		of := o.Options
		of.Rule = rules[i]
		longest, err := sim.Window(of)
		if err != nil {
			return err
		}
		window = max(window, longest)
	}
	s, err := sampler{store: store, most: maxPreview}.read(ctx, query.Range{From: o.From, To: o.To}, window)
	if err != nil {
		return asParameters(err)
	}
	o.Recorded, o.Stretch, o.Missing = s.recorded, s.stretch, s.missing
	return do(o, func(yield func(recorded.Request, error) bool) {
		for _, q := range s.requests {
			if !yield(q, ctx.Err()) {
				return
			}
		}
	})
}

// allRules returns all rules.
func (a *API) allRules(ctx context.Context) (out []rule.Rule, err error) {
	if a.options.Catalog == nil {
		return a.options.Document().Rules, nil
	}
	for q := (catalog.Query{Limit: maxPage}); ; q.After = out[len(out)-1].Name {
		page, err := a.options.Catalog.Rules.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			out = append(out, page[i].Value)
		}
		if len(page) < q.Limit {
			return out, nil
		}
	}
}

// nearly suggests the rule that was probably meant by a name that none has.
func (a *API) nearly(err error, name string) error {
	if !errors.As(err, new(*catalog.NotFoundError)) {
		return err
	}
	var names []string
	for _, r := range a.options.Engine.Rules().Rules() {
		names = append(names, r.Name)
	}
	if word, ok := strict.Closest(name, names); ok {
		return blame(http.StatusNotFound, "", err.Error(), strict.DidYouMean(word))
	}
	return err
}

// ofPath gives the problems of a rule that was made for a path the name of its parameter.
func ofPath(err error) error {
	var problems strict.Problems
	if errors.As(err, &problems) {
		for i := range problems {
			if strings.Contains(problems[i].Path, "paths") {
				problems[i].Path = "path"
			}
		}
	}
	return asParameters(err)
}
