package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/accesslog"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/kit/strict"
)

// tried is the output of "stint try" in JSON.
type tried struct {
	fitting.Result
	Tried  []triedLimit    `json:"tried" nullable:"false"` // limits, with what they deny
	Replay replay.Report   `json:"replay"`
	Rules  string          `json:"rules"` // in TOML
	Log    accesslog.Stats `json:"log"`
}

// triedLimit is a limit with what it denies, together with the others.
type triedLimit struct {
	fitting.Limit
	Denied        int64 `json:"denied"`
	DeniedClients int64 `json:"denied_clients"`
}

func newTry(t *terminal) *cobra.Command {
	var (
		f logFlags
		o fitting.Options
	)
	c := &cobra.Command{
		Use:   "try LOG...",
		Short: "Show which limits would fit an access log",
		Long: `Read access logs, and show how often clients ask, which limits would fit that, and what they
would have denied. No server and no configuration is needed, and nothing is changed.

A limit fits if it denies at most one client in --one-in: half of these by the limit of a minute,
and the others by that of a second, which bounds bursts. What the limits would have denied is not
estimated: the log is replayed through the same code that decides in a server.

With -o toml, only the rules are written, as a config file for "stint serve". Access logs are
described in "stint help logs".`,
		Example: `  stint try access.log
  stint try access.log --one-in 20
  ssh web1 cat /var/log/nginx/access.log | stint try - -o toml > stint.toml`,
		Args: wants(1, math.MaxInt, "one LOG or more, or - for the standard input"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case o.OneIn < 1:
				return advice{fmt.Errorf("--one-in %d: want 1 or more", o.OneIn), "--one-in 1000"}
			case o.Endpoints < 1:
				return advice{fmt.Errorf("--endpoints %d: want 1 or more", o.Endpoints), "--endpoints 10"}
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			in, err := f.open(c, args)
			if err != nil {
				return err
			}
			defer in.close()
			x, err := tryLimits(ctx, t, in, o)
			if err != nil {
				return err
			}
			if t.format == asTOML {
				_, err := io.WriteString(t.out, x.Rules)
				return err
			}
			return t.print(x, x.Tried, func() error { return printTried(t, x) })
		},
	}
	f.add(c)
	c.Flags().Int64Var(&o.OneIn, "one-in", 1000, "limits may deny one client in this `number`")
	c.Flags().IntVar(&o.Endpoints, "endpoints", 10, "at most this `number` of endpoints have limits of their own: the busiest")
	addChoice(c, &o.By, "by", "", "what tells clients apart: ip or user", "ip", "user")
	addOutput(c, asTable, asJSON, asYAML, asCSV, asTOML)
	return c
}

// tryLimits reads the logs three times: it finds the busiest endpoints, measures their clients, and replays the limits that fit.
func tryLimits(ctx context.Context, t *terminal, in *logs, o fitting.Options) (*tried, error) {
	requests := func(yield func(recorded.Request, error) bool) {
		for q, err := range in.requests {
			if err == nil {
				err = ctx.Err()
			}
			if !yield(q, err) || err != nil {
				return
			}
		}
	}
	a := fitting.New(o)
	if err := t.waits("reading", func() error { return a.Survey(requests) }); err != nil {
		return nil, err
	}
	if err := in.check(t); err != nil {
		return nil, err
	}
	x := &tried{Log: in.reader.Stats, Tried: []triedLimit{}}
	if err := t.waits("measuring clients", func() error { return a.Measure(requests) }); err != nil {
		return nil, err
	}
	x.Result = a.Result()
	rules := replay.Rules{File: x.Result.Rules()}
	text, err := strict.AppendTOML(nil, rules.File)
	if err != nil {
		return nil, err
	}
	x.Rules = string(text)
	err = t.waits("replaying", func() (err error) {
		x.Replay, err = replay.Run(ctx, replay.Options{Candidate: &rules, Logged: true, Top: max(10, len(rules.File.Rules))}, requests)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, l := range x.Limits {
		y := triedLimit{Limit: l}
		for _, row := range x.Replay.Rules {
			if row.Name == l.Rule {
				y.Denied, y.DeniedClients = row.Candidate, row.Subjects
			}
		}
		x.Tried = append(x.Tried, y)
	}
	const shown = 10
	x.Replay.Subjects = x.Replay.Subjects[:min(len(x.Replay.Subjects), shown)]
	return x, nil
}

// Text returns the limits as they are written in rules.
func (l *triedLimit) Text() string {
	text := fmt.Sprintf("%d/1m", l.PerMinute)
	if l.PerSecond > 0 {
		text += fmt.Sprintf(", %d/1s", l.PerSecond)
	}
	return text
}

// Name returns the endpoint, or all of them.
func (l *triedLimit) Name() string {
	if l.Endpoint == "" {
		return "all requests"
	}
	return l.Endpoint
}

// Summary says what the log has.
func (x *tried) Summary() string {
	if x.Requests == 0 {
		return "The log has no requests."
	}
	about := ""
	if !x.Exact {
		about = "about "
	}
	endpoints := recorded.Count(x.Endpoints, "endpoint")
	if x.More {
		endpoints = "more than " + endpoints
	}
	return fmt.Sprintf("%s of %s%s to %s, in %v.", recorded.Requests(x.Requests), about, recorded.Count(x.Clients, "client"), endpoints, x.To.Sub(x.From).Round(1e9))
}

// Denied says what the limits deny together.
func (x *tried) Denied() string {
	c := x.Replay.Candidate
	return fmt.Sprintf("Together they would have denied %s (%s), of %s.", recorded.Requests(c.Denied), recorded.Percent(c.Denied, max(x.Replay.Requests, 1)), recorded.Count(c.Subjects, "client"))
}

func printTried(t *terminal, x *tried) error {
	fmt.Fprintln(t.out, x.Summary())
	if x.Requests == 0 {
		return nil
	}
	fmt.Fprintf(t.out, "%s to %s\n", cell(x.From), cell(x.To))
	if x.Nameless > 0 {
		t.notes(fmt.Sprintf("%s without a user, and not measured", recorded.Requests(x.Nameless)))
	}
	if !x.Exact {
		t.notes("there are more clients than fit into memory: a sample of them was measured, and the limits are estimates; what they deny is not")
	}
	if len(x.Limits) == 0 {
		return nil
	}
	fmt.Fprintln(t.out, "\nHow many requests a client sends, in windows in which it sends any:")
	if err := printTable(t, x.Windows, "", []string{"WINDOW", "50 %", "90 %", "99 %", "99.9 %", "MAX"}, func(w *fitting.Window) []any {
		return []any{w.Window, w.P50, w.P90, w.P99, w.P999, w.Max}
	}); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "\nLimits that deny at most one client in %d:\n", x.OneIn)
	if err := printTable(t, x.Tried, "", []string{"ENDPOINT", "REQUESTS", "CLIENTS", "LIMITS", "DENIED", "CLIENTS DENIED"}, func(l *triedLimit) []any {
		return []any{l.Name(), l.Requests, l.Clients, l.Text(), l.Denied, l.DeniedClients}
	}); err != nil {
		return err
	}
	fmt.Fprintln(t.out, x.Denied())
	var most []replay.Row
	for _, s := range x.Replay.Subjects {
		if s.Candidate > 0 {
			most = append(most, s)
		}
	}
	if len(most) > 0 {
		fmt.Fprintln(t.out, "\nClients that would be denied most:")
		if err := printTable(t, most, "", []string{"CLIENT", "REQUESTS", "DENIED"}, func(r *replay.Row) []any { return []any{r.Name, r.Requests, r.Candidate} }); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(t.out, "\nThe rules, for a file of \"stint serve --config\":\n\n%s", x.Rules)
	return err
}
