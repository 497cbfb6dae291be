package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// named is the flag of limits that are given by their names.
var named = fieldFlag{"limit", "a limit, as `NAME=LIMIT`, such as requests=1000/1h; can be repeated", func(into tree, value string) error {
	name, limit, ok := strings.Cut(value, "=")
	if !ok || name == "" {
		return errors.New("want NAME=LIMIT, such as requests=1000/1h")
	}
	limits, _ := into["limits"].(tree)
	if limits == nil {
		limits = tree{}
		into["limits"] = limits
	}
	limits[name] = limit
	return nil
}}

// list is the flag of a field that is a list.
func listOf(flag, usage string, path ...string) fieldFlag {
	return fieldFlag{flag, usage, func(into tree, value string) error {
		for _, name := range path[:len(path)-1] {
			inside, _ := into[name].(tree)
			if inside == nil {
				inside = tree{}
				into[name] = inside
			}
			into = inside
		}
		last := path[len(path)-1]
		list, _ := into[last].([]any)
		for item := range strings.SplitSeq(value, ",") {
			list = append(list, item)
		}
		into[last] = list
		return nil
	}}
}

// limitsOf are limits by their names, in a line.
func limitsOf(all map[string]catalog.Override) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text := name + " " + all[name].Limit
		if u := all[name].Until; !u.IsZero() {
			text += " until " + cell(u.Time)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func newTiers(t *terminal) *cobra.Command {
	k := kind[rule.Tier]{
		path: "tiers", one: "tier", key: "name", example: "premium", unused: "gold", fields: "price='49 EUR a month' limits.search=50/10s",
		flags: []fieldFlag{
			text("display-name", "display_name", "what people call it, as a `text`"),
			text("price", "price", "what people pay for it, as a `text`"),
			named,
		},
		head: []string{"NAME", "CALLED", "PRICE", "LIMITS"},
		cells: func(r *stored[rule.Tier]) []any {
			var limits []string
			for _, name := range slices.Sorted(maps.Keys(r.Value.Limits)) {
				limits = append(limits, name+" "+r.Value.Limits[name])
			}
			return []any{r.ID, r.Value.DisplayName, r.Value.Price, limits}
		},
	}
	return family("tiers", "Manage tiers: limits that groups of users share", k.commands(t)...)
}

func newUsers(t *terminal) *cobra.Command {
	k := kind[catalog.User]{
		path: "users", one: "user", key: "id", example: "alice", unused: "carol", fields: "tier=premium limits.search=50/10s",
		filters: []filterFlag{{"tier", "only those of this `tier`"}, {"tenant", "only those of this `tenant`"}, {"blocked", "only those who were blocked, with `true`"}},
		flags:   []fieldFlag{text("tier", "tier", "the `tier`"), text("tenant", "tenant", "the `tenant`"), named},
		head:    []string{"ID", "TENANT", "TIER", "LIMITS", "BLOCKED"},
		cells: func(r *stored[catalog.User]) []any {
			blocked := ""
			if b := r.Value.Blocked; b != nil {
				blocked = cmp.Or(b.Reason, "yes")
				if !b.Until.IsZero() {
					blocked += ", until " + cell(b.Until.Time)
				}
			}
			return []any{r.ID, r.Value.Tenant, r.Value.Tier, limitsOf(r.Value.Limits), blocked}
		},
	}
	return family("users", "Manage users", k.commands(t)...)
}

func newTenants(t *terminal) *cobra.Command {
	k := kind[catalog.Tenant]{
		path: "tenants", one: "tenant", key: "id", example: "acme", unused: "globex", fields: "name='Acme Inc.' tier=premium",
		filters: []filterFlag{{"tier", "only those of this `tier`"}},
		flags:   []fieldFlag{text("name", "name", "what people call it, as a `text`"), text("tier", "tier", "the `tier` of those of it who have no other")},
		head:    []string{"ID", "CALLED", "TIER"},
		cells:   func(r *stored[catalog.Tenant]) []any { return []any{r.ID, r.Value.Name, r.Value.Tier} },
	}
	return family("tenants", "Manage tenants", k.commands(t)...)
}

func newKeys(t *terminal) *cobra.Command {
	k := kind[admin.Key]{
		path: "keys", one: "key", example: "k3jq8w2n", fields: "name='mobile app' user=alice",
		filters: []filterFlag{{"user", "only those of this `user`"}, {"tier", "only those of this `tier`"}, {"tenant", "only those of this `tenant`"}},
		flags: []fieldFlag{
			text("name", "name", "what people call it, as a `text`"), text("user", "user", "whose it is: a `user`"),
			text("tenant", "tenant", "the `tenant` that it is of"), text("tier", "tier", "the `tier`, in place of that of its user"), named,
			text("until", "expires", "when it stops being good, as a `time` such as 2026-12-31T00:00:00Z"),
			{"for", "how long it is good, as a `time` such as 90d", func(into tree, value string) error {
				d, err := length(value)
				if err == nil {
					into["expires"] = now().Add(d).UTC().Truncate(time.Second).Format(time.RFC3339)
				}
				return err
			}},
		},
		head: []string{"ID", "NAME", "USER", "TENANT", "TIER", "LIMITS", "STATE"},
		cells: func(r *stored[admin.Key]) []any {
			v, state := &r.Value, "good"
			switch {
			case !v.Revoked.IsZero():
				state = "revoked " + cell(v.Revoked.Time) + " by " + v.RevokedBy
			case v.Disabled:
				state = "disabled"
			case !v.Expires.IsZero() && v.Expires.Before(now()):
				state = "expired " + cell(v.Expires.Time)
			case !v.Expires.IsZero():
				state = "good until " + cell(v.Expires.Time)
			}
			return []any{r.ID, v.Name, v.User, v.Tenant, v.Tier, limitsOf(v.Limits), state}
		},
	}
	return family("keys", "Manage API keys", append(k.commands(t), newKeysRevoke(t, &k))...)
}

func newKeysRevoke(t *terminal, k *kind[admin.Key]) *cobra.Command {
	var yes consent
	var dry bool
	c := serverCommand(t, &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke an API key",
		Long: `Revoke an API key: from now on it is rejected, and it stays in the list. A key that is to
be good again later is better disabled: stint keys set ID disabled=true.`,
		Example: "  stint keys revoke k3jq8w2n",
		Args:    wants(1, 1, "the id of a key"),
	}, func(c *cobra.Command, a *client, args []string) error {
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		if !dry {
			if err := yes.ask(c, t, fmt.Sprintf("the key %s of %s will be revoked for good", printable(r.ID), visible(cmp.Or(r.Value.User, r.Value.Tenant, r.Value.Name)))); err != nil {
				return err
			}
		}
		var now stored[admin.Key]
		if err := a.do(c.Context(), call{method: http.MethodPost, path: k.at(r.ID) + "/revoke", query: dryRun(dry), into: &now}); err != nil {
			return err
		}
		if dry {
			fmt.Fprintf(t.out, "key %s would be revoked; nothing was changed\n", printable(r.ID))
			return nil
		}
		return k.changed(t, &r, &now, false)
	})
	completes(c, "keys")
	c.Flags().BoolVar(&dry, "dry-run", false, "check all, and change nothing")
	yes.add(c)
	return c
}

// length reads how long something is.
func length(text string) (time.Duration, error) {
	var d rule.Duration
	if err := d.UnmarshalText([]byte(text)); err != nil || d <= 0 {
		return 0, errors.New("want a length such as 15m, 24h, 7d")
	}
	return time.Duration(d), nil
}
