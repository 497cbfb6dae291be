package main

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/accesslog"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/query"
)

// replayFlags are the flags of "stint replay".
type replayFlags struct {
	recordFlags
	candidate, live, archive string
	logs                     []string
	log                      logFlags
	top                      int
}

func newReplay(t *terminal) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay",
		Short: "Show what other rules would have decided",
		Long: `Send recorded requests through the live rules and those in the file of --config, each with its
own counters and in virtual time, and show what would be decided otherwise: by rule, endpoint,
tier and subject. Nothing is changed. The file is a config file, whose settings are ignored
except for identity.default_tier and identity.ipv6_prefix. Of tiers, tenants, users, API keys,
exemptions and bans, the live ones are used for each kind that it has none of. Without --config, the
live rules are compared with what was decided at the time.

Requests are those that a server or a database has recorded (--from, --to), those in an archive
(--archive), or those in access logs (--log). The live rules are those of the server or the
database, or of the file of --live; with --log and without --live, there are none.

Not everything is recorded: headers and claims are not, of requests that passed a sample is, and
paths and addresses may be shortened. Rules that depend on headers are left out. Notes say what
that means for the numbers. Access logs are described in "stint help logs".`,
		Example: `  stint replay --from 24h --config candidate.toml
  stint replay --archive file://$PWD/archive --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z --live stint.toml --config candidate.toml
  stint replay --log access.log --config candidate.toml -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, t, c)
		},
	}
	c.Flags().StringVarP(&f.candidate, "config", "c", "", "the config `file` with the rules to try")
	c.Flags().StringVar(&f.live, "live", "", "a config `file` with the live rules (default: those of the server or the database)")
	_ = c.MarkFlagFilename("config", "toml") // both flags exist
	_ = c.MarkFlagFilename("live", "toml")
	c.Flags().StringVar(&f.archive, "archive", "", "read the requests from the archive with this `URL`: file:///path or s3://bucket/prefix")
	c.Flags().StringArrayVar(&f.logs, "log", nil, "read the requests from this access log, a `file` or - for the standard input; can be repeated")
	f.log.add(c)
	c.Flags().StringVar(&f.url, "database", "", "the `URL` of a database to read from: sqlite:FILE or postgres://...")
	f.serverFlags.add(c)
	c.Flags().StringVar(&f.from, "from", "", "the start of the range, as a `time` such as 2026-01-31T12:00:00Z, or 15m, 24h or 7d before now (default: a day before --to; of a log, all)")
	c.Flags().StringVar(&f.to, "to", "", "the end of the range, as a `time` (default: now)")
	c.Flags().IntVar(&f.top, "top", 10, "show at most this `number` of rules, endpoints, tiers and subjects each")
	c.MarkFlagsMutuallyExclusive("archive", "log")
	addOutput(c)
	return c
}

func (f *replayFlags) run(ctx context.Context, t *terminal, c *cobra.Command) error {
	r, err := f.timeRange(c)
	if err != nil {
		return err
	}
	if f.top < 1 {
		return advice{fmt.Errorf("--top %d: want 1 or more", f.top), "--top 10"}
	}
	if len(f.logs) > 0 {
		in, err := f.log.open(c, f.logs)
		if err != nil {
			return err
		}
		defer in.close()
		return f.replay(ctx, t, r, &catalog.Document{}, in, in.requests)
	}
	if r.To.IsZero() {
		r.To = now()
	}
	if r.From.IsZero() {
		r.From = r.To.AddDate(0, 0, -1)
	}
	if f.archive != "" {
		a := archiveFlags{databaseFlags: f.databaseFlags, archive: f.archive}
		a.flag("archive", "server.record.archive", f.archive)
		if a.config, err = a.load(t, true); err != nil {
			return err
		}
		return a.open(ctx, t, noSource{}, func(ctx context.Context, from *archive.Archive) error {
			events := func(yield func(recorded.Request, error) bool) {
				for e, err := range from.Events(ctx, r.From, r.To) {
					x := admin.NewEvent(&e)
					if !yield(x.Request(), err) {
						return
					}
				}
			}
			if f.live != "" {
				return f.replay(ctx, t, r, &catalog.Document{}, nil, events)
			}
			return f.eitherFlags.run(ctx, t, func(a *client) error {
				return f.ofServer(ctx, t, a, r, events)
			}, func(k *catalog.Catalog) error { return f.ofDatabase(ctx, t, k, r, events) })
		})
	}
	return f.eitherFlags.run(ctx, t, func(a *client) error {
		return f.ofServer(ctx, t, a, r, recordSource{server: a}.oldest(ctx, r))
	}, func(k *catalog.Catalog) error {
		s, err := openRecord(k)
		if err != nil {
			return err
		}
		return f.ofDatabase(ctx, t, k, r, recordSource{store: s}.oldest(ctx, r))
	})
}

func (f *replayFlags) ofServer(ctx context.Context, t *terminal, a *client, r query.Range, events iter.Seq2[recorded.Request, error]) error {
	var d catalog.Document
	if f.live == "" {
		q := url.Values{"users": {"true"}, "format": {asJSON}}
		if err := t.waits("waiting for the rules of the server", func() error {
			return a.do(ctx, call{method: http.MethodGet, path: "/export", query: q, into: &d})
		}); err != nil {
			return err
		}
	}
	return f.replay(ctx, t, r, &d, nil, events)
}

func (f *replayFlags) ofDatabase(ctx context.Context, t *terminal, k *catalog.Catalog, r query.Range, events iter.Seq2[recorded.Request, error]) error {
	d := &catalog.Document{}
	if f.live == "" {
		var err error
		if d, err = k.Export(ctx, catalog.ExportOptions{Users: true}); err != nil {
			return err
		}
	}
	return f.replay(ctx, t, r, d, nil, events)
}

// replay replays requests with the live rules of a document, or of --live.
func (f *replayFlags) replay(ctx context.Context, t *terminal, r query.Range, d *catalog.Document, in *logs, requests iter.Seq2[recorded.Request, error]) error {
	o := replay.Options{From: r.From, To: r.To, Logged: in != nil, Top: f.top}
	config := &daemon.Config{Document: *d}
	var err error
	if f.live != "" {
		if config, err = readCandidate(t, f.live); err != nil {
			return err
		}
	}
	if o.Live, err = rulesOf(config); err != nil {
		return err
	}
	if f.candidate != "" {
		other, err := readCandidate(t, f.candidate)
		if err != nil {
			return err
		}
		other.Document = other.Over(&config.Document, true).Document
		rules, err := rulesOf(other)
		if err != nil {
			return err
		}
		o.Candidate = &rules
	}
	var report replay.Report
	err = t.waits("replaying", func() (err error) {
		report, err = replay.Run(ctx, o, requests)
		return err
	})
	if err == nil && in != nil {
		err = in.check(t)
	}
	if err != nil {
		return err
	}
	return f.print(t, &report, in)
}

// readCandidate reads a config file, without the settings of flags and the environment.
func readCandidate(t *terminal, path string) (*daemon.Config, error) {
	source := daemon.Source{Path: path, Environ: t.settings()}
	config, err := source.Load()
	return config, advise(source, err)
}

func rulesOf(c *daemon.Config) (replay.Rules, error) {
	lists, err := c.Lists()
	return replay.Rules{
		File: c.File, Lists: lists, Directory: c.Directory, DefaultTier: c.Identity.DefaultTier, IPv6Prefix: c.Identity.IPv6Prefix,
	}, err
}

// oldest iterates over the events of a range, oldest first. It reads them in slices of the time, as they come newest first.
func (r recordSource) oldest(ctx context.Context, within query.Range) iter.Seq2[recorded.Request, error] {
	const few, many = 5_000, 50_000
	return func(yield func(recorded.Request, error) bool) {
		length := min(time.Hour, max(within.To.Sub(within.From), time.Microsecond))
		for from := within.From; from.Before(within.To); {
			to := query.Earlier(from.Add(length), within.To)
			var events []recorded.Request
			full := false
			for e, err := range r.find(ctx, record.EventQuery{Range: query.Range{From: from, To: to}, Limit: maxInt}) {
				if err != nil {
					yield(recorded.Request{}, err)
					return
				}
				if full = len(events) == many && length > time.Second; full {
					break
				}
				events = append(events, e.Request())
			}
			if full {
				length /= 8
				continue
			}
			for _, q := range slices.Backward(events) {
				if !yield(q, nil) {
					return
				}
			}
			if from = to; len(events) < few {
				length *= 2
			}
		}
	}
}

const maxInt = int(^uint(0) >> 1)

// replayed is the output of "stint replay" in JSON.
type replayed struct {
	replay.Report
	Log *accesslog.Stats `json:"log,omitempty"`
}

// replayRow is a row of it in CSV.
type replayRow struct {
	Kind string `json:"kind"`
	replay.Row
}

func (f *replayFlags) print(t *terminal, p *replay.Report, in *logs) error {
	out := replayed{Report: *p}
	if in != nil {
		out.Log = &in.reader.Stats
	}
	kinds := []struct {
		name string
		rows []replay.Row
	}{{"rule", p.Rules}, {"endpoint", p.Endpoints}, {"tier", p.Tiers}, {"subject", p.Subjects}}
	all := []replayRow{}
	for _, k := range kinds {
		for _, row := range k.rows {
			all = append(all, replayRow{k.name, row})
		}
	}
	return t.print(out, all, func() error {
		if p.Requests > 0 {
			fmt.Fprintf(t.out, "%s to %s\n", cell(p.From), cell(p.To))
		}
		fmt.Fprintln(t.out, clean(p.Summary))
		for _, n := range p.Notes {
			t.notes(clean(n))
		}
		if p.Requests == 0 {
			return nil
		}
		fmt.Fprintln(t.out)
		if err := printSides(t, p); err != nil {
			return err
		}
		for _, k := range kinds {
			rows := slices.DeleteFunc(slices.Clone(k.rows), func(r replay.Row) bool {
				return r.Name == "" && len(k.rows) == 1 || k.name == "subject" && r.Live+r.Candidate == 0
			})
			if len(rows) == 0 {
				continue
			}
			fmt.Fprintln(t.out)
			if err := printRows(t, strings.ToUpper(k.name), rows, p.Candidate != nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func printSides(t *terminal, p *replay.Report) error {
	sides := []*replay.Side{&p.Live}
	head := []string{"", "LIVE"}
	if p.Candidate != nil {
		sides, head = append(sides, p.Candidate), append(head, "CANDIDATE")
	}
	w := t.table(head...)
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Millisecond) }
	for _, line := range []struct {
		name string
		of   func(*replay.Side) any
	}{
		{"denied", func(s *replay.Side) any { return s.Denied }},
		{"subjects with denied requests", func(s *replay.Side) any { return s.Subjects }},
		{"throttled", func(s *replay.Side) any { return s.Throttled }},
		{"held, all together", func(s *replay.Side) any { return seconds(s.Waited) }},
		{"held, at most", func(s *replay.Side) any { return seconds(s.Longest) }},
	} {
		cells := []any{line.name}
		for _, s := range sides {
			cells = append(cells, line.of(s))
		}
		w.row(cells...)
	}
	return w.Flush()
}

func printRows(t *terminal, kind string, rows []replay.Row, both bool) error {
	if !both {
		return printTable(t, rows, "", []string{kind, "REQUESTS", "DENIED"}, func(r *replay.Row) []any { return []any{r.Name, r.Requests, r.Live} })
	}
	return printTable(t, rows, "", []string{kind, "REQUESTS", "DENIED LIVE", "BY THE CANDIDATE", "NEWLY DENIED", "NEWLY PASSED"}, func(r *replay.Row) []any {
		return []any{r.Name, r.Requests, r.Live, r.Candidate, r.NewlyDenied, r.NewlyPassed}
	})
}

// newLogsTopic is the help about access logs.
func newLogsTopic() *cobra.Command {
	return &cobra.Command{Use: "logs", Short: "Access logs that commands read", Long: `"replay" and "try" read access logs in the combined and common formats of nginx and Apache, and
in JSON, one object per line, with the usual fields of nginx, Caddy, Traefik and Envoy. They may
be compressed with gzip, and - is the standard input. Several files are read in the order of
their first requests.

  --log-format FORMAT  combined or json. Default: auto, by the first character of a line.
  --user-field NAME    the field of JSON that names the user. Default: remote_user, user and the
                       like. The combined format has a place for the user.
  --ip-field NAME      the field of JSON with the address of the client. Default: that of the
                       connection, remote_addr and the like. X-Forwarded-For is not used,
                       since clients can write it; if it is your proxy that does, have the
                       proxy's log name the client, as real_ip_header of nginx does.

Lines that cannot be read are counted, and the first are shown with their numbers. The command
fails only if there is no line that can be read. If a log has whole seconds, the requests of a
second are spread evenly over it.`}
}
