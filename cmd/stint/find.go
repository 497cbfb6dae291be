package main

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newFind(t *terminal) *cobra.Command {
	limit := 10
	c := queryCommand(t, &cobra.Command{
		Use:   "find TEXT",
		Short: "Find rules, users, keys, tenants, addresses and more",
		Long: `Find rules, tiers, users, keys, tenants, exemptions, bans and addresses, and
clients that are not in the catalog but have sent requests.

Users and tenants are found by the start of any word of their id, tenants and keys by the
start of any word of their name, keys by the start of their id or their text, rules and
tiers by any part of their name, and the rest by the start. Case does not matter, except for
exemptions and bans. No character of the text has a special meaning.`,
		Example: "  stint find ali\n  stint find 192.0.2. -o json",
		Args:    wants(1, 1, "one TEXT"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var found admin.FoundAll
		if err := a.do(c.Context(), call{path: "/search", query: parameters("q", args[0], "limit", strconv.Itoa(limit)), into: &found}); err != nil {
			return err
		}
		all := []admin.FoundItem{}
		var more []string
		for _, g := range found.Groups {
			all = append(all, g.Items...)
			if g.More {
				more = append(more, g.Kind)
			}
		}
		if len(more) > 0 {
			t.notes("there are more of: " + strings.Join(more, ", ") + "; --limit shows up to 100 of each kind")
		}
		return t.print(all, all, func() error {
			return printTable(t, all, "nothing was found", []string{"KIND", "ID", "NAME", "TIER", "BELONGS TO", "NOTE"}, func(i *admin.FoundItem) []any {
				note := i.Reason
				if !i.Known {
					note = "not in the catalog"
					if !i.LastSeen.IsZero() {
						note += ", last seen " + i.LastSeen.Format("2006-01-02")
					}
				}
				return []any{i.Kind, i.ID, cmp.Or(i.Name, i.Prefix), i.Tier, cmp.Or(i.User, i.Tenant), note}
			})
		})
	})
	c.Flags().IntVar(&limit, "limit", limit, "show at most this `number` of each kind, up to 100")
	return c
}
