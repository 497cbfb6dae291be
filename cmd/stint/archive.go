package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
)

func newArchive(t *terminal) *cobra.Command {
	return family("archive", "Manage the archive of old decisions", newArchiveRun(t), newArchiveList(t), newArchiveVerify(t), newArchiveRestore(t), newArchiveExpire(t))
}

// archiveFlags are the flags of commands that use the archive.
type archiveFlags struct {
	databaseFlags
	archive string
}

// noSource is for commands that need no events from the database.
type noSource struct{ archive.Source }

// command completes a command that uses the archive, and the database if it is needed.
func (f *archiveFlags) command(t *terminal, c *cobra.Command, database bool, run func(ctx context.Context, c *cobra.Command, a *archive.Archive, args []string) error) *cobra.Command {
	if database {
		f.add(c)
	} else {
		f.sourceFlags.add(c)
	}
	c.Flags().StringVar(&f.archive, "archive", "", "the `URL` of the archive: file:///path or s3://bucket/prefix (default: server.record.archive)")
	addOutput(c)
	if c.Args == nil {
		c.Args = noArgs
	}
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		f.flag("archive", "server.record.archive", f.archive)
		do := func(ctx context.Context, a *archive.Archive) error { return run(ctx, c, a, args) }
		if database {
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				s, err := openRecord(k)
				if err != nil {
					return err
				}
				return f.open(c.Context(), t, s, do)
			})
		}
		if f.config, err = f.load(t, true); err != nil {
			return err
		}
		return f.open(c.Context(), t, noSource{}, do)
	}
	return c
}

// open calls do with the archive, until it is interrupted.
func (f *archiveFlags) open(ctx context.Context, t *terminal, source archive.Source, do func(context.Context, *archive.Archive) error) error {
	const example = "--archive file:///var/lib/stint/archive, or --config with a file that sets server.record.archive"
	url := f.config.Server.Record.Archive
	switch url {
	case "":
		return advice{errors.New("no archive is configured"), example}
	case "none":
		return advice{errors.New("server.record.archive is none: old months are deleted without being archived"), example}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a, err := f.config.OpenArchive(ctx, source, time.Duration(f.config.Server.Record.Retention), newProgress(t.err, t.screen() != nil))
	if err != nil {
		return advice{err, example}
	}
	err = do(ctx, a)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return advice{err, "the same command again: it continues where it was interrupted"}
	case errors.Is(err, archive.ErrBusy):
		return advice{err, "wait until it ends; the lock of a killed process expires after 15 minutes"}
	case errors.Is(err, archive.ErrNotArchived):
		return advice{err, "stint archive list, with the same flags"}
	case errors.Is(err, archive.ErrDamaged):
		return advice{err, "stint archive verify, and a copy of the files that it names"}
	case errors.Is(err, blob.ErrNotPermitted), errors.Is(err, blob.ErrUnreachable):
		return advice{err, "make sure that the archive exists and that this user can write to it: " + url.String()}
	}
	return err
}

// months is the output of "archive run" and "archive expire" in JSON.
type months struct {
	Months any `json:"months"`
}

func newArchiveRun(t *terminal) *cobra.Command {
	type month struct {
		Month   record.Month `json:"month"`
		Events  int64        `json:"events"`
		Files   int          `json:"files"`
		Bytes   int64        `json:"bytes"`
		Resumed bool         `json:"resumed"`
		Dropped bool         `json:"dropped"`
		Held    time.Time    `json:"held_until,omitzero"`
	}
	var f archiveFlags
	return f.command(t, &cobra.Command{
		Use:   "run",
		Short: "Archive the months that are due",
		Long: `Write the months that are entirely older than server.record.retention to the archive, read
them back, and drop them from the database. Nothing is dropped before it is in the archive.
A month that cannot be archived stays, and the others are still archived. Nodes do this by
themselves every hour, one of them at a time; an interrupted run is continued.`,
		Example: `  stint archive run --database sqlite:stint.db --archive file://$PWD/archive
  stint archive run --database sqlite:stint.db --archive file://$PWD/archive --set server.record.retention=30d`,
	}, true, func(ctx context.Context, _ *cobra.Command, a *archive.Archive, _ []string) error {
		r, err := a.Run(ctx)
		all := []month{}
		for _, m := range r.Months {
			all = append(all, month{m.Month, m.Events, m.Parts, m.Bytes, m.Resumed, m.Dropped, m.Held})
		}
		return errors.Join(t.print(months{all}, all, func() error {
			if len(all) == 0 && err == nil {
				fmt.Fprintf(t.out, "nothing to do: the database has no month that is entirely older than %s\n", f.config.Server.Record.Retention)
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
}

func amount(events int64, files int, bytes int64) string {
	return fmt.Sprintf("events: %d, files: %d, bytes: %d", events, files, bytes)
}

func newArchiveList(t *terminal) *cobra.Command {
	type month struct {
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
	var f archiveFlags
	return f.command(t, &cobra.Command{
		Use:   "list",
		Short: "List the months in the archive",
		Long: `List the months in the archive, oldest first. The command reads only their manifests;
"stint archive verify" checks the files.`,
		Example: `  stint archive list --archive file://$PWD/archive
  stint archive list --archive 's3://stint-archive/events?region=eu-central-1' -o json`,
	}, false, func(ctx context.Context, _ *cobra.Command, a *archive.Archive, _ []string) error {
		entries, err := a.List(ctx)
		if err != nil {
			return err
		}
		all := []month{}
		for _, e := range entries {
			x := month{Month: e.Month, Bytes: e.Bytes, Unfinished: e.Unfinished}
			if m := e.Manifest; m != nil {
				x.Events, x.Files, x.Edition, x.First, x.Last, x.Written = m.Events, len(m.Parts), m.Edition, m.First, m.Last, m.Written
			}
			if e.Problem != nil {
				x.Problem = e.Problem.Error()
			}
			all = append(all, x)
		}
		return printList(t, all, "the archive is empty", []string{"MONTH", "EVENTS", "FILES", "BYTES", "EDITION", "WRITTEN", "STATE"}, func(m *month) []any {
			state := "archived"
			switch {
			case m.Problem != "":
				state = m.Problem
			case m.Unfinished:
				state = "unfinished"
			}
			return []any{m.Month, m.Events, m.Files, m.Bytes, m.Edition, m.Written, state}
		})
	})
}

// oneMonth checks that the argument is a month.
func oneMonth(c *cobra.Command, args []string) error {
	err := wants(1, 1, "a month, such as 2026-01")(c, args)
	if err == nil {
		if _, err = record.ParseMonth(args[0]); err != nil {
			err = advice{err, c.CommandPath() + " 2026-01"}
		}
	}
	return err
}

func newArchiveVerify(t *terminal) *cobra.Command {
	var f archiveFlags
	return f.command(t, &cobra.Command{
		Use:   "verify MONTH",
		Short: "Verify the files of a month in the archive",
		Long: `Read every file of a month, and check its checksum, its number of events and their digest.
The exit code is 1 if files are missing or damaged; all of them are named.`,
		Example: `  stint archive verify 2026-01 --config stint.toml
  stint archive verify 2026-01 --archive file://$PWD/archive -o json`,
		Args: oneMonth,
	}, false, func(ctx context.Context, _ *cobra.Command, a *archive.Archive, args []string) error {
		which, _ := record.ParseMonth(args[0]) // it was checked
		m, err := a.Verify(ctx, which)
		x := struct {
			Month   record.Month `json:"month"`
			Sound   bool         `json:"sound"`
			Events  int64        `json:"events"`
			Files   int          `json:"files"`
			Bytes   int64        `json:"bytes"`
			Problem string       `json:"problem,omitempty"`
		}{Month: which, Sound: err == nil}
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
		return answer(t.print(x, nil, func() error {
			if x.Sound {
				fmt.Fprintf(t.out, "%v: no problems, %s\n", which, amount(x.Events, x.Files, x.Bytes))
			} else {
				fmt.Fprintln(t.out, x.Problem)
			}
			return nil
		}), x.Sound)
	})
}

func newArchiveRestore(t *terminal) *cobra.Command {
	var f archiveFlags
	return f.command(t, &cobra.Command{
		Use:   "restore MONTH",
		Short: "Restore a month from the archive",
		Long: `Copy the events of a month back into the database, where "stint events" finds them. All
files are verified first; if any is damaged, nothing is restored. Events that are still in
the database are not added again. The month also stays in the archive, and the first run
after seven days drops it from the database.`,
		Example: `  stint archive restore 2026-01 --config stint.toml
  stint events list --from 2026-01-10T00:00:00Z --to 2026-01-11T00:00:00Z --user alice`,
		Args: oneMonth,
	}, true, func(ctx context.Context, _ *cobra.Command, a *archive.Archive, args []string) error {
		which, _ := record.ParseMonth(args[0]) // it was checked
		n, err := a.Restore(ctx, which)
		if err != nil {
			return err
		}
		x := struct {
			Month  record.Month `json:"month"`
			Events int64        `json:"events"`
		}{which, n}
		return t.print(x, nil, func() error {
			_, err := fmt.Fprintf(t.out, "%v: restored, events: %d; they stay in the database for seven days\n", which, n)
			return err
		})
	})
}

func newArchiveExpire(t *terminal) *cobra.Command {
	type month struct { // in CSV
		Month record.Month `json:"month"`
	}
	var f archiveFlags
	var yes consent
	c := f.command(t, &cobra.Command{
		Use:   "expire",
		Short: "Delete expired months from the archive",
		Long: `Permanently delete the months that are entirely older than server.record.archive_years from
the archive. The command asks for confirmation, unless --yes is given. Nodes do this by
themselves.`,
		Example: `  stint archive list --archive file://$PWD/archive
  stint archive expire --archive file://$PWD/archive --yes`,
	}, false, func(ctx context.Context, c *cobra.Command, a *archive.Archive, _ []string) error {
		if err := yes.ask(c, t, "expired months will be deleted permanently"); err != nil {
			return err
		}
		expired, err := a.Expire(ctx)
		rows := []month{}
		for _, m := range expired {
			rows = append(rows, month{m})
		}
		return errors.Join(t.print(months{append([]record.Month{}, expired...)}, rows, func() error {
			for _, m := range expired {
				fmt.Fprintf(t.out, "%v: deleted\n", m)
			}
			switch years := f.config.Server.Record.ArchiveYears; {
			case err != nil || len(expired) > 0:
			case years == 0:
				fmt.Fprintln(t.out, "nothing to do: server.record.archive_years is 0, so months are kept forever")
			default:
				fmt.Fprintf(t.out, "nothing to do: no month is older than server.record.archive_years, which is %d\n", years)
			}
			return nil
		}), err)
	})
	yes.add(c)
	return c
}
