// Package rollout adds up what rules that are rolled out decide, minute by minute, on all nodes of a database. With that, any node
// can tell that a rule denies too much, and has to be taken back. The package judges nothing.
package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
)

// kept is how long minutes are kept. What could not be written is written later, and judged only in the minute after.
const kept = time.Hour

// Minute is what a rule has decided in a minute about clients for whom it is in force.
type Minute struct{ Requests, Denied int64 }

// Store has the minutes, in a database whose schema is up to date.
type Store struct {
	db  *database.DB
	now func() time.Time // nil: the clock of the database
}

// New returns the store in a database, which is closed by who has opened it. Tests set a clock.
func New(db *database.DB, now func() time.Time) *Store { return &Store{db, now} }

func (s *Store) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rollouts: %s: %w", doing, s.db.Wrap(err))
}

// Time returns the time by which rollouts are judged: the same on all nodes.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	if s.now != nil {
		return s.now().UTC(), nil
	}
	var at database.Stamp
	err := s.db.Read.QueryRowContext(ctx, "SELECT "+s.db.Now()).Scan(&at)
	return at.Time, s.wrap("read the clock", err)
}

// Add writes what a node has decided in the minute that begins at a time, by rule.
func (s *Store) Add(ctx context.Context, node string, start time.Time, rules map[string]Minute) error {
	for name, m := range rules {
		_, err := s.db.Write.ExecContext(ctx, `INSERT INTO stint_rollout_minutes (start, node, rule, requests, denied) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (start, rule, node) DO UPDATE SET requests = excluded.requests, denied = excluded.denied`, s.db.Time(start), node, name, m.Requests, m.Denied)
		if err != nil {
			return s.wrap("write a minute", err)
		}
	}
	_, err := s.db.Write.ExecContext(ctx, "DELETE FROM stint_rollout_minutes WHERE start < $1", s.db.Time(start.Add(-kept)))
	return s.wrap("delete old minutes", err)
}

// Sum returns what all nodes together have decided in the minute that begins at a time, by rule.
func (s *Store) Sum(ctx context.Context, start time.Time) (map[string]Minute, error) {
	rows, err := s.db.Read.QueryContext(ctx, `SELECT rule, CAST(sum(requests) AS BIGINT), CAST(sum(denied) AS BIGINT) FROM stint_rollout_minutes
		WHERE start = $1 GROUP BY rule`, s.db.Time(start))
	if err != nil {
		return nil, s.wrap("read a minute", err)
	}
	defer rows.Close()
	out := map[string]Minute{}
	for rows.Next() {
		var name string
		var m Minute
		if err := rows.Scan(&name, &m.Requests, &m.Denied); err != nil {
			return nil, s.wrap("read a minute", err)
		}
		out[name] = m
	}
	return out, s.wrap("read a minute", rows.Err())
}
