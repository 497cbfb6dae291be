package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

func newChanges(t *terminal) *cobra.Command {
	return family("changes", "Show and revert changes", newChangesList(t), newChangesRevisions(t), newChangesShow(t), newChangesRevert(t))
}

// diffRow is a changed field in CSV. An object without changed fields has one row.
type diffRow struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Action string `json:"action"`
	catalog.FieldDiff
}

func diffRows(i catalog.DiffItem) []diffRow {
	if len(i.Fields) == 0 {
		return []diffRow{{Kind: i.Kind, ID: i.ID, Action: i.Action}}
	}
	var rows []diffRow
	for _, f := range i.Fields {
		rows = append(rows, diffRow{i.Kind, i.ID, i.Action, f})
	}
	return rows
}

var actionSigns = map[string]string{catalog.Created: "+", catalog.Updated: "~", catalog.Deleted: "-"}

// printDiff prints changes for people.
func printDiff(w io.Writer, items []catalog.DiffItem) {
	for _, i := range items {
		fmt.Fprintln(w, actionSigns[i.Action], i.Kind, printable(i.ID))
		for _, d := range i.Fields {
			fmt.Fprintf(w, "    %s\n", formatDiff(d))
		}
	}
}

func formatDiff(d catalog.FieldDiff) string {
	return fmt.Sprintf("%s: %s -> %s", d.Path, printable(cmp.Or(d.Before, "none")), printable(cmp.Or(d.After, "none")))
}

// printApplied prints what was changed, or would be.
func printApplied(t *terminal, d catalog.Diff, dryRun bool) error {
	rows := []diffRow{}
	for _, i := range d.Items {
		rows = append(rows, diffRows(i)...)
	}
	value := struct {
		catalog.Diff
		DryRun bool `json:"dry_run"`
	}{d, dryRun}
	return t.print(value, rows, func() error {
		printDiff(t.out, d.Items)
		counts := fmt.Sprintf("%d created, %d updated, %d deleted", d.Count(catalog.Created), d.Count(catalog.Updated), d.Count(catalog.Deleted))
		switch {
		case len(d.Items) == 0:
			fmt.Fprintf(t.out, "nothing to change: the database is at revision %d\n", d.Revision)
		case dryRun:
			fmt.Fprintf(t.out, "would be: %s; the database stays at revision %d\n", counts, d.Revision)
		default:
			fmt.Fprintf(t.out, "revision %d: %s\n", d.Revision, counts)
		}
		return nil
	})
}

func diffItem(c *admin.Change) catalog.DiffItem {
	return catalog.DiffItem{Kind: c.Kind, ID: c.ID, Action: c.Action, Fields: c.Fields}
}

// changeRow is a change in CSV.
type changeRow struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Actor    string    `json:"actor"`
	diffRow
}

func changeRows(all []admin.Change) []changeRow {
	rows := []changeRow{}
	for _, c := range all {
		for _, row := range diffRows(diffItem(&c)) {
			rows = append(rows, changeRow{c.Revision, c.At, c.Actor, row})
		}
	}
	return rows
}

// listChanges prints a list of changes of a server, newest first, up to a limit.
func listChanges(c *cobra.Command, t *terminal, a *client, path string, q url.Values, limit int) error {
	all, err := gather[admin.Change](c.Context(), t, a, path, "before", q, limit)
	if err != nil {
		return err
	}
	return t.print(all, changeRows(all), func() error {
		return printTable(t, all, "there are no such changes", []string{"REVISION", "TIME", "BY", "CHANGE", "FIELDS"}, func(c *admin.Change) []any {
			var fields []string
			for _, f := range c.Fields {
				fields = append(fields, f.Path)
			}
			return []any{c.Revision, c.At, c.Actor, actionSigns[c.Action] + " " + c.Kind + " " + c.ID, fields}
		})
	})
}

func newChangesList(t *terminal) *cobra.Command {
	var f changeFilters
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: "list", Short: "List changes",
		Long:    "List the changes of rules, tiers, users and keys, newest first: who changed what, and when.",
		Example: "  stint changes list\n  stint changes list --kind rule --id search\n  stint changes list --by deploy --limit 0 -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		q, err := f.query(c)
		if err != nil {
			return err
		}
		return listChanges(c, t, a, "/changes", q, limit)
	})
	f.add(c)
	addLimit(c, &limit, 50)
	return c
}

// changeFilters are the flags that filter changes.
type changeFilters struct{ kind, id, actor, from, to string }

func (f *changeFilters) add(c *cobra.Command) {
	addFilters(c,
		filter{&f.kind, "kind", "only of this `kind`: rule, tier, tenant, user, api_key, exemption, ban, token or counters"},
		filter{&f.id, "id", "only of the object with this `id`, with --kind; that of counters is a subject, such as user:alice"},
		filter{&f.actor, "by", "only by this `name`"},
		filter{&f.from, "from", "only from this `time` on, such as 2026-01-31T12:00:00Z, or 24h or 7d before now"},
		filter{&f.to, "to", "only before this `time`, in the same forms"})
}

// query returns the parameters of the flags.
func (f *changeFilters) query(c *cobra.Command) (url.Values, error) {
	q := parameters("kind", f.kind, "id", f.id, "actor", f.actor)
	for name, text := range map[string]string{"from": f.from, "to": f.to} {
		if text == "" {
			continue
		}
		at, err := parseTime(text, now())
		if err != nil {
			return nil, usageError(c, "--%s: %v", name, err)
		}
		q.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
	return q, nil
}

// revisionRow is a revision in CSV.
type revisionRow struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Actor    string    `json:"actor"`
	Total    int64     `json:"total"`
}

func newChangesRevisions(t *terminal) *cobra.Command {
	var f changeFilters
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: "revisions", Short: "List changes that were made together",
		Long: `List the revisions, newest first: what one apply, one revert or one write has changed is one
entry. "stint changes show" shows all changes of a revision.`,
		Example: "  stint changes revisions\n  stint changes revisions --kind user --id alice\n  stint changes revisions --by deploy --from 7d",
	}, func(c *cobra.Command, a *client, _ []string) error {
		q, err := f.query(c)
		if err != nil {
			return err
		}
		q.Set("limit", "200") // the largest page
		all, err := gather[admin.LoggedRevision](c.Context(), t, a, "/revisions", "before", q, limit)
		if err != nil {
			return err
		}
		rows := []revisionRow{}
		for _, r := range all {
			rows = append(rows, revisionRow{r.Revision, r.At, r.Actor, r.Total})
		}
		return t.print(all, rows, func() error {
			return printTable(t, all, "there are no such changes", []string{"REVISION", "TIME", "BY", "CHANGES", "WHAT"}, func(r *admin.LoggedRevision) []any {
				var what []string
				for _, ch := range r.Changes {
					what = append(what, actionSigns[ch.Action]+" "+ch.Kind+" "+ch.ID)
				}
				if int64(len(what)) < r.Total {
					what = append(what, "...")
				}
				return []any{r.Revision, r.At, r.Actor, r.Total, what}
			})
		})
	})
	f.add(c)
	addLimit(c, &limit, 50)
	return c
}

func parseRevision(c *cobra.Command, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, advice{fmt.Errorf("%q: want the number of a revision", text), c.CommandPath() + " 42; stint changes list shows the numbers"}
	}
	return n, nil
}

func newChangesShow(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use: "show REVISION", Short: "Show the changes of a revision",
		Long:    "Show the changes of one revision, field by field.",
		Example: "  stint changes show 42\n  stint changes show 42 -o json",
		Args:    wants(1, 1, "one REVISION"),
	}, func(c *cobra.Command, a *client, args []string) error {
		n, err := parseRevision(c, args[0])
		if err != nil {
			return err
		}
		all := []admin.Change{}
		var diff []catalog.DiffItem
		for i, err := range pages[admin.Change](c.Context(), a, "/changes", "before", url.Values{"before": {strconv.FormatInt(n+1, 10)}}) {
			if err != nil {
				return err
			}
			if i.Revision != n {
				break
			}
			all, diff = append(all, i), append(diff, diffItem(&i))
		}
		if len(all) == 0 {
			return advice{fmt.Errorf("there is no revision %d", n), "stint changes list"}
		}
		return t.print(all, changeRows(all), func() error {
			fmt.Fprintf(t.out, "revision %d, %s, by %s\n", n, cell(all[0].At), visible(all[0].Actor))
			printDiff(t.out, diff)
			return nil
		})
	})
}

func newChangesRevert(t *terminal) *cobra.Command {
	var r admin.Revert
	var yes consent
	var dryRun bool
	c := queryCommand(t, &cobra.Command{
		Use: "revert REVISION", Short: "Revert the changes of a revision",
		Long: `Revert the changes of one revision, or, with --kind and --id, of one object in it. This
creates a new revision. If an object was changed again since, nothing is changed, unless
--force is given. The command shows what will be changed and asks for confirmation, unless
--yes is given.`,
		Example: "  stint changes revert 42 --dry-run\n  stint changes revert 42 --kind rule --id search --yes",
		Args:    wants(1, 1, "one REVISION"),
	}, func(c *cobra.Command, a *client, args []string) error {
		n, err := parseRevision(c, args[0])
		if err != nil {
			return err
		}
		if (r.Kind == "") != (r.ID == "") {
			return advice{errors.New("--kind and --id: want both, or neither"), "--kind rule --id search"}
		}
		revert := func(dryRun bool) (diff catalog.Diff, err error) {
			err = a.do(c.Context(), call{method: http.MethodPost, path: fmt.Sprintf("/changes/%d/revert", n), query: dryRunParameter(dryRun), body: r, into: &diff})
			if hasStatus(err, http.StatusConflict) {
				return diff, advice{errors.Unwrap(err), "--force, to also revert what was changed since"}
			}
			return diff, err
		}
		if !dryRun && !bool(yes) {
			diff, err := revert(true)
			if err != nil {
				return err
			}
			printDiff(t.err, diff.Items)
			if err := yes.ask(c, t, fmt.Sprintf("revision %d will be reverted", n)); err != nil {
				return err
			}
		}
		diff, err := revert(dryRun)
		if err != nil {
			return err
		}
		return printApplied(t, diff, dryRun)
	})
	addFilters(c, filter{&r.Kind, "kind", "only the object of this `kind`, with --id"}, filter{&r.ID, "id", "only the object with this `id`, with --kind"})
	c.Flags().BoolVar(&r.Force, "force", false, "also revert what was changed again since")
	addDryRun(c, &dryRun)
	yes.add(c)
	return c
}
