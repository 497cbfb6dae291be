package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

// used is the output of "usage".
type used struct {
	admin.Subject
	At    time.Time     `json:"at"`
	Usage []admin.Quota `json:"usage"`
}

func newUsage(t *terminal) *cobra.Command {
	var follow bool
	c := queryCommand(t, &cobra.Command{
		Use:   "usage SUBJECT",
		Short: "Show how much of each limit is used",
		Long: `Show what is known about a user, an API key, a tenant or an address, and each limit that
applies to it: how much of it is used, and when it resets. This counts no request.

With --follow it shows the limits every second, until it is interrupted.`,
		Example: "  stint usage user:alice\n  stint usage ip:192.0.2.1 -o json\n  stint usage key:k3jq8w2n --follow",
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample), ValidArgsFunction: completeSubject(t),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		if follow {
			return followUsage(c.Context(), t, a, s)
		}
		var u used
		var usage admin.Usage
		if err := a.do(c.Context(), call{path: s.path(), into: &u.Subject}); err != nil {
			return err
		}
		if err := a.do(c.Context(), call{path: s.path() + "/usage", into: &usage}); err != nil {
			return err
		}
		u.At, u.Usage = usage.At, append([]admin.Quota{}, usage.Items...)
		return t.print(u, u.Usage, func() error {
			printSubject(t, &u.Subject)
			return printUsage(t, u.Usage)
		})
	})
	c.Flags().BoolVar(&follow, "follow", false, "show it every second, until interrupted")
	return c
}

// usageRow is the state of a limit at a time, in CSV.
type usageRow struct {
	At time.Time `json:"at"`
	admin.Quota
}

// followUsage shows the state of limits every second.
func followUsage(ctx context.Context, t *terminal, a *client, s subject) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return a.stream(ctx, call{path: s.path() + "/live"}, func(event string, data []byte) error {
		var u admin.Usage
		if event != "usage" {
			return nil
		}
		if err := json.Unmarshal(data, &u); err != nil {
			return err
		}
		switch t.format {
		case asJSON:
			return t.writeJSON(u, "")
		case asYAML:
			return t.writeYAML(u)
		case asCSV:
			var rows []usageRow
			for _, q := range u.Items {
				rows = append(rows, usageRow{u.At, q})
			}
			return t.writeCSV(rows)
		}
		fmt.Fprintf(t.out, "%s %s\n", cell(u.At), s)
		err := printUsage(t, u.Items)
		fmt.Fprintln(t.out)
		return err
	})
}

func printSubject(t *terminal, s *admin.Subject) {
	var about []string
	add := func(format, value string) {
		if value != "" {
			about = append(about, fmt.Sprintf(format, printable(value)))
		}
	}
	add("name %s", s.Name)
	add("tier %s", s.Tier)
	add("user %s", s.User)
	add("tenant %s", s.Tenant)
	if !s.Known {
		about = append(about, "nothing is known about it")
	}
	if s.Total > 0 {
		about = append(about, fmt.Sprintf("%d requests so far, the last at %s", s.Total, cell(s.LastUsed)))
	}
	who := s.Kind + " " + printable(s.ID)
	if len(about) > 0 {
		who += ": " + strings.Join(about, ", ")
	}
	fmt.Fprintln(t.out, who)
	if s.Blocked != nil {
		fmt.Fprintf(t.out, "blocked: %s\n", visible(s.Blocked.Reason))
	}
	if s.Unusable != "" {
		fmt.Fprintf(t.out, "not valid: %s\n", clean(s.Unusable))
	}
	if s.Ban != nil {
		fmt.Fprintf(t.out, "banned by %s: %s\n", printable(s.Ban.ID()), visible(s.Ban.Reason))
	}
	if s.Exemption != nil {
		fmt.Fprintf(t.out, "exempt by %s: %s\n", printable(s.Exemption.ID()), visible(s.Exemption.Reason))
	}
	for _, o := range s.Overrides {
		fmt.Fprintf(t.out, "own limit: %s %s\n", printable(o.Name), printable(o.Limit))
	}
	fmt.Fprintln(t.out)
}

func printUsage(t *terminal, all []admin.Quota) error {
	const width = 20
	head := []string{"RULE", "LIMIT", "VALUE", "FROM", "USED", strings.Repeat(" ", width), "RESETS IN"}
	return printTable(t, all, "no limit applies to it", head, func(q *admin.Quota) []any {
		name, used, drawn, reset := q.Name, "-", "", "-"
		if q.Endpoint != "" {
			name += " at " + q.Endpoint
		}
		if q.Penalty {
			name = "penalty"
		}
		switch {
		case q.Unknown != "":
			used = "for each " + string(q.Unknown)
		case q.Max > 0:
			used = fmt.Sprintf("%d of %d", q.Used, q.Max)
			if q.Used > 0 {
				drawn = bar(float64(q.Used), float64(q.Max), width)
			}
			drawn += strings.Repeat("·", width-len([]rune(drawn)))
			reset = seconds(q.ResetAfter)
		}
		return []any{q.Rule, name, q.Limit, q.Source, used, drawn, reset}
	})
}

func newReset(t *terminal) *cobra.Command {
	var only string
	var yes consent
	c := serverCommand(t, &cobra.Command{
		Use:   "reset SUBJECT",
		Short: "Reset counters",
		Long: `Reset the counters of a user, an API key, a tenant or an address, for all rules that count by
it or, with --rule, for one: its limits are unused again, and a penalty ends. Without
--rule, the command asks for confirmation, unless --yes is given.`,
		Example: "  stint reset user:alice --rule search\n  stint reset ip:192.0.2.1 --yes",
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample), ValidArgsFunction: completeSubject(t),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		if only == "" {
			if err := yes.ask(c, t, fmt.Sprintf("all counters of %s will be reset", s)); err != nil {
				return err
			}
		}
		if err := a.do(c.Context(), call{method: http.MethodPost, path: s.path() + "/reset", body: admin.ResetSubject{Rule: only}}); err != nil {
			return err
		}
		what := "all counters"
		if only != "" {
			what = "the counters of " + printable(only)
		}
		_, err = fmt.Fprintf(t.out, "%s for %s were reset\n", what, s)
		return err
	})
	c.Flags().StringVar(&only, "rule", "", "only the counters of this `rule`")
	yes.add(c)
	return c
}
