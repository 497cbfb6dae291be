package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
)

func newApply(t *terminal) *cobra.Command {
	var (
		f    eitherFlags
		o    catalog.ApplyOptions
		file string
		yes  consent
	)
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Apply a file of rules, tiers, users and keys",
		Long: `Change the rules, tiers, tenants, users, API keys, exemptions and bans of a server or a database
to those in a file, and show what was changed. Either everything is changed, as one revision, or
nothing; nodes use it at once. The file is a config file, whose settings are
ignored, or the output of "stint export", in TOML or JSON; - is the standard input.

What is not in the file is kept. With --prune it is deleted: rules, tiers, exemptions and
bans always, tenants, users and API keys only if the file has any of that kind, since many files
have none. An empty file is rejected then. Before anything is deleted, the command asks for
confirmation, unless --yes is given.

A database that was emptied, restored from a backup or replaced does not continue the
history that nodes have followed, so they refuse it, and keep the rules they have. Nothing
is applied then, unless --accept-history is given: all nodes use the database as it is
after this command. The file may be left out, to change nothing else. A node that is not
connected accepts it when it is. Do not use this flag in scripts that run regularly: it
overrides the only protection against an empty database.

With --dry-run everything is applied, checked and rolled back: the output is the same as
without. The exit code is 0 whether or not there is anything to change, and 2 if the file or
the resulting catalog has problems.`,
		Example: `  stint apply -f stint.toml --dry-run
  stint apply -f rules.toml --prune --database sqlite:stint.db
  stint apply --accept-history --server http://127.0.0.1:9090
  stint export --database sqlite:old.db | stint apply -f - --database "$DATABASE_URL"`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" && !o.AcceptHistory {
				return advice{errors.New("stint apply needs a file"), "stint apply -f stint.toml, or -f - for the standard input"}
			}
			document, locate, err := readDocument(c, file)
			if err != nil {
				return err
			}
			run := func(apply applyFunc) error {
				diff, err := confirmApply(c, t, o, yes, apply)
				if problems := strict.Problems(nil); errors.As(err, &problems) {
					return advice{locate(problems), "correct the problems; nothing was changed"}
				} else if err != nil {
					return err
				}
				return printApplied(t, diff, o.DryRun)
			}
			return f.run(c.Context(), t, func(a *client) error {
				if c.Flags().Changed("actor") {
					return advice{errors.New("--actor: a server uses the name of the token"), "the same without --actor"}
				}
				return run(func(o catalog.ApplyOptions) (diff catalog.Diff, err error) {
					q := url.Values{"dry_run": {strconv.FormatBool(o.DryRun)}, "prune": {strconv.FormatBool(o.Prune)}}
					if o.AcceptHistory {
						q.Set("accept_history", "true") // an older server would reject it
					}
					err = t.waits("the server applies "+objects(document), func() error {
						return a.do(c.Context(), call{method: http.MethodPost, path: "/apply", query: q, body: document, into: &diff})
					})
					if p := new(problem); errors.As(err, &p) && p.Status == http.StatusUnprocessableEntity && len(p.Errors) > 0 {
						return diff, p.fields()
					}
					return diff, err
				})
			}, func(k *catalog.Catalog) error {
				o.Progress = t.applyProgress()
				return run(func(o catalog.ApplyOptions) (catalog.Diff, error) {
					diff, err := k.Apply(c.Context(), document, o)
					if errors.As(err, new(*catalog.RefusingNodeError)) {
						err = advice{err, tryAccept}
					}
					return diff, err
				})
			})
		},
	}
	f.add(c)
	addFile(c, &file, "the `FILE`")
	addDryRun(c, &o.DryRun)
	c.Flags().BoolVar(&o.Prune, "prune", false, "delete what is not in the file")
	c.Flags().BoolVar(&o.AcceptHistory, strings.TrimPrefix(acceptFlag, "--"), false, "have all nodes use the database, although it was emptied, restored or replaced")
	c.Flags().StringVar(&o.Actor, "actor", actor(), "the `name` to write to a database's log of changes (default: cli: and the name of the user)")
	c.Flags().Lookup("actor").DefValue = "" // it depends on the machine
	yes.add(c)
	addOutput(c)
	return c
}

// acceptFlag is the flag that accepts the history of a database, and tryAccept advice to use it.
const (
	acceptFlag = "--accept-history"
	tryAccept  = "restore what the database lacks; or stint apply " + acceptFlag + ", if it is right as it is"
)

// readDocument reads a file, and returns a function that adds places in it to problems. Without
// a file, the document is empty.
func readDocument(c *cobra.Command, file string) (*catalog.Document, func(strict.Problems) strict.Problems, error) {
	if file == "" {
		return new(catalog.Document), func(p strict.Problems) strict.Problems { return p }, nil
	}
	name, data, err := readFile(c, file, strict.MaxSize, "several files, one after the other, without --prune")
	if err != nil {
		return nil, nil, err
	}
	document, locate, err := daemon.ReadDocument(name, data)
	if err != nil {
		return nil, nil, advice{err, "correct the problems"}
	}
	return document, locate, nil
}

// objects says how many objects a document has.
func objects(d *catalog.Document) string {
	n := len(d.Rules) + len(d.Tiers) + len(d.Tenants) + len(d.Users) + len(d.APIKeys) + len(d.Exemptions) + len(d.Bans)
	if n == 1 {
		return "1 object"
	}
	return strconv.Itoa(n) + " objects"
}

type applyFunc func(catalog.ApplyOptions) (catalog.Diff, error)

// confirmApply applies a file, and asks for confirmation before anything is deleted.
func confirmApply(c *cobra.Command, t *terminal, o catalog.ApplyOptions, yes consent, apply applyFunc) (catalog.Diff, error) {
	if o.Prune && !o.DryRun && !bool(yes) {
		trial := o
		trial.DryRun = true
		diff, err := apply(trial)
		if err != nil {
			return diff, err
		}
		if n := diff.Count(catalog.Deleted); n > 0 {
			printDiff(t.err, diff.Items)
			if err := yes.ask(c, t, fmt.Sprintf("objects that are not in the file will be deleted (%d)", n)); err != nil {
				return diff, err
			}
		}
	}
	return apply(o)
}

// actor returns the name of the current user for the log of changes.
func actor() string {
	u, err := user.Current()
	if err != nil {
		return "cli"
	}
	return "cli:" + u.Username
}

// applyProgress returns a function that shows the progress of large files on a terminal, or
// nil if there is none.
func (t *terminal) applyProgress() func(done, all int) {
	const large = 1000
	f := t.screen()
	if f == nil {
		return nil
	}
	return func(done, all int) {
		switch {
		case all <= large:
		case done < all:
			fmt.Fprintf(f, clearLine+"%d of %d", done, all)
		default:
			fmt.Fprint(f, clearLine)
		}
	}
}

func newExport(t *terminal) *cobra.Command {
	var (
		f            eitherFlags
		file         string
		withoutUsers bool
	)
	c := &cobra.Command{
		Use:   "export",
		Short: "Export rules, tiers, users and keys to a file",
		Long: `Export the rules, tiers, tenants, users, API keys, exemptions and bans of a server or a database
as TOML, in a consistent state. The file can be used as a config file, and "stint apply" copies it
to another database. It has the hashes of keys, not the keys themselves.

A file has at most 16 MiB: for a database with hundreds of thousands of users, use
--without-users.`,
		Example: `  stint export --database sqlite:stint.db
  stint export --database sqlite:stint.db --without-users -f rules.toml
  stint export -o json | jq '.users | length'`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.run(c.Context(), t, func(a *client) error {
				q := url.Values{"users": {strconv.FormatBool(!withoutUsers)}, "format": {t.format}}
				return t.writeTo(file, func(w io.Writer) error { return a.copy(c.Context(), call{path: "/export", query: q}, w) })
			}, func(k *catalog.Catalog) error {
				export := k.ExportTOML
				if t.format == asJSON {
					export = k.ExportJSON
				}
				return t.writeTo(file, func(w io.Writer) error {
					return export(c.Context(), w, catalog.ExportOptions{Users: !withoutUsers})
				})
			})
		},
	}
	f.add(c)
	addOutputFile(c, &file)
	c.Flags().BoolVar(&withoutUsers, "without-users", false, "leave out users and API keys")
	addOutput(c, asTOML, asJSON)
	return c
}
