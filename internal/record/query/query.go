// Package query holds what queries of events and of roll-ups share: time ranges, checks of
// fields, SQL conditions with arguments, and rows as values.
package query

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
)

const (
	// Day is a day of UTC.
	Day = 24 * time.Hour
	// FirstYear is the first year of which events are stored.
	FirstYear = 2020
	// LastYear is the last.
	LastYear = 2099
	// maxRange is the longest range of a query.
	maxRange = 366 * Day
)

// Range is the time from From up to, but not including, To. The zero To is now, and the zero
// From a day before To.
type Range struct{ From, To time.Time }

// Check sets zero fields, and reports invalid ones.
func (r *Range) Check(p *strict.Report, now time.Time) {
	if r.To.IsZero() {
		r.To = now
	}
	if r.From.IsZero() {
		r.From = r.To.Add(-Day)
	}
	r.From, r.To = r.From.UTC().Truncate(time.Microsecond), r.To.UTC().Truncate(time.Microsecond)
	for _, t := range []struct {
		field string
		time.Time
	}{{"from", r.From}, {"to", r.To}} {
		if !Valid(t.Time) {
			p.Refuse(t.field, t.Format(time.RFC3339), fmt.Sprintf("a time from the year %d to %d", FirstYear, LastYear), "")
			return
		}
	}
	switch {
	case !r.From.Before(r.To):
		p.Refuse("from", r.From.Format(time.RFC3339Nano), "a time before to, which is "+r.To.Format(time.RFC3339Nano), "")
	case r.To.Sub(r.From) > maxRange:
		p.Refuse("from", r.From.Format(time.RFC3339), "at most 366 days before to, which is "+r.To.Format(time.RFC3339), "")
	}
}

// Valid reports whether events of a time are stored.
func Valid(t time.Time) bool {
	year := t.UTC().Year()
	return year >= FirstYear && year <= LastYear
}

// CheckLimit replaces a limit of 0 by the default, and reports one that is not from 1 to most.
func CheckLimit(p *strict.Report, limit *int, byDefault, most int) {
	if *limit == 0 {
		*limit = byDefault
	}
	if *limit < 1 || *limit > most {
		p.Refuse("limit", strconv.Itoa(*limit), fmt.Sprintf("a number from 1 to %d", most), "")
	}
}

// CheckWord reports a word that is not one of words.
func CheckWord(p *strict.Report, field, word string, words []string) {
	if !slices.Contains(words, word) {
		p.Refuse(field, word, "one of "+strings.Join(words, ", "), p.Closest(word, words))
	}
}

// Ceil rounds a time up.
func Ceil(t time.Time, unit time.Duration) time.Time { return t.Add(unit - 1).Truncate(unit) }

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Where is a condition of SQL with its arguments. The zero Where has none.
type Where struct {
	text strings.Builder
	Args []any
}

func (w *Where) String() string { return w.text.String() }

// And adds a condition, in which each ? stands for an argument.
func (w *Where) And(condition string, args ...any) {
	if w.text.Len() > 0 {
		w.text.WriteString(" AND ")
	}
	for _, arg := range args {
		w.Args = append(w.Args, arg)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(w.Args)), 1)
	}
	w.text.WriteString(condition)
}

// Is adds the condition that a column has a value, unless the value is empty.
func (w *Where) Is(column, value string) {
	if value != "" {
		w.And(column+" = ?", value)
	}
}

// Clone returns a copy.
func (w *Where) Clone() *Where {
	c := &Where{Args: slices.Clone(w.Args)}
	c.text.WriteString(w.text.String())
	return c
}

// Querier is a database, a connection or a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each calls scan for each row of a query.
func Each(ctx context.Context, q Querier, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Strings returns the rows of a query for one text column.
func Strings(ctx context.Context, q Querier, query string, args ...any) (out []string, err error) {
	err = Each(ctx, q, func(rows *sql.Rows) error {
		out = append(out, "")
		return rows.Scan(&out[len(out)-1])
	}, query, args...)
	return out, err
}

// Times returns the rows of a query for one time column.
func Times(ctx context.Context, q Querier, query string, args ...any) (out []time.Time, err error) {
	err = Each(ctx, q, func(rows *sql.Rows) error {
		var stamp database.Stamp
		err := rows.Scan(&stamp)
		out = append(out, stamp.Time)
		return err
	}, query, args...)
	return out, err
}

// Reading runs f in a read-only transaction that sees one snapshot.
func Reading(ctx context.Context, db *database.DB, f func(*sql.Tx) error) error {
	tx, err := db.Read.BeginTx(ctx, db.ReadOnly())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit
	return f(tx)
}
