package audit

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
)

// String returns a cursor as [ParseCursor] reads it. That before all is empty.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return strconv.FormatInt(c.At.UnixMicro(), 10) + "." + c.ID.String()
}

// ParseCursor reads a cursor.
func ParseCursor(text string) (c Cursor, err error) {
	if text == "" {
		return c, nil
	}
	at, id, _ := strings.Cut(text, ".")
	micros, err := strconv.ParseInt(at, 10, 64)
	if err == nil {
		c.ID, err = parseID(id)
	}
	c.At = time.UnixMicro(micros).UTC()
	if year := c.At.Year(); err != nil || year < firstYear || year > lastYear {
		return Cursor{}, strict.Problems{{Path: "after", Message: strict.Quote(text) + ": want what the answer before has said"}}
	}
	return c, nil
}

// parseID reads an id as its String writes it.
func parseID(text string) (id engine.ID, err error) {
	digits := strings.ReplaceAll(text, "-", "")
	if len(digits) == hex.EncodedLen(len(id)) {
		_, err = hex.Decode(id[:], []byte(digits))
	}
	if err != nil || id.String() != text {
		return engine.ID{}, fmt.Errorf("id %s: want a UUID", strict.Quote(text))
	}
	return id, nil
}

// EventQuery says which events are wanted: those in a range, and of these the ones that
// have all values that are not empty.
type EventQuery struct {
	Range
	User, Tenant, Key, IP  string
	Rule, Endpoint, Method string
	Region, Node           string
	Outcome                string // the name of one
	Shadow                 *bool
	Limit                  int    // from 1 to 1,000. Default 100
	After                  Cursor // which an answer before has returned
}

// scanned is how many events of a month are looked at to answer one question, if they
// follow each other, and scannedApart if they are found by an index.
const scanned, scannedApart = 20_000, 2_000

// Find returns events, the newest first, and where to go on: the zero Cursor if there are
// no more. Since it looks at so many events only, there may be fewer than Limit, even
// none, and still more behind: to find all, go on until the Cursor is zero.
func (s *Store) Find(ctx context.Context, q EventQuery) ([]Event, Cursor, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 100, maxEvents)
	checkOutcome(&p, q.Outcome)
	if err := failed(&p); err != nil {
		return nil, Cursor{}, err
	}
	var events []Event
	var next Cursor
	err := s.reading(ctx, func(tx *sql.Tx) error {
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
				return nil
			}
		}
		return nil
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

// findIn returns so many events of a month at most, and the last one that was looked at
// if it was not looked at all.
func (s *Store) findIn(ctx context.Context, tx *sql.Tx, m Month, q EventQuery, most int) (events []Event, end Cursor, err error) {
	from, to := later(q.From, m.Start()), earlier(q.To, m.End())
	var w where // what an index finds
	look := scanned
	if q.After != (Cursor{}) {
		to = earlier(to, q.After.At.Add(time.Microsecond))
		w.and("(at, id) < (?, ?)", s.db.Time(q.After.At), s.tables.id(q.After.ID))
	}
	if !from.Before(to) {
		return nil, Cursor{}, nil
	}
	w.and("at >= ? AND at < ?", s.db.Time(from), s.db.Time(to))
	refused := q.Outcome != "" && outcomes[q.Outcome] >= engine.Denied
	switch {
	case q.User != "":
		w.is("user_id", q.User)
		q.User, look = "", scannedApart
	case q.Rule != "" && refused:
		w.is("rule", q.Rule)
		w.and(fmt.Sprintf("outcome >= %d", engine.Denied))
		q.Rule, look = "", scannedApart
	}
	const order = " ORDER BY at DESC, id DESC LIMIT "
	looked := s.tables.name(m) + " WHERE " + w.text.String() + order
	var rest where // what is looked at
	rest.args = w.args
	for column, value := range map[string]string{
		"user_id": q.User, "tenant": q.Tenant, "key_id": q.Key, "ip": q.IP, "rule": q.Rule,
		"endpoint": q.Endpoint, "method": q.Method, "region": q.Region, "node": q.Node,
	} {
		rest.is(column, value)
	}
	rest.outcome(q.Outcome, q.Shadow)
	all := strings.Join(columns, ", ")
	if rest.text.Len() == 0 {
		events, err = s.events(ctx, tx, "SELECT "+all+" FROM "+looked+strconv.Itoa(most), w.args...)
		return events, Cursor{}, err
	}
	events, err = s.events(ctx, tx, "SELECT "+all+" FROM (SELECT "+all+" FROM "+looked+strconv.Itoa(look)+") AS e WHERE "+rest.text.String()+order+strconv.Itoa(most), rest.args...)
	if err != nil || len(events) == most {
		return events, Cursor{}, err
	}
	_, err = collect(ctx, tx, func(rows *sql.Rows, _ *struct{}) error {
		var at database.Stamp
		err := rows.Scan(&at, (*rowID)(&end.ID))
		end.At = at.Time
		return err
	}, fmt.Sprintf("SELECT at, id FROM %s1 OFFSET %d", looked, look-1), w.args...)
	return events, end, err
}
