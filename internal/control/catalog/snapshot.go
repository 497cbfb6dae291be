package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Snapshot is what a node holds as a whole: the rules, the tiers and the lists of one
// revision. It does not change.
type Snapshot struct {
	mark
	Rules *rule.Set
	Lists identity.Lists

	document Document // what it was made of: no tenants, users and keys
}

// mark is a revision, and the stamp of the write that made it. Databases that were set
// back, or that went on apart, can have the same revision of different stamps.
type mark struct {
	Revision int64  `json:"revision"`
	Stamp    string `json:"stamp"`
}

// newSnapshot compiles what was read.
func newSnapshot(compiler *rule.Compiler, at mark, d Document) (*Snapshot, error) {
	s := &Snapshot{mark: at, document: d}
	var err error
	if s.Rules, err = compiler.Compile(d.File); err != nil {
		return nil, named(&d.File, err)
	}
	if s.Lists, err = d.Lists(); err != nil {
		return nil, err
	}
	return s, nil
}

// named says what is wrong with rules and tiers by their names: no one has seen the list.
func named(file *rule.File, err error) error {
	problems := strict.Problems(nil)
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems {
		if kind, name, rest, ok := whose(file, problems[i].Path); ok {
			problems[i].Path = kind + " " + strict.Quote(name) + rest
		}
	}
	return problems
}

// news is what a node has to do to be at a revision.
type news struct {
	mark
	// back says that the revision is below the one that was asked about.
	back bool
	// apart says that the database's history is not that which was asked about, and all
	// that too much has changed to be told: everything may have.
	apart, all bool
	// snapshot is there if rules or lists may have changed, or why it could not be made.
	snapshot *Snapshot
	broken   error
	// changed are the ids of others, by kind, and marks the stamps of all new revisions.
	changed map[string][]string
	marks   map[int64]string
	// shared are the ids of rules, tiers and what is on lists that have changed, by kind.
	shared map[string][]string
}

// told reports whether it says all that has changed.
func (n *news) told() bool { return !n.apart && !n.all && !n.back }

// loaded is a snapshot that was read, and until when nothing of it has changed.
type loaded struct {
	*Snapshot
	until mark
}

// mostChanges is how many changes are told one by one.
const mostChanges = 10_000

// since returns what is new since a node has looked, in one transaction. Of a node that
// has not looked yet, whose mark is the zero mark, that is everything. What could not be
// compiled the last time is not tried again. Of a snapshot that was read before, only
// what has changed since is read, if the history is the same.
func (c *Catalog) since(ctx context.Context, last, served, failed mark, anyway bool, before loaded, compiler *rule.Compiler) (n news, err error) {
	// Mostly there is nothing new, and that is soon said, or never.
	asking, cancel := context.WithTimeout(ctx, askLimit)
	n.mark, err = current(asking, c.reading)
	cancel()
	if err != nil || n.mark == served && served == last && !anyway {
		return n, c.wrap(err)
	}
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return n, c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	if n.mark, err = current(ctx, tx); err != nil {
		return n, c.wrap(err)
	}
	if n.back = n.Revision < last.Revision && !anyway; n.back {
		return n, nil
	}
	rules := served != last // those that there were could not be used
	if n.apart, err = apart(ctx, tx, last); err == nil && !n.apart && !anyway {
		var changed bool
		changed, err = n.read(ctx, tx, last)
		rules = rules || changed
	}
	if err != nil {
		return n, c.wrap(err)
	}
	if (rules || n.apart || n.all || anyway) && (n.mark != failed || anyway) {
		if n.apart || anyway {
			before = loaded{}
		}
		if n.all || before.until != last {
			n.shared = nil // it does not say all that has changed since then
		}
		d, err := c.shared(ctx, tx, before.Snapshot, n.shared)
		switch {
		case errors.As(err, new(*unreadableError)):
			n.broken = err
		case err != nil:
			return n, c.wrap(err)
		default:
			n.snapshot, n.broken = newSnapshot(compiler, n.mark, d)
		}
	}
	return n, nil
}

// current returns the mark of the last write.
func current(ctx context.Context, q querier) (m mark, err error) {
	err = q.QueryRowContext(ctx, "SELECT revision, stamp FROM stint_catalog").Scan(&m.Revision, &m.Stamp)
	return m, err
}

// apart reports whether the database's history is not that of the mark.
func apart(ctx context.Context, q querier, last mark) (bool, error) {
	if last.Revision == 0 {
		return true, nil
	}
	var stamp string
	err := q.QueryRowContext(ctx, "SELECT stamp FROM stint_changes WHERE revision = $1 LIMIT 1", last.Revision).Scan(&stamp)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil
	}
	return stamp != last.Stamp, err
}

// read reads what has changed, and reports whether rules or lists have. Of each revision
// something is logged: if not, the log does not tell what has changed.
func (n *news) read(ctx context.Context, q querier, last mark) (rules bool, err error) {
	n.changed, n.shared, n.marks = map[string][]string{}, map[string][]string{}, map[int64]string{}
	rows, err := q.QueryContext(ctx, "SELECT revision, stamp, kind, subject FROM stint_changes WHERE revision > $1 AND revision <= $2 ORDER BY revision LIMIT $3",
		last.Revision, n.Revision, mostChanges+1)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for count := 0; rows.Next(); count++ {
		var of mark
		var kind, id string
		if err := rows.Scan(&of.Revision, &of.Stamp, &kind, &id); err != nil {
			return false, err
		}
		n.marks[of.Revision] = of.Stamp
		switch {
		case people(kind):
			n.changed[kind] = append(n.changed[kind], id)
		case kind != kindToken: // of which a node holds none
			n.shared[kind] = append(n.shared[kind], id)
			rules = true
		}
		n.all = count == mostChanges
	}
	n.apart = !n.all && n.mark != last && (n.marks[n.Revision] != n.Stamp || int64(len(n.marks)) != n.Revision-last.Revision)
	return rules, rows.Err()
}

// shared returns what every node holds: rules, tiers and lists. What has not changed
// since a snapshot, if there is one, is taken from that; changed are the ids of what has,
// by kind, or nil if they are not known.
func (c *Catalog) shared(ctx context.Context, q querier, before *Snapshot, changed map[string][]string) (d Document, err error) {
	if before == nil {
		before, changed = &Snapshot{}, nil
	}
	had, since := &before.document, before.Revision
	if d.Rules, err = c.Rules.current(ctx, q, had.Rules, since, changed); err != nil {
		return d, err
	}
	if d.Tiers, err = c.Tiers.current(ctx, q, had.Tiers, since, changed); err != nil {
		return d, err
	}
	if d.Exemptions, err = c.Exemptions.current(ctx, q, had.Exemptions, since, changed); err != nil {
		return d, err
	}
	d.Bans, err = c.Bans.current(ctx, q, had.Bans, since, changed)
	return d, err
}

// few is how many things are read one by one.
const few = 100

// current returns all that there is, by id: what was had, with what has changed since in
// its place.
func (t *Table[T]) current(ctx context.Context, q querier, had []T, since int64, changed map[string][]string) ([]T, error) {
	ids := changed[t.name]
	if changed == nil || len(ids) > few {
		return t.latest(ctx, q, had, since)
	}
	return t.replaced(ctx, q, had, ids, t.strict)
}

// replaced returns what was had, by id, with those that have changed as they are now.
func (t *Table[T]) replaced(ctx context.Context, q querier, had []T, ids []string, strict bool) ([]T, error) {
	if len(ids) == 0 {
		return had, nil
	}
	out := slices.Clone(had)
	for _, id := range ids {
		found, err := t.read(ctx, q, strict, "WHERE id = $1", id)
		if err != nil {
			return nil, err
		}
		at, ok := slices.BinarySearchFunc(out, id, func(v T, id string) int { return strings.Compare(t.id(&v), id) })
		switch {
		case len(found) == 0 && ok:
			out = slices.Delete(out, at, at+1)
		case len(found) == 0: // it came and went
		case ok:
			out[at] = found[0].Value
		default:
			out = slices.Insert(out, at, found[0].Value)
		}
	}
	return out, nil
}

// latest returns all that there is, by id. Rows of which nothing was written since a
// revision are not read: what they hold was had before.
func (t *Table[T]) latest(ctx context.Context, q querier, had []T, since int64) ([]T, error) {
	rows, err := q.QueryContext(ctx, "SELECT id, CASE WHEN version > $1 THEN body END FROM "+t.table+" ORDER BY id", since)
	if err != nil {
		return nil, fmt.Errorf("%ss: %w", t.name, t.c.wrap(err))
	}
	defer rows.Close()
	known := make(map[string]*T, len(had))
	for i := range had {
		known[t.id(&had[i])] = &had[i]
	}
	var out []T
	for rows.Next() {
		var id string
		var body sql.NullString
		if err := rows.Scan(&id, &body); err != nil {
			return nil, t.c.wrap(err)
		}
		var v T
		switch before := known[id]; {
		case body.Valid:
			if err := t.decode(body.String, t.strict, &v); err != nil {
				return nil, &unreadableError{t.name, id, err}
			}
		case before == nil: // it was written behind our back
			if err := rows.Close(); err != nil {
				return nil, t.c.wrap(err)
			}
			return t.latest(ctx, q, nil, 0)
		default:
			v = *before
		}
		out = append(out, v)
	}
	return out, t.c.wrap(rows.Err())
}
