package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// listed is a rule, or a limit of a descriptor.
type listed struct {
	Name     string        `json:"name"`
	CountBy  []string      `json:"count_by"`
	Limits   []string      `json:"limits"`
	Action   string        `json:"action"`
	Enforce  string        `json:"enforce,omitempty"`
	Rollout  *rule.Rollout `json:"rollout,omitempty"`
	Penalty  string        `json:"penalty,omitempty"`
	Group    string        `json:"group,omitempty"`
	Priority int           `json:"priority,omitempty"`
	Enabled  bool          `json:"enabled"`
	Version  int64         `json:"version,omitempty"` // 0 in a file
	Updated  time.Time     `json:"updated_at,omitzero"`
	By       string        `json:"updated_by,omitempty"`
}

func newRulesList(t *terminal) *cobra.Command {
	var (
		f                         eitherFlags
		contains, action, group   string
		sort                      string
		onlyEnabled, onlyDisabled bool
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the rules, and the limits of Envoy's descriptors",
		Long: `List the rules of a server or a database, sorted by name, or as --sort says; or those of
a config file, in the order of the file, or as --sort says, followed by the limits of the
descriptors in envoy.config: what they count by, their limits, and what happens to requests
over the limit.`,
		Example: `  stint rules list
  stint rules list --sort priority
  stint rules list --contains search --enabled -o json
  stint rules list --config stint.toml
  stint rules list --set envoy.config=ratelimit/config -o csv`,
		Args: noArgs,
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
			if err := sortRules(all, sort); err != nil {
				return err
			}
			return printList(t, all, "", []string{"NAME", "COUNTED BY", "LIMITS", "ACTION"}, func(l *listed) []any {
				action := l.Action
				if l.Enforce != "" {
					action += ", for " + l.Enforce
				}
				switch o := l.Rollout; {
				case o == nil:
				case o.Stopped == nil:
					action += ", in steps"
				case o.Stopped.Share == 0:
					action += ", rollout taken back"
				default:
					action += ", for " + o.Stopped.Share.String()
				}
				if l.Penalty != "" {
					action += ", penalty " + l.Penalty
				}
				if !l.Enabled {
					action += ", disabled"
				}
				return []any{l.Name, l.CountBy, l.Limits, action}
			})
		},
	}
	f.add(c)
	f.addEnvoy(c)
	addFilters(c,
		filter{&contains, "contains", "only those with this `text` in the name"},
		filter{&action, "action", "only those with this `action`"},
		filter{&group, "group", "only those in this `group`"})
	c.Flags().BoolVar(&onlyEnabled, "enabled", false, "only those that are enabled")
	c.Flags().BoolVar(&onlyDisabled, "disabled", false, "only those that are disabled")
	c.MarkFlagsMutuallyExclusive("enabled", "disabled")
	addSort(c, &sort, slices.Sorted(maps.Keys(ruleOrders))...)
	addOutput(c)
	return c
}

// ruleOrders are what rules can be sorted by.
var ruleOrders = map[string]func(x, y listed) int{
	"name":       func(x, y listed) int { return strings.Compare(x.Name, y.Name) },
	"priority":   func(x, y listed) int { return cmp.Compare(x.Priority, y.Priority) },
	"updated_at": func(x, y listed) int { return x.Updated.Compare(y.Updated) },
}

func sortRules(all []listed, by string) error {
	if by == "" {
		return nil
	}
	field, down := strings.CutPrefix(by, "-")
	compare, ok := ruleOrders[field]
	if !ok {
		return advice{fmt.Errorf("--sort %s: want one of %s, or with a minus before it", strict.Quote(by), strings.Join(slices.Sorted(maps.Keys(ruleOrders)), ", ")), "--sort priority"}
	}
	slices.SortStableFunc(all, func(x, y listed) int {
		if down {
			return compare(y, x)
		}
		return compare(x, y)
	})
	return nil
}

func listServer(ctx context.Context, a *client) ([]listed, error) {
	all := []listed{}
	for r, err := range pages[admin.Record[rule.Rule]](ctx, a, "/rules", "after", url.Values{}) {
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
	config, err := f.load(t, false)
	if err != nil {
		return nil, err
	}
	t.notes(f.notes...)
	if err := readRules(ctx, config); err != nil {
		return nil, err
	}
	all := []listed{}
	for i := range config.Rules {
		all = append(all, listRule(&config.Rules[i]))
	}
	if d := config.Descriptors(); d != nil {
		for l := range d.Limits() {
			all = append(all, listDescriptor(l, &config.Envoy))
		}
	}
	return all, nil
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
		text += spread(l.Lease, l.Split, r.Regions)
		if l.Candidate != "" {
			text += " candidate=" + strings.Join(strings.Fields(l.Candidate), ",")
		}
		out.Limits = append(out.Limits, text)
	}
	if p := r.Penalty; p != nil {
		penalty := stint.Penalty{Threshold: p.Threshold, Within: time.Duration(p.Within), Cooldown: time.Duration(p.Cooldown), Multipliers: p.Multipliers}
		out.Penalty = penalty.String()
	}
	out.Rollout = r.Rollout
	if r.Enforce != 0 {
		out.Enforce = r.Enforce.String()
	}
	return out
}

// spread describes for how long units of a limit are taken ahead, among how many counters
// it is divided, and how regions share it.
func spread(lease rule.Duration, split int, regions rule.Regions) (text string) {
	if lease != 0 {
		text += " lease=" + lease.String()
	}
	if split != 0 {
		text += " split=" + strconv.Itoa(split)
	}
	if regions != "" {
		text += " regions=" + string(regions)
	}
	return text
}

// listDescriptor describes a limit of a descriptor in terms of rules.
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
	case l.Mark:
		out.Action = string(rule.Mark)
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
