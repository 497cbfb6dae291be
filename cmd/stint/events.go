package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/catalog"
	"github.com/stintdev/stint/internal/strict"
	"github.com/stintdev/stint/rule"
)

// now is the clock of commands.
func now() time.Time { return time.Now() } //nolint:forbidigo // a command is asked at some time

// recordFlags are the flags of commands that ask the record about a time.
type recordFlags struct {
	databaseFlags
	from, to, since string
	asJSON          bool
}

func (f *recordFlags) add(c *cobra.Command) {
	f.databaseFlags.add(c)
	c.Flags().StringVar(&f.from, "from", "", "from this `time` on, as 2026-01-31T12:00:00Z or, before now, as 15m, 24h, 7d (default: a day before --to)")
	c.Flags().StringVar(&f.to, "to", "", "before this `time` (default: now)")
	c.Flags().StringVar(&f.since, "since", "", "the same as --from, as a `time`")
	addJSON(c, &f.asJSON)
}

// use opens the record, has something asked about the time that flags say, and closes it.
func (f *recordFlags) use(c *cobra.Command, t *terminal, ask func(*audit.Store, audit.Range) error) error {
	help := c.CommandPath() + " --help"
	if f.from != "" && f.since != "" {
		return advice{errors.New("--from and --since are the same: give one of them"), help}
	}
	var r audit.Range
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
	return f.databaseFlags.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
		s, err := audit.NewStore(k.Database(), audit.StoreOptions{})
		if err == nil {
			err = ask(s, r)
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
	var (
		f              recordFlags
		q              audit.EventQuery
		follow, shadow bool
	)
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what was decided",
		Long: `Show the record of decisions in the database, the newest first: all requests that were
refused or held, those that a rule that is only tried out would have refused, and a
sample of those that passed. It is that of the last day, unless flags say otherwise; a
range has at most 366 days. Months that were archived are not in it ("stint archive").

With --follow it shows these, the oldest first, and then those that come, until it is
interrupted. What comes more than ten seconds after it was decided, as from a node that
could not reach the database, is not shown.`,
		Example: `  stint events --user alice --since 1h
  stint events --rule search --outcome denied --follow
  stint events --from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z --limit 100000 --json
  stint events top --by rule --since 7d`,
		Args: wants(0, 0, "no arguments, or one of its commands"),
		RunE: func(c *cobra.Command, _ []string) error {
			if follow && f.to != "" {
				return advice{errors.New("--follow goes on until it is interrupted, and --to says when to end"), "one of them"}
			}
			if follow && q.Limit > mostFollowed {
				return advice{fmt.Errorf("--limit %d: want at most %d with --follow", q.Limit, mostFollowed), "--limit 100, or without --follow"}
			}
			if q.Limit < 1 {
				return advice{fmt.Errorf("--limit %d: want 1 or more", q.Limit), "--limit 100"}
			}
			if shadow {
				q.Shadow = &shadow
			}
			if ip, err := netip.ParseAddr(q.IP); err == nil {
				q.IP = ip.Unmap().String() // as it is recorded
			}
			return f.use(c, t, func(s *audit.Store, r audit.Range) error {
				q.Range = r
				if follow {
					return followEvents(c.Context(), t, s, q, f.asJSON)
				}
				return t.showEvents(find(c.Context(), s, q), f.asJSON)
			})
		},
	}
	f.add(c)
	for _, x := range []struct {
		into       *string
		name, what string
	}{
		{&q.User, "user", "of this `user` only"},
		{&q.Tenant, "tenant", "of this `tenant` only"},
		{&q.Key, "key", "of the API key with this `id` only"},
		{&q.IP, "ip", "of this `address` only, in the form in which the record has it"},
		{&q.Rule, "rule", "by this `rule` only"},
		{&q.Endpoint, "endpoint", "at this `endpoint` only: the pattern of a rule"},
		{&q.Method, "method", "with this `method` only"},
		{&q.Outcome, "outcome", "with this `outcome` only: allowed, throttled, exempt, denied, banned, blocked, unauthorized, unavailable"},
	} {
		c.Flags().StringVar(x.into, x.name, "", x.what)
	}
	c.Flags().BoolVar(&shadow, "shadow", false, "only those that a rule that is only tried out would have refused")
	c.Flags().IntVar(&q.Limit, "limit", 100, "at most this `number` of them, the newest")
	c.Flags().BoolVar(&follow, "follow", false, "go on with those that come")
	c.AddCommand(newEventsTop(t), newEventsSeries(t), newEventsViolations(t), newEventsClients(t))
	return c
}

// find goes through events, the newest first, until there are as many as wanted.
func find(ctx context.Context, s *audit.Store, q audit.EventQuery) iter.Seq2[audit.Event, error] {
	return func(yield func(audit.Event, error) bool) {
		const page = 1000
		for left := q.Limit; left > 0; left -= page {
			q.Limit = min(left, page)
			events, after, err := s.Find(ctx, q)
			for i := range events {
				if !yield(events[i], nil) {
					return
				}
			}
			if err != nil {
				yield(audit.Event{}, err)
				return
			}
			if q.After = after; after == (audit.Cursor{}) {
				return
			}
		}
	}
}

// mostFollowed is how many events are shown at once, for others to keep up.
const mostFollowed = 10_000

// followEvents shows events, and then those that come.
func followEvents(ctx context.Context, t *terminal, s *audit.Store, q audit.EventQuery, asJSON bool) error {
	const (
		every = time.Second
		late  = 10 * time.Second // for how long after its time an event may come
	)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if !asJSON {
		fmt.Fprintf(t.out, eventFormat, toAny(eventHeader)...)
	}
	seen := map[engine.ID]time.Time{} // of those that may be found again
	tick := time.NewTicker(every)
	defer tick.Stop()
	for wanted := q.Limit; ; wanted = mostFollowed {
		q.Limit = wanted + 1 // one more tells whether there are more
		var all []audit.Event
		var oldest time.Time // of those found
		found := 0
		for e, err := range find(ctx, s, q) {
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if found++; found > wanted {
				break
			}
			oldest = e.At
			if _, ok := seen[e.ID]; !ok {
				all = append(all, e)
			}
		}
		if found > wanted && len(all) == mostFollowed {
			t.notes([]string{"there are more than can be shown here: stint events without --follow has them all"})
		}
		for _, e := range slices.Backward(all) {
			seen[e.ID] = e.At
			if err := t.showEvent(&e, asJSON); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if found > wanted { // what is older was left out, and stays so
			q.From = oldest
		}
		if from := now().Add(-late); from.After(q.From) {
			q.From = from
		}
		for id, at := range seen {
			if at.Before(q.From) {
				delete(seen, id)
			}
		}
	}
}

// recorded is an event in JSON, in the words of the columns of the archive.
type recorded struct {
	ID         engine.ID      `json:"decision_id"`
	Time       time.Time      `json:"time"`
	Outcome    engine.Outcome `json:"outcome"`
	Shadow     bool           `json:"shadow"`
	Cached     bool           `json:"cached"`
	User       string         `json:"user_id"`
	Tenant     string         `json:"tenant_id"`
	Key        string         `json:"key_id"`
	Tier       string         `json:"tier"`
	IP         string         `json:"ip"`
	Rule       string         `json:"rule"`
	Limit      string         `json:"limit_name"`
	Endpoint   string         `json:"endpoint"`
	Method     string         `json:"method"`
	Used       int64          `json:"count"`
	Max        int64          `json:"limit_value"`
	Cost       int64          `json:"cost"`
	Status     int            `json:"status"`
	RetryAfter int64          `json:"retry_after_us"`
	Waited     int64          `json:"waited_us"`
	Latency    int64          `json:"latency_us"`
	Region     string         `json:"region"`
	Node       string         `json:"node"`
	Weight     int64          `json:"weight"`
}

func (t *terminal) writeEvent(e *audit.Event) error {
	r := recorded{
		ID: e.ID, Time: e.At, Outcome: e.Outcome, Shadow: e.Shadow, Cached: e.Cached, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier, IP: e.IP,
		Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method, Used: e.Used, Max: e.Max, Cost: e.Cost, Status: e.Status,
		RetryAfter: e.RetryAfter.Microseconds(), Waited: e.Waited.Microseconds(), Latency: e.Latency.Microseconds(), Region: e.Region, Node: e.Node, Weight: e.Weight,
	}
	if e.RetryAfter == stint.Never {
		r.RetryAfter = -1
	}
	w := json.NewEncoder(t.out)
	w.SetEscapeHTML(false)
	return w.Encode(r)
}

// eventHeader and eventFormat are for lines that are written one by one, as wide as most
// cells are.
var eventHeader = []string{"TIME", "OUTCOME", "RULE", "LIMIT", "SUBJECT", "ENDPOINT", "USED", "RETRY"}

const eventFormat = "%-27s  %-12s  %-16s  %-12s  %-20s  %-20s  %-9s  %s\n"

// cells are what people see of an event.
func cells(e *audit.Event) []string {
	outcome, used, retry := e.Outcome.String(), "-", "-"
	if e.Shadow {
		outcome += " (shadow)"
	}
	if e.Limit != "" {
		used = fmt.Sprintf("%d/%d", e.Used, e.Max)
	}
	switch {
	case e.RetryAfter == stint.Never:
		retry = "never"
	case e.RetryAfter > 0:
		retry = e.RetryAfter.Round(time.Millisecond).String()
	}
	subject := ""
	for _, s := range []struct{ kind, id string }{{"user", e.User}, {"key", e.Key}, {"ip", e.IP}, {"tenant", e.Tenant}} {
		if s.id != "" {
			subject = s.kind + ":" + s.id
			break
		}
	}
	return []string{e.At.Format("2006-01-02T15:04:05.000000Z"), outcome, visible(e.Rule), visible(e.Limit), visible(subject), visible(e.Endpoint), used, retry}
}

// visible is a text that a client may have chosen, without what a terminal would obey.
func visible(text string) string {
	switch {
	case text == "":
		return "-"
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return strconv.Quote(text)
	}
	return text
}

func toAny(cells []string) []any {
	out := make([]any, len(cells))
	for i := range cells {
		out[i] = cells[i]
	}
	return out
}

// showEvent writes one event, for others may follow only later.
func (t *terminal) showEvent(e *audit.Event, asJSON bool) error {
	if asJSON {
		return t.writeEvent(e)
	}
	_, err := fmt.Fprintf(t.out, eventFormat, toAny(cells(e))...)
	return err
}

func (t *terminal) showEvents(events iter.Seq2[audit.Event, error], asJSON bool) error {
	w := t.table()
	n := 0
	for e, err := range events {
		if err != nil {
			return err
		}
		if asJSON {
			if err := t.writeEvent(&e); err != nil {
				return err
			}
			continue
		}
		if n++; n == 1 {
			fmt.Fprintln(w, strings.Join(eventHeader, "\t"))
		}
		fmt.Fprintln(w, strings.Join(cells(&e), "\t"))
	}
	if n == 0 && !asJSON {
		t.none()
	}
	return w.Flush()
}

// none says that there is nothing, where a table would be.
func (t *terminal) none() { t.notes([]string{"the record has none in this time"}) }

// refusals is one of the top in JSON.
type refusals struct {
	Name    string `json:"name"`
	Denied  int64  `json:"denied"`
	Refused int64  `json:"refused"`
}

// rolled is what is to be known of numbers that are not counted on demand.
const rolled = `
Numbers are those of whole hours, up to the last minute that is over: a node that serves
adds events up as they come. They stay when events are archived.`

func newEventsTop(t *terminal) *cobra.Command {
	var f recordFlags
	var q audit.TopQuery
	c := &cobra.Command{
		Use:   "top",
		Short: "Show who or what was refused most",
		Long: `Show which users, tenants, API keys, addresses, rules or endpoints were denied most: how
often by a limit, and how often for whatever reason.
` + rolled,
		Example: `  stint events top --by user --since 7d
  stint events top --by ip --rule search --limit 100 --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c, t, func(s *audit.Store, r audit.Range) error {
				q.Range = r
				top, err := s.Top(c.Context(), q)
				if err != nil {
					return err
				}
				all := []refusals{}
				for _, r := range top {
					all = append(all, refusals(r))
				}
				if f.asJSON {
					return t.writeJSON(all)
				}
				if len(all) == 0 {
					t.none()
					return nil
				}
				w := t.table()
				fmt.Fprintln(w, strings.ToUpper(q.By)+"\tDENIED\tREFUSED")
				for _, r := range all {
					fmt.Fprintf(w, "%s\t%d\t%d\n", visible(r.Name), r.Denied, r.Refused)
				}
				return w.Flush()
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.By, "by", "user", "of which `kind`: user, tenant, key, ip, rule or endpoint")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().IntVar(&q.Limit, "limit", 10, "at most this `number` of them, from 1 to 1,000")
	return c
}

// series is how numbers have changed, in JSON.
type series struct {
	Name   string  `json:"name"`
	Rest   bool    `json:"rest"`
	Points []point `json:"points"`
}

type point struct {
	Start  time.Time `json:"start"`
	Total  int64     `json:"total"`
	Events int64     `json:"events"`
	Cached int64     `json:"cached"`
	P50    int64     `json:"p50_us"`
	P95    int64     `json:"p95_us"`
	P99    int64     `json:"p99_us"`
}

func newEventsSeries(t *terminal) *cobra.Command {
	var (
		f    recordFlags
		q    audit.SeriesQuery
		step string
	)
	c := &cobra.Command{
		Use:   "series",
		Short: "Show how many decisions there were, and how long they took, over time",
		Long: `Show how many decisions there were over time, by their outcome or by something else, and
how long half of them, 95 and 99 in a hundred took at most. Points lie at multiples of
the step; those without any decision are not shown, except with --json.

Numbers are those of whole minutes that are over, and also count decisions that passed
and of which the record has a sample only.`,
		Example: `  stint events series --since 1h
  stint events series --by rule --outcome denied --since 30d --step 1d
  stint events series --by endpoint --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if step != "" {
				var d rule.Duration
				if err := d.UnmarshalText([]byte(step)); err != nil || d <= 0 {
					return advice{fmt.Errorf("--step %s: want a length such as 1m, 2h, 1d", strict.Quote(step)), c.CommandPath() + " --help"}
				}
				q.Step = time.Duration(d)
			}
			return f.use(c, t, func(s *audit.Store, r audit.Range) error {
				q.Range = r
				found, err := s.Series(c.Context(), q)
				if err != nil {
					return err
				}
				all := []series{}
				for _, s := range found {
					x := series{Name: s.Name, Rest: s.Rest, Points: []point{}}
					for _, p := range s.Points {
						x.Points = append(x.Points, point{p.Start, p.Total, p.Events, p.Cached, p.P50.Microseconds(), p.P95.Microseconds(), p.P99.Microseconds()})
					}
					all = append(all, x)
				}
				if f.asJSON {
					return t.writeJSON(all)
				}
				return t.showSeries(q.By, all)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.By, "by", "outcome", "one for each of which `kind`: outcome, rule, tier, endpoint or region")
	c.Flags().StringVar(&step, "step", "", "the `time` between points: whole minutes, hours or days (default: the shortest that makes at most 500)")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().StringVar(&q.Tier, "tier", "", "of this `tier` only")
	c.Flags().StringVar(&q.Endpoint, "endpoint", "", "at this `endpoint` only")
	c.Flags().StringVar(&q.Region, "region", "", "in this `region` only")
	c.Flags().StringVar(&q.Outcome, "outcome", "", "with this `outcome` only")
	c.Flags().IntVar(&q.Limit, "limit", 20, "at most this `number` of series, from 1 to 50; the rest are one")
	return c
}

func (t *terminal) showSeries(by string, all []series) error {
	if len(all) == 0 {
		t.none()
		return nil
	}
	w := t.table()
	fmt.Fprintf(w, "START\t%s\tDECISIONS\tCACHED\tP50\tP95\tP99\n", strings.ToUpper(by))
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	for i := range all[0].Points {
		for _, s := range all {
			p := s.Points[i]
			if p.Total == 0 {
				continue
			}
			name := visible(s.Name)
			if s.Rest {
				name = "(the rest)"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%v\t%v\t%v\n", p.Start.Format(time.RFC3339), name, p.Total, p.Cached, micros(p.P50), micros(p.P95), micros(p.P99))
		}
	}
	return w.Flush()
}

// violation is how often a user was denied by a rule, in JSON.
type violation struct {
	User   string `json:"user"`
	Rule   string `json:"rule"`
	Denied int64  `json:"denied"`
}

func newEventsViolations(t *terminal) *cobra.Command {
	var f recordFlags
	var q audit.ViolationQuery
	c := &cobra.Command{
		Use:   "violations",
		Short: "Show which users were denied by which rules",
		Long: `Show how often each user was denied by each rule, the most frequent first.
` + rolled,
		Example: `  stint events violations --user alice --since 30d
  stint events violations --rule search --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c, t, func(s *audit.Store, r audit.Range) error {
				q.Range = r
				found, err := s.Violations(c.Context(), q)
				if err != nil {
					return err
				}
				all := []violation{}
				for _, v := range found {
					all = append(all, violation(v))
				}
				if f.asJSON {
					return t.writeJSON(all)
				}
				if len(all) == 0 {
					t.none()
					return nil
				}
				w := t.table()
				fmt.Fprintln(w, "USER\tRULE\tDENIED")
				for _, v := range all {
					fmt.Fprintf(w, "%s\t%s\t%d\n", visible(v.User), visible(v.Rule), v.Denied)
				}
				return w.Flush()
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.User, "user", "", "of this `user` only")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().IntVar(&q.Limit, "limit", 100, "at most this `number` of them, from 1 to 1,000")
	return c
}

func newEventsClients(t *terminal) *cobra.Command {
	var f recordFlags
	var q audit.DistinctQuery
	c := &cobra.Command{
		Use:   "clients",
		Short: "Count the clients that were limited",
		Long: `Count how many different users, tenants, API keys or addresses were denied something by a
limit.
` + rolled,
		Example: `  stint events clients --by ip --since 24h
  stint events clients --rule search --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c, t, func(s *audit.Store, r audit.Range) error {
				q.Range = r
				n, err := s.Distinct(c.Context(), q)
				if err != nil {
					return err
				}
				if f.asJSON {
					return t.writeJSON(struct {
						By      string `json:"by"`
						Clients int64  `json:"clients"`
					}{q.By, n})
				}
				fmt.Fprintln(t.out, n)
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.By, "by", "user", "of which `kind`: user, tenant, key or ip")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	return c
}
