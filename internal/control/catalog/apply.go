package catalog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// ApplyOptions say how a document is applied.
type ApplyOptions struct {
	Actor string // who applies it
	// DryRun does everything, checks included, and then rolls it back.
	DryRun bool
	// Prune deletes records that the document lacks. Tenants, users and API keys are pruned
	// only if the document has any of that kind.
	Prune bool
	// AcceptHistory has all nodes use the database as it is then, although it was emptied,
	// set back or replaced. Without it, nothing is applied while a node refuses the history.
	AcceptHistory bool
	// Progress, if it is set, is called from time to time with the number of records done.
	Progress func(done, all int)
}

// Diff is what a write has changed.
type Diff struct {
	// Revision is that of the changes or, if there are none or they were rolled back, the
	// current one.
	Revision int64 `json:"revision"`
	// Items are by kind, in the order tier, rule, tenant, user, api_key, exemption
	// and ban, and by id.
	Items []DiffItem `json:"items"`
}

// DiffItem is one record that was changed.
type DiffItem struct {
	Kind   string      `json:"kind"`
	ID     string      `json:"id"`
	Action string      `json:"action"`           // one of the actions below
	Fields []FieldDiff `json:"fields,omitempty"` // of an update
}

// The actions.
const (
	Created = "create"
	Updated = "update"
	Deleted = "delete"
)

// FieldDiff is a field that has changed. Before and After are JSON; empty: the field is
// absent.
type FieldDiff struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Count returns how many items have the action.
func (d *Diff) Count(action string) (n int) {
	for i := range d.Items {
		if d.Items[i].Action == action {
			n++
		}
	}
	return n
}

// chunk is how many rows are read at once.
const chunk = 500

// errUndo ends a dry run.
var errUndo = errors.New("this was a dry run")

// Apply makes the database match the document, in one transaction. Records that the
// document lacks stay, unless Prune is set. Problems have paths of the document, or none.
func (c *Catalog) Apply(ctx context.Context, d *Document, o ApplyOptions) (Diff, error) {
	if o.Prune && d.Empty() {
		return Diff{}, strict.Problems{{Message: "the document is empty, and pruning would delete all rules and tiers: want at least one of rules, tiers, tenants, users, api_keys, exemptions and bans"}}
	}
	if !o.AcceptHistory {
		if err := c.checkNodes(ctx); err != nil {
			return Diff{}, err
		}
	}
	a := application{options: o}
	// Others refer to rules and tiers, and keys refer to users.
	tiers, rules := partOf(c.Tiers, "tiers", "name", d.Tiers), partOf(c.Rules, "rules", "name", d.Rules)
	people := []part{
		partOf(c.Tenants, "tenants", "id", d.Tenants), partOf(c.Users, "users", "id", d.Users), partOf(c.APIKeys, "api_keys", "id", d.APIKeys),
		partOf(c.Exemptions, "exemptions", "", d.Exemptions), partOf(c.Bans, "bans", "", d.Bans),
	}
	for _, p := range append([]part{tiers, rules}, people...) {
		a.all += len(p.ids)
	}
	revision, err := c.write(ctx, o.Actor, func(x *tx) error {
		a.tx = x
		err := a.put(ctx, tiers, rules)
		if err == nil {
			err = a.prune(ctx, rules) // first, so that people cannot refer to their limits
		}
		if err == nil {
			err = a.put(ctx, people...)
		}
		if err == nil && len(x.problems) == 0 {
			slices.Reverse(people)
			err = a.prune(ctx, append(people, tiers)...)
		}
		if o.AcceptHistory {
			x.accept()
		}
		return x.end(ctx, err, o.DryRun)
	})
	return a.diff(revision, err)
}

// end returns the error of a write, or errUndo after a dry run without problems.
func (t *tx) end(ctx context.Context, err error, dryRun bool) error {
	if err == nil && dryRun {
		if err = t.check(ctx); err == nil {
			err = errUndo
		}
	}
	return err
}

// diff returns what a write has changed, or its error.
func (t *tx) diff(revision int64, err error) (Diff, error) {
	if err != nil && !errors.Is(err, errUndo) {
		return Diff{}, err
	}
	if err != nil {
		revision = t.revision - 1
	}
	items, err := diff(t.changes)
	return Diff{Revision: revision, Items: items}, err
}

// part is the records of one kind in a document.
type part struct {
	*kind
	section string
	key     string // the field that has the id, if there is one
	ids     []string
	values  []any
}

func partOf[T any](t *Table[T], section, key string, values []T) part {
	p := part{kind: &t.kind, section: section, key: key}
	for i := range values {
		p.ids, p.values = append(p.ids, t.id(&values[i])), append(p.values, &values[i])
	}
	return p
}

// application is a document while it is applied.
type application struct {
	*tx
	options   ApplyOptions
	done, all int
}

// put writes the records of the document.
func (a *application) put(ctx context.Context, parts ...part) error {
	for _, p := range parts {
		first := map[string]int{}
		for at := 0; at < len(p.ids); at += chunk {
			end := min(at+chunk, len(p.ids))
			found, err := a.findAll(ctx, p.table, p.ids[at:end])
			if err != nil {
				return err
			}
			for i := at; i < end && len(a.problems) < strict.MaxProblems; i++ {
				id, path := p.ids[i], strict.Item(p.section, i)
				if one, twice := first[id]; twice && id != "" {
					a.problems = append(a.problems, strict.Problem{
						Path:    strings.TrimSuffix(path+"."+p.key, "."),
						Message: strict.Quote(id) + " is given twice, first as " + strict.Item(p.section, one),
					})
					continue
				}
				first[id] = i
				before := len(a.changes)
				if err := a.tx.put(ctx, p.kind, id, found[id], p.values[i], path); err != nil {
					return err
				}
				if rules := p.name == kindRule || p.name == kindTier; rules && len(a.changes) == before {
					// Changes of other rules may have made it invalid.
					a.touched = append(a.touched, touch{p.name, id, path})
				}
			}
			if a.done += end - at; a.options.Progress != nil {
				a.options.Progress(a.done, a.all)
			}
		}
	}
	return nil
}

// findAll returns the rows that exist, by id.
func (t *tx) findAll(ctx context.Context, table string, ids []string) (map[string]*row, error) {
	where, args := among(ids)
	if len(args) == 0 {
		return nil, nil
	}
	return t.rows(ctx, table, where, args...)
}

func (t *tx) rows(ctx context.Context, table, where string, args ...any) (map[string]*row, error) {
	rows, err := t.QueryContext(ctx, "SELECT id, body, version, created_at, updated_at, updated_by FROM "+table+" "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string]*row{}
	for rows.Next() {
		var id string
		var r row
		if err := rows.Scan(&id, &r.body, &r.version, &r.created, &r.updated, &r.by); err != nil {
			return nil, err
		}
		found[id] = &r
	}
	return found, rows.Err()
}

// prune deletes the records that the document lacks.
func (a *application) prune(ctx context.Context, parts ...part) error {
	if !a.options.Prune {
		return nil
	}
	for _, p := range parts {
		if people(p.name) && len(p.ids) == 0 {
			continue
		}
		keep := make(map[string]bool, len(p.ids))
		for _, id := range p.ids {
			keep[id] = true
		}
		for after, more := "", true; more; {
			found, err := a.rows(ctx, p.table, "WHERE id > $1 ORDER BY id LIMIT $2", after, chunk)
			if err != nil {
				return err
			}
			more = len(found) == chunk
			for _, id := range slices.Sorted(maps.Keys(found)) {
				if after = id; keep[id] {
					continue
				}
				err := a.remove(ctx, p.kind, id, found[id])
				if problems := strict.Problems(nil); errors.As(err, &problems) {
					a.problems = append(a.problems, problems...)
				} else if err != nil {
					return err
				}
			}
			more = more && len(a.problems) < strict.MaxProblems
		}
	}
	return nil
}

// diff describes changes, in the order of the kinds.
func diff(changes []Change) ([]DiffItem, error) {
	items := make([]DiffItem, 0, len(changes))
	for i := range changes {
		ch := &changes[i]
		item := DiffItem{Kind: ch.Kind, ID: ch.ID, Action: ch.action()}
		if item.Action == Updated {
			before, err := decode(ch.Before)
			if err != nil {
				return nil, err
			}
			after, err := decode(ch.After)
			if err != nil {
				return nil, err
			}
			item.Fields = ch.differ(before, after)
		}
		items = append(items, item)
	}
	slices.SortFunc(items, func(a, b DiffItem) int {
		return cmp.Or(cmp.Compare(slices.Index(kindOrder, a.Kind), slices.Index(kindOrder, b.Kind)), cmp.Compare(a.ID, b.ID))
	})
	return items, nil
}

// action is the action of the change.
func (ch *Change) action() string {
	switch {
	case ch.Before == nil:
		return Created
	case ch.After == nil:
		return Deleted
	default:
		return Updated
	}
}

// hidden replaces the hash of a key.
const hidden = "(hidden)"

// differ returns the fields that have changed. The hash of a key is not shown.
func (ch *Change) differ(before, after any) []FieldDiff {
	fields := differ(nil, "", before, after)
	for i := range fields {
		if f := &fields[i]; ch.Kind == kindKey && f.Path == "hash" {
			f.Before, f.After = encode(hidden), encode(hidden)
		}
	}
	return fields
}

// decode reads JSON, and keeps the text of numbers.
func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return v, d.Decode(&v)
}

// differ appends the fields in which two values differ. Lists of different lengths differ
// as a whole.
func differ(fields []FieldDiff, path string, before, after any) []FieldDiff {
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			break
		}
		names := maps.Clone(b)
		maps.Copy(names, a)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			fields = differ(fields, strict.Member(path, name), b[name], a[name])
		}
		return fields
	case []any:
		a, ok := after.([]any)
		if !ok || len(a) != len(b) {
			break
		}
		for i := range b {
			fields = differ(fields, strict.Item(path, i), b[i], a[i])
		}
		return fields
	}
	if was, is := encode(before), encode(after); was != is {
		fields = append(fields, FieldDiff{path, was, is})
	}
	return fields
}

// encode returns a value of JSON as it is written for people.
func encode(v any) string {
	if v == nil {
		return "" // a missing field: there are no nulls
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // which was decoded from JSON
	return strings.TrimSuffix(b.String(), "\n")
}
