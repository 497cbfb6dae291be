package record

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// adopted are the tables beside those of events, with their keys.
var adopted = []struct{ name, key string }{
	{"stint_dropped_months", "start"},
	{"stint_rollup_since", "level"},
	{"stint_rollup_todo", "level, start, token"},
	{"stint_rollup_counts", "level, start, dim"},
	{"stint_rollup_lists", "level, start, kind, page"},
}

// Adopt moves the record out of the file of the catalog, where earlier versions had it, and
// returns how many events it moved. Nothing is lost if it is stopped: the next call continues,
// and what was moved twice is stored once. Nothing may be rolled up before it is done, since
// minutes may have only some of their events until then; all of them are counted again.
func (s *Store) Adopt(ctx context.Context) (moved int64, err error) {
	if s.catalog == nil {
		return 0, nil
	}
	months, err := s.unadopted(ctx)
	if err == nil {
		err = s.Migrate(ctx)
	}
	if err != nil {
		return 0, s.wrap("move", err)
	}
	for _, t := range adopted {
		if err := s.adoptTable(ctx, t.name, t.key); err != nil {
			return 0, s.wrap("move "+t.name, err)
		}
	}
	old := &Store{db: s.catalog, now: s.now, tables: sqliteTables{s.catalog}}
	for _, m := range slices.Backward(months) { // most questions are about the newest
		n, err := s.adoptMonth(ctx, old, m)
		moved += n
		if err != nil {
			return moved, s.wrap("move "+m.String(), err)
		}
	}
	return moved, nil
}

// unadopted returns the months that are still in the file of the catalog.
func (s *Store) unadopted(ctx context.Context) ([]Month, error) {
	if s.catalog == nil {
		return nil, nil
	}
	return sqliteTables{s.catalog}.list(ctx, s.catalog.Read)
}

// adoptMonth moves the events of a month.
func (s *Store) adoptMonth(ctx context.Context, old *Store, m Month) (moved int64, err error) {
	var events []Event
	flush := func() error {
		err := s.write(ctx, events)
		moved += int64(len(events))
		events = events[:0]
		return err
	}
	for e, err := range old.Events(ctx, m, Cursor{}) {
		if err != nil {
			return moved, err
		}
		if events = append(events, e); len(events) == batchEvents {
			if err := flush(); err != nil {
				return moved, err
			}
		}
	}
	if err := flush(); err != nil {
		return moved, err
	}
	return moved, inTx(ctx, s.catalog.Write, func(tx *sql.Tx) error {
		var all int64
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM "+m.table()).Scan(&all); err != nil {
			return err
		}
		if all != moved {
			return errors.New("another process, of an earlier version, is writing to it")
		}
		_, err := tx.ExecContext(ctx, "DROP TABLE "+m.table())
		return err
	})
}

// adoptTable moves the rows of a table, some at a time. Rows with keys that are known stay as
// they are here.
func (s *Store) adoptTable(ctx context.Context, table, key string) error {
	keys := strings.Split(key, ", ")
	for {
		var rows [][]any
		var columns []string
		err := query.Each(ctx, s.catalog.Read, func(r *sql.Rows) (err error) {
			if columns, err = r.Columns(); err != nil {
				return err
			}
			row, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range row {
				into[i] = &row[i]
			}
			rows = append(rows, row)
			return r.Scan(into...)
		}, fmt.Sprintf("SELECT * FROM %s ORDER BY %s LIMIT %d", table, key, rowsAtOnce))
		if err != nil || len(rows) == 0 {
			return err
		}
		if err := s.Room(); err != nil {
			return err
		}
		err = inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
			text := "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(columns)-1) + ") ON CONFLICT DO NOTHING"
			return each(ctx, tx, text, rows)
		})
		if err != nil {
			return err
		}
		for i, row := range rows {
			var of []any
			for _, k := range keys {
				of = append(of, row[slices.Index(columns, k)])
			}
			rows[i] = of
		}
		err = inTx(ctx, s.catalog.Write, func(tx *sql.Tx) error {
			return each(ctx, tx, "DELETE FROM "+table+" WHERE "+strings.Join(keys, " = ? AND ")+" = ?", rows)
		})
		if err != nil {
			return err
		}
	}
}

// each executes a statement with each of some rows.
func each(ctx context.Context, tx *sql.Tx, text string, rows [][]any) error {
	for _, row := range rows {
		if _, err := tx.ExecContext(ctx, text, row...); err != nil {
			return err
		}
	}
	return nil
}

// catalogOf returns the database beside that of the record that may still have a part of it.
func catalogOf(db *database.DB) *database.DB {
	if db.Record == db {
		return nil
	}
	return db
}
