package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// now is the clock of commands.
func now() time.Time { return time.Now() } //nolint:forbidigo // a command is asked at some time

// recordFlags are the flags of commands that ask the record about a time.
type recordFlags struct {
	eitherFlags
	from, to, since string
	as              string
}

// command makes a command that asks the record about a time.
func (f *recordFlags) command(t *terminal, c *cobra.Command, ask func(c *cobra.Command, b book, r query.Range) error) *cobra.Command {
	f.add(c)
	c.Flags().StringVar(&f.from, "from", "", "from this `time` on, as 2026-01-31T12:00:00Z or, before now, as 15m, 24h, 7d (default: a day before --to)")
	c.Flags().StringVar(&f.to, "to", "", "before this `time` (default: now)")
	c.Flags().StringVar(&f.since, "since", "", "the same as --from, as a `time`")
	if c.Args == nil {
		c.Args = nothing
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return f.use(c, t, ask) }
	return c
}

// use opens the record, has something asked about the time that flags say, and closes it.
func (f *recordFlags) use(c *cobra.Command, t *terminal, ask func(*cobra.Command, book, query.Range) error) error {
	help := c.CommandPath() + " --help"
	if f.from != "" && f.since != "" {
		return advice{errors.New("--from and --since are the same: give one of them"), help}
	}
	var r query.Range
	for _, b := range []struct {
		flag, text string
		into       *time.Time
	}{{"--from", f.from, &r.From}, {"--since", f.since, &r.From}, {"--to", f.to, &r.To}} {
		if b.text == "" {
			continue
		}
		var err error
		if *b.into, err = parseTime(b.text, now()); err != nil {
			return advice{fmt.Errorf("%s %s: %w", b.flag, strict.Quote(b.text), err), help}
		}
	}
	a, err := f.remote(t)
	if err != nil {
		return err
	}
	if a != nil {
		defer a.close()
		return ask(c, serverBook{a}, r)
	}
	return f.databaseFlags.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
		s, err := rollup.New(k.Database(), rollup.Options{})
		if err == nil {
			err = ask(c, storeBook{s}, r)
		}
		if problems := strict.Problems(nil); errors.As(err, &problems) {
			return advice{f.flagged(problems), help}
		}
		return err
	})
}

// flagged names the flags that problems with a query are about.
func (f *recordFlags) flagged(problems strict.Problems) strict.Problems {
	for i := range problems {
		if problems[i].Path == "from" && f.since != "" {
			problems[i].Path = "since"
		}
		problems[i].Path = "--" + problems[i].Path
	}
	return problems
}

// parseTime reads a time, or how long before now it was.
func parseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	var before rule.Duration
	if err := before.UnmarshalText([]byte(text)); err != nil || before < 0 {
		return time.Time{}, errors.New("want a time such as 2026-01-31T12:00:00Z, or a length before now such as 15m, 24h, 7d")
	}
	return now.Add(-time.Duration(before)), nil
}

func newEvents(t *terminal) *cobra.Command {
	return family("events", "Query recorded decisions",
		newEventsList(t), newEventsFollow(t), newEventsExport(t), newEventsTop(t), newEventsSeries(t), newEventsViolations(t), newEventsClients(t))
}

// eventFlags say which events are meant.
type eventFlags struct {
	recordFlags
	record.EventQuery
	shadow bool
}

func (f *eventFlags) add(c *cobra.Command) {
	for _, x := range []struct {
		into       *string
		name, what string
	}{
		{&f.User, "user", "of this `user` only"},
		{&f.Tenant, "tenant", "of this `tenant` only"},
		{&f.Key, "key", "of the API key with this `id` only"},
		{&f.IP, "ip", "of this `address` only, in the form in which the record has it"},
		{&f.Rule, "rule", "by this `rule` only"},
		{&f.Endpoint, "endpoint", "at this `endpoint` only: the pattern of a rule"},
		{&f.Method, "method", "with this `method` only"},
		{&f.Region, "region", "of nodes in this `region` only"},
		{&f.Node, "node", "of this `node` only"},
		{&f.Outcome, "outcome", "with this `outcome` only: allowed, throttled, exempt, denied, banned, blocked, unauthorized, unavailable"},
	} {
		c.Flags().StringVar(x.into, x.name, "", x.what)
	}
	c.Flags().BoolVar(&f.shadow, "shadow", false, "only those that a log_only rule would have denied")
}

// query is what the flags say.
func (f *eventFlags) query(r query.Range) (record.EventQuery, error) {
	q := f.EventQuery
	q.Range = r
	if q.Limit < 1 {
		return q, advice{fmt.Errorf("--limit %d: want 1 or more", q.Limit), "--limit 100"}
	}
	if f.shadow {
		q.Shadow = &f.shadow
	}
	if ip, err := netip.ParseAddr(q.IP); err == nil {
		q.IP = ip.Unmap().String() // as it is recorded
	}
	return q, nil
}

func newEventsList(t *terminal) *cobra.Command {
	var f eventFlags
	c := f.command(t, &cobra.Command{
		Use:   "list",
		Short: "List decisions",
		Long: `List recorded decisions, the newest first: all requests that were denied or throttled,
those that a log_only rule would have denied, and a sample of those that were allowed.
The default range is the last day; a range has at most 366 days. Archived months are not
in it ("stint archive").`,
		Example: `  stint events list --user alice --since 1h
  stint events list --from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z --limit 100000 -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		q, err := f.query(r)
		if err != nil {
			return err
		}
		s := eventSheet{t: t, as: f.as}
		for e, err := range b.find(c.Context(), q) {
			if err != nil {
				return err
			}
			if err := s.row(&e); err != nil {
				return err
			}
		}
		return s.end()
	})
	f.add(c)
	c.Flags().IntVar(&f.Limit, "limit", 100, "at most this `number` of them, the newest")
	addOutput(c, &f.as)
	return c
}

func newEventsFollow(t *terminal) *cobra.Command {
	var f eventFlags
	c := f.command(t, &cobra.Command{
		Use:   "follow",
		Short: "Follow decisions live",
		Long: `Show what is decided, as it comes, until it is interrupted. A server shows what it
decides itself: what it refuses or holds, and a sample of the rest, at most 50 in a
second.

Of a database it shows what all nodes record: first what there is, the oldest first, and
then what comes. What comes more than ten seconds after it was decided, as from a node
that could not reach the database, is not shown.`,
		Example: `  stint events follow --rule search --outcome denied
  stint events follow --since 5m -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		if f.to != "" {
			return advice{errors.New("this goes on until it is interrupted, and --to says when to end"), "stint events list"}
		}
		if f.Limit > mostFollowed {
			return advice{fmt.Errorf("--limit %d: want at most %d", f.Limit, mostFollowed), "--limit 100; or stint events list"}
		}
		q, err := f.query(r)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		s := eventSheet{t: t, as: f.as, live: true}
		if err := s.begin(); err != nil {
			return err
		}
		return b.follow(ctx, q, s.row, func(text string) { t.notes(text) })
	})
	f.add(c)
	c.Flags().IntVar(&f.Limit, "limit", 100, "of a database, begin with at most this `number` of those that there are")
	addOutput(c, &f.as)
	return c
}

const asParquet = "parquet"

func newEventsExport(t *terminal) *cobra.Command {
	var f eventFlags
	var file string
	c := f.command(t, &cobra.Command{
		Use:   "export",
		Short: "Export decisions to a file",
		Long: `Write what the record has of decisions into a file, the newest first, for other programs
to read: as CSV, as an object of JSON in each line, or as Parquet, with the columns of the
archive.`,
		Example: `  stint events export --since 7d -f week.csv
  stint events export --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z -o parquet -f january.parquet
  stint events export --rule search -o json | jq -r .user_id | sort | uniq -c`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		q, err := f.query(r)
		if err != nil {
			return err
		}
		to := func(w io.Writer) error { return b.export(c.Context(), q, f.as, w) }
		if file == "" || file == "-" {
			return to(t.out)
		}
		return replace(file, func(w io.Writer) error { return t.count(w, to) })
	})
	f.add(c)
	c.Flags().IntVar(&f.Limit, "limit", 100_000, "at most this `number` of them, the newest")
	c.Flags().StringVarP(&file, "file", "f", "", "the `FILE` to write (default: the standard output)")
	addChoice(c, &f.as, "output", "o", "how to write it, as a `format`: csv, json or parquet", asCSV, asJSON, asParquet)
	return c
}

// eventHeader and eventFormat are for lines that are written one by one, as wide as most
// cells are.
var eventHeader = []string{"TIME", "OUTCOME", "RULE", "LIMIT", "SUBJECT", "ENDPOINT", "USED", "RETRY"}

const eventFormat = "%-27s  %-12s  %-16s  %-12s  %-20s  %-20s  %-9s  %s\n"

// cells are what people see of an event.
func cells(r *recorded) []string {
	outcome, used, retry := visible(r.Outcome), "-", "-"
	if r.Shadow {
		outcome += " (shadow)"
	}
	if r.Limit != "" {
		used = fmt.Sprintf("%d/%d", r.Used, r.Max)
	}
	switch {
	case r.RetryAfter < 0:
		retry = "never"
	case r.RetryAfter > 0:
		retry = (time.Duration(r.RetryAfter) * time.Microsecond).Round(time.Millisecond).String()
	}
	subject := ""
	for _, s := range []struct{ kind, id string }{{"user", r.User}, {"key", r.Key}, {"ip", r.IP}, {"tenant", r.Tenant}} {
		if s.id != "" {
			subject = s.kind + ":" + s.id
			break
		}
	}
	return []string{r.Time.Format("2006-01-02T15:04:05.000000Z"), outcome, visible(r.Rule), visible(r.Limit), visible(subject), visible(r.Endpoint), used, retry}
}

func toAny(cells []string) []any {
	out := make([]any, len(cells))
	for i := range cells {
		out[i] = cells[i]
	}
	return out
}

// eventSheet writes events one after the other: however many there are, they need not
// be in memory, but for those of a table that ends.
type eventSheet struct {
	t     *terminal
	as    string
	live  bool // each is seen at once
	begun bool
	table grid
	csv   csvWriter
}

func (s *eventSheet) begin() error {
	s.begun = true
	switch {
	case s.as == asCSV:
		s.csv = csvWriter{csv.NewWriter(s.t.out)}
		return errors.Join(s.csv.head(reflect.TypeFor[recorded]()), s.csv.end())
	case s.as == asTable && s.live:
		fmt.Fprintf(s.t.out, eventFormat, toAny(eventHeader)...)
	case s.as == asTable:
		s.table = s.t.grid(eventHeader...)
	}
	return nil
}

func (s *eventSheet) row(e *recorded) (err error) {
	if !s.begun {
		err = s.begin()
	}
	switch {
	case err != nil:
	case s.as == asJSON:
		err = s.t.writeLine(e)
	case s.as == asCSV:
		if err = s.csv.row(reflect.ValueOf(e)); s.live {
			err = errors.Join(err, s.csv.end())
		}
	case s.live:
		_, err = fmt.Fprintf(s.t.out, eventFormat, toAny(cells(e))...)
	default:
		_, err = fmt.Fprintln(s.table, strings.Join(cells(e), "\t"))
	}
	return err
}

func (s *eventSheet) end() error {
	switch {
	case s.as == asJSON:
		return nil
	case s.as == asTable && !s.begun:
		s.t.none()
		return nil
	case s.as == asTable:
		return s.table.Flush()
	case !s.begun:
		return s.begin()
	}
	return s.csv.end()
}

// none says that there is nothing, where a table would be.
func (t *terminal) none() { t.notes("the record has none in this time") }
