package rollup

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

const (
	day = query.Day
	// maxPoints is the largest number of points of a series, and maxTop of names of a result.
	maxPoints, maxTop = 500, 1000
)

// level is the length of a roll-up. The numbers are those of the database.
type level int

const (
	minute level = iota
	hour
	daily
	fives // five minutes, made with their hour, for series
	last  // the last 24 hours, which have only heads of lists

	stored // events, in stint_rollup_since alone
	levels // the number of levels
)

func (l level) length() time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, day, 5 * time.Minute, day}[l]
}

// finer is the level that a level is made of.
func (l level) finer() level { return [...]level{hour: fives, daily: hour, fives: minute}[l] }

// part is a time for which to read the roll-ups of a level.
type part struct {
	level    level
	from, to time.Time
}

// made is which roll-ups exist.
type made struct {
	open  [fives + 1][]time.Time // those to be made, or made again: read their parts
	since [levels]time.Time      // roll-ups before this time were deleted
}

// isOpen reports whether an hour between two times is not made.
func (m *made) isOpen(from, to time.Time) bool {
	return slices.ContainsFunc(m.open[hour], func(start time.Time) bool { return !start.Before(from) && start.Before(to) })
}

// made returns which roll-ups exist in a range.
func (s *Store) made(ctx context.Context, q query.Querier, r query.Range) (m made, err error) {
	if m.since, err = s.since(ctx, q); err != nil {
		return m, err
	}
	err = query.Each(ctx, q, func(rows *sql.Rows) error {
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

// parts divides a time into the coarsest roll-ups that exist, none coarser than a level.
func (m *made) parts(from, to time.Time, l level) []part {
	if !from.Before(to) {
		return nil
	}
	if l == minute {
		return []part{{minute, from, to}}
	}
	inner, outer := query.Ceil(from, l.length()), to.Truncate(l.length())
	if !inner.Before(outer) {
		return m.parts(from, to, l.finer())
	}
	out := m.parts(from, inner, l.finer())
	for _, start := range m.open[l] {
		end := start.Add(max(l.length(), time.Hour)) // fives are open as hours are
		if start, end = query.Later(start, inner), query.Earlier(end, outer); !start.Before(end) {
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

// widen extends a range to whole hours, or to whole days where hours were deleted.
func (m *made) widen(r *query.Range) {
	r.From, r.To = r.From.Truncate(time.Hour), query.Ceil(r.To, time.Hour)
	if r.From.Before(m.since[hour]) {
		r.From = r.From.Truncate(day)
	}
	if r.To.Before(m.since[hour]) {
		r.To = query.Ceil(r.To, day)
	}
}

// during adds the condition that a roll-up is in one of the parts, and one that depends on the
// level.
func (s *Store) during(w *query.Where, parts []part, more func(level) string) {
	var conditions []string
	var args []any
	for _, p := range parts {
		conditions = append(conditions, fmt.Sprintf("level = %d%s AND start >= ? AND start < ?", p.level, more(p.level)))
		args = append(args, s.db.Time(p.from), s.db.Time(p.to))
	}
	w.And("("+strings.Join(conditions, " OR ")+")", args...)
}

// anyOf is no further condition for during.
func anyOf(level) string { return "" }

// lists returns the condition for the lists of a kind in whole hours: their heads, if they have
// any, or all of them. For heads, others is the most denials that a client in none of them may
// have.
func (s *Store) lists(ctx context.Context, q *sql.Tx, r query.Range, kind int, heads bool) (w *query.Where, others int64, err error) {
	m, err := s.made(ctx, q, r)
	if err != nil {
		return nil, 0, err
	}
	m.widen(&r)
	parts, not := m.parts(r.From, r.To, daily), partHead
	if heads {
		not = partOfAll
	}
	if heads && kind != kindPath { // there are none of paths for the last 24 hours
		start, err := s.lastOf(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		if end := start.Add(last.length()); r.From.Equal(start) && !r.To.Before(end) && !m.isOpen(start, end) {
			parts = append(m.parts(end, r.To, daily), part{last, start, end})
		}
	}
	w = new(query.Where)
	w.And(fmt.Sprintf("kind = %d AND part <> %d", kind, not))
	s.during(w, parts, anyOf)
	if heads {
		err = q.QueryRowContext(ctx, "SELECT CAST(coalesce(sum(at_most), 0) AS BIGINT) FROM stint_rollup_lists WHERE "+w.String(), w.Args...).Scan(&others)
	}
	return w, others, err
}
