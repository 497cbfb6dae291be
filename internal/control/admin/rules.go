package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
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
		wire:  same[rule.Rule], put: assign[rule.Rule], visible: harmlessRule,
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

	add(a, rules.op(http.MethodPost, "/{id}/promote", "promoteRule", "Promote what is tried out",
		"Puts the candidates of the rule's limits in their place or, if there are none, the rule that replaces it, and deletes this one. They keep what they have counted. The answer is the revision.",
		http.StatusConflict, http.StatusUnprocessableEntity),
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			DryRun
		},
		) (*Changed[Revision], error) {
			c, err := a.writing(in.DryRun)
			if err != nil {
				return nil, err
			}
			revision, err := c.PromoteRule(ctx, actor(ctx), in.ID)
			if err != nil {
				return nil, err
			}
			a.written(ctx, in.DryRun)
			return new(changed(in.DryRun, Revision{revision})), nil
		})
	a.addCandidates(rules, rules.op(http.MethodGet, "/{id}/candidates", "getCandidates", "Compare what is tried out",
		"Returns how many requests would have been decided otherwise if what is tried out were in the place of the rule, or of its limits: those that would have been denied, and those that would have passed. "+
			"The clients are those of the newest 1,000 of such requests.", http.StatusConflict, http.StatusNotFound))
	a.addRollouts(rules)

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
			"It says how many requests are known to match, are known not to match, and are unclear, because the record does not tell. "+
			"Requests that passed may be sampled, and are then estimated; if there are more than 20,000 events, a part of them is read evenly from the whole time, and the roll-ups say for how many each stands. It changes nothing.",
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
