package record

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// EventQuery selects the events in a range that match all fields that are not empty.
type EventQuery struct {
	query.Range
	User, Tenant, Key, IP  string
	Rule, Endpoint, Method string
	Path                   string // how the path begins
	Region, Node           string
	Outcome                string // the name of one
	Shadow                 *bool
	Limit                  int    // from 1 to 1,000. Default 100
	After                  Cursor // which the last page returned
}

// maxEvents is the largest Limit.
const maxEvents = 1000

// scanned is how many events of a month a query reads at most, and scannedApart the same for
// events that an index finds one by one. Tests read fewer.
var scanned, scannedApart = 20_000, 2_000

// Find returns events with their settlements, the newest first, and the Cursor of the next page: zero if there are no
// more. Since it reads a limited number of events, a page may have fewer than Limit, even none,
// although there are more: to find all, continue until the Cursor is zero.
func (s *Store) Find(ctx context.Context, q EventQuery) ([]Event, Cursor, error) {
	var p strict.Report
	q.Check(&p, s.now())
	query.CheckLimit(&p, &q.Limit, 100, maxEvents)
	CheckOutcome(&p, q.Outcome)
	if err := p.Problems.Err(); err != nil {
		return nil, Cursor{}, err
	}
	var events []Event
	var next Cursor
	err := query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		months, err := s.tables.list(ctx, tx)
		if err == nil {
			err = s.tables.inOrder(ctx, tx)
		}
		if err != nil {
			return err
		}
		for _, m := range slices.Backward(months) {
			some, end, err := s.findIn(ctx, tx, m, q, q.Limit+1-len(events)) // one more than wanted tells whether there are more
			if err != nil {
				return err
			}
			events, next = append(events, some...), end
			if len(events) > q.Limit || end != (Cursor{}) {
				break
			}
		}
		return s.settle(ctx, tx, events)
	})
	if err != nil {
		return nil, Cursor{}, s.wrap("find events", err)
	}
	if len(events) > q.Limit {
		events = events[:q.Limit]
		last := &events[q.Limit-1]
		next = Cursor{last.At, last.ID}
	}
	return events, next, nil
}

// findIn returns at most most events of a month. If it stopped before it had read all of them,
// end is the last one that it read.
func (s *Store) findIn(ctx context.Context, tx *sql.Tx, m Month, q EventQuery, most int) (events []Event, end Cursor, err error) {
	from, to := query.Later(q.From, m.Start()), query.Earlier(q.To, m.End())
	var w query.Where // what an index finds
	look := scanned
	if q.After != (Cursor{}) {
		to = query.Earlier(to, q.After.At.Add(time.Microsecond))
		w.And("(at, id) < (?, ?)", s.db.Time(q.After.At), s.tables.id(q.After.ID))
	}
	if !from.Before(to) {
		return nil, Cursor{}, nil
	}
	w.And("at >= ? AND at < ?", s.db.Time(from), s.db.Time(to))
	outcome, named := ParseOutcome(q.Outcome)
	switch {
	case q.User != "":
		w.Is("user_id", q.User)
		q.User, look = "", scannedApart
	case q.Rule != "" && named && outcome >= engine.Denied:
		w.Is("rule", q.Rule)
		w.And(fmt.Sprintf("outcome >= %d", engine.Denied)) // in full, as the index has it
		q.Rule, look = "", scannedApart
	}
	const order = " ORDER BY at DESC, id DESC LIMIT "
	looked := s.Table(m) + " WHERE " + w.String() + order
	rest := query.Where{Args: w.Args} // filters what was found
	for _, is := range [][2]string{
		{"user_id", q.User},
		{"tenant", q.Tenant},
		{"key_id", q.Key},
		{"ip", q.IP},
		{"rule", q.Rule},
		{"endpoint", q.Endpoint},
		{"method", q.Method},
		{"region", q.Region},
		{"node", q.Node},
	} {
		rest.Is(is[0], is[1])
	}
	if q.Path != "" {
		rest.And("substr("+PathColumn+", 1, length(CAST(? AS TEXT))) = CAST(? AS TEXT)", q.Path, q.Path)
	}
	if named {
		rest.And("outcome = ?", int64(outcome))
	}
	if q.Shadow != nil {
		rest.And("shadow = ?", *q.Shadow)
	}
	all := strings.Join(columns, ", ")
	if rest.String() == "" {
		events, err = s.events(ctx, tx, "SELECT "+all+" FROM "+looked+strconv.Itoa(most), w.Args...)
		return events, Cursor{}, err
	}
	events, err = s.events(ctx, tx, "SELECT "+all+" FROM (SELECT "+all+" FROM "+looked+strconv.Itoa(look)+") AS e WHERE "+rest.String()+order+strconv.Itoa(most), rest.Args...)
	if err != nil || len(events) == most {
		return events, Cursor{}, err
	}
	err = query.Each(ctx, tx, func(rows *sql.Rows) error {
		var at database.Stamp
		err := rows.Scan(&at, (*rowID)(&end.ID))
		end.At = at.Time
		return err
	}, fmt.Sprintf("SELECT at, id FROM %s1 OFFSET %d", looked, look-1), w.Args...)
	return events, end, err
}
