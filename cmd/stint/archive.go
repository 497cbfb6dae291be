package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/rollup"
)

func newArchive(t *terminal) *cobra.Command {
	return family("archive", "Manage the archive of old decisions", newArchiveRun(t), newArchiveList(t), newArchiveVerify(t), newArchiveRestore(t), newArchiveExpire(t))
}

// archiveFlags are the flags of commands that work on the archive.
type archiveFlags struct {
	databaseFlags
	archive string
	as      string
}

// add adds the flags, with those of the database if it is needed.
func (f *archiveFlags) add(c *cobra.Command, database bool) {
	if database {
		f.databaseFlags.add(c)
	} else {
		f.sourceFlags.add(c)
	}
	c.Flags().StringVar(&f.archive, "archive", "", "the archive, as a `URL`: file:///path or s3://bucket/prefix (default: server.record.archive)")
	addOutput(c, &f.as)
}

// withSource opens the archive of what is in the database, has something done with it,
// and gives it back, also if it is interrupted.
func (f *archiveFlags) withSource(ctx context.Context, t *terminal, do func(context.Context, *archive.Archive) error) error {
	f.flag()
	return f.use(ctx, t, upToDate, func(k *catalog.Catalog) error {
		s, err := rollup.New(k.Database(), rollup.Options{})
		if err != nil {
			return err
		}
		return f.with(ctx, t, s, do)
	})
}

// nothingThere is in the place of a database for those who do not ask for events.
type nothingThere struct{ archive.Source }

// alone does the same without a database, for what does not need one.
func (f *archiveFlags) alone(ctx context.Context, t *terminal, do func(context.Context, *archive.Archive) error) error {
	f.flag()
	source, err := f.source(t)
	if err != nil {
		return err
	}
	source.SettingsOnly = true
	if f.config, err = source.Load(); err != nil {
		return advise(source, err)
	}
	return f.with(ctx, t, nothingThere{}, do)
}

func (f *archiveFlags) flag() {
	if f.archive != "" {
		f.more = append(f.more, daemon.Flag{Name: "--archive", Setting: "server.record.archive", Value: f.archive})
	}
}

func (f *archiveFlags) with(ctx context.Context, t *terminal, source archive.Source, do func(context.Context, *archive.Archive) error) error {
	const example = "--archive file:///var/lib/stint/archive, or --config with a file that sets server.record.archive"
	url := f.config.Server.Record.Archive
	switch url {
	case "":
		return advice{errors.New("no archive is named"), example}
	case "none":
		return advice{errors.New("server.record.archive is none: old months are deleted, and not archived"), example}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a, err := f.config.OpenArchive(ctx, source, newProgress(t.err, t.screen() != nil))
	if err != nil {
		return advice{err, example}
	}
	err = do(ctx, a)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return advice{err, "the same again: it goes on where this ended"}
	case errors.Is(err, archive.ErrBusy):
		return advice{err, "wait for it to end; who was killed is given 15 minutes"}
	case errors.Is(err, archive.ErrNotArchived):
		return advice{err, "stint archive list, with the same flags"}
	case errors.Is(err, archive.ErrDamaged):
		return advice{err, "stint archive verify, and a copy of the files that it names"}
	case errors.Is(err, blob.ErrNotPermitted), errors.Is(err, blob.ErrUnreachable):
		return advice{err, "make sure that the archive is there, and that this user may write to it: " + url.String()}
	}
	return err
}

// newProgress returns what shows how far something is: as a bar on a terminal, and in
// lines elsewhere, at most one a second.
func newProgress(w io.Writer, bar bool) func(done, all int64, what string) {
	const width, often = 30, 100 * time.Millisecond
	last := now()
	return func(done, all int64, what string) {
		at := now()
		switch {
		case bar && done >= all:
			fmt.Fprint(w, wipe)
		case bar && at.Sub(last) >= often:
			full := int(done * width / all)
			fmt.Fprintf(w, wipe+"%s [%s%s] %d%%", what, strings.Repeat("#", full), strings.Repeat(".", width-full), done*100/all)
			last = at
		case !bar && at.Sub(last) >= time.Second:
			fmt.Fprintf(w, "%s: %d of %d events\n", what, done, all)
			last = at
		}
	}
}

// archived is what became of a month, in JSON.
type archived struct {
	Month   record.Month `json:"month"`
	Events  int64        `json:"events"`
	Files   int          `json:"files"`
	Bytes   int64        `json:"bytes"`
	Resumed bool         `json:"resumed"`
	Dropped bool         `json:"dropped"`
	Held    time.Time    `json:"held_until,omitzero"`
}

// months is what "archive run" and "archive expire" have done.
type months struct {
	Months any `json:"months"`
}

func newArchiveRun(t *terminal) *cobra.Command {
	var f archiveFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Archive the months that are due",
		Long: `Write the months of which all is older than server.record.retention into the archive,
read them back, and drop them from the database. Nothing is dropped that the archive
does not have: if it cannot be written to, nothing is done. A month that cannot be
archived stays, and the others are archived all the same. Nodes do this by themselves
every hour, one of them at a time; a run that was interrupted is continued.`,
		Example: `  stint archive run --database sqlite:stint.db --archive file://$PWD/archive
  stint archive run --database sqlite:stint.db --archive file://$PWD/archive --set server.record.retention=30d`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withSource(c.Context(), t, func(ctx context.Context, a *archive.Archive) error {
				r, err := a.Run(ctx)
				all := []archived{}
				for _, m := range r.Months {
					all = append(all, archived{m.Month, m.Events, m.Parts, m.Bytes, m.Resumed, m.Dropped, m.Held})
				}
				return errors.Join(t.say(f.as, months{all}, all, func() error {
					if len(all) == 0 && err == nil {
						fmt.Fprintf(t.out, "nothing to do: the database has no month of which all is older than %s\n", f.config.Server.Record.Retention)
					}
					for _, m := range all {
						switch {
						case !m.Held.IsZero():
							fmt.Fprintf(t.out, "%v: was restored, and stays until %s\n", m.Month, cell(m.Held))
						case m.Events == 0:
							fmt.Fprintf(t.out, "%v: had no events, and was dropped\n", m.Month)
						default:
							fmt.Fprintf(t.out, "%v: archived and dropped, %s\n", m.Month, amount(m.Events, m.Files, m.Bytes))
						}
					}
					return nil
				}), err)
			})
		},
	}
	f.add(c, true)
	return c
}

func amount(events int64, files int, bytes int64) string {
	return fmt.Sprintf("events: %d, files: %d, bytes: %d", events, files, bytes)
}

// listedMonth is a month of the archive, in JSON.
type listedMonth struct {
	Month      record.Month `json:"month"`
	Events     int64        `json:"events"`
	Files      int          `json:"files"`
	Bytes      int64        `json:"bytes"`
	Edition    int          `json:"edition"`
	First      time.Time    `json:"first,omitzero"`
	Last       time.Time    `json:"last,omitzero"`
	Written    time.Time    `json:"written,omitzero"`
	Unfinished bool         `json:"unfinished"`
	Problem    string       `json:"problem,omitempty"`
}

func newArchiveList(t *terminal) *cobra.Command {
	var f archiveFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the months in the archive",
		Long: `List the months that the archive has, the oldest first. It reads their manifests, and not
their files: whether these are sound is what "stint archive verify" says.`,
		Example: `  stint archive list --archive file://$PWD/archive
  stint archive list --archive 's3://stint-archive/events?region=eu-central-1' -o json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.alone(c.Context(), t, func(ctx context.Context, a *archive.Archive) error {
				entries, err := a.List(ctx)
				if err != nil {
					return err
				}
				all := []listedMonth{}
				for _, e := range entries {
					x := listedMonth{Month: e.Month, Bytes: e.Bytes, Unfinished: e.Unfinished}
					if m := e.Manifest; m != nil {
						x.Events, x.Files, x.Edition, x.First, x.Last, x.Written = m.Events, len(m.Parts), m.Edition, m.First, m.Last, m.Written
					}
					if e.Problem != nil {
						x.Problem = e.Problem.Error()
					}
					all = append(all, x)
				}
				return t.say(f.as, all, nil, func() error {
					if len(all) == 0 {
						t.notes("the archive is empty")
						return nil
					}
					w := t.grid("MONTH", "EVENTS", "FILES", "BYTES", "EDITION", "WRITTEN", "STATE")
					for _, m := range all {
						state := "archived"
						switch {
						case m.Problem != "":
							state = m.Problem
						case m.Unfinished:
							state = "unfinished"
						}
						w.row(m.Month, m.Events, m.Files, m.Bytes, m.Edition, m.Written, state)
					}
					return w.Flush()
				})
			})
		},
	}
	f.add(c, false)
	return c
}

// verified is whether a month is what was written, in JSON.
type verified struct {
	Month   record.Month `json:"month"`
	Sound   bool         `json:"sound"`
	Events  int64        `json:"events"`
	Files   int          `json:"files"`
	Bytes   int64        `json:"bytes"`
	Problem string       `json:"problem,omitempty"`
}

// month has months that make no sense refused before anything else.
func month(c *cobra.Command, text string) (record.Month, error) {
	m, err := record.ParseMonth(text)
	if err != nil {
		return m, advice{err, c.CommandPath() + " 2026-01"}
	}
	return m, nil
}

func newArchiveVerify(t *terminal) *cobra.Command {
	var f archiveFlags
	c := &cobra.Command{
		Use:   "verify MONTH",
		Short: "Verify the files of a month in the archive",
		Long: `Read every file of a month, and check that it is what was written: its checksum, how many
events it has, and their digest. The exit code is 0 if all of it is, and 1 if anything is
missing or damaged: all such files are named.`,
		Example: `  stint archive verify 2026-01 --config stint.toml
  stint archive verify 2026-01 --archive file://$PWD/archive -o json`,
		Args: wants(1, 1, "a month, as 2026-01"),
		RunE: func(c *cobra.Command, args []string) error {
			which, err := month(c, args[0])
			if err != nil {
				return err
			}
			return f.alone(c.Context(), t, func(ctx context.Context, a *archive.Archive) error {
				m, err := a.Verify(ctx, which)
				x := verified{Month: which, Sound: err == nil}
				if err != nil && !errors.Is(err, archive.ErrDamaged) {
					return err
				} else if err != nil {
					x.Problem = err.Error()
				} else {
					x.Events, x.Files = m.Events, len(m.Parts)
					for _, p := range m.Parts {
						x.Bytes += p.Bytes
					}
				}
				err = t.say(f.as, x, nil, func() error {
					if x.Sound {
						fmt.Fprintf(t.out, "%v: sound, %s\n", which, amount(x.Events, x.Files, x.Bytes))
					} else {
						fmt.Fprintln(t.out, x.Problem)
					}
					return nil
				})
				if !x.Sound {
					return errNo
				}
				return err
			})
		},
	}
	f.add(c, false)
	return c
}

func newArchiveRestore(t *terminal) *cobra.Command {
	var f archiveFlags
	c := &cobra.Command{
		Use:   "restore MONTH",
		Short: "Restore a month from the archive",
		Long: `Put the events of a month back into the database, where "stint events" finds them. All
files are verified before, and if any is damaged nothing is put back. Events that the
database still has are not added again. The month also stays in the archive; it is
dropped from the database by the first run after seven days.`,
		Example: `  stint archive restore 2026-01 --config stint.toml
  stint events list --from 2026-01-10T00:00:00Z --to 2026-01-11T00:00:00Z --user alice`,
		Args: wants(1, 1, "a month, as 2026-01"),
		RunE: func(c *cobra.Command, args []string) error {
			which, err := month(c, args[0])
			if err != nil {
				return err
			}
			return f.withSource(c.Context(), t, func(ctx context.Context, a *archive.Archive) error {
				n, err := a.Restore(ctx, which)
				if err != nil {
					return err
				}
				x := struct {
					Month  record.Month `json:"month"`
					Events int64        `json:"events"`
				}{which, n}
				return t.say(f.as, x, nil, func() error {
					_, err := fmt.Fprintf(t.out, "%v: restored, events: %d; they stay in the database for seven days\n", which, n)
					return err
				})
			})
		},
	}
	f.add(c, true)
	return c
}

// expired is a month that was deleted, in CSV.
type expired struct {
	Month record.Month `json:"month"`
}

func newArchiveExpire(t *terminal) *cobra.Command {
	var f archiveFlags
	var yes consent
	c := &cobra.Command{
		Use:   "expire",
		Short: "Delete expired months from the archive",
		Long: `Delete the months of the archive of which all is older than server.record.archive_years,
for good. It asks whether that is meant, unless there is --yes. Nodes do this by
themselves.`,
		Example: `  stint archive list --archive file://$PWD/archive
  stint archive expire --archive file://$PWD/archive --yes`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := yes.ask(c, t, "months that have expired will be deleted for good"); err != nil {
				return err
			}
			return f.alone(c.Context(), t, func(ctx context.Context, a *archive.Archive) error {
				gone, err := a.Expire(ctx)
				rows := []expired{}
				for _, m := range gone {
					rows = append(rows, expired{m})
				}
				return errors.Join(t.say(f.as, months{append([]record.Month{}, gone...)}, rows, func() error {
					for _, m := range gone {
						fmt.Fprintf(t.out, "%v: deleted\n", m)
					}
					switch years := f.config.Server.Record.ArchiveYears; {
					case err != nil || len(gone) > 0:
					case years == 0:
						fmt.Fprintln(t.out, "nothing to do: server.record.archive_years is 0, so that months are kept for ever")
					default:
						fmt.Fprintf(t.out, "nothing to do: no month is older than server.record.archive_years, which is %d\n", years)
					}
					return nil
				}), err)
			})
		},
	}
	f.add(c, false)
	yes.add(c)
	return c
}
