package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Rollout is how far a rule is rolled out.
type Rollout struct {
	Rule    string        `json:"rule" doc:"The rule." example:"search"`
	Share   string        `json:"share" doc:"For which part of clients the rule is in force now; 0%: for none." example:"10%"`
	Step    int           `json:"step" doc:"The number of the step that it is the time for, from 1; 0: the first has not begun." example:"2"`
	Steps   []RolloutStep `json:"steps" nullable:"false" doc:"The steps."`
	BackIf  string        `json:"back_if,omitempty" doc:"When it is taken back." example:"denied > 2%"`
	Stopped *rule.Stopped `json:"stopped,omitempty" doc:"How it has ended before its last step. Missing: it goes on."`
}

// RolloutStep is a step of a rollout.
type RolloutStep struct {
	Share  rule.Percent `json:"share" doc:"For which part of clients the rule is in force." example:"10%"`
	Begins time.Time    `json:"begins" doc:"When the step begins." example:"2026-01-31T12:00:00Z"`
}

// RolloutChange is what a rollout has to do.
type RolloutChange struct {
	Do     string        `json:"do" enum:"stop,resume,to" doc:"stop: take it back, so that the rule is only tried out; resume: go on at the beginning of the step at which it was stopped; to: stay at a step." example:"to"`
	Share  *rule.Percent `json:"share,omitempty" doc:"The step to stay at, if do is to." example:"50%"`
	Reason string        `json:"reason,omitempty" doc:"Why it is stopped, for people." example:"complaints of two customers"`
}

// rolloutOf returns how far a rule is rolled out.
func rolloutOf(r *rule.Rule, now time.Time) (Rollout, error) {
	o := r.Rollout
	if o == nil {
		return Rollout{}, strict.Problems{{Path: "rollout", Message: "the rule " + strict.Quote(r.Name) + " has none"}}
	}
	out := Rollout{Rule: r.Name, Share: o.Share(now).String(), Step: o.Step(now) + 1, Steps: []RolloutStep{}, Stopped: o.Stopped}
	for i, share := range o.Steps {
		out.Steps = append(out.Steps, RolloutStep{share, o.Begins(i).UTC()})
	}
	if o.BackIf != 0 {
		out.BackIf = o.BackIf.String()
	}
	return out, nil
}

// apply changes the rollout of a rule.
func (c *RolloutChange) apply(r *rule.Rule, now time.Time, who string) error {
	o := r.Rollout
	if _, err := rolloutOf(r, now); err != nil {
		return err
	}
	if c.Share != nil && c.Do != "to" {
		return strict.Problems{{Path: "share", Message: "is the step to stay at: want none, or do = to"}}
	}
	reason := c.Reason
	if reason == "" {
		reason = "by " + who
	}
	switch c.Do {
	case "stop":
		r.Rollout = o.Stop(now, 0, reason)
	case "resume":
		r.Rollout = o.Resume(now)
	default:
		if c.Share == nil || !slices.Contains(o.Steps, *c.Share) {
			var steps []string
			for _, s := range o.Steps {
				steps = append(steps, s.String())
			}
			return strict.Problems{{Path: "share", Message: "want one of the steps, " + strings.Join(steps, ", ")}}
		}
		r.Rollout = o.Stop(now, *c.Share, reason)
	}
	return nil
}

func (a *API) addRollouts(rules *resource[rule.Rule, rule.Rule, RuleRecord]) {
	addQuery(a, rules.op(http.MethodGet, "/{id}/rollout", "rollout", "Get the rollout of a rule", "Returns for which part of clients a rule is in force now, its steps, and when they begin.", http.StatusUnprocessableEntity),
		catalog.Viewer, func(ctx context.Context, in *struct{ ByID }) (Rollout, error) {
			r, err := rules.get(ctx, a, in.ID)
			if err != nil {
				return Rollout{}, err
			}
			return rolloutOf(&r.Value, a.now())
		})
	add(a, rules.op(http.MethodPost, "/{id}/rollout", "changeRollout", "Change the rollout of a rule", "Takes the rollout of a rule back, has it stay at a step, or go on.", http.StatusConflict, http.StatusUnprocessableEntity),
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			DryRun
			Body RolloutChange
		},
		) (*Recorded[RuleRecord], error) {
			return rules.replace(ctx, a, in.DryRun, in.ID, anyVersion, func(r *rule.Rule) error { return in.Body.apply(r, a.now(), actor(ctx)) })
		})
}
