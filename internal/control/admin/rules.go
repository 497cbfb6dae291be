package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/rule"
)

// RuleRecord is a rule, as stored.
type RuleRecord struct {
	Record[rule.Rule]
	Reading string `json:"reading" doc:"The rule as a sentence." example:"Each user may send 100 requests a minute to /search; requests over the limit are denied with 429."`
}

// Checked is the result of checking a rule.
type Checked struct {
	OK       bool           `json:"ok" doc:"Whether the rule is valid." example:"true"`
	Problems []FieldProblem `json:"problems" nullable:"false" doc:"The problems of the rule, together with all other rules and tiers."`
	Reading  string         `json:"reading" doc:"The rule as a sentence." example:"Each user may send 100 requests a minute to /search; requests over the limit are denied with 429."`
}

// InPlaceOf names the rule that another one replaces.
type InPlaceOf struct {
	Replacing string `query:"replacing" doc:"The name of the rule that it replaces. Without it, it is a new rule." example:"search"`
}

// RuleOrder is an order of rules.
type RuleOrder struct {
	Names []string `json:"names" nullable:"false" doc:"The names of rules, in the order of priority." example:"[\"login\",\"search\"]"`
}

// Revision is a revision of the catalog.
type Revision struct {
	Revision int64 `json:"revision" doc:"The revision that the change made, or the one before if nothing changed." example:"14"`
}

// checkRule returns the problems of a rule that is new or replaces another.
func (a *API) checkRule(ctx context.Context, r *rule.Rule, replacing string) (strict.Problems, error) {
	if a.options.Catalog != nil {
		return a.options.Catalog.CheckRule(ctx, *r, replacing)
	}
	d := a.options.Document()
	f := rule.File{Rules: slices.Clone(d.Rules), Tiers: d.Tiers, Case: d.Case}
	i := slices.IndexFunc(f.Rules, func(other rule.Rule) bool { return other.Name == replacing })
	switch {
	case replacing == "":
		i = len(f.Rules)
		f.Rules = append(f.Rules, *r)
	case i < 0:
		return nil, &catalog.NotFoundError{Kind: "rule", ID: replacing}
	default:
		f.Rules[i] = *r
	}
	problems := f.Check()
	if w := a.options.World; w != nil {
		problems = append(problems, f.CheckIn(*w)...)
	}
	for j := range problems {
		if rest, ok := strings.CutPrefix(problems[j].Path, strict.Item("rules", i)); ok {
			problems[j].Path = strings.TrimPrefix(rest, ".")
		}
	}
	return problems, nil
}

// maxPreview is how many events a preview replays.
const maxPreview = 20_000

// preview returns what a rule would have done.
func (a *API) preview(ctx context.Context, r *rule.Rule, replacing string, since time.Duration) (sim.Preview, error) {
	store, err := a.record()
	if err != nil {
		return sim.Preview{}, err
	}
	problems, err := a.checkRule(ctx, r, replacing)
	if err == nil {
		err = problems.Err()
	}
	if err != nil {
		return sim.Preview{}, err
	}
	tiers, err := a.tiers(ctx)
	if err != nil {
		return sim.Preview{}, err
	}
	o := sim.Options{Rule: *r, Tiers: tiers, Case: a.options.Engine.Rules().Case(), To: a.now().UTC()}
	o.From = o.To.Add(-since)
	var events []sim.Request // the newest first
	for page, err := range find(ctx, store, record.EventQuery{Range: query.Range{From: o.From, To: o.To}}, maxPreview) {
		if err != nil {
			return sim.Preview{}, err
		}
		for i := range page {
			events = append(events, simulated(&page[i]))
		}
	}
	cut := len(events) == maxPreview
	if cut {
		o.From = events[len(events)-1].At
	}
	p, err := sim.Run(ctx, o, func(yield func(sim.Request, error) bool) {
		for _, q := range slices.Backward(events) {
			if !yield(q, nil) {
				return
			}
		}
	})
	if cut {
		p.Notes = append(p.Notes, fmt.Sprintf("There were more than %d events: only the latest were replayed, since %s.", maxPreview, o.From.Format(time.RFC3339)))
	}
	return p, err
}

// simulated converts an event to a request that can be replayed.
func simulated(e *record.Event) sim.Request {
	q := sim.Request{
		At: e.At, Method: e.Method, Endpoint: e.Endpoint, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier,
		IP: e.IP, Cost: e.Cost, Weight: e.Weight, Refused: !e.Outcome.Passed(),
	}
	if q.Refused {
		q.RefusedBy = e.Rule
	}
	return q
}

// tiers returns all tiers.
func (a *API) tiers(ctx context.Context) (out []rule.Tier, err error) {
	if a.options.Catalog == nil {
		return a.options.Document().Tiers, nil
	}
	for q := (catalog.Query{Limit: 1000}); ; q.After = out[len(out)-1].Name {
		page, err := a.options.Catalog.Tiers.List(ctx, q)
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

func (a *API) addRules() {
	rules := &resource[rule.Rule, rule.Rule, RuleRecord]{
		path: "rules", one: "rule", tag: tagRules, example: "search", key: "name", patch: object{"priority": 20, "group": nil},
		table: func(c *catalog.Catalog) *catalog.Table[rule.Rule] { return c.Rules },
		filed: func(d *catalog.Document) []rule.Rule { return d.Rules },
		id:    func(r *rule.Rule) string { return r.Name },
		wire:  same[rule.Rule], put: assign[rule.Rule],
		show: func(_ *API, r Record[rule.Rule]) RuleRecord { return RuleRecord{r, r.Value.Sentence()} },
	}
	addWhole(a, rules, filterRules)

	toggle := func(verb, summary, description string, enabled *bool) {
		add(a, rules.op(http.MethodPost, "/{id}/"+verb, verb+"Rule", summary, description, http.StatusConflict, http.StatusUnprocessableEntity),
			catalog.Operator, func(ctx context.Context, in *struct {
				ByID
				DryRun
			},
			) (*Recorded[RuleRecord], error) {
				return rules.replace(ctx, a, in.DryRun, in.ID, anyVersion, func(r *rule.Rule) error { r.Enabled = enabled; return nil })
			})
	}
	toggle("enable", "Enable a rule", "Enables a rule. A rule that is enabled stays as it is.", nil)
	toggle("disable", "Disable a rule", "Disables a rule without deleting it.", new(bool))

	add(a, rules.op(http.MethodPost, "/order", "orderRules", "Order rules", "Sets the priorities of rules to 10, 20, 30 and so on, in this order, in one change. Other rules keep theirs.", http.StatusConflict),
		catalog.Operator, func(ctx context.Context, in *struct {
			DryRun
			Body RuleOrder
		},
		) (*Changed[Revision], error) {
			c, err := a.writing(in.DryRun)
			if err != nil {
				return nil, err
			}
			revision, err := c.OrderRules(ctx, actor(ctx), in.Body.Names)
			if err != nil {
				return nil, err
			}
			a.written(ctx, in.DryRun)
			return new(changed(in.DryRun, Revision{revision})), nil
		})

	addQuery(a, rules.op(http.MethodPost, "/validate", "validateRule", "Check a rule", "Checks a rule together with all others, and returns it as a sentence. It changes nothing.", http.StatusNotFound),
		catalog.Viewer, func(ctx context.Context, in *struct {
			InPlaceOf
			Body rule.Rule
		},
		) (Checked, error) {
			problems, err := a.checkRule(ctx, &in.Body, in.Replacing)
			if err != nil {
				return Checked{}, err
			}
			return Checked{len(problems) == 0, fieldProblems(problems), in.Body.Sentence()}, nil
		})

	preview := rules.op(http.MethodPost, "/preview", "previewRule", "Preview a rule",
		"Replays recorded events of the last hour, or of another time, against a rule that need not be stored, and returns what it would have denied. "+
			"Requests that passed may be sampled, and are then estimated; if there are too many events, only the latest are replayed. It changes nothing.",
		http.StatusConflict, http.StatusNotFound)
	preview.Timeout = 30 * time.Second
	addQuery(a, preview,
		catalog.Viewer, func(ctx context.Context, in *struct {
			InPlaceOf
			Since float64 `query:"since_seconds" default:"3600" minimum:"1" maximum:"2678400" doc:"How many seconds to look back." example:"3600"`
			Body  rule.Rule
		},
		) (sim.Preview, error) {
			return a.preview(ctx, &in.Body, in.Replacing, time.Duration(in.Since*float64(time.Second)))
		})

	addQuery(a, rules.op(http.MethodGet, "/{id}/history", "ruleHistory", "Get the history of a rule", "Returns the changes of a rule, newest first, even if it was deleted.", http.StatusConflict),
		catalog.Viewer, func(ctx context.Context, in *struct {
			ByID
			Before string `query:"before" doc:"Only changes before this one: the next of the previous page." example:"14.0"`
			Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		},
		) (ChangeList, error) {
			list, err := a.changes(ctx, catalog.ChangeQuery{Kind: "rule", ID: in.ID, Before: in.Before, Limit: in.Limit})
			if err == nil && len(list.Items) == 0 && in.Before == "" {
				err = &catalog.NotFoundError{Kind: "rule", ID: in.ID}
			}
			return list, err
		})
}
