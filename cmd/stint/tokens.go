package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

func newTokens(t *terminal) *cobra.Command {
	return family("tokens", "Manage tokens for the admin API and the dashboard", newTokensList(t), newTokensCreate(t), newTokensRevoke(t))
}

func newTokensList(t *terminal) *cobra.Command {
	var user, sort string
	c := queryCommand(t, &cobra.Command{
		Use: "list", Short: "List the tokens",
		Long: `List the tokens of the admin API, without their secrets: those that are for no single user or,
with --user, those of that user. The token in the config file is not listed.`,
		Example: "  stint tokens list --sort last_used_at\n  stint tokens list -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := items[admin.Token](c.Context(), a, "/tokens", parameters("user", user, "sort", sort))
		if err != nil {
			return err
		}
		return printList(t, all, "", []string{"ID", "NAME", "ROLE", "TENANTS", "CREATED", "BY", "EXPIRES", "LAST USED"}, func(k *admin.Token) []any {
			return []any{k.ID, k.Name, k.Role, strings.Join(k.Tenants, ","), k.Created, k.CreatedBy, k.Expires, k.LastUsed}
		})
	})
	c.Flags().StringVar(&user, "user", "", "the tokens of this `user`")
	addSort(c, &sort, "name", "created_at", "expires_at", "last_used_at")
	return c
}

func newTokensCreate(t *terminal) *cobra.Command {
	var (
		f       eitherFlags
		role    string
		tenants []string
		ofUser  string
		expiry  expiryFlags
	)
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token",
		Long: `Create a token for the admin API and the dashboard, and show it once. The log of changes
shows its name. The roles are viewer, which can only read; operator, which can also change
rules, users and keys; and admin, which can also create tokens.

With --tenant, the token is restricted to that tenant, and with several to these: it shows and
changes what is theirs only, and cannot change what limits them.

With --user, the token is for one user of your service, who can read the usage and rotate the
API keys of that user with it ("stint me"), and nothing else. A user has at most 10.

With --config or --database, the token is written directly to the database, even while no
server is running. Use this if all tokens are lost.`,
		Example: `  stint tokens create alice --role operator --for 90d
  stint tokens create deploy --role operator > token
  stint tokens create acme-support --role operator --tenant acme
  stint tokens create alice-laptop --user alice --for 90d
  stint tokens create rescue --role admin --for 1h --database sqlite:stint.db`,
		Args: wants(1, 1, "the NAME of a person or program"),
		RunE: func(c *cobra.Command, args []string) error {
			expires, err := expiry.parse()
			if err != nil {
				return err
			}
			if ofUser != "" {
				role = ""
			}
			return f.run(c.Context(), t, func(a *client) error {
				var created admin.CreatedToken
				body := admin.NewToken{Name: args[0], Role: catalog.Role(role), Tenants: tenants, User: ofUser, Expires: expires}
				if err := a.do(c.Context(), call{method: http.MethodPost, path: "/tokens", body: body, into: &created}); err != nil {
					return err
				}
				var status admin.Status
				if err := a.do(c.Context(), call{path: "/status", into: &status}); err == nil && status.Database == "none" {
					t.notes("the server has no database: this token is lost when the server stops; server.admin.token sets a permanent one")
				}
				return printToken(t, &created)
			}, func(k *catalog.Catalog) error {
				token := catalog.Token{Name: args[0], Role: catalog.Role(role), Tenants: tenants, User: ofUser, Expires: expires.Time}
				if ofUser != "" {
					u, err := k.Users.Get(c.Context(), ofUser)
					if err != nil {
						return advice{err, "stint users create, or --user with a user of the catalog"}
					}
					if token.Role = cmp.Or(token.Role, catalog.OfUser); u.Value.Tenant != "" {
						token.Tenants = []string{u.Value.Tenant}
					}
				}
				text, created, err := k.CreateToken(c.Context(), actor(), token)
				if err != nil {
					return usageError(c, "%w", err)
				}
				return printToken(t, &admin.CreatedToken{Text: text, Token: admin.Token(created)})
			})
		},
	}
	f.add(c)
	addChoice(c, &role, "role", "", "the `role`: viewer, operator or admin", string(catalog.Viewer), string(catalog.Operator), string(catalog.Administrator))
	c.Flags().StringVar(&ofUser, "user", "", "the `user` that the token is for, instead of a role")
	c.Flags().StringArrayVar(&tenants, "tenant", nil, "restrict the token to a `tenant`; can be repeated")
	c.MarkFlagsMutuallyExclusive("user", "tenant")
	c.MarkFlagsMutuallyExclusive("user", "role")
	expiry.add(c)
	addOutput(c)
	return c
}

// printToken prints only the token to the standard output, so that it can go to a file.
func printToken(t *terminal, created *admin.CreatedToken) error {
	return t.print(created, nil, func() error {
		expires := "does not expire"
		if !created.Expires.IsZero() {
			expires = "expires at " + cell(created.Expires)
		}
		tenants := ""
		switch {
		case created.User != "":
			tenants = " for the user " + printable(created.User)
		case len(created.Tenants) > 0:
			tenants = " for " + printable(strings.Join(created.Tenants, ", "))
		}
		t.notes(fmt.Sprintf("this is the token of %s, with the role %s%s; it %s. It cannot be shown again", visible(created.Name), created.Role, tenants, expires))
		_, err := fmt.Fprintln(t.out, printable(created.Text))
		return err
	})
}

func newTokensRevoke(t *terminal) *cobra.Command {
	var yes consent
	c := serverCommand(t, &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token",
		Long:    "Revoke a token of the admin API: it is rejected from now on, and its sessions end.",
		Example: "  stint tokens list\n  stint tokens revoke 4mqyx7bn2kcd6wvr",
		Args:    wants(1, 1, "the ID of a token"), ValidArgsFunction: completeIDs(t, "tokens"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if err := yes.ask(c, t, fmt.Sprintf("the token %s will be revoked permanently", printable(args[0]))); err != nil {
			return err
		}
		if err := a.do(c.Context(), call{method: http.MethodDelete, path: "/tokens/" + url.PathEscape(args[0])}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(t.out, "- token %s\n", printable(args[0]))
		return err
	})
	yes.add(c)
	return c
}
