package alert

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
)

// Minute is what a rule has decided in a minute.
type Minute struct{ Requests, Denied int64 }

// AddMinute writes what a node has decided in the minute that begins at a time, by rule.
func (s *Store) AddMinute(ctx context.Context, node string, start time.Time, rules map[string]Minute) error {
	tx, err := s.db.Write.BeginTx(ctx, nil)
	if err != nil {
		return s.wrap("write minutes of rules", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	for name, m := range rules {
		_, err := tx.ExecContext(ctx, `INSERT INTO stint_rule_minutes (start, node, rule, requests, denied) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (start, rule, node) DO UPDATE SET requests = excluded.requests, denied = excluded.denied`, s.db.Time(start), node, name, m.Requests, m.Denied)
		if err != nil {
			return s.wrap("write minutes of rules", err)
		}
	}
	return s.wrap("write minutes of rules", tx.Commit())
}

// rolledOut is before the names of rules in rows that are about their rollouts. No name of a rule has a space.
const rolledOut = "rollout "

// RolledOut returns the name under which [Store.AddMinute] takes what a rule that is rolled out has decided about clients for whom it
// is in force. Alerts are not about that.
func RolledOut(rule string) string { return rolledOut + rule }

// Rolled returns what all nodes together have added up under [RolledOut], by rule, from a time on up to another.
func (s *Store) Rolled(ctx context.Context, from, to time.Time) (map[string]Minute, error) {
	out := map[string]Minute{}
	err := each(ctx, s.db.Read, func(rows *sql.Rows) error {
		var name string
		var m Minute
		if err := rows.Scan(&name, &m.Requests, &m.Denied); err != nil {
			return err
		}
		out[strings.TrimPrefix(name, rolledOut)] = m
		return nil
	}, "SELECT rule, CAST(sum(requests) AS BIGINT), CAST(sum(denied) AS BIGINT) FROM stint_rule_minutes WHERE start >= $1 AND start < $2 AND rule LIKE '"+rolledOut+"%' GROUP BY rule",
		s.db.Time(from), s.db.Time(to))
	return out, s.wrap("read minutes of rollouts", err)
}

// Minutes returns what all nodes together have decided, by rule, or by one, for each minute from a time on up to another.
func (s *Store) Minutes(ctx context.Context, from, to time.Time, rule string) (map[string][]Minute, error) {
	where, args := "WHERE start >= $1 AND start < $2 AND rule NOT LIKE '"+rolledOut+"%'", []any{s.db.Time(from), s.db.Time(to)}
	if rule != "" {
		where, args = where+" AND rule = $3", append(args, rule)
	}
	out := map[string][]Minute{}
	err := each(ctx, s.db.Read, func(rows *sql.Rows) error {
		var start database.Stamp
		var name string
		var m Minute
		if err := rows.Scan(&start, &name, &m.Requests, &m.Denied); err != nil {
			return err
		}
		if out[name] == nil {
			out[name] = make([]Minute, to.Sub(from)/time.Minute)
		}
		out[name][start.Sub(from)/time.Minute] = m
		return nil
	}, "SELECT start, rule, CAST(sum(requests) AS BIGINT), CAST(sum(denied) AS BIGINT) FROM stint_rule_minutes "+where+" GROUP BY start, rule", args...)
	return out, s.wrap("read minutes of rules", err)
}
