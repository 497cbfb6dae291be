package record

import (
	"context"
	"database/sql"
	"strings"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// sqliteTables are tables that are made like stint_events.
type sqliteTables struct{ db *database.DB }

func (sqliteTables) name(m Month) string { return m.table() }
func (sqliteTables) id(id engine.ID) any { return id[:] }
func (sqliteTables) missing(err error) bool {
	return err != nil && strings.Contains(err.Error(), "no such table")
}

// create creates a table and its indexes with the statements of the migration.
func (s sqliteTables) create(ctx context.Context, m Month) error {
	return inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
		statements, err := query.Strings(ctx, tx,
			`SELECT sql FROM sqlite_master WHERE tbl_name = 'stint_events' AND sql IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = $1) ORDER BY type = 'index'`, m.table())
		for _, text := range statements {
			if _, err := tx.ExecContext(ctx, strings.ReplaceAll(text, "stint_events", m.table())); err != nil {
				return err
			}
		}
		return err
	})
}

func (sqliteTables) list(ctx context.Context, q query.Querier) ([]Month, error) {
	names, err := query.Strings(ctx, q,
		"SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'stint_events_*' ORDER BY name")
	return monthsOf(names), err
}

// insert adds events with few statements, which take most of the time.
func (s sqliteTables) insert(ctx context.Context, events []Event, todos []todo) error {
	const maxRows = 100 // of a statement
	return inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
		for len(events) > 0 {
			m, n := MonthOf(events[0].At), 1
			for n < min(maxRows, len(events)) && MonthOf(events[n].At) == m {
				n++
			}
			args := make([]any, 0, n*len(columns))
			for i := range events[:n] {
				e := &events[i]
				args = e.values(args, e.ID[:], e.At.UnixMicro())
			}
			// Names of parameters would be looked up one by one.
			row := ", (?" + strings.Repeat(", ?", len(columns)-1) + ")"
			_, err := tx.ExecContext(ctx, "INSERT INTO "+m.table()+" ("+strings.Join(columns, ", ")+") VALUES "+strings.Repeat(row, n)[2:]+" ON CONFLICT DO NOTHING", args...)
			if err != nil {
				return err
			}
			events = events[n:]
		}
		for _, t := range todos {
			if _, err := tx.ExecContext(ctx, "INSERT INTO stint_rollup_todo (level, start, token) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", minuteLevel, s.db.Time(t.start), t.token); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s sqliteTables) dropSettlements(ctx context.Context, tx *sql.Tx, m Month) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM stint_settlements WHERE id >= $1 AND id < $2", s.id(engine.FirstID(m.Start())), s.id(engine.FirstID(m.End())))
	return err
}

// hold needs no lock, like alone.
func (sqliteTables) hold(ctx context.Context, tx *sql.Tx, m Month) (there bool, err error) {
	err = tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1)", m.table()).Scan(&there)
	return there, err
}

// inOrder has nothing to do.
func (sqliteTables) inOrder(context.Context, *sql.Tx) error { return nil }

// alone needs no lock: a transaction of the writer is exclusive.
func (s sqliteTables) alone(ctx context.Context, f func(func() (*sql.Tx, error)) error) error {
	return f(func() (*sql.Tx, error) { return s.db.Write.BeginTx(ctx, nil) })
}

// size does not count free pages, which are used before the file grows.
func (s sqliteTables) size(ctx context.Context, _ int64) (n int64, err error) {
	err = s.db.Read.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()").Scan(&n)
	return n, err
}

// rowBytes is what events of a large service took.
func (sqliteTables) rowBytes(context.Context, Month) (int64, error) { return 250, nil }

// reclaim has nothing to do.
func (sqliteTables) reclaim(context.Context, Month) error { return nil }
