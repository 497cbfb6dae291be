package record

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/query"
)

// ErrChanged is what [Store.Drop] returns if a month does not have as many events as it
// should.
var ErrChanged = errors.New("the number of events has changed")

// StoreOptions are the settings of a [Store].
type StoreOptions struct {
	// MinFree is how many bytes the disk of a SQLite file must have left for anything to be
	// written. 0: it is not checked.
	MinFree int64
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Store stores events in a database, in one table for each month, and what became of their
// reservations. With the events it writes which minutes have to be rolled up.
//
// An event is identified by its time and id, and stored once, in the month of its time even if
// the clock was wrong. Events of years before 2020 or after 2099 are counted and dropped.
//
// Any number of nodes may use a database at once.
type Store struct {
	db      *database.DB // that of the record
	catalog *database.DB // which may still have a part of it; nil: it is the same
	now     func() time.Time
	minFree int64
	tables  tables

	migrated atomic.Bool // the schema of a file of its own is up to date
	months   sync.Map    // the keys are months that are known to have a table
	refused  atomic.Int64
}

var _ Sink = (*Store)(nil)

// tables is what differs between databases.
type tables interface {
	// create creates the table of a month, if it is missing.
	create(ctx context.Context, m Month) error
	// list returns the months that have a table.
	list(ctx context.Context, q query.Querier) ([]Month, error)
	// name is the table to query for the events of a month, by their time.
	name(m Month) string
	// insert adds sorted events and the minutes to roll up, all or nothing.
	insert(ctx context.Context, events []Event, todo []todo) error
	// missing reports whether an insert has failed because a month has no table.
	missing(err error) bool
	// hold keeps others from writing to the table of a month, and from rolling up, until
	// the transaction ends. It reports whether there is such a table.
	hold(ctx context.Context, tx *sql.Tx, m Month) (bool, error)
	// alone calls f with a function that begins transactions that see one snapshot, unless
	// another node is doing the same.
	alone(ctx context.Context, f func(begin func() (*sql.Tx, error)) error) error
	// inOrder makes the rest of a transaction read rows in the order of an index, rather than
	// sort them.
	inOrder(ctx context.Context, tx *sql.Tx) error
	// id returns an id as an argument.
	id(id engine.ID) any
	// size returns about how many bytes the record takes. Above a limit, room that can be
	// used again does not count.
	size(ctx context.Context, limit int64) (int64, error)
	// rowBytes returns about how many bytes an event of a month takes.
	rowBytes(ctx context.Context, m Month) (int64, error)
	// dropSettlements removes the settlements of the events of a month.
	dropSettlements(ctx context.Context, tx *sql.Tx, m Month) error
	// reclaim lets the room of deleted events be used again.
	reclaim(ctx context.Context, m Month) error
}

// minuteLevel is the level of minutes in stint_rollup_todo.
const minuteLevel = 0

// todo is a minute to be counted.
type todo struct {
	start time.Time
	token int64
}

// ahead is for how many months after this one tables are created in advance.
const ahead = 2

// page is how many events are read at once. Tests read fewer.
var page = 1000

// columns are those of an event, in the order of values and scan.
var columns = []string{
	"id", "at", "outcome", "shadow", "cached", "user_id", "tenant", "key_id", "tier", "ip", "rule", "limit_name", "endpoint", "method",
	"used", "max", "cost", "status", "retry_after_us", "waited_us", "latency_us", "region", "node", "weight", "path", "source", "unaccepted",
}

// values appends an event as a row.
func (e *Event) values(row []any, id, at any) []any {
	return append(row, id, at, int64(e.Outcome), e.Shadow, e.Cached, e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Rule, e.Limit, e.Endpoint, e.Method,
		e.Used, e.Max, e.Cost, int64(e.Status), RetryMicros(e.RetryAfter), e.Waited.Microseconds(), e.Latency.Microseconds(), e.Region, e.Node, e.Weight, e.storedPath(), orNull(e.Source), orNull(e.Unaccepted))
}

// scan reads an event from a row.
func (e *Event) scan(rows *sql.Rows) error {
	var at database.Stamp
	var retry, waited, latency int64
	var path, source, unaccepted sql.NullString // earlier versions have none of these
	err := rows.Scan((*rowID)(&e.ID), &at, (*uint8)(&e.Outcome), &e.Shadow, &e.Cached, &e.User, &e.Tenant, &e.Key, &e.Tier, &e.IP, &e.Rule, &e.Limit, &e.Endpoint, &e.Method,
		&e.Used, &e.Max, &e.Cost, &e.Status, &retry, &waited, &latency, &e.Region, &e.Node, &e.Weight, &path, &source, &unaccepted)
	if err == nil && e.Outcome > engine.Unavailable {
		err = fmt.Errorf("the event %v has the outcome %d, a newer version may have written it", e.ID, byte(e.Outcome))
	}
	e.At = at.Time
	if e.Path = path.String; e.Path == samePath {
		e.Path = e.Endpoint
	}
	e.Source, e.Unaccepted = source.String, unaccepted.String
	e.RetryAfter, e.Waited, e.Latency = RetryAfter(retry), time.Duration(waited)*time.Microsecond, time.Duration(latency)*time.Microsecond
	return err
}

// orNull returns a text, or nil if it is empty: most are.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// rowID is the id of a row, which is text in PostgreSQL and bytes in SQLite.
type rowID engine.ID

// Scan implements [sql.Scanner].
func (id *rowID) Scan(v any) error {
	switch v := v.(type) {
	case string:
		parsed, err := ParseID(v)
		*id = rowID(parsed)
		return err
	case []byte:
		if len(v) == len(id) {
			copy(id[:], v)
			return nil
		}
	}
	return fmt.Errorf("record: the id of an event is a %T", v)
}

// NewStore returns the store in a database, in its Record. Its schema has to be up to date when
// it is used; a SQLite file brings its own up to date when it is first written to.
func NewStore(db *database.DB, o StoreOptions) (*Store, error) {
	if db == nil {
		return nil, invalid("DB", "nil", "a database")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MinFree < 0 {
		return nil, invalid("MinFree", strconv.FormatInt(o.MinFree, 10), "a number of bytes, or 0 for none")
	}
	s := &Store{db: db.Record, catalog: catalogOf(db), now: o.Now, minFree: o.MinFree, tables: sqliteTables{db.Record}}
	if db.Postgres() {
		s.tables = postgresTables{db}
	}
	return s, nil
}

// Table is the table to query for the events of a month, by their time.
func (s *Store) Table(m Month) string { return s.tables.name(m) }

// Has reports whether a month has a table.
func (s *Store) Has(ctx context.Context, q query.Querier, m Month) (bool, error) {
	months, err := s.tables.list(ctx, q)
	return slices.Contains(months, m), err
}

// Stored returns the months that have a table, in order.
func (s *Store) Stored(ctx context.Context, q query.Querier) ([]Month, error) {
	return s.tables.list(ctx, q)
}

// Alone calls f with a function that begins transactions that see one snapshot, unless another
// node is doing the same. No month is dropped meanwhile.
func (s *Store) Alone(ctx context.Context, f func(begin func() (*sql.Tx, error)) error) error {
	return s.tables.alone(ctx, f)
}

// Refused returns how many events were dropped because of their time.
func (s *Store) Refused() int64 { return s.refused.Load() }

func (s *Store) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("record: %s: %w", doing, s.db.Wrap(err))
}

// Prepare creates the tables of this month and the next two, before they are needed.
func (s *Store) Prepare(ctx context.Context) error {
	months := []Month{MonthOf(s.now())}
	for range ahead {
		months = append(months, MonthOf(months[len(months)-1].End()))
	}
	return s.wrap("tables of events", s.ensure(ctx, months))
}

// Migrate brings the schema of a SQLite file of its own up to date. That of others is migrated
// with the catalog.
func (s *Store) Migrate(ctx context.Context) error {
	if s.catalog == nil || s.migrated.Load() {
		return nil
	}
	if err := s.Room(); err != nil {
		return err
	}
	_, err := s.db.Up(ctx, 0)
	s.migrated.Store(err == nil)
	return err
}

// ensure creates the tables of months that are not known to have one.
func (s *Store) ensure(ctx context.Context, months []Month) error {
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	for _, m := range months {
		if _, known := s.months.Load(m); known {
			continue
		}
		if err := s.tables.create(ctx, m); err != nil {
			return err
		}
		s.months.Store(m, nil)
	}
	return nil
}

// Write implements [Sink].
func (s *Store) Write(ctx context.Context, events []Event) error {
	return s.wrap("write events", s.write(ctx, events))
}

func (s *Store) write(ctx context.Context, given []Event) error {
	if err := s.Room(); err != nil {
		return err
	}
	events := make([]Event, 0, len(given))
	for _, e := range given {
		if !query.Valid(e.At) {
			s.refused.Add(1)
			continue
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil
	}
	// Sorted, two writers cannot deadlock, and each page of an index is visited once.
	slices.SortFunc(events, func(a, b Event) int { return cmp.Or(a.At.Compare(b.At), slices.Compare(a.ID[:], b.ID[:])) })
	var todos []todo
	var months []Month
	token := rand.Int64()
	for i := range events {
		at := events[i].At
		if start := at.Truncate(time.Minute); i == 0 || start.After(events[i-1].At) {
			todos = append(todos, todo{start, token})
		}
		if m := MonthOf(at); len(months) == 0 || m != months[len(months)-1] {
			months = append(months, m)
		}
	}
	return s.into(ctx, months, func() error { return s.tables.insert(ctx, events, todos) })
}

// into writes to the tables of months, which it creates.
func (s *Store) into(ctx context.Context, months []Month, write func() error) error {
	for again := true; ; again = false {
		if err := s.ensure(ctx, months); err != nil {
			return err
		}
		err := write()
		if !again || !s.tables.missing(err) {
			return err
		}
		for _, m := range months { // another node has dropped one
			s.months.Delete(m)
		}
	}
}

// Months returns the months that are over, with their exact number of events. It fails while
// [Store.Adopt] has to be done, since months may have only some of their events.
func (s *Store) Months(ctx context.Context) ([]MonthSize, error) {
	if left, err := s.unadopted(ctx); err != nil || len(left) > 0 {
		return nil, s.wrap("count events", cmp.Or(err, errors.New("the record is being moved to a file of its own")))
	}
	months, err := s.tables.list(ctx, s.db.Read)
	if err != nil {
		return nil, s.wrap("count events", err)
	}
	var out []MonthSize
	for _, m := range months {
		if m.End().After(s.now()) {
			continue
		}
		size := MonthSize{Month: m}
		err := s.db.Read.QueryRowContext(ctx, "SELECT count(*) FROM "+s.tables.name(m)+" WHERE at >= $1 AND at < $2", s.db.Time(m.Start()), s.db.Time(m.End())).Scan(&size.Events)
		if err != nil {
			return nil, s.wrap("count events", err)
		}
		out = append(out, size)
	}
	return out, nil
}

// Events iterates over the events of a month after a cursor, in order. It ends with the first
// error.
func (s *Store) Events(ctx context.Context, m Month, after Cursor) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if after.At.Before(m.Start()) {
			after = Cursor{At: m.Start().Add(-time.Microsecond)} // databases cannot store the zero time
		}
		text := "SELECT " + strings.Join(columns, ", ") + " FROM " + s.tables.name(m) +
			fmt.Sprintf(" WHERE (at, id) > ($1, $2) AND at >= $3 AND at < $4 ORDER BY at, id LIMIT %d", page)
		for {
			// Read page by page, so that a slow reader holds no transaction.
			events, err := s.events(ctx, s.db.Read, text, s.db.Time(after.At), s.tables.id(after.ID), s.db.Time(m.Start()), s.db.Time(m.End()))
			if err == nil {
				err = s.settle(ctx, s.db.Read, events)
			}
			if err != nil {
				yield(Event{}, s.wrap("read events", err))
				return
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
			if len(events) < page {
				return
			}
			last := &events[len(events)-1]
			after = Cursor{last.At, last.ID}
		}
	}
}

// events returns the rows of a query for all columns.
func (s *Store) events(ctx context.Context, q query.Querier, text string, args ...any) (out []Event, err error) {
	err = query.Each(ctx, q, func(rows *sql.Rows) error {
		out = append(out, Event{})
		return out[len(out)-1].scan(rows)
	}, text, args...)
	return out, err
}

// Drop removes a month, with the settlements of its events, if it has this number of events, and all of them were rolled up.
// Otherwise it removes nothing, and the error is [ErrChanged] if the number is wrong. It is no
// error if the month does not exist and events is 0. From then on the roll-ups of the month
// stay as they are, even if more events of it arrive.
func (s *Store) Drop(ctx context.Context, m Month, events int64) error {
	err := inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
		there, err := s.tables.hold(ctx, tx, m)
		if err != nil {
			return err
		}
		var left, n int64
		if there {
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM "+m.table()).Scan(&n); err != nil {
				return err
			}
		}
		if n != events {
			return fmt.Errorf("it has %d events, not %d: %w", n, events, ErrChanged)
		}
		if err := s.tables.dropSettlements(ctx, tx, m); err != nil || !there {
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM stint_rollup_todo WHERE start >= $1 AND start < $2", s.db.Time(m.Start()), s.db.Time(m.End())).Scan(&left); err != nil {
			return err
		}
		if left > 0 {
			return errors.New("not all of it is rolled up yet, which another node may be doing")
		}
		if n > 0 { // events that arrive later are not rolled up
			if _, err := tx.ExecContext(ctx, "INSERT INTO stint_dropped_months (start, events) VALUES ($1, $2) ON CONFLICT (start) DO UPDATE SET events = excluded.events", s.db.Time(m.Start()), n); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, "DROP TABLE "+m.table())
		return err
	})
	s.months.Delete(m)
	return s.wrap("drop "+m.String(), err)
}

// inTx runs f in a transaction.
func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Restore adds events of a month and their settlements, except those that it has.
func (s *Store) Restore(ctx context.Context, m Month, events []Event) error {
	for i := range events {
		if MonthOf(events[i].At) != m {
			return fmt.Errorf("record: restore %v: the event %v is of %v", m, events[i].ID, events[i].At)
		}
	}
	err := s.write(ctx, events)
	var settled []Settlement
	for i := range events {
		settled = append(settled, events[i].Settled...)
	}
	if err == nil {
		err = s.addSettlements(ctx, settled)
	}
	return s.wrap("restore "+m.String(), err)
}
