package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// stored is an object of the catalog of a server.
type stored[T any] struct {
	admin.Record[T]
	Reading string `json:"reading,omitempty"` // of a rule: what it says, in a sentence
}

// kind is things of one kind, all of which have the same commands.
type kind[T any] struct {
	path, one string // rules, rule
	key       string // the field that is the id; empty: the server chooses it
	example   string // an id that the demo has
	unused    string // one that it has not
	fields    string // of them, an example of assignments
	first     string // the same for a new one, if that needs others
	filters   []filterFlag
	flags     []fieldFlag // of create
	head      []string
	cells     func(*stored[T]) []any
}

// filterFlag is a flag that chooses among things.
type filterFlag struct{ name, usage string }

// fieldFlag is a flag for a field that many set. It may be given more than once, and
// changes what is to be sent.
type fieldFlag struct {
	name, usage string
	set         func(into tree, value string) error
}

// text is the flag of a field that is a text.
func text(flag, field, usage string) fieldFlag {
	return fieldFlag{flag, usage, func(into tree, value string) error {
		into[field] = value
		return nil
	}}
}

// at is where one of them is.
func (k *kind[T]) at(id string) string { return "/" + k.path + "/" + url.PathEscape(id) }

func (k *kind[T]) get(ctx context.Context, a *client, id string) (stored[T], error) {
	var r stored[T]
	err := a.do(ctx, call{path: k.at(id), into: &r})
	if f := new(refused); errors.As(err, &f) && f.Status == http.StatusNotFound {
		return r, advice{f, "stint " + k.path + " list"}
	}
	return r, err
}

// commands are what all kinds have.
func (k *kind[T]) commands(t *terminal) []*cobra.Command {
	return []*cobra.Command{k.list(t), k.show(t), k.create(t), k.set(t), k.edit(t), k.remove(t)}
}

func (k *kind[T]) list(t *terminal) *cobra.Command {
	var (
		prefix, as string
		limit      int
		values     = make([]string, len(k.filters))
	)
	c := serverCommand(t, &cobra.Command{
		Use:     "list",
		Short:   "List " + k.path,
		Long:    "List " + k.path + ", by their ids.",
		Example: fmt.Sprintf("  stint %s list\n  stint %s list --prefix %s -o json", k.path, k.path, k.example[:1]),
	}, func(c *cobra.Command, a *client, _ []string) error {
		q := url.Values{}
		for i, f := range k.filters {
			if values[i] != "" {
				q.Set(f.name, values[i])
			}
		}
		if prefix != "" {
			q.Set("prefix", prefix)
		}
		all, err := gather[stored[T]](c.Context(), t, a, "/"+k.path, q, limit)
		if err != nil {
			return err
		}
		rows := make([]admin.Record[T], len(all))
		for i := range all {
			rows[i] = all[i].Record
		}
		return t.say(as, all, rows, func() error {
			w := t.grid(k.head...)
			for i := range all {
				w.row(k.cells(&all[i])...)
			}
			return w.Flush()
		})
	})
	c.Flags().StringVar(&prefix, "prefix", "", "only those whose ids begin with this `text`")
	for i, f := range k.filters {
		c.Flags().StringVar(&values[i], f.name, "", f.usage)
	}
	addLimit(c, &limit)
	addOutput(c, &as)
	return c
}

func addLimit(c *cobra.Command, limit *int) {
	c.Flags().IntVar(limit, "limit", 1000, "at most this `number` of them; 0 is all")
}

// gather reads a list, up to a limit, and says if there is more.
func gather[T any](ctx context.Context, t *terminal, a *client, path string, q url.Values, limit int) ([]T, error) {
	if limit < 0 {
		return nil, advice{fmt.Errorf("--limit %d: want 0, which is all, or more", limit), "--limit 1000"}
	}
	all := []T{}
	for item, err := range pages[T](ctx, a, path, q, 1000) {
		if err != nil {
			return nil, err
		}
		if limit > 0 && len(all) == limit {
			t.notes(fmt.Sprintf("there are more than %d: --limit 0 shows all", limit))
			break
		}
		all = append(all, item)
	}
	return all, nil
}

func (k *kind[T]) show(t *terminal) *cobra.Command {
	var as string
	c := serverCommand(t, &cobra.Command{
		Use:   "show ID",
		Short: "Show one " + k.one,
		Long: "Show one " + k.one + `, as a config file would have it. What is shown can be changed and given to
"set" with -f.`,
		Example: fmt.Sprintf("  stint %s show %s\n  stint %s show %s -o json", k.path, k.example, k.path, k.example),
		Args:    wants(1, 1, "the id of one"),
	}, func(c *cobra.Command, a *client, args []string) error {
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		return t.say(as, r, r.Record, func() error {
			body, err := k.document(&r)
			if err == nil {
				_, err = io.WriteString(t.out, body)
			}
			return err
		})
	})
	completes(c, k.path)
	addOutput(c, &as)
	return c
}

// document is one of them, as a file has it.
func (k *kind[T]) document(r *stored[T]) (string, error) {
	head := fmt.Sprintf("# %s %s", k.one, printable(r.ID))
	if r.Version > 0 {
		head += fmt.Sprintf(", version %d, changed %s by %s", r.Version, cell(r.Updated), visible(r.By))
	}
	if r.Reading != "" {
		head += "\n# " + clean(r.Reading)
	}
	body, err := strict.AppendTOML([]byte(head+"\n"), r.Value)
	return string(body), err
}

// valueFlags say what a thing is to be.
type valueFlags struct {
	file   string
	dryRun bool
	as     string
}

func (f *valueFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.file, "file", "f", "", "a `FILE` that says all of it, in TOML or JSON, or - for the standard input")
	_ = c.MarkFlagFilename("file", "toml", "json") // it is there
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "check all, say what would be changed, and change nothing")
	addOutput(c, &f.as)
}

// read reads one thing from the file, in TOML or JSON.
func (k *kind[T]) read(stdin io.Reader, file string) (v T, err error) {
	name := file
	if file == "-" {
		name = "stdin"
	} else {
		opened, err := os.Open(file)
		if err != nil {
			return v, advice{err, "-f with a file that is there and can be read"}
		}
		defer opened.Close()
		stdin = opened
	}
	const most = 1 << 20
	data, err := io.ReadAll(io.LimitReader(stdin, most+1))
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > most {
		return v, advice{fmt.Errorf("%s has more than %d bytes, which is no %s", name, most, k.one), "stint apply -f, for many things at once"}
	}
	return v, k.parse(name, data, &v)
}

func (k *kind[T]) parse(name string, data []byte, into *T) error {
	decode := strict.TOML
	if strings.HasPrefix(strings.TrimSpace(string(data)), "{") { // which TOML cannot begin with
		decode = strict.JSON
	}
	if _, problems := decode(name, data, into); len(problems) > 0 {
		return advice{problems, "correct what is listed; a file with many things in it is for stint apply -f"}
	}
	return nil
}

// dryRun are the parameters of what may be a trial.
func dryRun(on bool) url.Values {
	if !on {
		return nil
	}
	return url.Values{"dry_run": {"true"}}
}

func (k *kind[T]) create(t *terminal) *cobra.Command {
	var f valueFlags
	values := make([][]string, len(k.flags))
	usage, least, what := "create "+strings.ToUpper(k.key)+" [FIELD=VALUE...]", 1, "the "+k.key+" of the new one, or -f FILE"
	if k.key == "" {
		usage, least, what = "create [FIELD=VALUE...]", 0, ""
	}
	c := serverCommand(t, &cobra.Command{
		Use:   usage,
		Short: "Create a " + k.one,
		Long: "Create a " + k.one + `, of flags, of fields, or of a file that says all of it. Fields have the names that
they have in config files; one within another is written as limits[0].limit.`,
		Example: k.examples("create"),
		Args:    cobra.ArbitraryArgs,
	}, func(c *cobra.Command, a *client, args []string) error {
		value := tree{}
		if f.file != "" {
			v, err := k.read(c.InOrStdin(), f.file)
			if err != nil {
				return err
			}
			if value, err = treeOf(v); err != nil {
				return err
			}
			if k.key == "" {
				delete(value, "id") // the server makes one
			}
		} else if len(args) < least {
			return advice{fmt.Errorf("%s wants %s", c.CommandPath(), what), c.CommandPath() + " --help"}
		}
		if k.key != "" && len(args) > 0 && !strings.Contains(args[0], "=") {
			value[k.key], args = args[0], args[1:]
		}
		for i, flag := range k.flags {
			for _, v := range values[i] {
				if err := flag.set(value, v); err != nil {
					return advice{fmt.Errorf("--%s %s: %w", flag.name, strict.Quote(v), err), c.CommandPath() + " --help"}
				}
			}
		}
		for _, text := range args {
			if err := assign(reflect.TypeFor[T](), value, text); err != nil {
				return err
			}
		}
		if err := fromTree(value, new(T)); err != nil {
			return advice{err, c.CommandPath() + " --help"}
		}
		return k.make(c, t, a, &f, value)
	})
	for i, flag := range k.flags {
		c.Flags().StringArrayVar(&values[i], flag.name, nil, flag.usage)
	}
	f.add(c)
	return c
}

func (k *kind[T]) make(c *cobra.Command, t *terminal, a *client, f *valueFlags, value tree) error {
	var made struct {
		stored[T]
		Text string `json:"key,omitempty"` // of an API key
	}
	if err := a.do(c.Context(), call{method: http.MethodPost, path: "/" + k.path, query: dryRun(f.dryRun), body: value, into: &made}); err != nil {
		return err
	}
	var answer, row any = made.stored, made.Record
	if made.Text != "" {
		answer, row = made, admin.CreatedKey{Record: any(made.Record).(admin.Record[admin.Key]), Text: made.Text}
	}
	return t.say(f.as, answer, row, func() error {
		if made.Text != "" && !f.dryRun { // alone, so that it can go to a file
			t.notes(fmt.Sprintf("this is the key %s; it is shown this once, and kept nowhere", printable(made.ID)))
			_, err := fmt.Fprintln(t.out, printable(made.Text))
			return err
		}
		said := fmt.Sprintf("+ %s %s, version %d", k.one, printable(made.ID), made.Version)
		if f.dryRun {
			said = fmt.Sprintf("+ %s %s would be made; nothing was changed", k.one, printable(made.ID))
		}
		fmt.Fprintln(t.out, said)
		if made.Reading != "" {
			fmt.Fprintln(t.out, clean(made.Reading))
		}
		return nil
	})
}

// examples are those of a command that takes fields.
func (k *kind[T]) examples(verb string) string {
	id, file, fields := k.example, k.example, k.fields
	if verb == "create" {
		id, file, fields = k.unused, cmp.Or(k.unused, k.one), cmp.Or(k.first, k.fields)
	}
	command := strings.TrimSpace(fmt.Sprintf("stint %s %s %s", k.path, verb, id))
	return fmt.Sprintf("  %s -f %s.toml --dry-run\n  %s %s", command, file, command, fields)
}

func (k *kind[T]) set(t *terminal) *cobra.Command {
	var f valueFlags
	var version int64
	c := serverCommand(t, &cobra.Command{
		Use:   "set ID FIELD=VALUE...",
		Short: "Change fields of a " + k.one,
		Long: "Change fields of a " + k.one + `, and leave the others; or, with -f, make all of it what a file says. Fields
have the names that they have in config files; one within another is written as
limits[0].limit, and FIELD= removes one. If someone else changes it at the same time,
nothing is changed here.`,
		Example: k.examples("set"),
		Args:    wants(1, math.MaxInt, "the id of one, and FIELD=VALUE or -f FILE"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if len(args) == 1 && f.file == "" {
			return advice{fmt.Errorf("%s wants FIELD=VALUE or -f FILE", c.CommandPath()), c.CommandPath() + " --help"}
		}
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		if version == 0 {
			version = r.Version
		}
		after, err := treeOf(r.Value)
		if err != nil {
			return err
		}
		if f.file != "" {
			v, err := k.read(c.InOrStdin(), f.file)
			if err != nil {
				return err
			}
			if after, err = treeOf(v); err != nil {
				return err
			}
		}
		for _, text := range args[1:] {
			if err := assign(reflect.TypeFor[T](), after, text); err != nil {
				return err
			}
		}
		if err := fromTree(after, new(T)); err != nil {
			return advice{err, c.CommandPath() + " --help"}
		}
		now, err := k.change(c.Context(), a, &r, version, after, f.dryRun)
		if err != nil {
			return err
		}
		return t.say(f.as, now, now.Record, func() error { return k.changed(t, &r, &now, f.dryRun) })
	})
	completes(c, k.path)
	c.Flags().Int64Var(&version, "version", 0, "the `version` that is meant (default: the one that is there)")
	f.add(c)
	return c
}

// change makes one of them what a tree says, if it still has the version.
func (k *kind[T]) change(ctx context.Context, a *client, r *stored[T], version int64, after tree, dry bool) (now stored[T], err error) {
	before, err := treeOf(r.Value)
	if err != nil {
		return now, err
	}
	err = a.do(ctx, call{
		method: http.MethodPatch, path: k.at(r.ID), query: dryRun(dry), match: &version, kind: "application/merge-patch+json",
		body: patch(before, after), into: &now,
	})
	return now, err
}

// changed says what was changed.
func (k *kind[T]) changed(t *terminal, was, now *stored[T], dry bool) error {
	before, err := treeOf(was.Value)
	if err != nil {
		return err
	}
	after, err := treeOf(now.Value)
	if err != nil {
		return err
	}
	fields := differ("", before, after)
	diffed{catalog.Diff{Items: []catalog.DiffItem{{Kind: k.one, ID: now.ID, Action: catalog.Updated, Fields: fields}}}}.show(t.out)
	switch {
	case len(fields) == 0:
		fmt.Fprintf(t.out, "nothing to change: it is of version %d\n", now.Version)
	case dry:
		fmt.Fprintln(t.out, "this would be changed; nothing was")
	default:
		fmt.Fprintf(t.out, "version %d\n", now.Version)
	}
	return nil
}

func (k *kind[T]) remove(t *terminal) *cobra.Command {
	var yes consent
	var dry bool
	c := serverCommand(t, &cobra.Command{
		Use:     "delete ID...",
		Short:   "Delete " + k.path,
		Long:    "Delete " + k.path + `, if they are still what they were when it was asked whether that is meant.`,
		Example: fmt.Sprintf("  stint %s delete %s", k.path, k.example),
		Args:    wants(1, math.MaxInt, "the id of one or more"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var all []stored[T]
		for _, id := range args {
			r, err := k.get(c.Context(), a, id)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		if !dry {
			if err := yes.ask(c, t, fmt.Sprintf("%s %s will be deleted", k.one, printable(strings.Join(args, ", ")))); err != nil {
				return err
			}
		}
		for _, r := range all {
			if err := a.do(c.Context(), call{method: http.MethodDelete, path: k.at(r.ID), query: dryRun(dry), match: &r.Version}); err != nil {
				return err
			}
			if dry {
				fmt.Fprintf(t.out, "- %s %s would be deleted; nothing was changed\n", k.one, printable(r.ID))
			} else {
				fmt.Fprintf(t.out, "- %s %s\n", k.one, printable(r.ID))
			}
		}
		return nil
	})
	completes(c, k.path)
	c.Flags().BoolVar(&dry, "dry-run", false, "check all, and change nothing")
	yes.add(c)
	return c
}

// until reads when something ends: at a time, or after one.
func until(at, after string) (time.Time, error) {
	switch {
	case at != "" && after != "":
		return time.Time{}, advice{errors.New("--until and --for: want one of them"), "--for 24h"}
	case at != "":
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return when, advice{fmt.Errorf("--until %s: want a time such as 2026-01-31T12:00:00Z", strict.Quote(at)), "--for 24h"}
		}
		return when, nil
	case after != "":
		d, err := length(after)
		if err != nil {
			return time.Time{}, advice{fmt.Errorf("--for %s: %w", strict.Quote(after), err), "--for 24h"}
		}
		return now().Add(d).UTC().Truncate(time.Second), nil
	}
	return time.Time{}, nil
}
