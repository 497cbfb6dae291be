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

// subject is who is limited: kind:id.
type subject struct{ kind, id string }

var subjectKinds = []string{"user", "key", "tenant", "ip"}

const subjectExample = "user:alice, key:k3jq8w2n, tenant:acme, ip:192.0.2.1"

// parseSubject reads user:alice. What is an address or a network need not say so.
func parseSubject(text string) (subject, error) {
	kind, id, ok := strings.Cut(text, ":")
	if _, err := netip.ParseAddr(text); err == nil {
		return subject{"ip", text}, nil
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return subject{"ip", text}, nil
	}
	if !ok || id == "" || !slices.Contains(subjectKinds, kind) {
		return subject{}, advice{fmt.Errorf("%s: want a kind, a colon and an id", strict.Quote(text)), subjectExample}
	}
	return subject{kind, id}, nil
}

func (s subject) String() string { return s.kind + ":" + printable(s.id) }

func (s subject) path() string { return "/subjects/" + s.kind + "/" + url.PathEscape(s.id) }

// completeSubject completes the kind, and then, from a server, the id.
func completeSubject(t *terminal) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		kind, id, ok := strings.Cut(begun, ":")
		if !ok {
			return []string{"user:", "key:", "tenant:", "ip:"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		}
		if kind == "ip" || !slices.Contains(subjectKinds, kind) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, directive := ids(t, kind+"s")(c, args, id)
		for i := range found {
			found[i] = kind + ":" + found[i]
		}
		return found, directive
	}
}

// entries are the two lists: those who are exempt, and those who are banned.
type entries struct{ verb, path, one, does string }

func newExempt(t *terminal) *cobra.Command {
	return entries{"exempt", "exemptions", "exemption", "Let a user, an API key, a tenant, an address or a network pass, whatever rules say"}.command(t)
}

func newBan(t *terminal) *cobra.Command {
	return entries{"ban", "bans", "ban", "Refuse all requests of a user, an API key, a tenant, an address or a network"}.command(t)
}

func (l entries) command(t *terminal) *cobra.Command {
	short := "Manage exemptions"
	if l.verb == "ban" {
		short = "Manage bans"
	}
	return family(l.verb, short, l.list(t), l.add(t), l.remove(t))
}

func (l entries) list(t *terminal) *cobra.Command {
	var as string
	var limit int
	c := serverCommand(t, &cobra.Command{
		Use: "list", Short: "List the " + l.path, Long: "List the " + l.path + ", by whom they are about.",
		Example: "  stint " + l.verb + " list\n  stint " + l.verb + " list -o csv",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := gather[admin.Record[catalog.Entry]](c.Context(), t, a, "/"+l.path, url.Values{}, limit)
		if err != nil {
			return err
		}
		return t.say(as, all, nil, func() error {
			w := t.grid("SUBJECT", "REASON", "UNTIL", "SINCE", "BY")
			for _, r := range all {
				w.row(r.ID, r.Value.Reason, r.Value.Until.Time, r.Created, r.By)
			}
			return w.Flush()
		})
	})
	addLimit(c, &limit)
	addOutput(c, &as)
	return c
}

func (l entries) add(t *terminal) *cobra.Command {
	var reason, at, after, as string
	c := serverCommand(t, &cobra.Command{
		Use: "add SUBJECT", Short: "Add one, or change it",
		Long: l.does + `, for good or
for a time. One that is there already is changed.`,
		Example: fmt.Sprintf("  stint %s add ip:192.0.2.0/24 --reason 'load test' --for 24h\n  stint %s add user:alice --until 2026-12-31T00:00:00Z", l.verb, l.verb),
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		ends, err := until(at, after)
		if err != nil {
			return err
		}
		var r admin.Record[catalog.Entry]
		if err := a.do(c.Context(), call{
			method: http.MethodPut, path: s.path() + "/" + l.one, into: &r,
			body: admin.NewEntry{Reason: reason, Until: catalog.Time{Time: ends}},
		}); err != nil {
			return err
		}
		return t.say(as, r, nil, func() error {
			text := "for good"
			if !r.Value.Until.IsZero() {
				text = "until " + cell(r.Value.Until.Time)
			}
			_, err := fmt.Fprintf(t.out, "+ %s %s, %s\n", l.one, printable(r.ID), text)
			return err
		})
	})
	c.ValidArgsFunction = completeSubject(t)
	c.Flags().StringVar(&reason, "reason", "", "why, as a `text`")
	c.Flags().StringVar(&at, "until", "", "until this `time`, such as 2026-12-31T00:00:00Z (default: for good)")
	c.Flags().StringVar(&after, "for", "", "for so long, as a `time` such as 24h or 7d")
	addOutput(c, &as)
	return c
}

func (l entries) remove(t *terminal) *cobra.Command {
	c := serverCommand(t, &cobra.Command{
		Use: "remove SUBJECT...", Short: "Remove one or more",
		Long:    "Remove " + l.path + ", by whom they are about, as the list shows it.",
		Example: fmt.Sprintf("  stint %s add ip:192.0.2.0/24\n  stint %s remove ip:192.0.2.0/24", l.verb, l.verb),
		Args:    wants(1, math.MaxInt, "one SUBJECT or more, such as "+subjectExample),
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
	completes(c, l.path)
	return c
}
