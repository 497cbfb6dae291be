package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/strict"
)

// applied is what "apply" says that it has done.
type applied struct {
	catalog.Diff
	DryRun bool `json:"dry_run"`
}

func newApply(t *terminal) *cobra.Command {
	var (
		f      databaseFlags
		o      catalog.ApplyOptions
		file   string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the database what a file says",
		Long: `Make the rules, tiers, tenants, users, API keys, exemptions and bans of the database
what a file says, and say what was changed. All of it is changed, or nothing, as one
revision; nodes use it at once. The file is a config file, whose settings do not matter
here, or what "stint export" writes, in TOML or JSON; - is the standard input.

What the file lacks stays. With --prune it is deleted: rules, tiers, exemptions and bans
always, and tenants, users and API keys if the file has any of that kind, since many
files have none. A file that has nothing in it is refused then.

With --dry-run all of it is done, checked and undone: the answer is what it would be
without. The exit code is 0 whether or not there is something to change, and 2 if the
file, or what would become of the database, has problems.`,
		Example: `  stint apply -f stint.toml --database sqlite:stint.db --dry-run
  stint apply -f rules.toml --prune --config /etc/stint/stint.toml
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
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				o.Progress = t.progress()
				diff, err := k.Apply(c.Context(), d, o)
				if problems := strict.Problems(nil); errors.As(err, &problems) {
					return advice{locate(problems), "correct what is listed; nothing was changed"}
				} else if err != nil {
					return err
				}
				x := applied{diff, o.DryRun}
				if asJSON {
					return t.writeJSON(x)
				}
				x.show(t)
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().StringVarP(&file, "file", "f", "", "the `FILE`, or - for the standard input")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be changed, and change nothing")
	c.Flags().BoolVar(&o.Prune, "prune", false, "delete what the file lacks")
	c.Flags().StringVar(&o.Actor, "actor", actor(), "who the log of changes says it was, as a `name` (default: cli: and the name of the user)")
	c.Flags().Lookup("actor").DefValue = "" // which differs between machines
	_ = c.MarkFlagFilename("file", "toml", "json")
	addJSON(c, &asJSON)
	return c
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

// show writes it for people.
func (x *applied) show(t *terminal) {
	for _, i := range x.Items {
		fmt.Fprintln(t.out, map[string]string{catalog.Created: "+", catalog.Updated: "~", catalog.Deleted: "-"}[i.Action], i.Kind, i.ID)
		for _, d := range i.Fields {
			fmt.Fprintf(t.out, "    %s: %s -> %s\n", d.Path, cmp.Or(d.Before, "none"), cmp.Or(d.After, "none"))
		}
	}
	counts := fmt.Sprintf("%d created, %d updated, %d deleted", x.Count(catalog.Created), x.Count(catalog.Updated), x.Count(catalog.Deleted))
	switch {
	case len(x.Items) == 0:
		fmt.Fprintf(t.out, "nothing to change: the database is at revision %d\n", x.Revision)
	case x.DryRun:
		fmt.Fprintf(t.out, "would be: %s; the database stays at revision %d\n", counts, x.Revision)
	default:
		fmt.Fprintf(t.out, "revision %d: %s\n", x.Revision, counts)
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

// wipe clears the line of a terminal.
const wipe = "\r\x1b[K"

// screen returns where errors go, if that is a terminal, or nil.
func (t *terminal) screen() *os.File {
	f, ok := t.err.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return f
}
