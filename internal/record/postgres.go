package record

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// postgresTables are the partitions of stint_events and stint_settlements.
type postgresTables struct{ db *database.DB }

const (
	// Advisory locks: for creating partitions, and for rolling up.
	lockTables  = 0x7374696e74_01
	lockRollUps = 0x7374696e74_02

	// Error codes of PostgreSQL.
	uniqueViolation = "23505"
	checkViolation  = "23514" // no partition for a row
	deadlock        = "40P01"
)

func codeOf(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func (postgresTables) name(Month) string      { return "stint_events" }
func (postgresTables) id(id engine.ID) any    { return id.String() }
func (postgresTables) missing(err error) bool { return codeOf(err) == checkViolation }
func bound(t time.Time) string                { return "'" + t.Format("2006-01-02 15:04:05+00") + "'" }

// create creates tables and attaches them as partitions, which does not block readers and
// writers of other partitions. An earlier version may have created only the first one.
func (p postgresTables) create(ctx context.Context, m Month) error {
	return inTx(ctx, p.db.Write, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockTables)); err != nil {
			return err
		}
		err := attach(ctx, tx, "stint_events", m, bound)
		if err == nil {
			err = attach(ctx, tx, "stint_settlements", m, func(t time.Time) string { return "'" + engine.FirstID(t).String() + "'" })
		}
		return err
	})
}

// attach creates the partition of a table, if it is missing.
func attach(ctx context.Context, tx *sql.Tx, table string, m Month, bound func(time.Time) string) error {
	name := m.partition(table)
	var there bool
	if err := tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&there); err != nil || there {
		return err
	}
	_, err := tx.ExecContext(ctx, "CREATE TABLE "+name+" (LIKE "+table+" INCLUDING DEFAULTS)")
	if err == nil {
		_, err = tx.ExecContext(ctx, "ALTER TABLE "+table+" ATTACH PARTITION "+name+" FOR VALUES FROM ("+bound(m.Start())+") TO ("+bound(m.End())+")")
	}
	return err
}

func (postgresTables) dropSettlements(ctx context.Context, tx *sql.Tx, m Month) error {
	_, err := tx.ExecContext(ctx, "DROP TABLE IF EXISTS "+m.partition("stint_settlements"))
	return err
}

func (postgresTables) list(ctx context.Context, q query.Querier) ([]Month, error) {
	names, err := query.Strings(ctx, q, partitionsOf, "stint_events")
	return monthsOf(names), err
}

func (p postgresTables) insert(ctx context.Context, events []Event, todos []todo) error {
	conn, err := p.db.Write.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(c any) error {
		pg := c.(*stdlib.Conn).Conn()
		err := copyEvents(ctx, pg, events, todos, false)
		for range 3 { // other nodes may write the same events
			if code := codeOf(err); code != uniqueViolation && code != deadlock {
				break
			}
			err = copyEvents(ctx, pg, events, todos, true)
		}
		return err
	})
}

// copyEvents copies events into their partitions. If some may be stored already, it copies
// them to a temporary table first, and then only the missing ones.
func copyEvents(ctx context.Context, conn *pgx.Conn, events []Event, todos []todo, again bool) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		table := "stint_events"
		if again {
			table = "stint_events_again"
			if _, err := tx.Exec(ctx, "CREATE TEMPORARY TABLE "+table+" (LIKE stint_events) ON COMMIT DROP"); err != nil {
				return err
			}
		}
		row := make([]any, 0, len(columns))
		_, err := tx.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
			e := &events[i]
			row = e.values(row[:0], [16]byte(e.ID), e.At)
			return row, nil
		}))
		if err == nil && again {
			_, err = tx.Exec(ctx, "INSERT INTO stint_events SELECT * FROM "+table+" ORDER BY at, id ON CONFLICT DO NOTHING")
		}
		if err != nil {
			return err
		}
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"stint_rollup_todo"}, []string{"level", "start", "token"}, pgx.CopyFromSlice(len(todos), func(i int) ([]any, error) {
			return []any{int64(minuteLevel), todos[i].start, todos[i].token}, nil
		}))
		return err
	})
}

// hold has a short lock timeout, since all writers would have to wait for it.
func (postgresTables) hold(ctx context.Context, tx *sql.Tx, m Month) (there bool, err error) {
	if _, err := tx.ExecContext(ctx, "SET LOCAL lock_timeout = '5s'"); err != nil {
		return false, err
	}
	for _, lock := range []int64{lockRollUps, lockTables} {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", lock); err != nil {
			return false, err
		}
	}
	if err := tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", m.table()).Scan(&there); err != nil || !there {
		return false, err
	}
	_, err = tx.ExecContext(ctx, "LOCK TABLE "+m.table()+" IN SHARE MODE")
	return true, err
}

// inOrder overrides the planner, which assumes an average number of events: clients that
// people search for have far more.
func (postgresTables) inOrder(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)")
	return err
}

// alone holds a lock of its connection, which ends with the connection.
func (p postgresTables) alone(ctx context.Context, f func(func() (*sql.Tx, error)) error) error {
	conn, err := p.db.Write.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var mine bool
	if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", int64(lockRollUps)).Scan(&mine); err != nil || !mine {
		return err
	}
	err = f(func() (*sql.Tx, error) { return conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}) })
	if _, unlock := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", int64(lockRollUps)); unlock != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // it is not used again
		if err == nil {
			err = unlock
		}
	}
	return err
}

// partitioned are the tables with a partition for each month, and the first columns of their keys.
var partitioned = map[string]string{"stint_events": "at", "stint_settlements": "id"}

const partitionsOf = "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass ORDER BY c.relname"

// size adds up the tables. Above the limit, it estimates how much of each partition is in use
// from its number of rows, since files of tables do not shrink.
func (p postgresTables) size(ctx context.Context, limit int64) (all int64, err error) {
	const others = "'stint_rollup_counts'::regclass, 'stint_rollup_lists'::regclass, 'stint_rollup_todo'::regclass, 'stint_consumption'::regclass"
	err = p.db.Read.QueryRowContext(ctx, `SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE oid IN (`+others+`)
		OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('stint_events'::regclass, 'stint_settlements'::regclass))`).Scan(&all)
	if err != nil || limit == 0 || all <= limit {
		return all, err
	}
	for table, key := range partitioned {
		names, err := query.Strings(ctx, p.db.Read, partitionsOf, table)
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			unused, err := p.unused(ctx, name, key)
			if err != nil {
				return 0, err
			}
			all -= unused
		}
	}
	return all, nil
}

// unused estimates how many bytes of a partition deleted rows have left.
func (p postgresTables) unused(ctx context.Context, name, key string) (int64, error) {
	var files, rows int64
	err := p.db.Read.QueryRowContext(ctx, "SELECT pg_total_relation_size($1::regclass), coalesce(pg_stat_get_live_tuples($1::regclass), 0)", name).Scan(&files, &rows)
	if err == nil && rows == 0 && files > 1<<20 { // statistics were reset
		_, err = p.db.Write.ExecContext(ctx, "ANALYZE "+name)
	}
	if err != nil || rows == 0 {
		return 0, err
	}
	each, err := p.bytesOf(ctx, name, key)
	return max(0, files-rows*each), err
}

func (p postgresTables) rowBytes(ctx context.Context, m Month) (int64, error) {
	return p.bytesOf(ctx, m.table(), "at")
}

// bytesOf adds up a row, as the newest of a partition have it, and its entries in the indexes.
func (p postgresTables) bytesOf(ctx context.Context, name, key string) (n int64, err error) {
	const indexes = 130
	err = p.db.Read.QueryRowContext(ctx, "SELECT coalesce(avg(pg_column_size(e)), 0)::bigint FROM (SELECT * FROM "+name+" ORDER BY "+key+" DESC LIMIT 500) AS e").Scan(&n)
	return n + indexes, err
}

// reclaim vacuums all settlements: a part of them may be missing.
func (p postgresTables) reclaim(ctx context.Context, m Month) error {
	_, err := p.db.Write.ExecContext(ctx, "VACUUM "+m.table()+", stint_settlements")
	return err
}
