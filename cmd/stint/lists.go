package main

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// subject is a client that is limited: kind:id.
type subject struct{ kind, id string }

var subjectKinds = []string{"user", "key", "tenant", "ip"}

const subjectExample = "user:alice, key:k3jq8w2n, tenant:acme or ip:192.0.2.1"

// parseSubject parses a subject such as user:alice. The kind of addresses and networks can
// be left out.
func parseSubject(text string) (subject, error) {
	_, notAddress := netip.ParseAddr(text)
	_, notNetwork := netip.ParsePrefix(text)
	if notAddress == nil || notNetwork == nil {
		return subject{"ip", text}, nil
	}
	kind, id, _ := strings.Cut(text, ":")
	if id == "" || !slices.Contains(subjectKinds, kind) {
		return subject{}, advice{fmt.Errorf("%s: want a kind, a colon and an id", strict.Quote(text)), subjectExample}
	}
	return subject{kind, id}, nil
}

func (s subject) String() string { return s.kind + ":" + printable(s.id) }

func (s subject) path() string { return "/subjects/" + s.kind + "/" + url.PathEscape(s.id) }

// completeSubject completes the kind, and then the id with those of a server.
func completeSubject(t *terminal) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		kind, id, ok := strings.Cut(begun, ":")
		if !ok {
			return []string{"user:", "key:", "tenant:", "ip:"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		}
		if kind == "ip" || !slices.Contains(subjectKinds, kind) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, directive := completeIDs(t, kind+"s")(c, args, id)
		for i := range found {
			found[i] = kind + ":" + found[i]
		}
		return found, directive
	}
}

// entries is one of the two lists: exemptions and bans.
type entries struct{ verb, path, one, does string }

func newExempt(t *terminal) *cobra.Command {
	return entries{"exempt", "exemptions", "exemption", "Exempt a user, an API key, a tenant, an address or a network from all rules"}.command(t)
}

func newBan(t *terminal) *cobra.Command {
	return entries{"ban", "bans", "ban", "Ban a user, an API key, a tenant, an address or a network: all its requests are denied"}.command(t)
}

func (l entries) command(t *terminal) *cobra.Command {
	return family(l.verb, "Manage "+l.path, l.list(t), l.add(t), l.remove(t))
}

func (l entries) list(t *terminal) *cobra.Command {
	var limit int
	var sort string
	c := queryCommand(t, &cobra.Command{
		Use: "list", Short: "List " + l.path, Long: "List " + l.path + ", sorted by subject, or as --sort says.",
		Example: "  stint " + l.verb + " list\n  stint " + l.verb + " list -o csv",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := gather[admin.Record[catalog.Entry]](c.Context(), t, a, "/"+l.path, "after", parameters("sort", sort), limit)
		if err != nil {
			return err
		}
		return printList(t, all, "", []string{"SUBJECT", "REASON", "UNTIL", "SINCE", "BY"}, func(r *admin.Record[catalog.Entry]) []any {
			return []any{r.ID, r.Value.Reason, r.Value.Until.Time, r.Created, r.By}
		})
	})
	addSort(c, &sort, "id", "created_at", "updated_at")
	addLimit(c, &limit, 1000)
	return c
}

func (l entries) add(t *terminal) *cobra.Command {
	var reason string
	var f expiryFlags
	c := queryCommand(t, &cobra.Command{
		Use: "add SUBJECT", Short: "Add or change " + l.path,
		Long: l.does + `,
permanently or for a time. An existing ` + l.one + ` is replaced.`,
		Example: fmt.Sprintf("  stint %s add ip:192.0.2.0/24 --reason 'load test' --for 24h\n  stint %s add user:alice --until 2026-12-31T00:00:00Z", l.verb, l.verb),
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample), ValidArgsFunction: completeSubject(t),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		until, err := f.parse()
		if err != nil {
			return err
		}
		var r admin.Record[catalog.Entry]
		if err := a.do(c.Context(), call{method: http.MethodPut, path: s.path() + "/" + l.one, body: admin.NewEntry{Reason: reason, Until: until}, into: &r}); err != nil {
			return err
		}
		return t.print(r, nil, func() error {
			text := "permanent"
			if !r.Value.Until.IsZero() {
				text = "until " + cell(r.Value.Until.Time)
			}
			_, err := fmt.Fprintf(t.out, "+ %s %s, %s\n", l.one, printable(r.ID), text)
			return err
		})
	})
	c.Flags().StringVar(&reason, "reason", "", "the reason, as a `text`")
	f.add(c)
	return c
}

func (l entries) remove(t *terminal) *cobra.Command {
	return serverCommand(t, &cobra.Command{
		Use: "remove SUBJECT...", Short: "Remove " + l.path,
		Long:    "Remove " + l.path + ". Subjects are written as in the list.",
		Example: fmt.Sprintf("  stint %s add ip:192.0.2.0/24\n  stint %s remove ip:192.0.2.0/24", l.verb, l.verb),
		Args:    wants(1, math.MaxInt, "one SUBJECT or more, such as "+subjectExample), ValidArgsFunction: completeIDs(t, l.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		for _, text := range args {
			s, err := parseSubject(text)
			if err != nil {
				return err
			}
			if err := a.do(c.Context(), call{method: http.MethodDelete, path: s.path() + "/" + l.one}); err != nil {
				return err
			}
			fmt.Fprintf(t.out, "- %s %s\n", l.one, s)
		}
		return nil
	})
}
