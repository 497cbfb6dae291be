package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

func newChanges(t *terminal) *cobra.Command {
	return family("changes", "Show and revert changes", newChangesList(t), newChangesShow(t), newChangesRevert(t))
}

// changesOf reads changes, the newest first, up to a limit.
func changesOf(ctx context.Context, t *terminal, a *client, path string, q url.Values, limit int) ([]admin.Change, error) {
	if limit < 0 {
		return nil, advice{fmt.Errorf("--limit %d: want 0, which is all, or more", limit), "--limit 100"}
	}
	all := []admin.Change{}
	for {
		const page = 1000
		q.Set("limit", strconv.Itoa(page))
		var list admin.ChangeList
		if err := a.do(ctx, call{path: path, query: q, into: &list}); err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		switch more := list.Next != "" || limit > 0 && len(all) > limit; {
		case limit > 0 && len(all) >= limit:
			if more {
				t.notes(fmt.Sprintf("there are more than %d: --limit 0 shows all", limit))
			}
			return all[:limit], nil
		case list.Next == "":
			return all, nil
		}
		q.Set("before", list.Next)
	}
}

// changeRow is a change in CSV: a row for each field, or for each thing without any.
type changeRow struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Actor    string    `json:"actor"`
	appliedRow
}

func changeRows(all []admin.Change) []changeRow {
	rows := []changeRow{}
	for _, c := range all {
		fields := c.Fields
		if len(fields) == 0 {
			fields = []catalog.FieldDiff{{}}
		}
		for _, f := range fields {
			rows = append(rows, changeRow{c.Revision, c.At, c.Actor, appliedRow{c.Kind, c.ID, c.Action, f}})
		}
	}
	return rows
}

func sayChanges(t *terminal, as string, all []admin.Change) error {
	return t.say(as, all, changeRows(all), func() error {
		if len(all) == 0 {
			t.notes("there are no such changes")
			return nil
		}
		w := t.grid("REVISION", "TIME", "BY", "WHAT", "FIELDS")
		for _, c := range all {
			what := map[string]string{catalog.Created: "+", catalog.Updated: "~", catalog.Deleted: "-"}[c.Action] + " " + c.Kind + " " + c.ID
			var fields []string
			for _, f := range c.Fields {
				fields = append(fields, f.Path)
			}
			w.row(c.Revision, c.At, c.Actor, what, fields)
		}
		return w.Flush()
	})
}

func newChangesList(t *terminal) *cobra.Command {
	var kind, id, actor, as string
	var limit int
	c := serverCommand(t, &cobra.Command{
		Use: "list", Short: "List changes",
		Long:    "List the changes of rules, tiers and people, the newest first: who has made them, when, and of what.",
		Example: "  stint changes list\n  stint changes list --kind rule --id search\n  stint changes list --by deploy --limit 0 -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		q := url.Values{}
		for name, value := range map[string]string{"kind": kind, "id": id, "actor": actor} {
			if value != "" {
				q.Set(name, value)
			}
		}
		all, err := changesOf(c.Context(), t, a, "/changes", q, limit)
		if err != nil {
			return err
		}
		return sayChanges(t, as, all)
	})
	c.Flags().StringVar(&kind, "kind", "", "only of this `kind`: rule, tier, tenant, user, api_key, exemption, ban or token")
	c.Flags().StringVar(&id, "id", "", "only of the thing with this `id`, with --kind")
	c.Flags().StringVar(&actor, "by", "", "only by this `name`")
	c.Flags().IntVar(&limit, "limit", 50, "at most this `number` of them, the newest; 0 is all")
	addOutput(c, &as)
	return c
}

// revisionOf reads the number of a revision.
func revisionOf(c *cobra.Command, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, advice{fmt.Errorf("%q: want the number of a revision", text), c.CommandPath() + " 42; stint changes list has them"}
	}
	return n, nil
}

func newChangesShow(t *terminal) *cobra.Command {
	var as string
	c := serverCommand(t, &cobra.Command{
		Use: "show REVISION", Short: "Show the changes of a revision",
		Long:    "Show what was changed as one revision, field by field.",
		Example: "  stint changes show 42\n  stint changes show 42 -o json",
		Args:    wants(1, 1, "one REVISION"),
	}, func(c *cobra.Command, a *client, args []string) error {
		n, err := revisionOf(c, args[0])
		if err != nil {
			return err
		}
		// What comes before the next begins with this one, if there is any of it.
		all := []admin.Change{}
		for q := (url.Values{"before": {strconv.FormatInt(n+1, 10)}, "limit": {"1000"}}); ; {
			var list admin.ChangeList
			if err := a.do(c.Context(), call{path: "/changes", query: q, into: &list}); err != nil {
				return err
			}
			ours := 0
			for _, i := range list.Items {
				if i.Revision == n {
					all, ours = append(all, i), ours+1
				}
			}
			if ours < len(list.Items) || list.Next == "" {
				break
			}
			q.Set("before", list.Next)
		}
		if len(all) == 0 {
			return advice{fmt.Errorf("revision %d: there is no such change", n), "stint changes list"}
		}
		return t.say(as, all, changeRows(all), func() error {
			fmt.Fprintf(t.out, "revision %d, %s, by %s\n", n, cell(all[0].At), visible(all[0].Actor))
			var d catalog.Diff
			for _, i := range all {
				d.Items = append(d.Items, catalog.DiffItem{Kind: i.Kind, ID: i.ID, Action: i.Action, Fields: i.Fields})
			}
			diffed{d}.show(t.out)
			return nil
		})
	})
	addOutput(c, &as)
	return c
}

func newChangesRevert(t *terminal) *cobra.Command {
	var r admin.Revert
	var yes consent
	var dry bool
	var as string
	c := serverCommand(t, &cobra.Command{
		Use: "revert REVISION", Short: "Revert the changes of a revision",
		Long: `Make what was changed as one revision what it was before, as a revision of its own, or,
with --kind and --id, one thing of it. If something of it has changed again since, nothing
is changed, unless there is --force. It shows what will be changed and asks whether that
is meant, unless there is --yes.`,
		Example: "  stint changes revert 42 --dry-run\n  stint changes revert 42 --kind rule --id search --yes",
		Args:    wants(1, 1, "one REVISION"),
	}, func(c *cobra.Command, a *client, args []string) error {
		n, err := revisionOf(c, args[0])
		if err != nil {
			return err
		}
		if (r.Kind == "") != (r.ID == "") {
			return advice{errors.New("--kind and --id: want both, or none"), "--kind rule --id search"}
		}
		revert := func(dry bool) (diff catalog.Diff, err error) {
			err = a.do(c.Context(), call{method: http.MethodPost, path: fmt.Sprintf("/changes/%d/revert", n), query: dryRun(dry), body: r, into: &diff})
			if f := new(refused); errors.As(err, &f) && f.Status == http.StatusConflict {
				return diff, advice{f, "--force, to undo what has changed since, too"}
			}
			return diff, err
		}
		if !dry && !bool(yes) {
			diff, err := revert(true)
			if err != nil {
				return err
			}
			diffed{diff}.show(t.err)
			if err := yes.ask(c, t, fmt.Sprintf("revision %d will be undone", n)); err != nil {
				return err
			}
		}
		diff, err := revert(dry)
		if err != nil {
			return err
		}
		return diffed{diff}.say(t, as, dry)
	})
	c.Flags().StringVar(&r.Kind, "kind", "", "only the thing of this `kind`, with --id")
	c.Flags().StringVar(&r.ID, "id", "", "only the thing with this `id`, with --kind")
	c.Flags().BoolVar(&r.Force, "force", false, "undo also what has changed again since")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be changed, and change nothing")
	yes.add(c)
	addOutput(c, &as)
	return c
}
