package rollup

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// DeniedMore returns the clients of a kind (user, tenant, key or ip) that were denied more often than a number, by any rule or by
// one, in a range of whole minutes within the last 7 days: the first of them, the most often denied first. It is
// not whole if some of it is not rolled up yet.
func (s *Store) DeniedMore(ctx context.Context, r query.Range, by, rule string, than int64, most int) (out []Refusals, whole bool, err error) {
	kind := slices.Index(clients, by)
	if kind < 0 {
		return nil, false, fmt.Errorf("rollup: %s is not a kind of client", strict.Quote(by))
	}
	err = s.minutes(ctx, &r, &whole, func(tx *sql.Tx) error {
		var w query.Where
		w.And(fmt.Sprintf("kind = %d AND part <> %d", kind, partHead))
		s.during(&w, []part{{minute, r.From, r.To}}, anyOf)
		var rules words
		of := -1
		if rule != "" {
			of = idOf(&rules, rule)
		}
		order := func(a, b Refusals) int {
			return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Name, b.Name))
		}
		err := s.merge(ctx, tx, &rules, &w, -1, func(e *entry) bool {
			if denied, refused := e.by(of); denied > than {
				if out = append(out, Refusals{string(e.name), denied, refused}); len(out) >= 2*most+100 {
					slices.SortFunc(out, order)
					out = out[:most]
				}
			}
			return true
		})
		slices.SortFunc(out, order)
		out = out[:min(len(out), most)]
		return err
	})
	return out, whole, s.wrap("clients that were denied", err)
}

// minutes reads in one snapshot, which says whether the minutes of a range are rolled up.
func (s *Store) minutes(ctx context.Context, r *query.Range, whole *bool, read func(*sql.Tx) error) error {
	var p strict.Report
	if r.Check(&p, s.o.Now()); len(p.Problems) > 0 {
		return p.Problems.Err()
	}
	return query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		var left int64
		err := tx.QueryRowContext(ctx, "SELECT count(*) FROM stint_rollup_todo WHERE level = 0 AND start >= $1 AND start < $2", s.db.Time(r.From), s.db.Time(r.To)).Scan(&left)
		if *whole = left == 0; err != nil || !*whole {
			return err
		}
		return read(tx)
	})
}
