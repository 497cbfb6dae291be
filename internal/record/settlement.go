package record

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// Settlement is what became of the reservation of an event under a rule.
type Settlement struct {
	Event       engine.ID // of the event
	Rule, Meter string    // the meter is empty if the rule has none
	Shadow      bool      // the rule is log_only
	At          time.Time // when it was settled: UTC, in whole microseconds
	// Reserved is how many units were charged before, and Used how many were used.
	Reserved, Used int64
	Model          string // that was used; empty: none, or it is unknown
	Estimated      bool   // some of what was used was not reported, but estimated
	Cancelled      bool   // everything was given back
}

// GivenBack returns how many units were reserved, but not used.
func (s *Settlement) GivenBack() int64 { return max(s.Reserved-s.Used, 0) }

// Overshoot returns how many units were used, but not reserved.
func (s *Settlement) Overshoot() int64 { return max(s.Used-s.Reserved, 0) }

// settlementsOf returns what a receipt settles, by rule.
func settlementsOf(r *engine.Receipt, cancelled bool, now time.Time) (out []Settlement) {
	model := nameOf(r.Model)
	for s := range r.Rules() {
		out = append(out, Settlement{
			Event: r.ID, Rule: s.Rule, Meter: string(s.Meter), Shadow: s.Shadow, At: now.UTC().Truncate(time.Microsecond),
			Reserved: min(s.Reserved, mostUnits), Used: min(s.Used, mostUnits), Model: model, Estimated: r.Estimated, Cancelled: cancelled,
		})
	}
	return out
}

// settlementColumns are those of a settlement, in the order of values and scan.
var settlementColumns = strings.Join([]string{"id", "rule", "meter", "shadow", "at", "reserved", "used", "model", "estimated", "cancelled"}, ", ")

func (s *Settlement) values(row []any, id, at any) []any {
	return append(row, id, s.Rule, s.Meter, s.Shadow, at, s.Reserved, s.Used, s.Model, s.Estimated, s.Cancelled)
}

func (s *Settlement) scan(rows *sql.Rows) error {
	var at database.Stamp
	err := rows.Scan((*rowID)(&s.Event), &s.Rule, &s.Meter, &s.Shadow, &at, &s.Reserved, &s.Used, &s.Model, &s.Estimated, &s.Cancelled)
	s.At = at.Time
	return err
}

// AddSettlements stores settlements, each once however often it is given: the first of an event and a rule stays. They
// are deleted with the month of the event, or when events of its time are. Those of years of which no events are stored
// are left out.
func (s *Store) AddSettlements(ctx context.Context, all []Settlement) error {
	err := s.Room()
	if err == nil {
		err = s.addSettlements(ctx, all)
	}
	return s.wrap("write settlements", err)
}

func (s *Store) addSettlements(ctx context.Context, all []Settlement) error {
	all = slices.DeleteFunc(slices.Clone(all), func(x Settlement) bool { return !query.Valid(x.Event.Time()) })
	if len(all) == 0 {
		return nil
	}
	// Sorted, two writers cannot deadlock.
	slices.SortFunc(all, func(a, b Settlement) int {
		return cmp.Or(slices.Compare(a.Event[:], b.Event[:]), strings.Compare(a.Rule, b.Rule))
	})
	var months []Month
	for i := range all {
		if m := MonthOf(all[i].Event.Time()); len(months) == 0 || m != months[len(months)-1] {
			months = append(months, m)
		}
	}
	return s.into(ctx, months, func() error {
		return inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
			for some := range slices.Chunk(all, rowsAtOnce) {
				var args []any
				for i := range some {
					args = some[i].values(args, s.tables.id(some[i].Event), s.db.Time(some[i].At))
				}
				text := "INSERT INTO stint_settlements (" + settlementColumns + ") VALUES " + rowsOf(len(some), len(args)) + " ON CONFLICT DO NOTHING"
				if _, err := tx.ExecContext(ctx, text, args...); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// rowsAtOnce is how many rows a statement adds.
const rowsAtOnce = 100

// rowsOf returns the rows of an INSERT with arguments.
func rowsOf(rows, args int) string {
	var b strings.Builder
	for i := range args {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%(args/rows) == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(i+1))
	}
	return b.String() + ")"
}

// settle gives events what became of their reservations. Only those that passed have one.
func (s *Store) settle(ctx context.Context, q query.Querier, events []Event) error {
	var ids []any
	for i := range events {
		if events[i].Outcome.Passed() {
			ids = append(ids, s.tables.id(events[i].ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	of := map[engine.ID][]Settlement{}
	err := query.Each(ctx, q, func(rows *sql.Rows) error {
		var x Settlement
		err := x.scan(rows)
		of[x.Event] = append(of[x.Event], x)
		return err
	}, "SELECT "+settlementColumns+" FROM stint_settlements WHERE id IN "+rowsOf(1, len(ids))+" ORDER BY id, rule", ids...)
	for i := range events {
		events[i].Settled = of[events[i].ID]
	}
	return err
}

// DeleteSettlements deletes settlements of events before a time, at most so many of them, and returns how many.
func (s *Store) DeleteSettlements(ctx context.Context, tx *sql.Tx, before time.Time, most int) (int64, error) {
	text := fmt.Sprintf("DELETE FROM stint_settlements WHERE id < $1 AND (id, rule) IN (SELECT id, rule FROM stint_settlements WHERE id < $1 ORDER BY id, rule LIMIT %d)", most)
	result, err := tx.ExecContext(ctx, text, s.tables.id(engine.FirstID(before)))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
