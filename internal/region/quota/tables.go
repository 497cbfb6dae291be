package quota

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
)

// book is where weights and demand are kept.
type book interface {
	// rows returns the weights, as they are no earlier than at the call.
	rows(ctx context.Context) ([]row, error)
	// report stores what a node reports.
	report(ctx context.Context, ds []demand) error
	// turn calls next with what is stored, and stores the changes, while no other node does so: then it does
	// nothing.
	turn(ctx context.Context, next func(now time.Time, rows []row, ds []demand) []change) error
}

// tables is the book in a database.
type tables struct{ db *database.DB }

// lockTurn is the lock of PostgreSQL for a turn. SQLite has one writer anyway.
const lockTurn = 0x7374696e74_03

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (t *tables) rows(ctx context.Context) ([]row, error) {
	rows, err := readRows(ctx, t.db.Read)
	return rows, t.db.Wrap(err)
}

func readRows(ctx context.Context, q querier) (out []row, err error) {
	rows, err := q.QueryContext(ctx, "SELECT rule, recovery, number, settled, weights, began_at, seen_at FROM stint_quota_weights ORDER BY rule, recovery")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		var recovery int64
		var weights string
		var began, seen database.Stamp
		if err := rows.Scan(&r.rule, &recovery, &r.number, &r.settled, &weights, &began, &seen); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(weights), &r.shares); err != nil {
			return nil, err
		}
		var known bool
		if r.class, known = classOf(time.Duration(recovery) * time.Second); !known {
			continue // of another version of the program
		}
		r.began, r.seen = began.Time, seen.Time
		out = append(out, r)
	}
	return out, rows.Err()
}

func readDemand(ctx context.Context, q querier) (out []demand, err error) {
	rows, err := q.QueryContext(ctx, "SELECT rule, recovery, region, node, units, at FROM stint_quota_demand ORDER BY rule, recovery, region, node")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var d demand
		var recovery int64
		var at database.Stamp
		if err := rows.Scan(&d.rule, &recovery, &d.region, &d.node, &d.units, &at); err != nil {
			return nil, err
		}
		var known bool
		if d.class, known = classOf(time.Duration(recovery) * time.Second); known {
			d.at = at.Time
			out = append(out, d)
		}
	}
	return out, rows.Err()
}

func (t *tables) report(ctx context.Context, ds []demand) error {
	return t.inTx(ctx, func(tx *sql.Tx) error {
		upsert, err := tx.PrepareContext(ctx, `INSERT INTO stint_quota_demand (rule, recovery, region, node, units, at) VALUES ($1, $2, $3, $4, $5, `+t.db.Now()+`)
			ON CONFLICT (rule, recovery, region, node) DO UPDATE SET units = excluded.units, at = excluded.at`)
		if err != nil {
			return err
		}
		defer upsert.Close()
		for i := range ds {
			d := &ds[i]
			if _, err := upsert.ExecContext(ctx, d.rule, seconds(d.class), d.region, d.node, d.units); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tables) turn(ctx context.Context, next func(time.Time, []row, []demand) []change) error {
	return t.inTx(ctx, func(tx *sql.Tx) error {
		if t.db.Postgres() {
			var mine bool
			if err := tx.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(lockTurn)).Scan(&mine); err != nil || !mine {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM stint_quota_demand WHERE at < "+t.db.Ago(forgotten)); err != nil {
			return err
		}
		var now database.Stamp // after the turn before: whatever is found was there before now
		if err := tx.QueryRowContext(ctx, "SELECT "+t.db.Now()).Scan(&now); err != nil {
			return err
		}
		rows, err := readRows(ctx, tx)
		if err != nil {
			return err
		}
		ds, err := readDemand(ctx, tx)
		if err != nil {
			return err
		}
		for _, c := range next(now.Time, rows, ds) {
			if err := t.store(ctx, tx, &c); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tables) store(ctx context.Context, tx *sql.Tx, c *change) error {
	if c.delete {
		_, err := tx.ExecContext(ctx, "DELETE FROM stint_quota_weights WHERE rule = $1 AND recovery = $2", c.rule, seconds(c.class))
		return err
	}
	weights, err := json.Marshal(c.shares)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO stint_quota_weights (rule, recovery, number, settled, weights, began_at, seen_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (rule, recovery) DO UPDATE SET number = excluded.number, settled = excluded.settled, weights = excluded.weights,
		began_at = excluded.began_at, seen_at = excluded.seen_at`,
		c.rule, seconds(c.class), c.number, c.settled, string(weights), t.db.Time(c.began), t.db.Time(c.seen))
	return err
}

func (t *tables) inTx(ctx context.Context, f func(*sql.Tx) error) error {
	var o sql.TxOptions
	if t.db.Postgres() {
		o.Isolation = sql.LevelReadCommitted // what is read after the lock is not from before it
	}
	tx, err := t.db.Write.BeginTx(ctx, &o)
	if err != nil {
		return t.db.Wrap(err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return t.db.Wrap(err)
	}
	return t.db.Wrap(tx.Commit())
}

// seconds is how the database names a class.
func seconds(class int) int64 { return int64(classes[class] / time.Second) }
