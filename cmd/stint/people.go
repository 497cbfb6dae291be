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

// limitFlag is the flag of limits by name.
var limitFlag = fieldFlag{"limit", "a limit, as `NAME=LIMIT`, such as requests=1000/1h; can be repeated", func(into tree, value string) error {
	name, limit, ok := strings.Cut(value, "=")
	if !ok || name == "" {
		return errors.New("want NAME=LIMIT, such as requests=1000/1h")
	}
	child(into, "limits")[name] = limit
	return nil
}}

// child returns the object in a field, which is created if there is none.
func child(of tree, field string) tree {
	object, _ := of[field].(tree)
	if object == nil {
		object = tree{}
		of[field] = object
	}
	return object
}

// formatLimits returns limits by name, in one line.
func formatLimits(all map[string]catalog.Override) string {
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
			textFlag("display-name", "display_name", "the display name, as a `text`"),
			textFlag("price", "price", "the price, as a `text`"),
			limitFlag,
		},
		head: []string{"NAME", "DISPLAY NAME", "PRICE", "LIMITS"},
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
		filters: []filter{{name: "tier", usage: "only those of this `tier`"}, {name: "tenant", usage: "only those of this `tenant`"}, {name: "blocked", usage: "only blocked users, with `true`"}},
		flags:   []fieldFlag{textFlag("tier", "tier", "the `tier`"), textFlag("tenant", "tenant", "the `tenant`"), limitFlag},
		head:    []string{"ID", "TENANT", "TIER", "LIMITS", "BLOCKED"},
		cells: func(r *stored[catalog.User]) []any {
			blocked := ""
			if b := r.Value.Blocked; b != nil {
				blocked = cmp.Or(b.Reason, "yes")
				if !b.Until.IsZero() {
					blocked += ", until " + cell(b.Until.Time)
				}
			}
			return []any{r.ID, r.Value.Tenant, r.Value.Tier, formatLimits(r.Value.Limits), blocked}
		},
	}
	return family("users", "Manage users", k.commands(t)...)
}

func newTenants(t *terminal) *cobra.Command {
	k := kind[catalog.Tenant]{
		path: "tenants", one: "tenant", sorts: []string{"name"}, key: "id", example: "acme", unused: "globex", fields: "name='Acme Inc.' tier=premium",
		filters: []filter{{name: "tier", usage: "only those of this `tier`"}},
		flags:   []fieldFlag{textFlag("name", "name", "the display name, as a `text`"), textFlag("tier", "tier", "the `tier` of its users and keys that have no other")},
		head:    []string{"ID", "NAME", "TIER"},
		cells:   func(r *stored[catalog.Tenant]) []any { return []any{r.ID, r.Value.Name, r.Value.Tier} },
	}
	return family("tenants", "Manage tenants", k.commands(t)...)
}

func newKeys(t *terminal) *cobra.Command {
	k := kind[admin.Key]{
		path: "keys", one: "key", sorts: []string{"name"}, example: "k3jq8w2n", fields: "name='mobile app' user=alice",
		filters: []filter{{name: "user", usage: "only those of this `user`"}, {name: "tier", usage: "only those of this `tier`"}, {name: "tenant", usage: "only those of this `tenant`"}},
		flags: []fieldFlag{
			textFlag("name", "name", "the display name, as a `text`"), textFlag("user", "user", "the `user` that it belongs to"),
			textFlag("tenant", "tenant", "the `tenant` that it belongs to"), textFlag("tier", "tier", "the `tier`, instead of the user's"), limitFlag,
			textFlag("until", "expires", "when it expires, as a `time` such as 2026-12-31T00:00:00Z"),
			{"for", "how long it is valid, as a `time` such as 90d", func(into tree, value string) error {
				at, err := afterNow(value)
				into["expires"] = at.Format(time.RFC3339)
				return err
			}},
		},
		head: []string{"ID", "NAME", "USER", "TENANT", "TIER", "LIMITS", "LAST USED", "STATE"},
		cells: func(r *stored[admin.Key]) []any {
			v := &r.Value
			return []any{r.ID, v.Name, v.User, v.Tenant, v.Tier, formatLimits(v.Limits), r.LastUsed, stateOf(v)}
		},
	}
	return family("keys", "Manage API keys", append(k.commands(t), newKeysRotate(t, &k), newKeysRevoke(t, &k))...)
}

// stateOf says whether a key is valid.
func stateOf(v *admin.Key) string {
	switch {
	case !v.Revoked.IsZero() && v.RevokedBy == "":
		return "revoked " + cell(v.Revoked.Time)
	case !v.Revoked.IsZero():
		return "revoked " + cell(v.Revoked.Time) + " by " + v.RevokedBy
	case v.Disabled:
		return "disabled"
	case !v.Expires.IsZero() && v.Expires.Before(now()):
		return "expired " + cell(v.Expires.Time)
	case !v.Expires.IsZero():
		return "active until " + cell(v.Expires.Time)
	}
	return "active"
}

func newKeysRevoke(t *terminal, k *kind[admin.Key]) *cobra.Command {
	var yes consent
	var dryRun bool
	c := serverCommand(t, &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke an API key",
		Long: `Revoke an API key permanently: it is rejected from now on, and stays in the list. To reject it
only for a while, disable it: stint keys set ID disabled=true.`,
		Example: "  stint keys revoke k3jq8w2n",
		Args:    wants(1, 1, "the ID of a key"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		if !dryRun {
			if err := yes.ask(c, t, fmt.Sprintf("the key %s of %s will be revoked permanently", printable(r.ID), visible(cmp.Or(r.Value.User, r.Value.Tenant, r.Value.Name)))); err != nil {
				return err
			}
		}
		var now stored[admin.Key]
		if err := a.do(c.Context(), call{method: http.MethodPost, path: k.at(r.ID) + "/revoke", query: dryRunParameter(dryRun), into: &now}); err != nil {
			return err
		}
		if dryRun {
			_, err := fmt.Fprintf(t.out, "key %s would be revoked; nothing was changed\n", printable(r.ID))
			return err
		}
		return k.printChange(t, &r, &now, false)
	})
	addDryRun(c, &dryRun)
	yes.add(c)
	return c
}
