package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// listed is a rule, or the limit of a descriptor.
type listed struct {
	Name     string    `json:"name"`
	CountBy  []string  `json:"count_by"`
	Limits   []string  `json:"limits"`
	Action   string    `json:"action"`
	Penalty  string    `json:"penalty,omitempty"`
	Group    string    `json:"group,omitempty"`
	Priority int       `json:"priority,omitempty"`
	Enabled  bool      `json:"enabled"`
	Version  int64     `json:"version,omitempty"` // none in a file
	Updated  time.Time `json:"updated_at,omitzero"`
	By       string    `json:"updated_by,omitempty"`
}

func newRulesList(t *terminal) *cobra.Command {
	var (
		f                         eitherFlags
		contains, action, group   string
		onlyEnabled, onlyDisabled bool
		as                        string
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the rules, and the limits of Envoy's descriptors",
		Long: `List the rules of a server, or of the database that is named, by their names; or those of
a config file, in its order, and after them the limits of descriptors that envoy.config
names: what they count by, their limits, and what happens to requests over the limit.`,
		Example: `  stint rules list
  stint rules list --contains search --enabled -o json
  stint rules list --config stint.toml
  stint rules list --set envoy.config=ratelimit/config -o csv`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := f.remote(t)
			if err != nil {
				return err
			}
			var all []listed
			if a != nil {
				defer a.close()
				all, err = listServer(c.Context(), a)
			} else {
				all, err = listFile(c.Context(), t, &f.databaseFlags)
			}
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(l listed) bool {
				return !strings.Contains(l.Name, contains) || action != "" && l.Action != action || group != "" && l.Group != group ||
					onlyEnabled && !l.Enabled || onlyDisabled && l.Enabled
			})
			return t.say(as, all, nil, func() error { return showListed(t, all) })
		},
	}
	f.add(c)
	f.addEnvoy(c)
	c.Flags().StringVar(&contains, "contains", "", "only those with this `text` in their names")
	c.Flags().StringVar(&action, "action", "", "only those with this `action`")
	c.Flags().StringVar(&group, "group", "", "only those of this `group`")
	c.Flags().BoolVar(&onlyEnabled, "enabled", false, "only those that are enabled")
	c.Flags().BoolVar(&onlyDisabled, "disabled", false, "only those that are not")
	c.MarkFlagsMutuallyExclusive("enabled", "disabled")
	addOutput(c, &as)
	return c
}

func showListed(t *terminal, all []listed) error {
	w := t.grid("NAME", "COUNTED BY", "LIMITS", "ACTION")
	for _, l := range all {
		action := l.Action
		if l.Penalty != "" {
			action += ", penalty " + l.Penalty
		}
		if !l.Enabled {
			action += ", not enabled"
		}
		w.row(l.Name, l.CountBy, l.Limits, action)
	}
	return w.Flush()
}

func listServer(ctx context.Context, a *client) ([]listed, error) {
	all := []listed{}
	for r, err := range pages[admin.Record[rule.Rule]](ctx, a, "/rules", url.Values{}, 1000) {
		if err != nil {
			return nil, err
		}
		l := listRule(&r.Value)
		l.Version, l.Updated, l.By = r.Version, r.Updated, r.By
		all = append(all, l)
	}
	return all, nil
}

func listFile(ctx context.Context, t *terminal, f *databaseFlags) ([]listed, error) {
	source, err := f.located(t)
	if err != nil {
		return nil, err
	}
	config, err := source.Load()
	if err != nil {
		return nil, advise(source, err)
	}
	t.notes(f.notes...)
	if err := fromDatabase(ctx, config); err != nil {
		return nil, err
	}
	return list(config), nil
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
		Action: string(cmp.Or(r.Action, rule.Reject)), Enabled: r.Enabled == nil || *r.Enabled, Group: r.Group, Priority: r.Priority,
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
