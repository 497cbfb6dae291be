package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
)

// diffed is what was changed, or would be.
type diffed struct{ catalog.Diff }

// applied is the same in JSON.
type applied struct {
	catalog.Diff
	DryRun bool `json:"dry_run"`
}

// appliedRow is the same in CSV: a row for each field, or for each thing without any.
type appliedRow struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Action string `json:"action"`
	catalog.FieldDiff
}

func (x diffed) say(t *terminal, as string, dryRun bool) error {
	rows := []appliedRow{}
	for _, i := range x.Items {
		for _, f := range append([]catalog.FieldDiff{}, i.Fields...) {
			rows = append(rows, appliedRow{i.Kind, i.ID, i.Action, f})
		}
		if len(i.Fields) == 0 {
			rows = append(rows, appliedRow{Kind: i.Kind, ID: i.ID, Action: i.Action})
		}
	}
	return t.say(as, applied{x.Diff, dryRun}, rows, func() error {
		x.show(t.out)
		x.sum(t.out, dryRun)
		return nil
	})
}

func newApply(t *terminal) *cobra.Command {
	var (
		f    eitherFlags
		o    catalog.ApplyOptions
		file string
		yes  consent
		as   string
	)
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Apply a file of rules, tiers, users and keys",
		Long: `Make the rules, tiers, tenants, users, API keys, exemptions and bans of a server, or of a
database, what a file says, and say what was changed. All of it is changed, or nothing, as
one revision; nodes use it at once. The file is a config file, whose settings do not
matter here, or what "stint export" writes, in TOML or JSON; - is the standard input.

What the file lacks stays. With --prune it is deleted: rules, tiers, exemptions and bans
always, and tenants, users and API keys if the file has any of that kind, since many
files have none. An empty file is rejected then. If something is to be
deleted, it asks whether that is meant, unless there is --yes.

With --dry-run all of it is done, checked and undone: the answer is what it would be
without. The exit code is 0 whether or not there is something to change, and 2 if the
file, or what would become of the database, has problems.`,
		Example: `  stint apply -f stint.toml --dry-run
  stint apply -f rules.toml --prune --database sqlite:stint.db
  stint export --database sqlite:old.db | stint apply -f - --database "$DATABASE_URL"`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return advice{errors.New("stint apply wants a file"), "stint apply -f stint.toml, or -f - for the standard input"}
			}
			d, locate, err := readDocument(c.InOrStdin(), file)
			if err != nil {
				return err
			}
			run := func(apply func(catalog.ApplyOptions) (catalog.Diff, error)) error {
				diff, err := applyWith(c, t, o, yes, apply)
				if problems := strict.Problems(nil); errors.As(err, &problems) {
					return advice{locate(problems), "correct what is listed; nothing was changed"}
				} else if err != nil {
					return err
				}
				return diff.say(t, as, o.DryRun)
			}
			a, err := f.remote(t)
			switch {
			case err != nil:
				return err
			case a != nil && c.Flags().Changed("actor"):
				return advice{errors.New("--actor: a server knows who asks, by the name of the token"), "the same without it"}
			case a != nil:
				defer a.close()
				return run(func(o catalog.ApplyOptions) (catalog.Diff, error) { return a.apply(c.Context(), d, o) })
			}
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				o.Progress = t.progress()
				return run(func(o catalog.ApplyOptions) (catalog.Diff, error) { return k.Apply(c.Context(), d, o) })
			})
		},
	}
	f.add(c)
	c.Flags().StringVarP(&file, "file", "f", "", "the `FILE`, or - for the standard input")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be changed, and change nothing")
	c.Flags().BoolVar(&o.Prune, "prune", false, "delete what the file lacks")
	c.Flags().StringVar(&o.Actor, "actor", actor(), "who the log of changes of a database says it was, as a `name` (default: cli: and the name of the user)")
	c.Flags().Lookup("actor").DefValue = "" // which differs between machines
	_ = c.MarkFlagFilename("file", "toml", "json")
	yes.add(c)
	addOutput(c, &as)
	return c
}

// applyWith applies, and asks before something is deleted.
func applyWith(c *cobra.Command, t *terminal, o catalog.ApplyOptions, yes consent, apply func(catalog.ApplyOptions) (catalog.Diff, error)) (diffed, error) {
	if o.Prune && !o.DryRun && !bool(yes) {
		trial := o
		trial.DryRun = true
		diff, err := apply(trial)
		if err != nil {
			return diffed{}, err
		}
		if n := diff.Count(catalog.Deleted); n > 0 {
			diffed{diff}.show(t.err)
			if err := yes.ask(c, t, fmt.Sprintf("what the file lacks will be deleted, in number: %d", n)); err != nil {
				return diffed{}, err
			}
		}
	}
	diff, err := apply(o)
	return diffed{diff}, err
}

// apply has a server do it.
func (a *client) apply(ctx context.Context, d *catalog.Document, o catalog.ApplyOptions) (catalog.Diff, error) {
	var diff catalog.Diff
	q := url.Values{"dry_run": {strconv.FormatBool(o.DryRun)}, "prune": {strconv.FormatBool(o.Prune)}}
	err := a.do(ctx, call{method: http.MethodPost, path: "/apply", query: q, body: d, into: &diff})
	if r := new(refused); errors.As(err, &r) && r.Status == http.StatusUnprocessableEntity && len(r.Errors) > 0 {
		return diff, r.problems()
	}
	return diff, err
}

// actor is who runs this.
func actor() string {
	u, err := user.Current()
	if err != nil {
		return "cli"
	}
	return "cli:" + u.Username
}

// readDocument reads a file, and returns what finds the places of problems with it.
func readDocument(stdin io.Reader, file string) (*catalog.Document, func(strict.Problems) strict.Problems, error) {
	if file == "-" {
		file = "stdin"
	} else {
		opened, err := os.Open(file)
		if err != nil {
			return nil, nil, advice{err, "stint apply -f with a file that is there and can be read"}
		}
		defer opened.Close()
		stdin = opened
	}
	// One byte more than a document may have is enough to refuse it.
	data, err := io.ReadAll(io.LimitReader(stdin, strict.MaxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(data) > strict.MaxSize {
		return nil, nil, advice{fmt.Errorf("%s has more than %d bytes", file, strict.MaxSize), "several files, one after the other, without --prune"}
	}
	d, locate, err := daemon.ReadDocument(file, data)
	if err != nil {
		return nil, nil, advice{err, "correct what is listed"}
	}
	return d, locate, nil
}

// show writes what was changed for people.
func (x diffed) show(w io.Writer) {
	for _, i := range x.Items {
		fmt.Fprintln(w, map[string]string{catalog.Created: "+", catalog.Updated: "~", catalog.Deleted: "-"}[i.Action], i.Kind, printable(i.ID))
		for _, d := range i.Fields {
			fmt.Fprintf(w, "    %s: %s -> %s\n", d.Path, printable(cmp.Or(d.Before, "none")), printable(cmp.Or(d.After, "none")))
		}
	}
}

// sum writes how much that was.
func (x diffed) sum(w io.Writer, dryRun bool) {
	counts := fmt.Sprintf("%d created, %d updated, %d deleted", x.Count(catalog.Created), x.Count(catalog.Updated), x.Count(catalog.Deleted))
	switch {
	case len(x.Items) == 0:
		fmt.Fprintf(w, "nothing to change: the database is at revision %d\n", x.Revision)
	case dryRun:
		fmt.Fprintf(w, "would be: %s; the database stays at revision %d\n", counts, x.Revision)
	default:
		fmt.Fprintf(w, "revision %d: %s\n", x.Revision, counts)
	}
}

// progress returns what shows how far something is that takes its time, or nil if no one
// sees it.
func (t *terminal) progress() func(done, all int) {
	const many = 1000
	f := t.screen()
	if f == nil {
		return nil
	}
	return func(done, all int) {
		switch {
		case all <= many:
		case done < all:
			fmt.Fprintf(f, wipe+"%d of %d", done, all)
		default:
			fmt.Fprint(f, wipe)
		}
	}
}

// count shows how many bytes were written, if someone sees it.
func (t *terminal) count(w io.Writer, write func(io.Writer) error) error {
	f := t.screen()
	if f == nil {
		return write(w)
	}
	c := &counter{w: w, screen: f}
	defer c.end()
	return write(c)
}

type counter struct {
	w         io.Writer
	screen    *os.File
	n, showed int64
}

func (c *counter) Write(p []byte) (int, error) {
	const often = 256 << 10
	n, err := c.w.Write(p)
	if c.n += int64(n); c.n-c.showed >= often {
		c.showed = c.n
		fmt.Fprintf(c.screen, wipe+"%.1f MB", float64(c.n)/1e6)
	}
	return n, err
}

func (c *counter) end() {
	if c.showed > 0 {
		fmt.Fprint(c.screen, wipe)
	}
}

// wipe clears the line of a terminal.
const wipe = "\r\x1b[K"

// screen returns where errors go, if that is a terminal, or nil.
func (t *terminal) screen() *os.File {
	if f, ok := t.err.(*os.File); ok && isTerminal(f) {
		return f
	}
	return nil
}
