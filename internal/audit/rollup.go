package audit

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/database"
)

// level is how long a roll-up is. The numbers are those of the database.
type level int

const (
	minute level = iota
	hour
	daily
)

func (l level) length() time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, day}[l]
}

// subjects are the columns of those who make requests, in the order of their numbers in
// the database, and kinds are their names.
var (
	subjects = []string{"user_id", "tenant", "key_id", "ip"}
	kinds    = []string{"user", "tenant", "key", "ip"}
)

const (
	// minutesAtOnce and hoursAtOnce are how many are rolled up in one transaction.
	minutesAtOnce, hoursAtOnce = 15, 6
	// rowsAtOnce is how many are inserted with one statement.
	rowsAtOnce = 50
)

// group is what is rolled up apart.
type group struct {
	rule, tier, endpoint, region string
	outcome                      engine.Outcome
	shadow                       bool
}

// sums is what is known of a group.
type sums struct {
	total, events, cached int64
	latency               Sketch
}

func (s *sums) merge(o *sums) {
	s.total += o.total
	s.events += o.events
	s.cached += o.cached
	s.latency.Merge(&o.latency)
}

// RollUp rolls up the minutes and hours that are over and of which events were written
// since it was done last, late ones too, and returns how many these were. If another node
// is doing so, it does nothing.
//
// A minute is counted anew from its events, an hour from its minutes, and a day from its
// hours. Who was refused is counted by the minute as long as the hour is not over, and
// then by the hour, from its events.
func (s *Store) RollUp(ctx context.Context) (done int, err error) {
	if !s.rolling.TryLock() {
		return 0, nil
	}
	defer s.rolling.Unlock()
	err = s.tables.alone(ctx, func(begin func() (*sql.Tx, error)) error {
		for l, most := range [...]int{minute: minutesAtOnce, hour: hoursAtOnce} {
			for {
				n, err := s.rollUp(ctx, begin, level(l), most)
				if done += n; err != nil {
					return err
				}
				if n == 0 {
					break
				}
			}
		}
		return nil
	})
	return done, s.wrap("roll up events", err)
}

// rollUp rolls up the first minutes or hours of which there is something to be. It is
// one transaction, which sees one moment: who writes meanwhile leaves a note that stays.
func (s *Store) rollUp(ctx context.Context, begin func() (*sql.Tx, error), l level, most int) (int, error) {
	tx, err := begin()
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	now := s.o.Now()
	starts, err := s.stamps(ctx, tx, "SELECT DISTINCT start FROM stint_rollup_todo WHERE level = $1 AND start <= $2 ORDER BY start LIMIT $3",
		l, s.db.Time(now.Add(-l.length())), most)
	if err != nil || len(starts) == 0 {
		return 0, err
	}
	gone, err := s.stamps(ctx, tx, "SELECT start FROM stint_dropped_months")
	if err != nil {
		return 0, err
	}
	months, err := s.tables.list(ctx, tx)
	if err != nil {
		return 0, err
	}
	var parents []time.Time // of what is counted
	for _, start := range starts {
		if _, err := tx.ExecContext(ctx, "DELETE FROM stint_rollup_todo WHERE level = $1 AND start = $2", l, s.db.Time(start)); err != nil {
			return 0, err
		}
		if m := MonthOf(start); !slices.Contains(months, m) || slices.ContainsFunc(gone, m.Start().Equal) {
			continue
		}
		if l == minute {
			if err = s.countMinute(ctx, tx, start); err == nil && start.Truncate(time.Hour).Add(time.Hour).After(now) {
				err = s.countSubjects(ctx, tx, minute, start)
			}
		} else {
			err = s.countSubjects(ctx, tx, hour, start)
		}
		if err != nil {
			return 0, err
		}
		if parent := start.Truncate((l + 1).length()); len(parents) == 0 || !parents[len(parents)-1].Equal(parent) {
			parents = append(parents, parent)
		}
	}
	for _, parent := range parents {
		if l == minute {
			err = s.sum(ctx, tx, hour, parent)
		} else {
			err = s.sumSubjects(ctx, tx, parent)
		}
		if err != nil {
			return 0, err
		}
	}
	if l == minute {
		for i, parent := range parents {
			if start := parent.Truncate(day); i == 0 || start.After(parents[i-1]) {
				if err := s.sum(ctx, tx, daily, start); err != nil {
					return 0, err
				}
			}
		}
	}
	return len(starts), tx.Commit()
}

func (s *Store) stamps(ctx context.Context, q querier, query string, args ...any) ([]time.Time, error) {
	return collect(ctx, q, func(rows *sql.Rows, t *time.Time) error {
		var stamp database.Stamp
		err := rows.Scan(&stamp)
		*t = stamp.Time
		return err
	}, query, args...)
}

// within returns the arguments for what begins at a time and is of a level.
func (s *Store) within(l level, start time.Time) []any {
	return []any{s.db.Time(start), s.db.Time(start.Add(l.length()))}
}

// counted is a row of what is grouped.
type counted struct {
	group
	sums
}

// countMinute counts the events of a minute. The database has sorted them into buckets.
func (s *Store) countMinute(ctx context.Context, tx *sql.Tx, start time.Time) error {
	rows, err := collect(ctx, tx, func(rows *sql.Rows, c *counted) error {
		var micros int64
		err := rows.Scan(&c.rule, &c.tier, &c.endpoint, &c.region, (*uint8)(&c.outcome), &c.shadow, &micros, &c.total, &c.events, &c.cached)
		c.latency.add(bucketOf(micros), c.total)
		return err
	}, "SELECT rule, tier, endpoint, region, outcome, shadow, "+sketchColumn+` AS bucket,
		CAST(sum(weight) AS BIGINT), count(*), CAST(sum(CASE WHEN cached THEN weight ELSE 0 END) AS BIGINT)
		FROM `+s.tables.name(MonthOf(start))+" WHERE at >= $1 AND at < $2 GROUP BY rule, tier, endpoint, region, outcome, shadow, bucket",
		s.within(minute, start)...)
	if err != nil {
		return err
	}
	return s.replace(ctx, tx, minute, start, rows)
}

const groupColumns = "rule, tier, endpoint, region, outcome, shadow, total, events, cached, latency"

// scan reads a roll-up.
func (c *counted) scan(rows *sql.Rows, before ...any) error {
	var latency []byte
	err := rows.Scan(append(before, &c.rule, &c.tier, &c.endpoint, &c.region, (*uint8)(&c.outcome), &c.shadow, &c.total, &c.events, &c.cached, &latency)...)
	if err == nil && c.outcome > engine.Unavailable {
		err = fmt.Errorf("a roll-up has the outcome %d, it may be that of a newer version", byte(c.outcome))
	}
	if err != nil {
		return err
	}
	return c.latency.UnmarshalBinary(latency)
}

// sum makes a roll-up of those of the level below.
func (s *Store) sum(ctx context.Context, tx *sql.Tx, l level, start time.Time) error {
	rows, err := collect(ctx, tx, func(rows *sql.Rows, c *counted) error { return c.scan(rows) },
		"SELECT "+groupColumns+" FROM stint_rollups WHERE start >= $1 AND start < $2 AND level = $3", append(s.within(l, start), l-1)...)
	if err != nil {
		return err
	}
	return s.replace(ctx, tx, l, start, rows)
}

// replace writes a roll-up in the place of the one that there was.
func (s *Store) replace(ctx context.Context, tx *sql.Tx, l level, start time.Time, rows []counted) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM stint_rollups WHERE level = $1 AND start = $2", l, s.db.Time(start)); err != nil {
		return err
	}
	all := map[group]*sums{}
	for i := range rows {
		if all[rows[i].group] == nil {
			all[rows[i].group] = new(sums)
		}
		all[rows[i].group].merge(&rows[i].sums)
	}
	var args []any
	for g, n := range all {
		latency, _ := n.latency.AppendBinary([]byte{}) // it does not fail
		args = append(args, l, s.db.Time(start), g.rule, g.tier, g.endpoint, g.region, int64(g.outcome), g.shadow, n.total, n.events, n.cached, latency)
	}
	const wide = 12
	for len(args) > 0 {
		n := min(len(args), rowsAtOnce*wide)
		if _, err := tx.ExecContext(ctx, "INSERT INTO stint_rollups (level, start, "+groupColumns+") VALUES "+placeholders(n/wide, wide), args[:n]...); err != nil {
			return err
		}
		args = args[n:]
	}
	return nil
}

// placeholders returns those of rows.
func placeholders(rows, wide int) string {
	var b strings.Builder
	for i := range rows * wide {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%wide == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", i+1)
	}
	return b.String() + ")"
}

// countSubjects counts who was refused, from events. Of an hour, what there was of its
// minutes goes. Each kind is a range of the index.
func (s *Store) countSubjects(ctx context.Context, tx *sql.Tx, l level, start time.Time) error {
	for kind, column := range subjects {
		for below := minute; below <= l; below++ {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_subject_rollups WHERE level = %d AND kind = %d AND start >= $1 AND start < $2", below, kind), s.within(l, start)...)
			if err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO stint_subject_rollups (level, kind, start, subject, rule, denied, refused)
			SELECT %d, %d, $1, %s, rule, CAST(sum(CASE WHEN outcome = %d THEN weight ELSE 0 END) AS BIGINT), CAST(sum(weight) AS BIGINT)
			FROM %s WHERE at >= $1 AND at < $2 AND outcome >= %d AND %s <> '' GROUP BY %s, rule`,
			l, kind, column, engine.Denied, s.tables.name(MonthOf(start)), engine.Denied, column, column), s.within(l, start)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// sumSubjects makes a day of its hours.
func (s *Store) sumSubjects(ctx context.Context, tx *sql.Tx, start time.Time) error {
	for kind := range subjects {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_subject_rollups WHERE level = %d AND kind = %d AND start = $1", daily, kind), s.db.Time(start)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO stint_subject_rollups (level, kind, start, subject, rule, denied, refused)
			SELECT %d, %d, $1, subject, rule, CAST(sum(denied) AS BIGINT), CAST(sum(refused) AS BIGINT)
			FROM stint_subject_rollups WHERE level = %d AND kind = %d AND start >= $1 AND start < $2 GROUP BY subject, rule`, daily, kind, hour, kind), s.within(daily, start)...)
		if err != nil {
			return err
		}
	}
	return nil
}
