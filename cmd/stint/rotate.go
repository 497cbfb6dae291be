package main

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newKeysRotate(t *terminal, k *kind[admin.Key]) *cobra.Command {
	return rotateCommand(t, &cobra.Command{
		Use:   "rotate ID",
		Short: "Replace an API key by a new one",
		Long: `Create an API key with the settings of another, and show it once. The other stays valid for
a day, or as --grace says, so that programs can change to the new one, and then expires.
Keys that were replaced earlier, and have expired, are deleted. A rule that counts by API key
counts the new one from zero.`,
		Example: "  stint keys rotate k3jq8w2n > key\n  stint keys rotate k3jq8w2n --grace 0",
		Args:    wants(1, 1, "the ID of a key"), ValidArgsFunction: completeIDs(t, k.path),
	}, k.at)
}

// rotateCommand completes a command that rotates the key at a path.
func rotateCommand(t *terminal, c *cobra.Command, at func(id string) string) *cobra.Command {
	var grace string
	var dryRun bool
	c = queryCommand(t, c, func(c *cobra.Command, a *client, args []string) error {
		var body admin.Rotation
		if grace != "" {
			seconds := 0.0
			if grace != "0" {
				d, err := parseDuration(grace)
				if err != nil {
					return advice{fmt.Errorf("--grace %s: %w", printable(grace), err), "--grace 24h"}
				}
				seconds = d.Seconds()
			}
			body.Grace = &seconds
		}
		var made admin.RotatedKey
		if err := a.do(c.Context(), call{method: http.MethodPost, path: at(args[0]) + "/rotate", query: dryRunParameter(dryRun), body: body, into: &made}); err != nil {
			return err
		}
		return t.print(made, nil, func() error { // only the key, so that it can go to a file
			if dryRun {
				_, err := fmt.Fprintf(t.out, "key %s would be replaced; nothing was changed\n", printable(made.Old))
				return err
			}
			t.notes(fmt.Sprintf("this is the key %s; it cannot be shown again. It replaces %s, which expires at %s", printable(made.ID), printable(made.Old), cell(made.Expires.Time)))
			_, err := fmt.Fprintln(t.out, printable(made.Text))
			return err
		})
	})
	c.Flags().StringVar(&grace, "grace", "", "how long the old key stays valid, as a `time` such as 1h; at most 30d (default: 24h)")
	addDryRun(c, &dryRun)
	return c
}

func newMe(t *terminal) *cobra.Command {
	c := family("me", "Show one's own usage and keys, and rotate them", newMeShow(t), newMeUsage(t), newMeKeys(t), newMeRotate(t))
	c.Long = `Show what a token for one user is about: the user, the usage of the limits that apply, and the
API keys; and rotate a key. "stint tokens create NAME --user ID" creates such a token.`
	return c
}

func newMeShow(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use: "show", Short: "Show the user", Long: "Show the user of the token: the tier, limits of one's own, and whether requests are denied.",
		Example: "  stint me show",
	}, func(c *cobra.Command, a *client, _ []string) error {
		var me admin.Me
		if err := a.do(c.Context(), call{path: "/me", into: &me}); err != nil {
			return err
		}
		return t.print(me, nil, func() error {
			w := t.table("USER", printable(me.User))
			w.row("tenant", cmp.Or(me.Tenant, "-"))
			w.row("tier", cmp.Or(me.Tier, "-"))
			w.row("blocked", me.Blocked)
			for _, o := range me.Limits {
				w.row("limit "+o.Name, o.Limit)
			}
			w.row("token", me.Token)
			if !me.Expires.IsZero() {
				w.row("token expires", me.Expires)
			}
			return w.Flush()
		})
	})
}

func newMeUsage(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use: "usage", Short: "Show the usage of one's limits", Long: "Show every limit that applies to requests of the user of the token, and how much of it is used.",
		Example: "  stint me usage\n  stint me usage -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		var u admin.Usage
		if err := a.do(c.Context(), call{path: "/me/usage", into: &u}); err != nil {
			return err
		}
		return t.print(u, u.Items, func() error { return printUsage(t, u.Items) })
	})
}

func newMeKeys(t *terminal) *cobra.Command {
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: "keys", Short: "List one's keys", Long: "List the API keys of the user of the token.",
		Example: "  stint me keys",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := gather[stored[admin.Key]](c.Context(), t, a, "/me/keys", "after", parameters(), limit)
		if err != nil {
			return err
		}
		return printList(t, all, "", []string{"ID", "NAME", "PREFIX", "LAST USED", "STATE"}, func(k *stored[admin.Key]) []any {
			return []any{k.ID, k.Value.Name, k.Value.Prefix, k.LastUsed, stateOf(&k.Value)}
		})
	})
	addLimit(c, &limit, 1000)
	return c
}

func newMeRotate(t *terminal) *cobra.Command {
	return rotateCommand(t, &cobra.Command{
		Use: "rotate ID", Short: "Replace one of one's keys by a new one",
		Long: `Create an API key with the settings of another that belongs to the user of the token, and show
it once. The other stays valid for a day, or as --grace says. A key can be rotated a day after
it replaced another.`,
		Example: "  stint me rotate k3jq8w2n > key",
		Args:    wants(1, 1, "the ID of a key"), ValidArgsFunction: completeIDs(t, "me/keys"),
	}, (&kind[admin.Key]{path: "me/keys"}).at)
}
