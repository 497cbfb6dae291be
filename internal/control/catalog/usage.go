package catalog

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
)

// UsageOptions are the settings of a [Usage].
type UsageOptions struct {
	// Interval is how often the counts are written. Default 5 s.
	Interval time.Duration
	// MaxIDs is how many users, and how many keys, are counted between two writes, and kept
	// if a write fails. The requests of others are dropped. Default 100,000.
	MaxIDs int
	// Log reports writes that fail. Default: none are reported.
	Log *slog.Logger
}

// Usage counts the requests of users and API keys, and adds the counts to the database
// from time to time, as other nodes do. That makes no revision and no entry in the log of
// changes.
//
// Of users it counts all requests, and those that a limit denied; requests during a ban,
// and those that a log_only rule would have denied, are not denied by a limit. Requests
// with rejected credentials are not counted. Days and months are those of UTC. Only users
// and keys of the catalog are written.
//
// Counts that could not be written are kept and written later. If it is not known whether
// a statement took effect, because the connection broke, it is repeated: its rows, at most
// 256, may then be counted twice.
type Usage struct {
	c    *Catalog
	o    UsageOptions
	seed maphash.Seed

	shards [64]shard
	// counted is how many users and keys the shards hold.
	counted [kindsCounted]atomic.Int64

	turn chan struct{} // of capacity 1: held by the writer, and guards kept and away
	kept counts        // to be written
	away bool          // the last write failed

	pending, flushed, dropped, failed atomic.Int64

	// stop ends the loop, and abort a write that is under way. Nil: it was not started.
	stop, abort context.CancelFunc
	work        sync.WaitGroup
}

var _ engine.Recorder = (*Usage)(nil)

// UsageStats are numbers since [Catalog.NewUsage].
type UsageStats struct {
	Pending int64 // users and keys with counts that are not written yet
	Flushed int64 // users and keys whose counts were written
	Dropped int64 // requests that were not counted for lack of room
	Errors  int64 // writes that failed
}

// What is counted.
const (
	ofUser = iota
	ofKey
	kindsCounted
)

// counts are the counts of users and of keys, by id.
type counts [kindsCounted]map[string]*count

func newCounts() counts { return counts{map[string]*count{}, map[string]*count{}} }

func (c *counts) len() int { return len(c[ofUser]) + len(c[ofKey]) }

// shard is the counts of some users, and of the keys that came with them or alone.
type shard struct {
	mu sync.Mutex
	counts
	_ [104]byte // two cache lines in all, so that shards do not share one
}

// count is the requests of a user or a key: of the last day and month that had any, and of
// all time. Of keys, only the total is stored.
type count struct {
	day, today       int64
	month, thisMonth int64
	total, exceeded  int64
	seen             int64 // in microseconds since 1970
}

const secondsOfDay = 24 * 60 * 60

// monthOf returns the month of a day, both counted from January 1970.
func monthOf(day int64) int64 {
	t := time.Unix(day*secondsOfDay, 0).UTC()
	return int64(t.Year()-1970)*12 + int64(t.Month()-time.January)
}

// later returns the count of the later of two periods, or the sum if they are the same.
func later(period, n, otherPeriod, other int64) (int64, int64) {
	switch {
	case period == otherPeriod:
		return period, n + other
	case period < otherPeriod:
		return otherPeriod, other
	default:
		return period, n
	}
}

func (c *count) add(o *count) {
	c.day, c.today = later(c.day, c.today, o.day, o.today)
	c.month, c.thisMonth = later(c.month, c.thisMonth, o.month, o.thisMonth)
	c.total, c.exceeded, c.seen = c.total+o.total, c.exceeded+o.exceeded, max(c.seen, o.seen)
}

// one counts a request.
func (c *count) one(at time.Time, exceeded int64) {
	day := at.Unix() / secondsOfDay
	if day == c.day {
		c.today++
		c.thisMonth++
	} else {
		c.day, c.today = later(c.day, c.today, day, 1)
		c.month, c.thisMonth = later(c.month, c.thisMonth, monthOf(day), 1)
	}
	c.total++
	c.exceeded += exceeded
	c.seen = max(c.seen, at.UnixMicro())
}

// NewUsage returns a Usage that has counted nothing yet. Start it, and Stop it.
func (c *Catalog) NewUsage(o UsageOptions) *Usage {
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	if o.MaxIDs <= 0 {
		o.MaxIDs = 100_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	u := &Usage{c: c, o: o, seed: maphash.MakeSeed(), turn: make(chan struct{}, 1), kept: newCounts()}
	for i := range u.shards {
		u.shards[i].counts = newCounts()
	}
	return u
}

// Record implements [engine.Recorder]. It writes nothing.
func (u *Usage) Record(_ context.Context, e *engine.Event) {
	if e.User == "" && e.Key == "" || e.Outcome == engine.Unauthorized {
		return
	}
	s := &u.shards[maphash.String(u.seed, cmp.Or(e.User, e.Key))%uint64(len(u.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	u.record(s, ofUser, e.User, identity.ValidID, e)
	u.record(s, ofKey, e.Key, validKeyID, e)
}

// record counts a request for one id.
func (u *Usage) record(s *shard, kind int, id string, valid func(string) bool, e *engine.Event) {
	if id == "" {
		return
	}
	c := s.counts[kind][id]
	if c == nil {
		if !u.room(kind, valid(id)) {
			return
		}
		c = new(count)
		s.counts[kind][strings.Clone(id)] = c // it may be part of a large string
	}
	exceeded := int64(0)
	if e.Outcome == engine.Denied {
		exceeded = 1
	}
	c.one(e.At, exceeded)
}

// room reserves room for one more id, if there is some and the id is valid.
func (u *Usage) room(kind int, valid bool) bool {
	if valid && u.counted[kind].Add(1) <= int64(u.o.MaxIDs) {
		return true
	}
	if valid {
		u.counted[kind].Add(-1)
	}
	u.dropped.Add(1)
	return false
}

// Stats returns the current numbers.
func (u *Usage) Stats() UsageStats {
	s := UsageStats{Pending: u.pending.Load(), Flushed: u.flushed.Load(), Dropped: u.dropped.Load(), Errors: u.failed.Load()}
	for i := range u.counted {
		s.Pending += u.counted[i].Load()
	}
	return s
}

// Start writes the counts at every interval, until ctx ends or Stop is called.
func (u *Usage) Start(ctx context.Context) {
	writing, abort := context.WithCancel(context.WithoutCancel(ctx)) // a write that has begun may finish
	ctx, u.stop = context.WithCancel(ctx)
	u.abort = abort
	u.work.Go(func() {
		defer abort()
		tick := time.NewTicker(u.o.Interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = u.Flush(writing) // which logs the error
			}
		}
	})
}

// Stop stops that, and writes what is left until ctx ends.
func (u *Usage) Stop(ctx context.Context) error {
	if u.stop != nil {
		u.stop()
		defer context.AfterFunc(ctx, u.abort)()
		u.work.Wait()
	}
	return u.Flush(ctx)
}

// Flush writes the counts now. Those that could not be written are kept.
func (u *Usage) Flush(ctx context.Context) error {
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return fmt.Errorf("usage: %w", u.c.wrap(ctx.Err()))
	}
	u.collect()
	err := u.write(ctx)
	u.pending.Store(int64(u.kept.len()))
	switch {
	case err != nil:
		u.failed.Add(1)
		err = fmt.Errorf("usage: %w", u.c.wrap(err))
		if !u.away {
			u.o.Log.WarnContext(ctx, "usage cannot be written and is kept in memory", "problem", err.Error())
		}
	case u.away:
		u.o.Log.InfoContext(ctx, "usage is written again")
	}
	u.away = err != nil
	return err
}

// collect moves the counts of the shards to kept.
func (u *Usage) collect() {
	if u.kept.len() == 0 {
		u.kept = newCounts() // maps do not shrink
	}
	for i := range u.shards {
		got := u.shards[i].take()
		u.pending.Add(int64(got.len()))
		for kind := range got {
			u.counted[kind].Add(-int64(len(got[kind])))
			u.merge(u.kept[kind], got[kind])
		}
	}
}

// take returns the counts, and starts over.
func (s *shard) take() (got counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.len() > 0 {
		got, s.counts = s.counts, newCounts()
	}
	return got
}

// merge adds new counts to those that are kept, as far as there is room.
func (u *Usage) merge(into, from map[string]*count) {
	for id, c := range from {
		switch kept := into[id]; {
		case kept != nil:
			kept.add(c)
		case len(into) < u.o.MaxIDs:
			into[id] = c
		default:
			u.dropped.Add(c.total)
		}
	}
}

// upsert is a statement that adds counts to the rows of a table.
type upsert struct {
	table   string
	columns []string // the first is the id
	types   []string // of columns
	owners  string   // the table that must have the id
	update  string   // of the row t that exists
}

var (
	userUpsert = upsert{
		table:   "stint_user_usage",
		columns: []string{"id", "day", "today", "month", "this_month", "total", "exceeded", "last_seen"},
		types:   []string{"TEXT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "TIMESTAMPTZ"},
		owners:  "stint_users",
		update: `
			day = CASE WHEN t.day > excluded.day THEN t.day ELSE excluded.day END,
			today = CASE WHEN t.day > excluded.day THEN t.today WHEN t.day = excluded.day THEN t.today + excluded.today ELSE excluded.today END,
			month = CASE WHEN t.month > excluded.month THEN t.month ELSE excluded.month END,
			this_month = CASE WHEN t.month > excluded.month THEN t.this_month
				WHEN t.month = excluded.month THEN t.this_month + excluded.this_month ELSE excluded.this_month END,
			total = t.total + excluded.total,
			exceeded = t.exceeded + excluded.exceeded,
			last_seen = CASE WHEN t.last_seen > excluded.last_seen THEN t.last_seen ELSE excluded.last_seen END`,
	}
	keyUpsert = upsert{
		table:   "stint_key_usage",
		columns: []string{"id", "total", "last_used"},
		types:   []string{"TEXT", "BIGINT", "TIMESTAMPTZ"},
		owners:  "stint_api_keys",
		update: `total = t.total + excluded.total,
			last_used = CASE WHEN t.last_used > excluded.last_used THEN t.last_used ELSE excluded.last_used END`,
	}
)

// text returns the statement for n rows. PostgreSQL needs the casts to know the types of
// arguments; SQLite ignores them for numbers. Rows are in order of their ids, so that two
// writers cannot wait for each other.
func (q *upsert) text(n int) string {
	var b strings.Builder
	columns := strings.Join(q.columns, ", ")
	b.WriteString("WITH v (" + columns + ") AS (VALUES ")
	for i := range n * len(q.types) {
		column := i % len(q.types)
		switch {
		case column > 0:
			b.WriteString(", ")
		case i > 0:
			b.WriteString("), (")
		default:
			b.WriteString("(")
		}
		fmt.Fprintf(&b, "CAST($%d AS %s)", i+1, q.types[column])
	}
	fmt.Fprintf(&b, ")) INSERT INTO %s AS t (%s) SELECT v.%s FROM v JOIN %s o ON o.id = v.id WHERE TRUE ORDER BY v.id ON CONFLICT (id) DO UPDATE SET %s",
		q.table, columns, strings.Join(q.columns, ", v."), q.owners, q.update)
	return b.String()
}

// sizes are the numbers of rows of a statement. There are few, so that each is prepared once.
var sizes = [...]int{256, 64, 16, 4, 1}

const writeLimit = 10 * time.Second // of a statement

// write writes the counts that are kept, and drops those that are written.
func (u *Usage) write(ctx context.Context) error {
	seen := func(c *count) any { return u.c.dialect.Time(time.UnixMicro(c.seen)) }
	err := u.writeAll(ctx, &userUpsert, u.kept[ofUser], func(args []any, id string, c *count) []any {
		return append(args, id, c.day, c.today, c.month, c.thisMonth, c.total, c.exceeded, seen(c))
	})
	if err != nil {
		return err
	}
	return u.writeAll(ctx, &keyUpsert, u.kept[ofKey], func(args []any, id string, c *count) []any {
		return append(args, id, c.total, seen(c))
	})
}

func (u *Usage) writeAll(ctx context.Context, q *upsert, rows map[string]*count, add func([]any, string, *count) []any) error {
	ids := slices.Sorted(maps.Keys(rows))
	var args []any
	text, of := "", 0
	for len(ids) > 0 {
		n := sizes[slices.IndexFunc(sizes[:], func(n int) bool { return n <= len(ids) })]
		if n != of {
			text, of = q.text(n), n
		}
		args = args[:0]
		for _, id := range ids[:n] {
			args = add(args, id, rows[id])
		}
		if err := u.exec(ctx, text, args...); err != nil {
			return err
		}
		for _, id := range ids[:n] {
			delete(rows, id)
		}
		u.flushed.Add(int64(n))
		ids = ids[n:]
	}
	return nil
}

func (u *Usage) exec(ctx context.Context, text string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, u.c.limit(writeLimit))
	defer cancel()
	_, err := u.c.db.ExecContext(ctx, text, args...)
	return err
}
