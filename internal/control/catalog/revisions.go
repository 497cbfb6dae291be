package catalog

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Revision is the changes that were made together: those of one apply, one revert, or one write.
type Revision struct {
	Revision int64
	At       time.Time
	Actor    string
	Total    int64 // how many changes there are
	// Changes are the first of those that were asked for, at most revisionParts.
	Changes []LoggedChange
}

// revisionParts is how many changes are listed with a revision.
const revisionParts = 5

// condition is a condition of SQL with an argument, for which its ? stands.
type condition struct {
	text string
	arg  any
}

type conditions []condition

// add adds the conditions to a query.
func (all conditions) add(query string, args []any) (string, []any) {
	for _, one := range all {
		args = append(args, one.arg)
		query += " AND " + strings.ReplaceAll(one.text, "?", "$"+strconv.Itoa(len(args)))
	}
	return query, args
}

// skew is how far the clocks of nodes may differ: later revisions may have earlier times.
const skew = time.Hour

// during returns the conditions of the time and the revision. Revisions have an index by time,
// which tells the revisions around a time, and changes are sorted by revision.
func (c *Catalog) during(ctx context.Context, tx *sql.Tx, q *ChangeQuery) (out conditions, err error) {
	if q.Revision != 0 {
		out = append(out, condition{"revision = ?", q.Revision})
	}
	for _, end := range []struct {
		at                time.Time
		is, bound, around string
		skew              time.Duration
	}{
		{q.From, "at >= ?", "revision > ?", "at < $1 AND place = 0 ORDER BY at DESC, revision DESC", -skew},
		{q.To, "at < ?", "revision < ?", "at >= $1 AND place = 0 ORDER BY at, revision", skew},
	} {
		if end.at.IsZero() {
			continue
		}
		out = append(out, condition{end.is, c.dialect.Time(end.at.UTC())})
		var bound int64
		err := tx.QueryRowContext(ctx, "SELECT revision FROM stint_changes WHERE "+end.around+" LIMIT 1", c.dialect.Time(end.at.Add(end.skew).UTC())).Scan(&bound)
		switch {
		case err == nil:
			out = append(out, condition{end.bound, bound})
		case !errors.Is(err, sql.ErrNoRows):
			return nil, err
		}
	}
	return out, nil
}

// maxRevisions is the largest limit of [Catalog.Revisions].
const maxRevisions = 200

// Revisions returns the revisions that have changes as asked for, newest first, and the Before
// of the next page. Empty: there are no more. The limit is at most 200; default 50.
func (c *Catalog) Revisions(ctx context.Context, q ChangeQuery) (items []Revision, next string, err error) {
	defer func() { err = withCause(ctx, err) }()
	if q.Limit == 0 {
		q.Limit = 50
	}
	before, place, err := q.check()
	if err == nil && q.Limit > maxRevisions {
		var k checker
		k.Add("limit", strconv.Itoa(q.Limit)+": want from 1 to "+strconv.Itoa(maxRevisions), "")
		err = k.Problems
	}
	if err != nil {
		return nil, "", err
	}
	if place > 0 && before < math.MaxInt64 {
		before++ // a page of changes ended within it
	}
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return nil, "", c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	wanted, err := c.during(ctx, tx, &q)
	if err != nil {
		return nil, "", c.wrap(err)
	}
	for _, f := range []condition{{"kind = ?", q.Kind}, {"subject = ?", q.ID}, {"actor = ?", q.Actor}} {
		if f.arg != "" {
			wanted = append(wanted, f)
		}
	}
	query := "SELECT revision, at, actor FROM stint_changes WHERE revision < $1"
	if q.Kind == "" {
		query += " AND place = 0" // all changes of a revision have its time and actor
	}
	for len(items) <= q.Limit {
		query, args := wanted.add(query, []any{before})
		r, err := c.revision(ctx, tx, query+" ORDER BY revision DESC LIMIT 1", args)
		if err != nil {
			return nil, "", c.wrap(err)
		}
		if r == nil {
			return items, "", nil
		}
		if len(items) == q.Limit {
			return items, strconv.FormatInt(items[q.Limit-1].Revision, 10), nil
		}
		if err := c.fill(ctx, tx, r, &q); err != nil {
			return nil, "", c.wrap(err)
		}
		items, before = append(items, *r), r.Revision
	}
	return items, "", nil
}

// revision returns the revision that a query is for, or nil. An index finds it, however many
// changes the others have.
func (*Catalog) revision(ctx context.Context, tx *sql.Tx, query string, args []any) (*Revision, error) {
	var r Revision
	var at stamp
	err := tx.QueryRowContext(ctx, query, args...).Scan(&r.Revision, &at, &r.Actor)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	r.At = at.Time
	return &r, err
}

// fill adds the number of changes, and the first of those that were asked for.
func (*Catalog) fill(ctx context.Context, tx *sql.Tx, r *Revision, q *ChangeQuery) (err error) {
	if err := tx.QueryRowContext(ctx, "SELECT max(place) + 1 FROM stint_changes WHERE revision = $1", r.Revision).Scan(&r.Total); err != nil {
		return err
	}
	query, args := "WHERE revision = $1", []any{r.Revision}
	for _, f := range []condition{{"kind = ?", q.Kind}, {"subject = ?", q.ID}} {
		if f.arg != "" {
			query, args = conditions{f}.add(query, args)
		}
	}
	r.Changes, err = logged(ctx, tx, logColumns+query+" ORDER BY place LIMIT "+strconv.Itoa(revisionParts), args...)
	for i := range r.Changes {
		r.Changes[i].show()
	}
	return err
}
