package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// listed is a rule, or the limit of a descriptor.
type listed struct {
	Name    string   `json:"name"`
	CountBy []string `json:"count_by"`
	Limits  []string `json:"limits"`
	Action  string   `json:"action"`
	Penalty string   `json:"penalty,omitempty"`
	Enabled bool     `json:"enabled"`
}

func newRulesList(t *terminal) *cobra.Command {
	var f sourceFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the rules, and the limits of Envoy's descriptors",
		Long: `List the rules of a config file, in its order, or of the database that it names, by
their names; and after them the limits of descriptors that envoy.config names: what
has a counter of its own, what it may take, and what becomes of that which is over.`,
		Example: `  stint rules list --config stint.toml
  stint rules list --set envoy.config=ratelimit/config --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			source, err := f.source(t)
			if err != nil {
				return err
			}
			config, err := source.Load()
			if err != nil {
				return advise(source, err)
			}
			t.notes(f.notes)
			if err := fromDatabase(c.Context(), config); err != nil {
				return err
			}
			all := list(config)
			if asJSON {
				return t.writeJSON(all)
			}
			w := t.table()
			fmt.Fprintln(w, "NAME\tCOUNTED BY\tLIMITS\tACTION")
			for _, l := range all {
				action := l.Action
				if l.Penalty != "" {
					action += ", penalty " + l.Penalty
				}
				if !l.Enabled {
					action += ", not enabled"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Name, strings.Join(l.CountBy, ", "), cmp.Or(strings.Join(l.Limits, ", "), "-"), action)
			}
			return w.Flush()
		},
	}
	f.add(c)
	f.addEnvoy(c)
	addJSON(c, &asJSON)
	return c
}

func list(c *daemon.Config) []listed {
	all := []listed{}
	for i := range c.Rules {
		all = append(all, listRule(&c.Rules[i]))
	}
	if d := c.Descriptors(); d != nil {
		for l := range d.Limits() {
			all = append(all, listDescriptor(l, &c.Envoy))
		}
	}
	return all
}

func listRule(r *rule.Rule) listed {
	out := listed{
		Name: r.Name, CountBy: []string{}, Limits: []string{},
		Action: string(cmp.Or(r.Action, rule.Reject)), Enabled: r.Enabled == nil || *r.Enabled,
	}
	for _, d := range r.CountBy {
		out.CountBy = append(out.CountBy, string(d))
	}
	if len(out.CountBy) == 0 {
		out.CountBy = append(out.CountBy, "global")
	}
	for _, l := range r.Limits {
		text := l.Name + " " + l.Limit
		if l.Algorithm != "" {
			text += " " + l.Algorithm
		}
		if l.Burst != 0 {
			text += fmt.Sprintf(" burst=%d", l.Burst)
		}
		out.Limits = append(out.Limits, text)
	}
	if p := r.Penalty; p != nil {
		penalty := stint.Penalty{Threshold: p.Threshold, Within: time.Duration(p.Within), Cooldown: time.Duration(p.Cooldown), Multipliers: p.Multipliers}
		out.Penalty = penalty.String()
	}
	return out
}

// listDescriptor says it in the words of rules, where these have any.
func listDescriptor(l *descriptor.Limit, e *daemon.Envoy) listed {
	out := listed{Name: l.Path, CountBy: []string{"descriptor"}, Limits: []string{}, Action: string(rule.Reject), Enabled: true}
	switch {
	case l.Unlimited:
		out.Action = string(rule.Allow)
		return out
	case l.Requests == 0:
		out.Action = string(rule.Block)
	default:
		out.Limits = append(out.Limits, strings.TrimSpace(l.Name+" "+l.Limit.String()))
	}
	switch {
	case l.Shadow || e.ShadowMode:
		out.Action = string(rule.LogOnly)
	case l.Quota || e.QuotaMode:
		out.Action = "quota_mode"
	}
	if l.Penalty != nil {
		out.Penalty = l.Penalty.String()
	}
	return out
}
