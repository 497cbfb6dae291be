package record

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// Decision returns the event with an id, and its settlements. Ok is false if the record has none. An id has the time of its
// event, so this reads one row, however many there are.
func (s *Store) Decision(ctx context.Context, id engine.ID) (e Event, ok bool, err error) {
	m := MonthOf(id.Time())
	if !query.Valid(id.Time()) {
		return Event{}, false, nil
	}
	err = query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		if there, err := s.Has(ctx, tx, m); err != nil || !there {
			return err
		}
		found, err := s.events(ctx, tx, "SELECT "+strings.Join(columns, ", ")+" FROM "+s.Table(m)+" WHERE at = $1 AND id = $2", s.db.Time(id.Time()), s.tables.id(id))
		if err != nil || len(found) == 0 {
			return err
		}
		err = s.settle(ctx, tx, found)
		e, ok = found[0], true
		return err
	})
	return e, ok, s.wrap("find a decision", err)
}

// Around is what the record has at the time of a decision that it does not have.
type Around struct {
	Oldest  time.Time // the time of the oldest event; zero: there is none
	Dropped bool      // the month was deleted, or moved to the archive
	// StandIns are events of the same second that stand for other decisions, which denied or delayed a request, too.
	StandIns []Event
}

// maxStandIns is how many events of a second Around has.
const maxStandIns = 100

// Around returns what the record has at the time of a decision.
func (s *Store) Around(ctx context.Context, id engine.ID) (out Around, err error) {
	at := id.Time()
	m := MonthOf(at)
	if !query.Valid(at) {
		return out, nil
	}
	err = query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		months, err := s.tables.list(ctx, tx)
		if err == nil {
			err = s.tables.inOrder(ctx, tx)
		}
		for i := 0; i < len(months) && err == nil && out.Oldest.IsZero(); i++ { // tables are made ahead
			err = query.Each(ctx, tx, func(rows *sql.Rows) error {
				var stamp database.Stamp
				err := rows.Scan(&stamp)
				out.Oldest = stamp.Time
				return err
			}, "SELECT at FROM "+s.Table(months[i])+" WHERE at >= $1 AND at < $2 ORDER BY at LIMIT 1", s.db.Time(months[i].Start()), s.db.Time(months[i].End()))
		}
		if err != nil {
			return err
		}
		dropped, err := query.Times(ctx, tx, "SELECT start FROM stint_dropped_months WHERE start = $1", s.db.Time(m.Start()))
		out.Dropped = len(dropped) > 0
		if err != nil || !slices.Contains(months, m) {
			return err
		}
		second := at.Truncate(time.Second)
		out.StandIns, err = s.events(ctx, tx, "SELECT "+strings.Join(columns, ", ")+" FROM "+s.Table(m)+
			fmt.Sprintf(" WHERE at >= $1 AND at < $2 AND weight > 1 AND (outcome NOT IN (%d, %d) OR shadow) ORDER BY at, id LIMIT %d", engine.Allowed, engine.Exempt, maxStandIns),
			s.db.Time(second), s.db.Time(second.Add(time.Second)))
		return err
	})
	return out, s.wrap("look around a decision", err)
}
