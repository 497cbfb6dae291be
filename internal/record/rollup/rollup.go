package rollup

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
)

// subjects are the columns that lists are made of, in the order of their numbers in the
// database, and kinds are their names: of clients, and last that of paths.
var (
	subjects = []string{"user_id", "tenant", "key_id", "ip", record.PathColumn}
	kinds    = []string{"user", "tenant", "key", "ip", "path"}
	clients  = kinds[:kindPath]
)

// kindPath is the number of paths. A client can invent them, so only those that were denied most are in lists.
const kindPath = 4

// rollUps are the tables of roll-ups.
var rollUps = []string{"stint_rollup_counts", "stint_rollup_lists"}

const (
	// minutesAtOnce is how many minutes are counted in one transaction.
	minutesAtOnce = 15
	// rowsAtOnce is how many rows are inserted with one statement.
	rowsAtOnce = 50
)

// eventsAtOnce is about how many events are counted in memory. Tests count fewer.
var eventsAtOnce int64 = 20_000

// Run rolls up the minutes, hours and days that are over and have new events, and returns how
// many there were. It also deletes old roll-ups. If another node is rolling up, it does nothing.
//
// A minute is counted from its events, and again whenever new ones arrive. When an hour is over
// it is made of its minutes, and a day of its hours; until then, queries read the parts. An
// event that arrives after the roll-up of its hour was deleted is not counted.
func (s *Store) Run(ctx context.Context) (done int, err error) {
	if !s.running.TryLock() {
		return 0, nil
	}
	defer s.running.Unlock()
	if err := s.Room(); err != nil {
		return 0, s.wrap("roll up events", err)
	}
	err = s.Alone(ctx, func(begin func() (*sql.Tx, error)) error {
		step := func(f func(context.Context, *sql.Tx) (int, error)) (int, error) {
			tx, err := begin()
			if err != nil {
				return 0, err
			}
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			n, err := f(ctx, tx)
			if err != nil || n == 0 {
				return 0, err
			}
			return n, tx.Commit()
		}
		// An hour is made as soon as its minutes are counted, so that few are open.
		for _, f := range []func(context.Context, *sql.Tx) (int, error){s.rollUpHours, s.makeDay} {
			for {
				n, err := step(f)
				if done += n; err != nil {
					return err
				}
				if n == 0 {
					break
				}
			}
		}
		if _, err := step(s.makeLast); err != nil {
			return err
		}
		if _, err := step(s.forgetSeen); err != nil {
			return err
		}
		for range deletesAtOnce {
			if n, err := step(s.deleteOld); err != nil || n == 0 {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.seen = seen{} // what was written may have been rolled back
	}
	return done, s.wrap("roll up events", err)
}

// rollUpHours makes an hour whose minutes are all counted or, if there is none, counts minutes.
func (s *Store) rollUpHours(ctx context.Context, tx *sql.Tx) (int, error) {
	hours, err := s.due(ctx, tx, hour, minutesAtOnce)
	if err != nil {
		return 0, err
	}
	for _, start := range hours {
		var left int64
		err := tx.QueryRowContext(ctx, "SELECT count(*) FROM stint_rollup_todo WHERE level = 0 AND start >= $1 AND start < $2", s.within(hour, start)...).Scan(&left)
		if err != nil {
			return 0, err
		}
		if left == 0 {
			return 1, s.make(ctx, tx, hour, start)
		}
	}
	return s.countMinutes(ctx, tx)
}

// makeDay makes a day that is over.
func (s *Store) makeDay(ctx context.Context, tx *sql.Tx) (int, error) {
	days, err := s.due(ctx, tx, daily, 1)
	if err != nil || len(days) == 0 {
		return 0, err
	}
	return 1, s.make(ctx, tx, daily, days[0])
}

// makeLast makes the heads of the lists of the last 24 hours, if all of these hours are made.
// The most common query is who was denied most in the last day, and the heads of 24 single
// hours are seldom enough to answer it.
func (s *Store) makeLast(ctx context.Context, tx *sql.Tx) (int, error) {
	end := s.o.Now().UTC().Truncate(time.Hour)
	start := end.Add(-last.length())
	m, err := s.made(ctx, tx, query.Range{From: start, To: end})
	if err != nil || m.isOpen(start, end) {
		return 0, err
	}
	existing, err := s.lastOf(ctx, tx)
	if err != nil || existing.Equal(start) {
		return 0, err
	}
	done := 0
	if !existing.IsZero() {
		done = 1
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_rollup_lists WHERE level = %d", last)); err != nil {
			return 0, err
		}
	}
	for kind := range clients {
		l := s.newList(tx, last, kind, start)
		if err := s.mergeInto(ctx, tx, l, hour); err != nil {
			return 0, err
		}
		done += int(l.pages)
	}
	return done, nil
}

// lastOf returns the start of the lists that makeLast has made, or the zero time.
func (s *Store) lastOf(ctx context.Context, q query.Querier) (start time.Time, err error) {
	all, err := query.Times(ctx, q, fmt.Sprintf("SELECT start FROM stint_rollup_lists WHERE level = %d LIMIT 1", last))
	if len(all) > 0 {
		start = all[0]
	}
	return start, err
}

// due returns the latest times that are over and have to be rolled up.
func (s *Store) due(ctx context.Context, tx *sql.Tx, l level, most int) ([]time.Time, error) {
	return query.Times(ctx, tx, fmt.Sprintf("SELECT DISTINCT start FROM stint_rollup_todo WHERE level = %d AND start <= $1 ORDER BY start DESC LIMIT %d", l, most),
		s.db.Time(s.o.Now().Add(-l.length())))
}

// did removes todos that are done. Its transaction sees one snapshot, so a todo that is written
// meanwhile stays.
func (s *Store) did(ctx context.Context, tx *sql.Tx, l level, from, to time.Time) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM stint_rollup_todo WHERE level = $1 AND start >= $2 AND start < $3", l, s.db.Time(from), s.db.Time(to))
	return err
}

// countMinutes counts the last minutes that have new events.
func (s *Store) countMinutes(ctx context.Context, tx *sql.Tx) (int, error) {
	starts, err := s.due(ctx, tx, minute, minutesAtOnce)
	if err != nil || len(starts) == 0 {
		return 0, err
	}
	of := starts[0].Truncate(time.Hour)
	starts = slices.DeleteFunc(starts, of.After)
	n := len(starts)
	if err := s.did(ctx, tx, minute, starts[n-1], starts[0].Add(time.Minute)); err != nil {
		return 0, err
	}
	since, err := s.since(ctx, tx)
	if err != nil {
		return 0, err
	}
	if ok, err := s.hasMonth(ctx, tx, record.MonthOf(of)); err != nil || !ok || of.Before(since[hour]) {
		return n, err
	}
	// Minutes whose events were deleted stay as they were counted.
	if starts = slices.DeleteFunc(starts, func(start time.Time) bool { return start.Before(since[stored]) }); len(starts) == 0 {
		return n, nil
	}
	if of.Before(since[minute]) { // the hour's other minutes were deleted
		if of.Before(since[stored]) {
			return n, nil
		}
		starts = starts[:0]
		for i := range 60 {
			starts = append(starts, of.Add(time.Duration(i)*time.Minute))
		}
	}
	for _, start := range starts {
		if err := s.countMinute(ctx, tx, start); err != nil {
			return 0, err
		}
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO stint_rollup_todo (level, start, token) VALUES (1, $1, 0), (2, $2, 0) ON CONFLICT DO NOTHING", s.db.Time(of), s.db.Time(of.Truncate(day)))
	return n, err
}

// hasMonth reports whether a month has a table, and was never dropped.
func (s *Store) hasMonth(ctx context.Context, tx *sql.Tx, m record.Month) (bool, error) {
	dropped, err := query.Times(ctx, tx, "SELECT start FROM stint_dropped_months WHERE start = $1", s.db.Time(m.Start()))
	if err != nil || len(dropped) > 0 {
		return false, err
	}
	return s.Has(ctx, tx, m)
}

// since returns the times before which the roll-ups of each level, or events, were deleted.
func (s *Store) since(ctx context.Context, q query.Querier) (out [levels]time.Time, err error) {
	err = query.Each(ctx, q, func(rows *sql.Rows) error {
		var l level
		var start database.Stamp
		err := rows.Scan(&l, &start)
		if err == nil && l >= 0 && int(l) < len(out) {
			out[l] = start.Time
		}
		return err
	}, "SELECT level, start FROM stint_rollup_since")
	return out, err
}

// within returns the start and end of a roll-up as arguments.
func (s *Store) within(l level, start time.Time) []any {
	return []any{s.db.Time(start), s.db.Time(start.Add(l.length()))}
}

// clear deletes the roll-up of a time, and with an hour its fives.
func (s *Store) clear(ctx context.Context, tx *sql.Tx, l level, start time.Time) error {
	levels := strconv.Itoa(int(l))
	if l == hour {
		levels += fmt.Sprintf(", %d", fives)
	}
	for _, table := range rollUps {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE level IN ("+levels+") AND start >= $1 AND start < $2", s.within(l, start)...); err != nil {
			return err
		}
	}
	return nil
}

// countMinute counts the events of a minute.
func (s *Store) countMinute(ctx context.Context, tx *sql.Tx, start time.Time) error {
	if err := s.clear(ctx, tx, minute, start); err != nil {
		return err
	}
	counts := tally{}
	var lists []*list
	for kind := range kinds {
		lists = append(lists, s.newList(tx, minute, kind, start))
	}
	// A minute with very many events is counted in slices, to bound the memory.
	var events int64
	table := s.Table(record.MonthOf(start))
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM "+table+" WHERE at >= $1 AND at < $2", s.within(minute, start)...).Scan(&events); err != nil {
		return err
	}
	slice := (time.Minute / time.Duration(1+events/eventsAtOnce)).Truncate(time.Microsecond)
	for from, end := start, start.Add(time.Minute); from.Before(end); from = from.Add(slice) {
		refused := newRefused()
		if err := s.countEvents(ctx, tx, table, from, query.Earlier(from.Add(slice), end), counts, refused); err != nil {
			return err
		}
		var rows []any
		for _, l := range lists {
			refused.addTo(l)
			rows = append(rows, l.rows...)
			l.rows = l.rows[:0]
		}
		if err := putPages(ctx, tx, rows); err != nil {
			return err
		}
	}
	if err := s.putSeen(ctx, tx, start); err != nil {
		return err
	}
	return s.putCounts(ctx, tx, minute, start, counts)
}

// countEvents adds the events of a time to counts and refused.
func (s *Store) countEvents(ctx context.Context, tx *sql.Tx, table string, from, to time.Time, counts tally, refused *refused) error {
	groups := map[string]*sums{} // by the bytes of a row, so that a lookup copies nothing
	var key []byte
	err := query.Each(ctx, tx, func(rows *sql.Rows) error {
		var g group
		var cached bool
		var weight, latency int64
		var texts [4]sql.RawBytes
		var names [kindPath + 1]sql.RawBytes
		err := rows.Scan((*uint8)(&g.outcome), &g.shadow, &cached, &weight, &latency, &texts[0], &texts[1], &texts[2], &texts[3], &names[0], &names[1], &names[2], &names[3], &names[kindPath])
		if err != nil {
			return err
		}
		key = append(key[:0], byte(g.outcome), 0)
		if g.shadow {
			key[1] = 1
		}
		for _, text := range texts {
			key = appendBytes(key, text)
		}
		n := groups[string(key)]
		if n == nil {
			g.rule, g.tier, g.endpoint, g.region = string(texts[0]), string(texts[1]), string(texts[2]), string(texts[3])
			n = counts.of(g)
			groups[string(key)] = n
		}
		n.total += weight
		n.events++
		if cached {
			n.cached += weight
		}
		n.latency.Add(time.Duration(latency)*time.Microsecond, weight)
		s.seen.note((*[4]sql.RawBytes)(names[:kindPath])) // paths are no clients
		if g.outcome >= engine.Denied {
			refused.count(texts[0], names, g.outcome == engine.Denied, weight)
		}
		return nil
	}, "SELECT outcome, shadow, cached, weight, latency_us, rule, tier, endpoint, region, "+strings.Join(subjects, ", ")+" FROM "+table+" WHERE at >= $1 AND at < $2",
		s.db.Time(from), s.db.Time(to))
	return err
}

// make makes an hour of its minutes, or a day of its hours.
func (s *Store) make(ctx context.Context, tx *sql.Tx, l level, start time.Time) error {
	if err := s.did(ctx, tx, l, start, start.Add(l.length())); err != nil {
		return err
	}
	if ok, err := s.hasMonth(ctx, tx, record.MonthOf(start)); err != nil || !ok {
		return err
	}
	if err := s.clear(ctx, tx, l, start); err != nil {
		return err
	}
	of := l - 1
	unit := day
	if l == hour {
		unit = fives.length()
	}
	all, units := tally{}, map[time.Time]tally{}
	err := s.eachCounts(ctx, tx, view{}, []part{{of, start, start.Add(l.length())}}, func(at time.Time, c *counted) error {
		at = at.Truncate(unit)
		if units[at] == nil {
			units[at] = tally{}
		}
		return units[at].of(c.group).add(c)
	})
	if err != nil {
		return err
	}
	for at := start; at.Before(start.Add(l.length())); at = at.Add(unit) {
		for g, n := range units[at] {
			all.of(g).merge(n)
		}
		if l == hour {
			if err := s.putCounts(ctx, tx, fives, at, units[at]); err != nil {
				return err
			}
		}
	}
	if err := s.putCounts(ctx, tx, l, start, all); err != nil {
		return err
	}
	for kind := range kinds {
		if err := s.mergeInto(ctx, tx, s.newList(tx, l, kind, start), of); err != nil {
			return err
		}
	}
	if l != hour {
		return nil
	}
	// The lists of the last 24 hours are wrong if this hour is one of them.
	_, err = tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_rollup_lists WHERE level = %d AND start <= $1 AND start > $2", last),
		s.db.Time(start), s.db.Time(start.Add(-last.length())))
	return err
}

// insert inserts rows of so many columns, with few statements.
func insert(ctx context.Context, tx *sql.Tx, into string, columns int, args []any) error {
	for len(args) > 0 {
		n := min(len(args), rowsAtOnce*columns)
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+into+" VALUES "+placeholders(n/columns, columns), args[:n]...); err != nil {
			return err
		}
		args = args[n:]
	}
	return nil
}

// placeholders returns the placeholders of rows.
func placeholders(rows, columns int) string {
	var b strings.Builder
	for i := range rows * columns {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%columns == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", i+1)
	}
	return b.String() + ")"
}
