package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/kit/strict"
)

func newRulesCandidates(t *terminal) *cobra.Command {
	var since string
	c := queryCommand(t, &cobra.Command{
		Use: "candidates NAME", Short: "Compare a rule with what may take its place",
		Long: `Show what would change if the candidates of a rule's limits, or the rule that replaces it, took
its place: how many requests passed in the last day, or another time, that would have been
denied, how many were denied that would have passed, and whose. What was decided before the
rule was last changed is not counted.`,
		Example: "  stint rules candidates search\n  stint rules candidates search --since 1h",
		Args:    wants(1, 1, "the NAME of a rule"), ValidArgsFunction: completeIDs(t, "rules"),
	}, func(c *cobra.Command, a *client, args []string) error {
		d, err := parseDuration(since)
		if err != nil {
			return advice{fmt.Errorf("--since %s: %w", strict.Quote(since), err), "--since 24h"}
		}
		var x admin.Candidates
		from := now().Add(-d).UTC().Format(time.RFC3339Nano)
		if err := a.do(c.Context(), call{path: "/rules/" + url.PathEscape(args[0]) + "/candidates", query: parameters("from", from), into: &x}); err != nil {
			return err
		}
		return t.print(x, x.Clients, func() error { return printCandidates(t, args[0], &x) })
	})
	c.Flags().StringVar(&since, "since", "24h", "how far to look back, as a `time`")
	return c
}

func printCandidates(t *terminal, name string, x *admin.Candidates) error {
	if x.By == "" && len(x.Limits) == 0 {
		t.notes("nothing is tried out in the place of the rule " + strict.Quote(name) + "; stint rules set " + name + " limits[0].candidate=50/1m begins")
		return nil
	}
	for _, l := range x.Limits {
		fmt.Fprintf(t.out, "limit %s: %s, candidate %s\n", printable(l.Name), printable(l.Limit), printable(l.Candidate))
	}
	if x.By != "" {
		fmt.Fprintf(t.out, "may be replaced by the rule %s\n", printable(x.By))
	}
	fmt.Fprintf(t.out, "%s to %s\n", cell(x.From), cell(x.To))
	fmt.Fprintf(t.out, "more denied:  %s\nfewer denied: %s\n", strconv.FormatInt(x.More, 10), strconv.FormatInt(x.Less, 10))
	if len(x.Clients) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	return printTable(t, x.Clients, "", []string{"CLIENT", "MORE DENIED", "FEWER DENIED"}, func(c *admin.CandidateClient) []any {
		return []any{c.Client, c.More, c.Less}
	})
}

func newRulesPromote(t *terminal) *cobra.Command {
	var dryRun bool
	c := serverCommand(t, &cobra.Command{
		Use: "promote NAME", Short: "Put what is tried out in the place of a rule",
		Long: `Put the candidates of a rule's limits in their place or, if it has none, the rule that replaces
it, which is then in force, while this one is deleted. They go on with what they have counted,
so no client begins anew. "stint changes revert" undoes it.`,
		Example: "  stint rules promote search --dry-run\n  stint rules promote search",
		Args:    wants(1, 1, "the NAME of a rule"), ValidArgsFunction: completeIDs(t, "rules"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var r admin.Revision
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/" + url.PathEscape(args[0]) + "/promote", query: dryRunParameter(dryRun), into: &r}); err != nil {
			return err
		}
		text := fmt.Sprintf("revision %d", r.Revision)
		if dryRun {
			text = "no problems; nothing was changed"
		}
		_, err := fmt.Fprintln(t.out, text)
		return err
	})
	addDryRun(c, &dryRun)
	return c
}
