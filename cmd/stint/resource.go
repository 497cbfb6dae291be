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
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// stored is an object in the catalog of a server.
type stored[T any] struct {
	admin.Record[T]
	Reading string `json:"reading,omitempty"` // of a rule: the rule as a sentence
	// Of a key: its use.
	LastUsed time.Time `json:"last_used_at,omitzero"`
	Total    int64     `json:"usage_total,omitempty"`
}

// kind describes objects of one kind. All kinds have the same commands.
type kind[T any] struct {
	path, one   string // such as rules, rule
	key         string // the field that is the id; empty: the server chooses the id
	example     string // an id that the demo has
	unused      string // an id that the demo does not have
	fields      string // an example of assignments
	firstFields string // an example of assignments for create; default fields
	filters     []filter
	sorts       []string    // fields to sort by, beside id, created_at and updated_at
	flags       []fieldFlag // of create
	head        []string
	cells       func(*stored[T]) []any
}

// fieldFlag is a flag of create that sets a field. It can be repeated.
type fieldFlag struct {
	name, usage string
	set         func(into tree, value string) error
}

// textFlag returns a flag for a field that is a text.
func textFlag(flag, field, usage string) fieldFlag {
	return fieldFlag{flag, usage, func(into tree, value string) error {
		into[field] = value
		return nil
	}}
}

func (k *kind[T]) at(id string) string { return "/" + k.path + "/" + url.PathEscape(id) }

func (k *kind[T]) get(ctx context.Context, a *client, id string) (stored[T], error) {
	var r stored[T]
	err := a.do(ctx, call{path: k.at(id), into: &r})
	if hasStatus(err, http.StatusNotFound) {
		return r, advice{errors.Unwrap(err), "stint " + k.path + " list"}
	}
	return r, err
}

func (k *kind[T]) commands(t *terminal) []*cobra.Command {
	return []*cobra.Command{k.list(t), k.show(t), k.create(t), k.set(t), k.edit(t), k.remove(t)}
}

func (k *kind[T]) list(t *terminal) *cobra.Command {
	var prefix, sort string
	var limit int
	for i := range k.filters {
		k.filters[i].into = new(string)
	}
	c := queryCommand(t, &cobra.Command{
		Use:     "list",
		Short:   "List " + k.path,
		Long:    "List " + k.path + ", sorted by id, or as --sort says.",
		Example: fmt.Sprintf("  stint %s list\n  stint %s list --prefix %s -o json", k.path, k.path, k.example[:1]),
	}, func(c *cobra.Command, a *client, _ []string) error {
		q := parameters("prefix", prefix, "sort", sort)
		for _, f := range k.filters {
			if *f.into != "" {
				q.Set(f.name, *f.into)
			}
		}
		all, err := gather[stored[T]](c.Context(), t, a, "/"+k.path, "after", q, limit)
		if err != nil {
			return err
		}
		rows := make([]admin.Record[T], len(all))
		for i := range all {
			rows[i] = all[i].Record
		}
		return t.print(all, rows, func() error { return printTable(t, all, "", k.head, k.cells) })
	})
	c.Flags().StringVar(&prefix, "prefix", "", "only those whose id starts with this `text`")
	addSort(c, &sort, append([]string{"id", "created_at", "updated_at"}, k.sorts...)...)
	addFilters(c, k.filters...)
	addLimit(c, &limit, 1000)
	return c
}

// addSort adds the flag of lists that a server sorts.
func addSort(c *cobra.Command, into *string, fields ...string) {
	c.Flags().StringVar(into, "sort", "", "sort by this `field`: "+strings.Join(fields, ", ")+"; with a minus before it, the last comes first")
	_ = c.RegisterFlagCompletionFunc("sort", func(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) { // the flag exists
		for _, f := range fields {
			out = append(out, f, "-"+f)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
}

func (k *kind[T]) show(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use:   "show ID",
		Short: "Show one " + k.one,
		Long: "Show one " + k.one + `, as in a config file. The output can be edited and passed to "set" with
-f.`,
		Example: fmt.Sprintf("  stint %s show %s\n  stint %s show %s -o json", k.path, k.example, k.path, k.example),
		Args:    wants(1, 1, "an ID"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		return t.print(r, r.Record, func() error {
			body, err := k.document(&r)
			if err == nil {
				_, err = io.WriteString(t.out, body)
			}
			return err
		})
	})
}

// document returns an object as TOML.
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

// valueFlags are the flags of commands that write an object.
type valueFlags struct {
	file   string
	dryRun bool
}

func (f *valueFlags) add(c *cobra.Command) {
	addFile(c, &f.file, "a `FILE` with all fields, in TOML or JSON")
	addDryRun(c, &f.dryRun)
}

// read reads one object from a file, in TOML or JSON.
func (k *kind[T]) read(c *cobra.Command, file string) (v T, err error) {
	const maxSize = 1 << 20
	name, data, err := readFile(c, file, maxSize, "stint apply -f, for many objects at once")
	if err != nil {
		return v, err
	}
	return v, k.parse(name, data, &v)
}

func (k *kind[T]) parse(name string, data []byte, into *T) error {
	decode := strict.TOML
	if strings.HasPrefix(strings.TrimSpace(string(data)), "{") { // TOML cannot start with it
		decode = strict.JSON
	}
	if _, problems := decode(name, data, into); len(problems) > 0 {
		return advice{problems, "correct the problems; a file with many objects is for stint apply -f"}
	}
	return nil
}

// readOr returns the fields of an object in a file or, without a file, of a value.
func (k *kind[T]) readOr(c *cobra.Command, file string, value T) (tree, error) {
	if file != "" {
		var err error
		if value, err = k.read(c, file); err != nil {
			return nil, err
		}
	}
	return treeOf(value)
}

// assignAll applies arguments that are FIELD=VALUE.
func (k *kind[T]) assignAll(fields tree, args []string) error {
	for _, text := range args {
		if err := assign(reflect.TypeFor[T](), fields, text); err != nil {
			return err
		}
	}
	return nil
}

// assignChecked is assignAll, and checks the types of all fields.
func (k *kind[T]) assignChecked(c *cobra.Command, fields tree, args []string) error {
	err := k.assignAll(fields, args)
	if err == nil {
		if err = fromTree(fields, new(T)); err != nil {
			err = usageError(c, "%w", err)
		}
	}
	return err
}

func (k *kind[T]) create(t *terminal) *cobra.Command {
	var f valueFlags
	values := make([][]string, len(k.flags))
	usage := "create [FIELD=VALUE...]"
	if k.key != "" {
		usage = "create " + strings.ToUpper(k.key) + " [FIELD=VALUE...]"
	}
	c := queryCommand(t, &cobra.Command{
		Use:   usage,
		Short: "Create a " + k.one,
		Long: "Create a " + k.one + `, from flags, from fields, or from a file. Fields have the names that they have
in config files; a nested field is written as limits[0].limit.`,
		Example: k.examples("create"),
		Args:    cobra.ArbitraryArgs,
	}, func(c *cobra.Command, a *client, args []string) error {
		fields := tree{}
		if f.file != "" {
			var err error
			if fields, err = k.readOr(c, f.file, *new(T)); err != nil {
				return err
			}
			if k.key == "" {
				delete(fields, "id") // the server chooses it
			}
		} else if k.key != "" && len(args) == 0 {
			return usageError(c, "%s needs the %s of the new %s, or -f FILE", c.CommandPath(), k.key, k.one)
		}
		if k.key != "" && len(args) > 0 && !strings.Contains(args[0], "=") {
			fields[k.key], args = args[0], args[1:]
		}
		for i, flag := range k.flags {
			for _, v := range values[i] {
				if err := flag.set(fields, v); err != nil {
					return usageError(c, "--%s %s: %w", flag.name, strict.Quote(v), err)
				}
			}
		}
		if err := k.assignChecked(c, fields, args); err != nil {
			return err
		}
		return k.post(c, t, a, &f, fields)
	})
	for i, flag := range k.flags {
		c.Flags().StringArrayVar(&values[i], flag.name, nil, flag.usage)
	}
	f.add(c)
	return c
}

// post creates an object and prints it.
func (k *kind[T]) post(c *cobra.Command, t *terminal, a *client, f *valueFlags, fields tree) error {
	var created struct {
		stored[T]
		Text string `json:"key,omitempty"` // of an API key
	}
	if err := a.do(c.Context(), call{method: http.MethodPost, path: "/" + k.path, query: dryRunParameter(f.dryRun), body: fields, into: &created}); err != nil {
		return err
	}
	var value, row any = created.stored, created.Record
	if created.Text != "" {
		value, row = created, admin.CreatedKey{Record: any(created.Record).(admin.Record[admin.Key]), Text: created.Text}
	}
	return t.print(value, row, func() error {
		switch {
		case created.Text != "" && !f.dryRun: // only the key, so that it can go to a file
			t.notes(fmt.Sprintf("this is the key %s; it is not stored, and cannot be shown again", printable(created.ID)))
			_, err := fmt.Fprintln(t.out, printable(created.Text))
			return err
		case f.dryRun:
			fmt.Fprintf(t.out, "+ %s %s would be created; nothing was changed\n", k.one, printable(created.ID))
		default:
			fmt.Fprintf(t.out, "+ %s %s, version %d\n", k.one, printable(created.ID), created.Version)
		}
		if created.Reading != "" {
			fmt.Fprintln(t.out, clean(created.Reading))
		}
		return nil
	})
}

// examples returns the examples of a command that takes fields.
func (k *kind[T]) examples(verb string) string {
	id, file, fields := k.example, k.example, k.fields
	if verb == "create" {
		id, file, fields = k.unused, cmp.Or(k.unused, k.one), cmp.Or(k.firstFields, k.fields)
	}
	command := strings.TrimSpace(fmt.Sprintf("stint %s %s %s", k.path, verb, id))
	return fmt.Sprintf("  %s -f %s.toml --dry-run\n  %s %s", command, file, command, fields)
}

func (k *kind[T]) set(t *terminal) *cobra.Command {
	var f valueFlags
	var version int64
	c := queryCommand(t, &cobra.Command{
		Use:   "set ID FIELD=VALUE...",
		Short: "Change fields of a " + k.one,
		Long: "Change some fields of a " + k.one + `, or, with -f, replace all of them by those in a file. Fields have
the names that they have in config files; a nested field is written as limits[0].limit, and
FIELD= removes a field. If someone else changes it at the same time, nothing is changed.`,
		Example: k.examples("set"),
		Args:    wants(1, math.MaxInt, "an ID, and FIELD=VALUE or -f FILE"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		if len(args) == 1 && f.file == "" {
			return usageError(c, "%s needs FIELD=VALUE or -f FILE", c.CommandPath())
		}
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		if version == 0 {
			version = r.Version
		}
		after, err := k.readOr(c, f.file, r.Value)
		if err != nil {
			return err
		}
		if err := k.assignChecked(c, after, args[1:]); err != nil {
			return err
		}
		now, err := k.change(c.Context(), a, &r, version, after, f.dryRun)
		if err != nil {
			return err
		}
		return t.print(now, now.Record, func() error { return k.printChange(t, &r, &now, f.dryRun) })
	})
	c.Flags().Int64Var(&version, "version", 0, "change only this `version` (default: the current one)")
	f.add(c)
	return c
}

// change replaces the fields of an object, if it still has the version.
func (k *kind[T]) change(ctx context.Context, a *client, r *stored[T], version int64, after tree, dryRun bool) (now stored[T], err error) {
	before, err := treeOf(r.Value)
	if err != nil {
		return now, err
	}
	err = a.do(ctx, call{
		method: http.MethodPatch, path: k.at(r.ID), query: dryRunParameter(dryRun), version: &version, contentType: "application/merge-patch+json",
		body: patch(before, after), into: &now,
	})
	return now, err
}

func (k *kind[T]) printChange(t *terminal, was, now *stored[T], dryRun bool) error {
	before, err := treeOf(was.Value)
	if err != nil {
		return err
	}
	after, err := treeOf(now.Value)
	if err != nil {
		return err
	}
	fields := differ("", before, after)
	printDiff(t.out, []catalog.DiffItem{{Kind: k.one, ID: now.ID, Action: catalog.Updated, Fields: fields}})
	switch {
	case len(fields) == 0:
		fmt.Fprintf(t.out, "nothing to change: it has version %d\n", now.Version)
	case dryRun:
		fmt.Fprintln(t.out, "this would be changed; nothing was changed")
	default:
		fmt.Fprintf(t.out, "version %d\n", now.Version)
	}
	return nil
}

func (k *kind[T]) remove(t *terminal) *cobra.Command {
	var yes consent
	var dryRun bool
	c := serverCommand(t, &cobra.Command{
		Use:   "delete ID...",
		Short: "Delete " + k.path,
		Long: "Delete " + k.path + `. The command asks for confirmation, unless --yes is given. If someone else
changes them in the meantime, they are not deleted.`,
		Example: fmt.Sprintf("  stint %s delete %s", k.path, k.example),
		Args:    wants(1, math.MaxInt, "one ID or more"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		var all []stored[T]
		for _, id := range args {
			r, err := k.get(c.Context(), a, id)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		if !dryRun {
			if err := yes.ask(c, t, fmt.Sprintf("%s %s will be deleted", k.one, printable(strings.Join(args, ", ")))); err != nil {
				return err
			}
		}
		for _, r := range all {
			if err := a.do(c.Context(), call{method: http.MethodDelete, path: k.at(r.ID), query: dryRunParameter(dryRun), version: &r.Version}); err != nil {
				return err
			}
			note := ""
			if dryRun {
				note = " would be deleted; nothing was changed"
			}
			fmt.Fprintf(t.out, "- %s %s%s\n", k.one, printable(r.ID), note)
		}
		return nil
	})
	addDryRun(c, &dryRun)
	yes.add(c)
	return c
}

// expiryFlags are the flags of commands that create something that may expire.
type expiryFlags struct{ at, after string }

func (f *expiryFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.at, "until", "", "when it ends, as a `time` such as 2026-12-31T00:00:00Z (default: never)")
	c.Flags().StringVar(&f.after, "for", "", "how long it lasts, as a `time` such as 24h or 90d")
}

// parse returns when it expires, or the zero time.
func (f *expiryFlags) parse() (catalog.Time, error) {
	at, err := time.Time{}, error(nil)
	switch {
	case f.at != "" && f.after != "":
		err = errors.New("--until and --for: want one of them")
	case f.at != "":
		if at, err = time.Parse(time.RFC3339, f.at); err != nil {
			err = fmt.Errorf("--until %s: want a time such as 2026-01-31T12:00:00Z", strict.Quote(f.at))
		}
	case f.after != "":
		if at, err = afterNow(f.after); err != nil {
			err = fmt.Errorf("--for %s: %w", strict.Quote(f.after), err)
		}
	}
	if err != nil {
		return catalog.Time{}, advice{err, "--for 24h"}
	}
	return catalog.Time{Time: at}, nil
}

// afterNow returns the time a duration after now.
func afterNow(duration string) (time.Time, error) {
	d, err := parseDuration(duration)
	return now().Add(d).UTC().Truncate(time.Second), err
}
