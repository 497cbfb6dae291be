package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// now is the clock of commands.
func now() time.Time { return time.Now() } //nolint:forbidigo // commands use the time of the machine

// recordFlags are the flags of commands that query the record.
type recordFlags struct {
	eitherFlags
	from, to, since string
}

// command completes a command that queries the record.
func (f *recordFlags) command(t *terminal, c *cobra.Command, run func(c *cobra.Command, s recordSource, r query.Range) error) *cobra.Command {
	f.add(c)
	c.Flags().StringVar(&f.from, "from", "", "the start of the range, as a `time` such as 2026-01-31T12:00:00Z, or 15m, 24h or 7d before now (default: a day before --to)")
	c.Flags().StringVar(&f.to, "to", "", "the end of the range, as a `time` (default: now)")
	c.Flags().StringVar(&f.since, "since", "", "the same as --from, as a `time`")
	if c.Flags().Lookup("output") == nil {
		addOutput(c)
	}
	c.Args = noArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := f.timeRange(c)
		if err != nil {
			return err
		}
		return f.run(c.Context(), t, func(a *client) error { return run(c, recordSource{server: a}, r) }, func(k *catalog.Catalog) error {
			s, err := openRecord(k)
			if err == nil {
				err = run(c, recordSource{store: s}, r)
			}
			if problems := strict.Problems(nil); errors.As(err, &problems) {
				return advice{f.nameFlags(problems), c.CommandPath() + " --help"}
			}
			return err
		})
	}
	return c
}

// timeRange returns the time range that flags give.
func (f *recordFlags) timeRange(c *cobra.Command) (r query.Range, err error) {
	if f.from != "" && f.since != "" {
		return r, usageError(c, "--from and --since are the same: want one of them")
	}
	for _, b := range []struct {
		flag, text string
		into       *time.Time
	}{{"--from", f.from, &r.From}, {"--since", f.since, &r.From}, {"--to", f.to, &r.To}} {
		if b.text == "" {
			continue
		}
		if *b.into, err = parseTime(b.text, now()); err != nil {
			return r, usageError(c, "%s %s: %w", b.flag, strict.Quote(b.text), err)
		}
	}
	return r, nil
}

// nameFlags names the flags in the problems of a query.
func (f *recordFlags) nameFlags(problems strict.Problems) strict.Problems {
	for i := range problems {
		if problems[i].Path == "from" && f.since != "" {
			problems[i].Path = "since"
		}
		problems[i].Path = "--" + problems[i].Path
	}
	return problems
}

// parseTime parses a time, or a duration before now.
func parseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	var before rule.Duration
	if err := before.UnmarshalText([]byte(text)); err != nil || before < 0 {
		return time.Time{}, errors.New("want a time such as 2026-01-31T12:00:00Z, or a duration before now such as 15m, 24h, 7d")
	}
	return now.Add(-time.Duration(before)), nil
}

// parseDuration parses a duration that is longer than 0.
func parseDuration(text string) (time.Duration, error) {
	var d rule.Duration
	if err := d.UnmarshalText([]byte(text)); err != nil || d <= 0 {
		return 0, errors.New("want a duration such as 15m, 24h, 7d")
	}
	return time.Duration(d), nil
}

func newEvents(t *terminal) *cobra.Command {
	return family("events", "Query recorded decisions",
		newEventsList(t), newEventsFollow(t), newEventsExport(t), newEventsTop(t), newEventsSeries(t), newEventsViolations(t), newEventsClients(t))
}

// filter is a flag that filters a query.
type filter struct {
	into        *string
	name, usage string
}

func addFilters(c *cobra.Command, all ...filter) {
	for _, f := range all {
		c.Flags().StringVar(f.into, f.name, "", f.usage)
	}
}

// eventFlags are the flags of commands that show events.
type eventFlags struct {
	recordFlags
	record.EventQuery
	shadow bool
}

// command completes a command that shows events.
func (f *eventFlags) command(t *terminal, c *cobra.Command, run func(c *cobra.Command, s recordSource, q record.EventQuery) error) *cobra.Command {
	addFilters(c,
		filter{&f.User, "user", "only of this `user`"},
		filter{&f.Tenant, "tenant", "only of this `tenant`"},
		filter{&f.Key, "key", "only of the API key with this `id`"},
		filter{&f.IP, "ip", "only of this `address`, as it is recorded"},
		filter{&f.Rule, "rule", "only by this `rule`"},
		filter{&f.Endpoint, "endpoint", "only at this `endpoint`: the path pattern of a rule"},
		filter{&f.Path, "path", "only of paths that begin with this `text`, as they are recorded"},
		filter{&f.Method, "method", "only with this `method`"},
		filter{&f.Region, "region", "only of nodes in this `region`"},
		filter{&f.Node, "node", "only of this `node`"},
		filter{&f.Outcome, "outcome", "only with this `outcome`: allowed, throttled, exempt, denied, banned, blocked, unauthorized or unavailable"})
	c.Flags().BoolVar(&f.shadow, "shadow", false, "only those that a log_only rule would have denied")
	return f.recordFlags.command(t, c, func(c *cobra.Command, s recordSource, r query.Range) error {
		q := f.EventQuery
		q.Range = r
		if q.Limit < 1 {
			return advice{fmt.Errorf("--limit %d: want 1 or more", q.Limit), "--limit 100"}
		}
		if f.shadow {
			q.Shadow = &f.shadow
		}
		if ip, err := netip.ParseAddr(q.IP); err == nil {
			q.IP = ip.Unmap().String() // as it is recorded
		}
		return run(c, s, q)
	})
}

func newEventsList(t *terminal) *cobra.Command {
	var f eventFlags
	c := f.command(t, &cobra.Command{
		Use:   "list",
		Short: "List decisions",
		Long: `List recorded decisions, newest first: all requests that were denied or throttled, those
that a log_only rule would have denied, and a sample of those that were allowed. The
default range is the last day; a range can be at most 366 days long. Archived months are
not included ("stint archive").

PATH is that of the request, or what the settings keep of it; if it is not recorded, the
pattern of the rule that matched. SETTLED is what became of what a request had reserved,
by rule: "tokens 730/1000 back 270" if it has used 730 of 1000, and "tokens 1200/1000 over
200" if it has used more.`,
		Example: `  stint events list --user alice --since 1h
  stint events list --from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z --limit 100000 -o json`,
	}, func(c *cobra.Command, s recordSource, q record.EventQuery) error { return s.write(c.Context(), q, t) })
	c.Flags().IntVar(&f.Limit, "limit", 100, "show at most this `number`, the newest")
	return c
}

func newEventsFollow(t *terminal) *cobra.Command {
	var f eventFlags
	c := f.command(t, &cobra.Command{
		Use:   "follow",
		Short: "Follow decisions live",
		Long: `Show decisions as they are made, until interrupted: requests that are denied or throttled,
and a sample of the others. A server shows those of all nodes that share its database or,
without one, Redis: at most 50 per second of its own, and 250 of the others, which come one or
two seconds later.`,
		Example: `  stint events follow --rule search --outcome denied
  stint events follow -o json`,
	}, func(c *cobra.Command, s recordSource, q record.EventQuery) error {
		for _, name := range []string{"from", "since", "to"} {
			if c.Flags().Changed(name) {
				return advice{fmt.Errorf("--%s: this command shows what happens from now on, until it is interrupted", name), "stint events list"}
			}
		}
		if s.server == nil {
			return advice{errors.New("only a server shows what happens now"), "--server URL; or stint events list"}
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		w := eventWriter{t: t, live: true}
		if err := w.begin(); err != nil {
			return err
		}
		return s.follow(ctx, q, w.row, func(text string) { t.notes(text) })
	})
	f.Limit = 1 // there is none
	return c
}

func newEventsExport(t *terminal) *cobra.Command {
	var f eventFlags
	var file string
	c := &cobra.Command{
		Use:   "export",
		Short: "Export decisions to a file",
		Long: `Export recorded decisions to a file for other programs, newest first: as CSV, as one JSON
object per line, or as Parquet, with the columns of the archive.`,
		Example: `  stint events export --since 7d -f week.csv
  stint events export --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z -o parquet -f january.parquet
  stint events export --rule search -o json | jq -r .user_id | sort | uniq -c`,
	}
	c.Flags().IntVar(&f.Limit, "limit", 100_000, "export at most this `number`, the newest")
	addOutputFile(c, &file)
	addOutput(c, asCSV, asJSON, asParquet)
	return f.command(t, c, func(c *cobra.Command, s recordSource, q record.EventQuery) error {
		return t.writeTo(file, func(w io.Writer) error { return s.export(c.Context(), q, t.format, w) })
	})
}

// rolledUp is the help about numbers that are added up in advance.
const rolledUp = `

Numbers cover whole hours, up to the last complete minute: a running node adds up events as
they are recorded. The numbers are kept when events are archived.`

func newEventsTop(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.TopQuery
	c := f.command(t, &cobra.Command{
		Use:   "top",
		Short: "Show who or what was denied most",
		Long: `Show which users, tenants, API keys, addresses, paths, rules or endpoints had the most
denied requests: denied by limits, and denied for any reason. Of paths, the first 100 of a
minute and 1,000 of an hour are counted.` + rolledUp,
		Example: `  stint events top --by user --since 7d
  stint events top --by ip --rule search --limit 100 -o json`,
	}, func(c *cobra.Command, s recordSource, r query.Range) error {
		q.Range = r
		all, err := statistics(c.Context(), s, "/top", rangeParameters(q.Range, q.Limit, "by", q.By, "rule", q.Rule),
			func(s *rollup.Store) ([]rollup.Refusals, error) { return s.Top(c.Context(), q) },
			func(r rollup.Refusals) admin.Refusals { return admin.Refusals(r) })
		if err != nil {
			return err
		}
		return printList(t, all, noneRecorded, []string{strings.ToUpper(q.By), "DENIED BY LIMITS", "DENIED IN TOTAL"}, func(r *admin.Refusals) []any {
			return []any{r.Name, r.Denied, r.Refused}
		})
	})
	c.Flags().StringVar(&q.By, "by", "user", "the `kind`: user, tenant, key, ip, path, rule or endpoint")
	c.Flags().IntVar(&q.Limit, "limit", 10, "show at most this `number`, from 1 to 1,000")
	addFilters(c, filter{&q.Rule, "rule", "only by this `rule`"})
	return c
}

func newEventsSeries(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.SeriesQuery
	var step string
	c := f.command(t, &cobra.Command{
		Use:   "series",
		Short: "Show the number and latency of decisions over time",
		Long: `Show the number of decisions over time, by outcome or by something else, with the 50th,
95th and 99th percentile of their latency. Points are at multiples of the step; a table
leaves out points without decisions.

Numbers cover complete minutes. They include allowed requests of which only a sample is
recorded.`,
		Example: `  stint events series --since 1h
  stint events series --by rule --outcome denied --since 30d --step 1d
  stint events series --by endpoint -o json`,
	}, func(c *cobra.Command, s recordSource, r query.Range) error {
		q.Range = r
		seconds := ""
		if step != "" {
			d, err := parseDuration(step)
			if err != nil {
				return usageError(c, "--step %s: %w", strict.Quote(step), err)
			}
			q.Step, seconds = d, strconv.FormatInt(int64(d/time.Second), 10)
		}
		all, err := statistics(c.Context(), s, "/series", rangeParameters(q.Range, q.Limit, "step_seconds", seconds, "by", q.By,
			"rule", q.Rule, "tier", q.Tier, "endpoint", q.Endpoint, "region", q.Region, "outcome", q.Outcome),
			func(s *rollup.Store) ([]rollup.Series, error) { return s.Series(c.Context(), q) }, convertSeries)
		if err != nil {
			return err
		}
		return printSeries(t, q.By, all)
	})
	c.Flags().StringVar(&q.By, "by", "outcome", "one series for each of this `kind`: outcome, rule, tier, endpoint or region")
	c.Flags().StringVar(&step, "step", "", "the `time` between points: whole minutes, hours or days (default: the shortest with at most 500 points)")
	c.Flags().IntVar(&q.Limit, "limit", 20, "show at most this `number` of series, from 1 to 50; the others are added up")
	addFilters(c,
		filter{&q.Rule, "rule", "only by this `rule`"}, filter{&q.Tier, "tier", "only of this `tier`"}, filter{&q.Endpoint, "endpoint", "only at this `endpoint`"},
		filter{&q.Region, "region", "only in this `region`"}, filter{&q.Outcome, "outcome", "only with this `outcome`"})
	return c
}

func convertSeries(s rollup.Series) admin.Series {
	x := admin.Series{Name: s.Name, Rest: s.Rest, Points: []admin.Point{}}
	for _, p := range s.Points {
		x.Points = append(x.Points, admin.Point{
			Start: p.Start, Total: p.Total, Events: p.Events, Cached: p.Cached,
			P50: p.P50.Microseconds(), P95: p.P95.Microseconds(), P99: p.P99.Microseconds(),
		})
	}
	return x
}

// printSeries prints series: as a table by time, as CSV by series.
func printSeries(t *terminal, by string, all []admin.Series) error {
	type row struct {
		Name string `json:"name"`
		Rest bool   `json:"rest"`
		admin.Point
	}
	rows := []row{}
	for _, s := range all {
		for _, p := range s.Points {
			rows = append(rows, row{s.Name, s.Rest, p})
		}
	}
	return t.print(all, rows, func() error {
		if len(all) == 0 {
			t.notes(noneRecorded)
			return nil
		}
		byTime := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.Total == 0 })
		slices.SortStableFunc(byTime, func(a, b row) int { return a.Start.Compare(b.Start) })
		return printTable(t, byTime, "", []string{"START", strings.ToUpper(by), "DECISIONS", "CACHED", "P50", "P95", "P99"}, func(r *row) []any {
			if r.Rest {
				r.Name = "(others)"
			}
			micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
			return []any{r.Start, r.Name, r.Total, r.Cached, micros(r.P50), micros(r.P95), micros(r.P99)}
		})
	})
}

func newEventsViolations(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.ViolationQuery
	c := f.command(t, &cobra.Command{
		Use:   "violations",
		Short: "Show which users were denied by which rules",
		Long:  `Show how often each user was denied by each rule, most frequent first.` + rolledUp,
		Example: `  stint events violations --user alice --since 30d
  stint events violations --rule search -o json`,
	}, func(c *cobra.Command, s recordSource, r query.Range) error {
		q.Range = r
		all, err := statistics(c.Context(), s, "/violations", rangeParameters(q.Range, q.Limit, "user", q.User, "rule", q.Rule),
			func(s *rollup.Store) ([]rollup.Violation, error) { return s.Violations(c.Context(), q) },
			func(v rollup.Violation) admin.Violation { return admin.Violation(v) })
		if err != nil {
			return err
		}
		return printList(t, all, noneRecorded, []string{"USER", "RULE", "DENIED"}, func(v *admin.Violation) []any { return []any{v.User, v.Rule, v.Denied} })
	})
	c.Flags().IntVar(&q.Limit, "limit", 100, "show at most this `number`, from 1 to 1,000")
	addFilters(c, filter{&q.User, "user", "only of this `user`"}, filter{&q.Rule, "rule", "only by this `rule`"})
	return c
}

func newEventsClients(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.DistinctQuery
	c := f.command(t, &cobra.Command{
		Use:   "clients",
		Short: "Count the clients that were denied",
		Long: `Count the different users, tenants, API keys or addresses that were denied by a limit. The
number is exact up to 16,384, and an estimate above.` + rolledUp,
		Example: `  stint events clients --by ip --since 24h
  stint events clients --rule search -o json`,
	}, func(c *cobra.Command, s recordSource, r query.Range) (err error) {
		q.Range = r
		x := admin.Clients{By: q.By}
		if s.server != nil {
			err = s.server.do(c.Context(), call{path: "/clients", query: rangeParameters(q.Range, 0, "by", q.By, "rule", q.Rule), into: &x})
		} else {
			x.Clients, x.Exact, err = s.store.Distinct(c.Context(), q)
		}
		if err != nil {
			return err
		}
		return t.print(x, nil, func() error {
			about := ""
			if !x.Exact {
				about = "about "
			}
			_, err := fmt.Fprintf(t.out, "%s%d\n", about, x.Clients)
			return err
		})
	})
	c.Flags().StringVar(&q.By, "by", "user", "the `kind`: user, tenant, key or ip")
	addFilters(c, filter{&q.Rule, "rule", "only by this `rule`"})
	return c
}
