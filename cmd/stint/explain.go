package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newExplain(t *terminal) *cobra.Command {
	var (
		q       asked
		headers []string
		as      string
		all     bool
	)
	c := serverCommand(t, &cobra.Command{
		Use:   "explain [METHOD] PATH",
		Short: "Explain step by step how a server would decide a request",
		Long: `Say step by step what a server would make of a request, with its rules and counters as they
are now: who is asking and how that was found out, whether that one is banned or exempt,
each rule that applies and how its limits stand, and what decides. Nothing is counted.

The client is given by --user, --tenant, --api-key or --tier; without these, it is
identified by --ip and headers, as a request is. The exit code is 1 if the request
is denied.`,
		Example: `  stint explain GET /search --user alice
  stint explain POST /login --ip 192.0.2.1 -H 'X-App: mobile' --rules
  stint explain /search --api-key k3jq8w2n -o json`,
		Args: wants(1, 2, "a METHOD and a PATH, such as GET /search"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if q.Path = args[len(args)-1]; len(args) == 2 {
			q.Method = strings.ToUpper(args[0])
		}
		if err := q.addHeaders(headers); err != nil {
			return err
		}
		var x admin.Explanation
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/explain", body: q, into: &x}); err != nil {
			return err
		}
		if err := t.say(as, x, x.Limits, func() error { return showExplanation(t, &x, all) }); err != nil {
			return err
		}
		if !x.Allowed {
			return errNo
		}
		return nil
	})
	q.add(c, &headers)
	c.Flags().BoolVar(&all, "rules", false, "show all rules, and why each applies or does not")
	addOutput(c, &as)
	return c
}

func showExplanation(t *terminal, x *admin.Explanation, rules bool) error {
	for i, s := range x.Steps {
		fmt.Fprintf(t.out, "%d. %s\n", i+1, clean(s))
	}
	if len(x.Limits) > 0 {
		fmt.Fprintln(t.out)
		w := t.grid("RULE", "LIMIT", "IS", "LEFT", "ALL BACK IN", "SAYS")
		for _, l := range x.Limits {
			says := "passes"
			if !l.Allowed {
				says = "refuses"
			}
			if l.Shadow {
				says += " (log_only)"
			}
			w.row(l.Rule, l.Name, l.Limit, fmt.Sprintf("%d of %d", l.Remaining, l.Max), seconds(l.ResetAfter), says)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if !rules || len(x.Rules) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	all := make([]why, len(x.Rules))
	for i, r := range x.Rules {
		all[i] = why{r.Rule, r.Matched, r.Reason, r.BeatenBy, nil}
		for _, l := range r.Limits {
			all[i].limits = append(all[i].limits, fmt.Sprintf("%s %s (%s)", l.Name, l.Limit, l.Source))
		}
	}
	return showWhy(t, all)
}

// why is why a rule applies, or does not.
type why struct {
	rule             string
	matched          bool
	reason, beatenBy string
	limits           []string
}

func showWhy(t *terminal, all []why) error {
	w := t.grid("RULE", "APPLIES", "WHY")
	for _, r := range all {
		switch {
		case !r.matched:
			w.row(r.rule, false, r.reason)
		case r.beatenBy != "":
			w.row(r.rule, false, r.beatenBy+" of its group applies instead")
		case len(r.limits) == 0:
			w.row(r.rule, true, "it matches")
		default:
			w.row(r.rule, true, r.limits)
		}
	}
	return w.Flush()
}
