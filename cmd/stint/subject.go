package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

// used is what "usage" says of a subject.
type used struct {
	admin.Subject
	At    time.Time     `json:"at"`
	Usage []admin.Quota `json:"usage"`
}

func newUsage(t *terminal) *cobra.Command {
	var as string
	var follow bool
	c := serverCommand(t, &cobra.Command{
		Use:   "usage SUBJECT",
		Short: "Show how much of each limit is used",
		Long: `Show what is known of a user, an API key, a tenant or an address, and how each limit that
is about it stands: how much of it is used, and when all of it is back. Nothing is counted
by this.

With --follow it shows the limits each second, until it is interrupted.`,
		Example: "  stint usage user:alice\n  stint usage ip:192.0.2.1 -o json\n  stint usage key:k3jq8w2n --follow",
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		if follow {
			return followUsage(c.Context(), t, a, s, as)
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
		return t.say(as, u, u.Usage, func() error {
			showSubject(t, &u.Subject)
			return showUsage(t, u.Usage)
		})
	})
	c.ValidArgsFunction = completeSubject(t)
	c.Flags().BoolVar(&follow, "follow", false, "go on, each second")
	addOutput(c, &as)
	return c
}

// usageRow is how a limit stands at a time, in CSV.
type usageRow struct {
	At time.Time `json:"at"`
	admin.Quota
}

// followUsage shows how limits stand, each second.
func followUsage(ctx context.Context, t *terminal, a *client, s subject, as string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	w := csvWriter{csv.NewWriter(t.out)}
	if as == asCSV {
		if err := w.head(reflect.TypeFor[usageRow]()); err != nil {
			return err
		}
	}
	err := a.stream(ctx, call{path: s.path() + "/live"}, func(event string, data []byte) error {
		var u admin.Usage
		if event != "usage" {
			return nil
		}
		if err := json.Unmarshal(data, &u); err != nil {
			return err
		}
		switch as {
		case asJSON:
			return t.writeLine(u)
		case asCSV:
			var err error
			for _, q := range u.Items {
				err = errors.Join(err, w.row(reflect.ValueOf(usageRow{u.At, q})))
			}
			return errors.Join(err, w.end())
		}
		fmt.Fprintf(t.out, "%s %s\n", cell(u.At), s)
		err := showUsage(t, u.Items)
		fmt.Fprintln(t.out)
		return err
	})
	if ctx.Err() != nil {
		return nil // that is how it ends
	}
	return err
}

func showSubject(t *terminal, s *admin.Subject) {
	var about []string
	add := func(format, value string) {
		if value != "" {
			about = append(about, fmt.Sprintf(format, printable(value)))
		}
	}
	add("called %s", s.Name)
	add("tier %s", s.Tier)
	add("user %s", s.User)
	add("tenant %s", s.Tenant)
	if !s.Known {
		about = append(about, "of whom nothing else is known")
	}
	if s.Total > 0 {
		about = append(about, fmt.Sprintf("%d requests so far, the last %s", s.Total, cell(s.LastUsed)))
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
		fmt.Fprintf(t.out, "not good: %s\n", clean(s.Unusable))
	}
	if s.Ban != nil {
		fmt.Fprintf(t.out, "banned by %s: %s\n", printable(s.Ban.ID()), visible(s.Ban.Reason))
	}
	if s.Exemption != nil {
		fmt.Fprintf(t.out, "exempt by %s: %s\n", printable(s.Exemption.ID()), visible(s.Exemption.Reason))
	}
	for _, o := range s.Overrides {
		fmt.Fprintf(t.out, "%s is %s of its own\n", printable(o.Name), printable(o.Limit))
	}
	fmt.Fprintln(t.out)
}

func showUsage(t *terminal, all []admin.Quota) error {
	if len(all) == 0 {
		t.notes("no limit is about it")
		return nil
	}
	const width = 20
	w := t.grid("RULE", "LIMIT", "IS", "FROM", "USED", strings.Repeat(" ", width), "ALL BACK IN")
	for _, q := range all {
		name, usedText, drawn, back := q.Name, "-", "", "-"
		if q.Endpoint != "" {
			name += " at " + q.Endpoint
		}
		switch {
		case q.Unknown != "":
			usedText = "for each " + string(q.Unknown)
		case q.Max > 0:
			usedText = fmt.Sprintf("%d of %d", q.Used, q.Max)
			if q.Used > 0 {
				drawn = bar(float64(q.Used), float64(q.Max), width)
			}
			drawn += strings.Repeat("·", width-len([]rune(drawn)))
			back = seconds(q.ResetAfter)
		}
		if q.Penalty {
			name = "penalty"
		}
		w.row(q.Rule, name, q.Limit, q.Source, usedText, drawn, back)
	}
	return w.Flush()
}

// seconds is how long something takes, for people.
func seconds(n float64) string {
	const exact = 10 * time.Second
	d := time.Duration(min(n, 1e9) * float64(time.Second))
	if d < exact {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func newReset(t *terminal) *cobra.Command {
	var only string
	var yes consent
	c := serverCommand(t, &cobra.Command{
		Use:   "reset SUBJECT",
		Short: "Reset counters",
		Long: `Forget what a user, an API key, a tenant or an address has used, by all rules that count by
it or, with --rule, by one: its limits are fresh, and a penalty ends. Without --rule it
asks whether that is meant, unless there is --yes.`,
		Example: "  stint reset user:alice --rule search\n  stint reset ip:192.0.2.1 --yes",
		Args:    wants(1, 1, "one SUBJECT, such as "+subjectExample),
	}, func(c *cobra.Command, a *client, args []string) error {
		s, err := parseSubject(args[0])
		if err != nil {
			return err
		}
		if only == "" {
			if err := yes.ask(c, t, fmt.Sprintf("all that is counted of %s will be forgotten", s)); err != nil {
				return err
			}
		}
		if err := a.do(c.Context(), call{method: http.MethodPost, path: s.path() + "/reset", body: admin.ResetSubject{Rule: only}}); err != nil {
			return err
		}
		what := "all that was counted"
		if only != "" {
			what = "what " + printable(only) + " has counted"
		}
		_, err = fmt.Fprintf(t.out, "%s of %s is forgotten\n", what, s)
		return err
	})
	c.ValidArgsFunction = completeSubject(t)
	c.Flags().StringVar(&only, "rule", "", "only what this `rule` counts")
	yes.add(c)
	return c
}
