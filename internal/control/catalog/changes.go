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
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
)

// ChangeQuery selects the changes that meet all of its conditions.
type ChangeQuery struct {
	Kind  string
	ID    string // of a record of the kind
	Actor string
	// From and To select changes from a time up to, but not including, another. Zero: any.
	From, To time.Time
	// Revision selects the changes of one revision. Zero: of any.
	Revision int64
	// Before selects changes before a revision, or, with the value that the last page
	// returned, the next page.
	Before string
	Limit  int // from 1 to 1000; default 100
}

// LoggedChange is a change for people to read, without the hashes of keys.
type LoggedChange struct {
	Change
	Place  int64       `json:"place"`  // within the revision
	Action string      `json:"action"` // create, update or delete
	Fields []FieldDiff `json:"fields"` // of an update
}

// LoggedKinds are the kinds of changes, which ChangeQuery.Kind may have.
var LoggedKinds = append(slices.Clone(kindOrder), kindToken, kindHistory, kindCounters)

// Changes returns changes, newest first, and the Before of the next page. Empty: there are no
// more.
func (c *Catalog) Changes(ctx context.Context, q ChangeQuery) (items []LoggedChange, next string, err error) {
	defer func() { err = withCause(ctx, err) }()
	if q.Limit == 0 {
		q.Limit = 100
	}
	revision, place, err := q.check()
	if err != nil {
		return nil, "", err
	}
	// The index by actor is sorted by kind first.
	of := []string{q.Kind}
	if q.Kind == "" && q.Actor != "" {
		of = LoggedKinds
	}
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return nil, "", c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	during, err := c.during(ctx, tx, &q)
	if err != nil {
		return nil, "", c.wrap(err)
	}
	for _, q.Kind = range of {
		query, args := q.sql(revision, place, during)
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

// check returns the problems of the query, or the place that it begins before.
func (q *ChangeQuery) check() (revision, place int64, err error) {
	var k checker
	if q.Limit < 1 || q.Limit > 1000 {
		k.Add("limit", strconv.Itoa(q.Limit)+": want from 1 to 1000", "")
	}
	if q.Kind != "" && !slices.Contains(LoggedKinds, q.Kind) {
		k.Refuse("kind", q.Kind, "one of "+strings.Join(LoggedKinds, ", "), k.Closest(q.Kind, LoggedKinds))
	}
	if q.ID != "" && q.Kind == "" {
		k.Add("kind", "missing, want the kind of the id", "")
	}
	k.checkStorable("id", q.ID)
	k.checkStorable("actor", q.Actor)
	if q.Revision < 0 {
		k.Add("revision", strconv.FormatInt(q.Revision, 10)+": want the number of a revision", "")
	}
	if !q.From.IsZero() && !q.To.IsZero() && !q.From.Before(q.To) {
		k.Refuse("from", q.From.Format(time.RFC3339), "a time before to, which is "+q.To.Format(time.RFC3339), "")
	}
	revision, place = math.MaxInt64, 0
	if q.Before != "" {
		before, within, more := strings.Cut(q.Before, ".")
		revision, err = strconv.ParseInt(before, 10, 64)
		if err == nil && more {
			place, err = strconv.ParseInt(within, 10, 64)
		}
		if err != nil {
			k.Refuse("before", q.Before, "a revision, or the value that the last page returned", "")
		}
	}
	return revision, place, k.Problems.Err()
}

// sql returns the query, for one change more than the limit, to see whether there are more.
func (q *ChangeQuery) sql(revision, place int64, during conditions) (query string, args []any) {
	query, args = "WHERE (revision, place) < ($1, $2)", []any{revision, place}
	query, args = during.add(query, args)
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

// logged reads changes by a query for logColumns.
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

// show fills in action and fields, formats values the same for all databases, and hides
// hashes.
func (ch *LoggedChange) show() {
	ch.Action, ch.Fields = ch.action(), []FieldDiff{}
	before, after := tree(ch.Before), tree(ch.After)
	if ch.Action == Updated {
		ch.Fields = append(ch.Fields, ch.differ(before, after)...)
	}
	ch.Before, ch.After = ch.shown(before), ch.shown(after)
}

// tree decodes JSON. Anything else is text.
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

// RevertOptions say what is reverted.
type RevertOptions struct {
	Actor    string // who reverts it
	Revision int64
	Kind, ID string // one record that the revision has changed; empty: all
	// Force also reverts records that have changed since.
	Force bool
	// DryRun does everything, checks included, and then rolls it back.
	DryRun bool
}

// Revert restores what a revision has changed, in one transaction, which makes a new revision.
// A record that has changed since is a [ConflictError], unless Force is set.
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

// changesOf returns the changes to revert, newest first.
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
		return nil, strict.Problems{{Message: fmt.Sprintf("revision %d has changed more than %d records, too many to revert at once: revert single records, or apply a document", o.Revision, maxListed)}}
	}
	return changes, nil
}

// revert reverts changes kind by kind, so that records exist as long as others refer to them.
func (t *tx) revert(ctx context.Context, changes []LoggedChange, force bool) error {
	slices.SortStableFunc(changes, func(a, b LoggedChange) int { return cmp.Compare(a.order(), b.order()) })
	kinds := t.c.kinds()
	for i := range changes {
		ch := &changes[i]
		if ch.Kind == kindHistory {
			continue // nodes follow it already
		}
		k := kinds[ch.Kind]
		if k == nil {
			message := "is of a kind that cannot be reverted"
			switch ch.Kind {
			case kindToken:
				message = "changes of tokens cannot be reverted: create another token in place of a revoked one, or revoke one that was created"
			case kindCounters:
				message = "counters that were reset cannot be brought back"
			}
			return strict.Problems{{Path: ch.Kind + " " + strict.Quote(ch.ID), Message: message}}
		}
		if err := t.revertOne(ctx, k, ch, force); err != nil {
			return err
		}
	}
	return nil
}

// order is the order in which changes are reverted, which is that of [Catalog.Apply].
func (ch *LoggedChange) order() int {
	kind := slices.Index(kindOrder, ch.Kind)
	switch {
	case ch.Before != nil && kind <= 1:
		return kind // tiers and rules are stored
	case ch.Before == nil && kind == 1:
		return kind + 1 // rules are deleted
	case ch.Before != nil:
		return kind + 1 // people and lists are stored
	default:
		return 3*len(kindOrder) - kind // then they are deleted in reverse order, and tiers last
	}
}

// revertOne restores a record to what it was before a change, if it has not changed since.
func (t *tx) revertOne(ctx context.Context, k *kind, ch *LoggedChange, force bool) error {
	found, err := t.find(ctx, k.table, ch.ID)
	switch {
	case err != nil:
		return err
	case found.equals(ch.Before):
		return nil
	case !force && !found.equals(ch.After):
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
	t.restoring = ch.Before
	defer func() { t.restoring = nil }()
	return t.put(ctx, k, ch.ID, found, value, k.name+" "+strict.Quote(ch.ID))
}

// equals reports whether the row, which may be nil, has a value of the log.
func (r *row) equals(body json.RawMessage) bool {
	if r == nil || body == nil {
		return r == nil && body == nil
	}
	return encode(tree(json.RawMessage(r.body))) == encode(tree(body))
}
