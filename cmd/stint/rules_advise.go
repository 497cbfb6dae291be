package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/sim"
)

// adviseFlags are the flags of "stint rules advise".
type adviseFlags struct {
	recordFlags
	endpoint, by string
	all          bool
	clients      int64
}

func newRulesAdvise(t *terminal) *cobra.Command {
	var f adviseFlags
	c := serverCommand(t, &cobra.Command{
		Use: "advise [RULE]", Short: "Suggest limits that fit what was recorded",
		Long: `Show how much clients use of the limits of a rule, whether these ever bind, and the limits that
would have denied at most one client in --clients, with what they would have denied, as a rule to
paste. With --endpoint, show the same for an endpoint that has no rule; with --all, in a line
each, for all rules and for the busiest endpoints that no rule matches.

What a client uses of a limit is the most within a window: the smallest limit that would never
have denied it. The suggested limit is that of all clients but one in so many. What it would have
denied is not estimated: recorded requests are replayed by the code that decides in a server.
Of more than 20,000 events, a part is read evenly from the whole time. Nothing is changed.

With -o toml, only the rule is written, as a config file has it.`,
		Example: `  stint rules advise search
  stint rules advise search --clients 100 --from 7d -o toml > search.toml
  stint rules advise --endpoint /items/{id} --by ip
  stint rules advise --all`,
		Args: wants(0, 1, "the NAME of a rule, --endpoint PATTERN, or --all"), ValidArgsFunction: completeIDs(t, "rules"),
	}, func(c *cobra.Command, a *client, args []string) error {
		given := len(args)
		for _, is := range []bool{f.endpoint != "", f.all} {
			if is {
				given++
			}
		}
		switch {
		case given != 1:
			return usageError(c, "%s needs one of the NAME of a rule, --endpoint PATTERN and --all", c.CommandPath())
		case f.clients < 2:
			return advice{fmt.Errorf("--clients %d: want 2 or more", f.clients), "--clients 1000"}
		case f.by != "" && f.endpoint == "":
			return usageError(c, "--by is for --endpoint: a rule says what it counts by")
		case f.all && t.format == asTOML:
			return usageError(c, "-o toml is for one rule or endpoint")
		}
		r, err := f.timeRange(c)
		if err != nil {
			return err
		}
		q := rangeParameters(r, 0, "clients", strconv.FormatInt(f.clients, 10), "path", f.endpoint, "by", f.by)
		path := "/advice"
		switch {
		case len(args) == 1:
			path = "/rules/" + url.PathEscape(args[0]) + "/advice"
		case f.endpoint != "":
			path = "/advice/endpoint"
		}
		if f.all {
			var x fitting.Overview
			if err := ask(c.Context(), t, a, path, q, &x); err != nil {
				return err
			}
			return t.print(x, slices.Concat(x.Rules, x.Endpoints), func() error { return printOverview(t, &x) })
		}
		var x fitting.Advice
		if err := ask(c.Context(), t, a, path, q, &x); err != nil {
			return err
		}
		if t.format == asTOML {
			return writeSuggested(t, &x)
		}
		return t.print(x, x.Limits, func() error { return printAdvice(t, &x) })
	})
	c.Flags().StringVar(&f.endpoint, "endpoint", "", "advise on an endpoint that no rule limits: a path `pattern`, such as /items/{id}")
	c.Flags().StringVar(&f.by, "by", "", "with --endpoint, by what `kind` clients are told apart: user, tenant, api_key or ip (default: user if most requests have one, or else ip)")
	c.Flags().BoolVar(&f.all, "all", false, "all rules, and the busiest endpoints that none of them matches")
	c.Flags().Int64Var(&f.clients, "clients", 1000, "suggest limits that deny at most one client in this `number`")
	c.Flags().StringVar(&f.from, "from", "", "the start of the range, as a `time` such as 2026-01-31T12:00:00Z, or 15m, 24h or 7d before now (default: a day before --to)")
	c.Flags().StringVar(&f.to, "to", "", "the end of the range, as a `time` (default: now)")
	addOutput(c, asTable, asJSON, asYAML, asCSV, asTOML)
	return c
}

func ask(ctx context.Context, t *terminal, a *client, path string, q url.Values, into any) error {
	return t.waits("the server replays what it has recorded", func() error { return a.do(ctx, call{path: path, query: q, into: into}) })
}

// writeSuggested writes the suggested rule alone.
func writeSuggested(t *terminal, x *fitting.Advice) error {
	t.notes(cleaned(x.Notes)...)
	if x.Suggestion == nil {
		t.notes("no limits are suggested: " + clean(x.Summary))
		return errNo
	}
	_, err := io.WriteString(t.out, x.Suggestion.TOML)
	return err
}

func cleaned(texts []string) (out []string) {
	for _, text := range texts {
		out = append(out, clean(text))
	}
	return out
}

// verdicts are in words what limits are to their clients.
var verdicts = map[fitting.Verdict]string{
	fitting.NeverBinds: "never binds", fitting.Fits: "fits", fitting.BindsMany: "binds many", fitting.BindsEveryone: "binds everyone", fitting.TooLittle: "too little traffic to tell",
}

func printAdvice(t *terminal, x *fitting.Advice) error {
	fmt.Fprintf(t.out, "%s to %s\n%s\n", cell(x.From), cell(x.To), clean(x.Summary))
	t.notes(cleaned(x.Notes)...)
	if len(x.Limits) > 0 {
		fmt.Fprintln(t.out, "\nThe most that clients use within a window:")
		if err := printTable(t, x.Limits, "", []string{"LIMIT", "NOW", "50 %", "95 %", "99 %", "MAX", "SUGGESTED"}, func(u *fitting.Use) []any {
			return []any{u.Name, visible(u.Limit), most(u.P50), most(u.P95), most(u.P99), most(u.Max), visible(u.Suggested)}
		}); err != nil {
			return err
		}
	}
	if x.Denies != nil {
		if err := printDenied(t, "now", x.Denies.Top); err != nil {
			return err
		}
	}
	s := x.Suggestion
	if s == nil {
		return nil
	}
	if err := printDenied(t, "by the suggested limits", s.Top); err != nil {
		return err
	}
	_, err := fmt.Fprintf(t.out, "\nThe rule, for a config file or \"stint apply -f\":\n\n%s", s.TOML)
	return err
}

// most returns a number of units, or a dash if there is none.
func most(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func printDenied(t *terminal, by string, top []sim.Subject) error {
	if len(top) == 0 {
		return nil
	}
	fmt.Fprintf(t.out, "\nClients denied most %s:\n", by)
	return printTable(t, top, "", []string{"CLIENT", "REQUESTS", "DENIED"}, func(s *sim.Subject) []any { return []any{s.Subject, s.Requests, s.WouldRefuse} })
}

func printOverview(t *terminal, x *fitting.Overview) error {
	fmt.Fprintf(t.out, "%s to %s, %d requests\n", cell(x.From), cell(x.To), x.Requests)
	t.notes(cleaned(x.Notes)...)
	limits := func(a *fitting.Advice, of func(*fitting.Use) string) string {
		var texts []string
		for i := range a.Limits {
			if text := of(&a.Limits[i]); text != "" {
				texts = append(texts, text)
			}
		}
		return visible(strings.Join(texts, ", "))
	}
	now := func(u *fitting.Use) string { return u.Limit }
	suggested := func(u *fitting.Use) string { return u.Suggested }
	fmt.Fprintln(t.out)
	if err := printTable(t, x.Rules, "there are no rules with limits", []string{"RULE", "LIMITS", "REQUESTS", "CLIENTS", "DENIED", "SUGGESTED", "VERDICT"}, func(a *fitting.Advice) []any {
		return []any{a.Rule, limits(a, now), a.Requests, a.Clients, a.Denies.Clients, limits(a, suggested), verdicts[a.Verdict]}
	}); err != nil || len(x.Endpoints) == 0 {
		return err
	}
	fmt.Fprintln(t.out, "\nThe busiest endpoints without a rule:")
	return printTable(t, x.Endpoints, "", []string{"ENDPOINT", "COUNTED BY", "REQUESTS", "CLIENTS", "SUGGESTED"}, func(a *fitting.Advice) []any {
		return []any{a.Endpoint, a.CountBy, a.Requests, a.Clients, limits(a, suggested)}
	})
}
