package audit

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
	// maxRange is the longest time that can be asked about.
	maxRange = 366 * day
	// maxPoints is how many points a series has at most.
	maxPoints = 500
	// maxEvents and maxTop are how many events, and names, an answer has at most.
	maxEvents, maxTop = 1000, 1000
)

// Range is a time: From, and what is before To. To is now if it is zero, and From a day
// before.
type Range struct{ From, To time.Time }

func (r *Range) check(p *strict.Report, now time.Time) {
	if r.To.IsZero() {
		r.To = now
	}
	if r.From.IsZero() {
		r.From = r.To.Add(-day)
	}
	r.From, r.To = r.From.UTC().Truncate(time.Microsecond), r.To.UTC().Truncate(time.Microsecond)
	for _, t := range []struct {
		field string
		time.Time
	}{{"from", r.From}, {"to", r.To}} {
		if t.Year() < firstYear || t.Year() > lastYear {
			p.Refuse(t.field, t.Format(time.RFC3339), fmt.Sprintf("a time from the year %d to %d", firstYear, lastYear), "")
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

func ceil(t time.Time, unit time.Duration) time.Time { return t.Add(unit - 1).Truncate(unit) }

// checkLimit makes a number of 0 the default.
func checkLimit(p *strict.Report, limit *int, otherwise, most int) {
	if *limit == 0 {
		*limit = otherwise
	}
	if *limit < 1 || *limit > most {
		p.Refuse("limit", strconv.Itoa(*limit), fmt.Sprintf("a number from 1 to %d", most), "")
	}
}

// checkWord refuses what is not one of some words.
func checkWord(p *strict.Report, field, word string, words []string) {
	if !slices.Contains(words, word) {
		p.Refuse(field, word, "one of "+strings.Join(words, ", "), p.Closest(word, words))
	}
}

func checkOutcome(p *strict.Report, outcome string) {
	if outcome != "" {
		words := make([]string, len(outcomes))
		for word, o := range outcomes {
			words[o] = word
		}
		checkWord(p, "outcome", outcome, words)
	}
}

func failed(p *strict.Report) error {
	if len(p.Problems) > 0 {
		return p.Problems
	}
	return nil
}

// where is a condition with its arguments.
type where struct {
	text strings.Builder
	args []any
}

// and adds a condition, in which ? stands for an argument each.
func (w *where) and(condition string, args ...any) {
	if w.text.Len() > 0 {
		w.text.WriteString(" AND ")
	}
	for _, arg := range args {
		w.args = append(w.args, arg)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(w.args)), 1)
	}
	w.text.WriteString(condition)
}

// clone returns another that is the same.
func (w *where) clone() *where {
	c := &where{args: slices.Clone(w.args)}
	c.text.WriteString(w.text.String())
	return c
}

// is adds that a column has a value, if that is not empty.
func (w *where) is(column, value string) {
	if value != "" {
		w.and(column+" = ?", value)
	}
}

func (w *where) outcome(name string, shadow *bool) {
	if name != "" {
		w.and(fmt.Sprintf("outcome = %d", outcomes[name])) // in full, since there is an index for some
	}
	if shadow != nil {
		w.and("shadow = ?", *shadow)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// reading runs f in a transaction that sees one moment.
func (s *Store) reading(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.Read.BeginTx(ctx, s.db.ReadOnly())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to lose
	return f(tx)
}

// part is a time that a level covers in full.
type part struct {
	level    level
	from, to time.Time
}

// made is what there is of roll-ups.
type made struct {
	open  [fives + 1][]time.Time // what is not made yet, or to be made anew; its parts are there
	since [fives + 1]time.Time   // before that, all of a level was deleted
}

// isOpen reports whether there are hours that are not made.
func (m *made) isOpen(from, to time.Time) bool {
	return slices.ContainsFunc(m.open[hour], func(start time.Time) bool { return !start.Before(from) && start.Before(to) })
}

// made tells what there is of roll-ups in some time.
func (s *Store) made(ctx context.Context, q querier, r Range) (m made, err error) {
	if m.since, err = s.since(ctx, q); err != nil {
		return m, err
	}
	_, err = collect(ctx, q, func(rows *sql.Rows, _ *struct{}) error {
		var l level
		var start database.Stamp
		err := rows.Scan(&l, &start)
		if err == nil && (l == hour || l == daily) {
			m.open[l] = append(m.open[l], start.Time)
		}
		return err
	}, fmt.Sprintf("SELECT DISTINCT level, start FROM stint_rollup_todo WHERE level > %d AND start >= $1 AND start < $2 ORDER BY start", minute), s.db.Time(r.From.Truncate(day)), s.db.Time(r.To))
	m.open[fives] = m.open[hour]
	return m, err
}

// parts divides a time into parts of the coarsest levels that there are, from one on.
func (m *made) parts(from, to time.Time, l level) []part {
	if !from.Before(to) {
		return nil
	}
	if l == minute {
		return []part{{minute, from, to}}
	}
	inner, outer := ceil(from, l.length()), to.Truncate(l.length())
	if !inner.Before(outer) {
		return m.parts(from, to, l.finer())
	}
	out := m.parts(from, inner, l.finer())
	for _, start := range m.open[l] {
		end := start.Add(max(l.length(), time.Hour)) // fives are open as hours are
		if start, end = later(start, inner), earlier(end, outer); !start.Before(end) {
			continue
		}
		if inner.Before(start) {
			out = append(out, part{l, inner, start})
		}
		out = append(out, m.parts(start, end, l.finer())...)
		inner = end
	}
	if inner.Before(outer) {
		out = append(out, part{l, inner, outer})
	}
	return append(out, m.parts(outer, to, l.finer())...)
}

// widen makes a time whole hours, or whole days where there are no hours any more.
func (m *made) widen(r *Range) {
	r.From, r.To = r.From.Truncate(time.Hour), ceil(r.To, time.Hour)
	if r.From.Before(m.since[hour]) {
		r.From = r.From.Truncate(day)
	}
	if r.To.Before(m.since[hour]) {
		r.To = ceil(r.To, day)
	}
}

// during adds that a roll-up is in one of the parts, and what else is true of its level.
func (s *Store) during(w *where, parts []part, more func(level) string) {
	var conditions []string
	var args []any
	for _, p := range parts {
		conditions = append(conditions, fmt.Sprintf("level = %d%s AND start >= ? AND start < ?", p.level, more(p.level)))
		args = append(args, s.db.Time(p.from), s.db.Time(p.to))
	}
	w.and("("+strings.Join(conditions, " OR ")+")", args...)
}

// anyOf says nothing more of a level.
func anyOf(level) string { return "" }

// lists returns the condition for lists of a kind in whole hours, of the heads where
// there are any, or of all; and how often one may have been denied who is in none of them.
func (s *Store) lists(ctx context.Context, q *sql.Tx, r Range, kind int, heads bool) (w *where, others int64, err error) {
	m, err := s.made(ctx, q, r)
	if err != nil {
		return nil, 0, err
	}
	m.widen(&r)
	parts, not := m.parts(r.From, r.To, daily), partHead
	if heads {
		not = partOfAll
		start, err := s.lastOf(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		if end := start.Add(last.length()); r.From.Equal(start) && !r.To.Before(end) && !m.isOpen(start, end) {
			parts = append(m.parts(end, r.To, daily), part{last, start, end})
		}
	}
	w = new(where)
	w.and(fmt.Sprintf("kind = %d AND part <> %d", kind, not))
	s.during(w, parts, anyOf)
	if heads {
		err = q.QueryRowContext(ctx, "SELECT CAST(coalesce(sum(at_most), 0) AS BIGINT) FROM stint_rollup_lists WHERE "+w.text.String(), w.args...).Scan(&others)
	}
	return w, others, err
}
