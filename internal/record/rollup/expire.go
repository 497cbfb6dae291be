package rollup

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/record/query"
)

// deletesAtOnce is how many transactions delete old roll-ups after a run.
const deletesAtOnce = 50

// keeps is for how many whole days roll-ups are kept, and how many of them one transaction
// deletes: an hour has many more names than a minute, and a day more than an hour.
var keeps = []struct {
	level level
	keep  time.Duration
	most  int
}{
	{minute, 7 * day, 60},
	{fives, 7 * day, 60},
	{hour, 90 * day, 6},
	{daily, 7*365*day + 2*day, 1},
}

// deleteOld deletes some old roll-ups, and returns how many. Coarser ones have been made of them.
func (s *Store) deleteOld(ctx context.Context, tx *sql.Tx) (int, error) {
	for _, k := range keeps {
		before := s.o.Now().Add(-k.keep).Truncate(day)
		old, err := query.Times(ctx, tx, fmt.Sprintf("SELECT start FROM stint_rollup_counts WHERE level = %d AND dim = %d AND start < $1 ORDER BY start LIMIT %d", k.level, byRule, k.most), s.db.Time(before))
		if err != nil {
			return 0, err
		}
		if len(old) == 0 {
			continue
		}
		until := s.db.Time(old[len(old)-1])
		for _, table := range rollUps {
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM %s WHERE level = %d AND start <= $1", table, k.level), until); err != nil {
				return 0, err
			}
		}
		return len(old), setSince(ctx, tx, k.level, s.db.Time(before))
	}
	return 0, nil
}
