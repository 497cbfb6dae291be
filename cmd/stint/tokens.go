package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

func newTokens(t *terminal) *cobra.Command {
	return family("tokens", "Manage tokens for the admin API and the dashboard", newTokensList(t), newTokensCreate(t), newTokensRevoke(t))
}

func newTokensList(t *terminal) *cobra.Command {
	var as string
	c := serverCommand(t, &cobra.Command{
		Use: "list", Short: "List the tokens",
		Long:    "List the tokens of the admin API, without their texts, which no one knows. That of the config is not among them.",
		Example: "  stint tokens list\n  stint tokens list -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		var list admin.TokenList
		if err := a.do(c.Context(), call{path: "/tokens", into: &list}); err != nil {
			return err
		}
		all := append([]admin.Token{}, list.Items...)
		return t.say(as, all, nil, func() error {
			w := t.grid("ID", "NAME", "ROLE", "MADE", "BY", "EXPIRES", "LAST USED")
			for _, k := range all {
				w.row(k.ID, k.Name, k.Role, k.Created, k.CreatedBy, k.Expires, k.LastUsed)
			}
			return w.Flush()
		})
	})
	addOutput(c, &as)
	return c
}

func newTokensCreate(t *terminal) *cobra.Command {
	var (
		f         eitherFlags
		role      string
		at, after string
		as        string
	)
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token",
		Long: `Make a token of the admin API and the dashboard, and show it, this once. Its name is that
of whom the log of changes will say that it was. Roles are viewer, who may look; operator,
who may also change rules and people; and admin, who may also make tokens.

With --config or --database it is made in the database itself, also while no server runs:
that is how to get in again where no token is left.`,
		Example: `  stint tokens create alice --role operator --for 90d
  stint tokens create deploy --role operator > token
  stint tokens create rescue --role admin --for 1h --database sqlite:stint.db`,
		Args: wants(1, 1, "the NAME of whom or what it is for"),
		RunE: func(c *cobra.Command, args []string) error {
			ends, err := until(at, after)
			if err != nil {
				return err
			}
			a, err := f.remote(t)
			if err != nil {
				return err
			}
			if a != nil {
				defer a.close()
				var made admin.CreatedToken
				if err := a.do(c.Context(), call{
					method: http.MethodPost, path: "/tokens", into: &made,
					body: admin.NewToken{Name: args[0], Role: catalog.Role(role), Expires: catalog.Time{Time: ends}},
				}); err != nil {
					return err
				}
				var status admin.Status
				if err := a.do(c.Context(), call{path: "/status", into: &status}); err == nil && status.Database == "none" {
					t.notes("the server has no database: this token ends when the server stops; server.admin.token sets one that stays")
				}
				return sayToken(t, as, &made)
			}
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				text, made, err := k.CreateToken(c.Context(), actor(), catalog.Token{Name: args[0], Role: catalog.Role(role), Expires: ends})
				if err != nil {
					return advice{err, c.CommandPath() + " --help"}
				}
				return sayToken(t, as, &admin.CreatedToken{Text: text, Token: admin.Token(made)})
			})
		},
	}
	f.add(c)
	addChoice(c, &role, "role", "", "what one may do with it, as a `role`: viewer, operator or admin", string(catalog.Viewer), string(catalog.Operator), string(catalog.Administrator))
	c.Flags().StringVar(&at, "until", "", "it is good until this `time`, such as 2026-12-31T00:00:00Z (default: for good)")
	c.Flags().StringVar(&after, "for", "", "it is good for so long, as a `time` such as 90d")
	addOutput(c, &as)
	return c
}

// sayToken writes the token alone to the standard output, so that it can go to a file.
func sayToken(t *terminal, as string, made *admin.CreatedToken) error {
	return t.say(as, made, nil, func() error {
		ends := "does not expire"
		if !made.Expires.IsZero() {
			ends = "expires at " + cell(made.Expires)
		}
		t.notes(fmt.Sprintf("this is the token of %s, with the role %s; it %s. It is shown only now", visible(made.Name), made.Role, ends))
		_, err := fmt.Fprintln(t.out, printable(made.Text))
		return err
	})
}

func newTokensRevoke(t *terminal) *cobra.Command {
	var yes consent
	c := serverCommand(t, &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token",
		Long:    "Revoke a token of the admin API: it is rejected from now on, and its sessions end.",
		Example: "  stint tokens list\n  stint tokens revoke 4mqyx7bn2kcd6wvr",
		Args:    wants(1, 1, "the ID of a token"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if err := yes.ask(c, t, fmt.Sprintf("the token %s will be revoked for good", printable(args[0]))); err != nil {
			return err
		}
		if err := a.do(c.Context(), call{method: http.MethodDelete, path: "/tokens/" + url.PathEscape(args[0])}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(t.out, "- token %s\n", printable(args[0]))
		return err
	})
	completes(c, "tokens")
	yes.add(c)
	return c
}
