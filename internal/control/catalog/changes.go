package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// ChangeQuery says which changes to list: those that have all of these, newest first.
type ChangeQuery struct {
	Kind  string
	ID    string // of a thing of the kind
	Actor string
	// Before are changes before a revision, or before those of the last page.
	Before string
	Limit  int // at most so many, from 1 to 1000; default 100
}

// LoggedChange is a change, as it is shown to people. The hashes of keys are not.
type LoggedChange struct {
	Change
	Place  int64       `json:"place"`  // within the revision
	Action string      `json:"action"` // create, update or delete
	Fields []FieldDiff `json:"fields"` // of an update
}

// Changes returns changes, newest first, and what to give as Before to have those that
// come next. Empty: there are none.
func (c *Catalog) Changes(ctx context.Context, q ChangeQuery) (items []LoggedChange, next string, err error) {
	defer func() { err = ended(ctx, err) }()
	if q.Limit == 0 {
		q.Limit = 100
	}
	revision, place, err := q.check()
	if err != nil {
		return nil, "", err
	}
	// By actor, each kind has its own place in the index.
	of := []string{q.Kind}
	if q.Kind == "" && q.Actor != "" {
		of = append(slices.Clone(kindOrder), kindToken)
	}
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return nil, "", c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	for _, q.Kind = range of {
		query, args := q.sql(revision, place)
		found, err := logged(ctx, tx, query, args...)
		if err != nil {
			return nil, "", c.wrap(err)
		}
		items = append(items, found...)
	}
	slices.SortFunc(items, func(a, b LoggedChange) int {
		return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(b.Place, a.Place))
	})
	if len(items) > q.Limit {
		items = items[:q.Limit]
		last := &items[q.Limit-1]
		next = fmt.Sprintf("%d.%d", last.Revision, last.Place)
	}
	for i := range items {
		items[i].show()
	}
	return items, next, nil
}

// check returns what is wrong with the query, or what it begins before.
func (q *ChangeQuery) check() (revision, place int64, err error) {
	var k checker
	if q.Limit < 1 || q.Limit > 1000 {
		k.Add("limit", strconv.Itoa(q.Limit)+": want from 1 to 1000", "")
	}
	if all := append(slices.Clone(kindOrder), kindToken); q.Kind != "" && !slices.Contains(all, q.Kind) {
		k.Refuse("kind", q.Kind, "one of "+strings.Join(all, ", "), k.Closest(q.Kind, all))
	}
	if q.ID != "" && q.Kind == "" {
		k.Add("kind", "missing, want that of the id", "")
	}
	k.checkStorable("id", q.ID)
	k.checkStorable("actor", q.Actor)
	revision, place = math.MaxInt64, 0
	if q.Before != "" {
		before, within, more := strings.Cut(q.Before, ".")
		revision, err = strconv.ParseInt(before, 10, 64)
		if err == nil && more {
			place, err = strconv.ParseInt(within, 10, 64)
		}
		if err != nil {
			k.Refuse("before", q.Before, "a revision, or what came with the last page", "")
		}
	}
	return revision, place, k.Problems.Err()
}

// sql returns the query, with one more than is asked for, to see whether there is.
func (q *ChangeQuery) sql(revision, place int64) (query string, args []any) {
	query, args = "WHERE (revision, place) < ($1, $2)", []any{revision, place}
	for _, f := range []struct{ column, value string }{{"kind", q.Kind}, {"subject", q.ID}, {"actor", q.Actor}} {
		if f.value != "" {
			args = append(args, f.value)
			query += " AND " + f.column + " = $" + strconv.Itoa(len(args))
		}
	}
	args = append(args, q.Limit+1)
	return logColumns + query + " ORDER BY revision DESC, place DESC LIMIT $" + strconv.Itoa(len(args)), args
}

const logColumns = "SELECT revision, place, at, actor, kind, subject, before, after FROM stint_changes "

// logged reads changes, by a query for logColumns.
func logged(ctx context.Context, q querier, query string, args ...any) (out []LoggedChange, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var ch LoggedChange
		var at stamp
		var before, after sql.NullString
		if err := rows.Scan(&ch.Revision, &ch.Place, &at, &ch.Actor, &ch.Kind, &ch.ID, &before, &after); err != nil {
			return nil, err
		}
		ch.At = at.Time
		if before.Valid {
			ch.Before = json.RawMessage(before.String)
		}
		if after.Valid {
			ch.After = json.RawMessage(after.String)
		}
		out = append(out, ch)
	}
	return out, rows.Err()
}

// show says what the change is, in the same words whichever database has kept it, and
// hides what is not for people.
func (ch *LoggedChange) show() {
	ch.Action, ch.Fields = ch.action(), []FieldDiff{}
	before, after := tree(ch.Before), tree(ch.After)
	if ch.Action == Updated {
		ch.Fields = append(ch.Fields, ch.differ(before, after)...)
	}
	ch.Before, ch.After = ch.shown(before), ch.shown(after)
}

// tree returns what JSON says. What is none is text.
func tree(text json.RawMessage) any {
	if text == nil {
		return nil
	}
	v, err := decode(text)
	if err != nil {
		return string(text)
	}
	return v
}

func (ch *LoggedChange) shown(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	if fields, ok := v.(map[string]any); ok && ch.Kind == kindKey && fields["hash"] != nil {
		fields["hash"] = hidden
	}
	return json.RawMessage(encode(v))
}

// RevertOptions say what is brought back to what it was before a revision.
type RevertOptions struct {
	Actor    string // who reverts it
	Revision int64
	Kind, ID string // one thing that the revision has changed; empty: all
	// Force is to bring back also what has changed since.
	Force bool
	// DryRun does all of it, checks included, and then undoes it.
	DryRun bool
}

// Revert brings what a revision has changed back to what it was before, in one
// transaction, which makes a revision as any other write does. What has changed since is
// a [ConflictError], unless that is forced.
func (c *Catalog) Revert(ctx context.Context, o RevertOptions) (Diff, error) {
	if (o.Kind == "") != (o.ID == "") {
		return Diff{}, strict.Problems{{Message: "want kind and id, or neither"}}
	}
	var x *tx
	revision, err := c.write(ctx, o.Actor, func(t *tx) error {
		x = t
		changes, err := t.changesOf(ctx, &o)
		if err == nil {
			err = t.revert(ctx, changes, o.Force)
		}
		return t.end(ctx, err, o.DryRun)
	})
	return x.diff(revision, err)
}

// changesOf returns what is to be reverted, newest first.
func (t *tx) changesOf(ctx context.Context, o *RevertOptions) ([]LoggedChange, error) {
	query, args := "WHERE revision = $1", []any{o.Revision}
	missing := &NotFoundError{"revision", strconv.FormatInt(o.Revision, 10)}
	if o.Kind != "" {
		missing = &NotFoundError{"change in revision " + missing.ID + " of the " + o.Kind, o.ID}
		if !storable(o.Kind) || !storable(o.ID) {
			return nil, missing
		}
		query, args = query+" AND kind = $2 AND subject = $3", append(args, o.Kind, o.ID)
	}
	changes, err := logged(ctx, t, logColumns+query+" ORDER BY place DESC LIMIT "+strconv.Itoa(maxListed+1), args...)
	switch {
	case err != nil:
		return nil, err
	case len(changes) == 0:
		return nil, missing
	case len(changes) > maxListed:
		return nil, strict.Problems{{Message: fmt.Sprintf("revision %d has changed more than %d things, which is too much to be reverted at once: want one of them, or apply a document that says how all should be", o.Revision, maxListed)}}
	}
	return changes, nil
}

// revert brings back what was changed. It goes by kinds, so that what is referred to is
// there before those who refer to it, and not gone before they are.
func (t *tx) revert(ctx context.Context, changes []LoggedChange, force bool) error {
	slices.SortStableFunc(changes, func(a, b LoggedChange) int { return cmp.Compare(a.turn(), b.turn()) })
	kinds := t.c.kinds()
	for i := range changes {
		ch := &changes[i]
		k := kinds[ch.Kind]
		if k == nil {
			message := "is of a kind that cannot be reverted"
			if ch.Kind == kindToken {
				message = "changes of tokens cannot be reverted: create another token in place of a revoked one, or revoke one that was created"
			}
			return strict.Problems{{Path: ch.Kind + " " + strict.Quote(ch.ID), Message: message}}
		}
		if err := t.bringBack(ctx, k, ch, force); err != nil {
			return err
		}
	}
	return nil
}

// turn is when a change is reverted: that of [Catalog.Apply].
func (ch *LoggedChange) turn() int {
	kind := slices.Index(kindOrder, ch.Kind)
	switch {
	case ch.Before != nil && kind <= 1:
		return kind // tiers and rules are stored
	case ch.Before == nil && kind == 1:
		return kind + 1 // rules are deleted
	case ch.Before != nil:
		return kind + 1 // people and lists are stored
	default:
		return 3*len(kindOrder) - kind // they are deleted the other way round, and tiers last
	}
}

// bringBack makes a thing what it was before a change, if it is what it was after.
func (t *tx) bringBack(ctx context.Context, k *kind, ch *LoggedChange, force bool) error {
	found, err := t.find(ctx, k.table, ch.ID)
	switch {
	case err != nil:
		return err
	case found.says(ch.Before):
		return nil
	case !force && !found.says(ch.After):
		conflict := &ConflictError{Kind: k.name, ID: ch.ID, Seen: ch.Revision}
		if ch.After == nil {
			conflict.Seen = 0
		}
		if found != nil {
			conflict.Found = found.version
		}
		return conflict
	case ch.Before == nil:
		return t.remove(ctx, k, ch.ID, found)
	}
	value, err := k.parse(ch.Before)
	if err != nil {
		return &unreadableError{k.name, ch.ID, err}
	}
	t.back = ch.Before
	defer func() { t.back = nil }()
	return t.put(ctx, k, ch.ID, found, value, k.name+" "+strict.Quote(ch.ID))
}

// says reports whether the row, which may be nil, is what the log says.
func (r *row) says(body json.RawMessage) bool {
	if r == nil || body == nil {
		return r == nil && body == nil
	}
	return encode(tree(json.RawMessage(r.body))) == encode(tree(body))
}
