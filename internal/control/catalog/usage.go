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
	// Interval is how often what was counted is written. Default 5 s.
	Interval time.Duration
	// MaxIDs is how many users, how many keys, and how many users of rules in an hour
	// are counted between two writes, and kept if a write fails. What is beyond is
	// dropped. Default 100,000.
	MaxIDs int
	// Retention is how long violations are kept. Default 90 days.
	Retention time.Duration
	// Log is told when what was counted cannot be written. Default: nothing is.
	Log *slog.Logger
}

// Usage counts what requests users and API keys make, and writes it behind: adding to
// what is there, as other nodes do. It raises no revision, and is in no log of changes.
//
// Of users it counts requests, and those that a limit has denied; of a user and a rule
// those that were denied, by the hour, which are the violations. A ban is not one, nor
// is what a rule that is only tried out would have denied. What comes with credentials
// that were refused is no one's. Days and months are those of UTC.
//
// Only users and keys of the catalog are written. Violations are those of all users.
//
// What cannot be written is kept, and written with what comes next. If it is not known
// whether a statement was carried out, as when a connection breaks, it is made again:
// its rows, at most 256, may then be counted twice.
type Usage struct {
	c    *Catalog
	o    UsageOptions
	seed maphash.Seed

	shards [64]shard
	// counted is how many users, keys and violations the shards have.
	counted [3]atomic.Int64

	turn chan struct{} // of who writes; the rest of these are theirs
	kept counts        // what is to be written
	old  time.Time     // when it was last looked for violations to be forgotten
	away bool          // the last write has failed

	keeping, flushed, dropped, failed atomic.Int64

	stop, cut context.CancelFunc // nil: it was not started
	work      sync.WaitGroup
}

var _ engine.Recorder = (*Usage)(nil)

// UsageStats are numbers since [Catalog.NewUsage].
type UsageStats struct {
	Pending int64 // users, keys and violations that are to be written
	Flushed int64 // those that were
	Dropped int64 // counts of requests for which there was no room
	Errors  int64 // times that they could not be written
}

// counts are what was counted, of each user, key and violation.
type counts struct {
	users      map[string]*userCount
	keys       map[string]*keyCount
	violations map[violation]*denials
}

func newCounts() counts {
	return counts{map[string]*userCount{}, map[string]*keyCount{}, map[violation]*denials{}}
}

func (c *counts) len() int { return len(c.users) + len(c.keys) + len(c.violations) }

// shard is the counts of some users, and of keys that came with them or without any.
type shard struct {
	mu sync.Mutex
	counts
	_ [88]byte // so that those who count do not meet
}

// userCount has the numbers of the last day and month in which there were requests.
type userCount struct {
	day, today       int64
	month, thisMonth int64
	total, exceeded  int64
	seen             int64 // in microseconds since 1970
}

type keyCount struct {
	total int64
	used  int64 // in microseconds since 1970
}

type violation struct {
	hour       int64
	rule, user string
}

type denials int64

const (
	secondsOfHour = 60 * 60
	secondsOfDay  = 24 * secondsOfHour
)

// monthOf returns the month of a day. Both are counted from January 1970.
func monthOf(day int64) int64 {
	t := time.Unix(day*secondsOfDay, 0).UTC()
	return int64(t.Year()-1970)*12 + int64(t.Month()-time.January)
}

// later returns the number of the later of two periods, or the sum if they are one.
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

func (c *userCount) add(o *userCount) {
	c.day, c.today = later(c.day, c.today, o.day, o.today)
	c.month, c.thisMonth = later(c.month, c.thisMonth, o.month, o.thisMonth)
	c.total, c.exceeded, c.seen = c.total+o.total, c.exceeded+o.exceeded, max(c.seen, o.seen)
}

func (c *keyCount) add(o *keyCount) { c.total, c.used = c.total+o.total, max(c.used, o.used) }
func (d *denials) add(o *denials)   { *d += *o }

func (c *userCount) requests() int64 { return c.total }
func (c *keyCount) requests() int64  { return c.total }
func (d *denials) requests() int64   { return int64(*d) }

// one counts a request.
func (c *userCount) one(at time.Time, exceeded int64) {
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
	if o.Retention <= 0 {
		o.Retention = 90 * 24 * time.Hour
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
func (u *Usage) Record(e *engine.Event) {
	if e.User == "" && e.Key == "" || e.Outcome == engine.Unauthorized {
		return
	}
	s := &u.shards[maphash.String(u.seed, cmp.Or(e.User, e.Key))%uint64(len(u.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.User != "" {
		c := s.users[e.User]
		if c == nil && u.room(0, identity.ValidID(e.User)) {
			c = new(userCount)
			s.users[strings.Clone(e.User)] = c // what it was cut from may be large
		}
		exceeded := int64(0)
		if e.Outcome == engine.Denied {
			exceeded = 1
			u.deny(s, violation{hourOf(e.At), e.Rule, e.User})
		}
		if c != nil {
			c.one(e.At, exceeded)
		}
	}
	if e.Key != "" {
		c := s.keys[e.Key]
		if c == nil && u.room(1, validKeyID(e.Key)) {
			c = new(keyCount)
			s.keys[strings.Clone(e.Key)] = c
		}
		if c != nil {
			c.total++
			c.used = max(c.used, e.At.UnixMicro())
		}
	}
}

func (u *Usage) deny(s *shard, v violation) {
	n := s.violations[v]
	if n == nil && u.room(2, identity.ValidID(v.rule) && identity.ValidID(v.user)) {
		n = new(denials)
		v.rule, v.user = strings.Clone(v.rule), strings.Clone(v.user)
		s.violations[v] = n
	}
	if n != nil {
		*n++
	}
}

// room takes a place for one more, if there is one and if the database would take it.
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

// Stats returns how much there is to write, and what became of the rest.
func (u *Usage) Stats() UsageStats {
	s := UsageStats{Pending: u.keeping.Load(), Flushed: u.flushed.Load(), Dropped: u.dropped.Load(), Errors: u.failed.Load()}
	for i := range u.counted {
		s.Pending += u.counted[i].Load()
	}
	return s
}

// Start writes every so often what was counted, until ctx ends or Stop is called.
func (u *Usage) Start(ctx context.Context) {
	writing, cut := context.WithCancel(context.WithoutCancel(ctx)) // what has begun should end
	ctx, u.stop = context.WithCancel(ctx)
	u.cut = cut
	u.work.Go(func() {
		defer cut()
		tick := time.NewTicker(u.o.Interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = u.Flush(writing) // it says so itself
			}
		}
	})
}

// Stop ends that, and writes what is left. It does not take longer than ctx.
func (u *Usage) Stop(ctx context.Context) error {
	if u.stop != nil {
		u.stop()
		defer context.AfterFunc(ctx, u.cut)()
		u.work.Wait()
	}
	return u.Flush(ctx)
}

// Flush writes what was counted, now. What could not be written is kept.
func (u *Usage) Flush(ctx context.Context) error {
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	u.collect()
	err := u.write(ctx)
	u.keeping.Store(int64(u.kept.len()))
	switch {
	case err != nil:
		u.failed.Add(1)
		err = fmt.Errorf("usage: %w", u.c.wrap(err))
		if !u.away {
			u.o.Log.WarnContext(ctx, "usage cannot be written, it is kept", "problem", err.Error())
		}
	case u.away:
		u.o.Log.InfoContext(ctx, "usage is written again")
	}
	u.away = err != nil
	return err
}

// collect moves what the shards have to what is kept.
func (u *Usage) collect() {
	if u.kept.len() == 0 {
		u.kept = newCounts() // maps do not shrink
	}
	for i := range u.shards {
		got := u.shards[i].take()
		u.keeping.Add(int64(got.len()))
		for kind, n := range [...]int{len(got.users), len(got.keys), len(got.violations)} {
			u.counted[kind].Add(-int64(n))
		}
		merge(u, u.kept.users, got.users, (*userCount).add, (*userCount).requests)
		merge(u, u.kept.keys, got.keys, (*keyCount).add, (*keyCount).requests)
		merge(u, u.kept.violations, got.violations, (*denials).add, (*denials).requests)
	}
}

// take returns what was counted, and begins anew.
func (s *shard) take() (got counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.len() > 0 {
		got, s.counts = s.counts, newCounts()
	}
	return got
}

// merge adds what was counted to what is kept, as far as there is room.
func merge[K comparable, V any](u *Usage, into, from map[K]V, add func(V, V), requests func(V) int64) {
	for k, v := range from {
		switch have, ok := into[k]; {
		case ok:
			add(have, v)
		case len(into) < u.o.MaxIDs:
			into[k] = v
		default:
			u.dropped.Add(requests(v))
		}
	}
}

// upsert adds rows to those of a table.
type upsert struct {
	table   string
	columns []string
	types   []string // of columns
	only    string   // joins what rows must be of
	order   string   // of rows, so that writers do not wait for each other in a circle
	add     string   // to the row t that is there
}

var (
	userUpsert = upsert{
		table:   "stint_user_usage",
		columns: []string{"id", "day", "today", "month", "this_month", "total", "exceeded", "last_seen"},
		types:   []string{"TEXT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "TIMESTAMPTZ"},
		only:    "JOIN stint_users u ON u.id = v.id",
		order:   "v.id",
		add: `(id) DO UPDATE SET
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
		only:    "JOIN stint_api_keys k ON k.id = v.id",
		order:   "v.id",
		add: `(id) DO UPDATE SET total = t.total + excluded.total,
			last_used = CASE WHEN t.last_used > excluded.last_used THEN t.last_used ELSE excluded.last_used END`,
	}
	violationUpsert = upsert{
		table:   "stint_violations",
		columns: []string{"hour", "rule", "user_id", "denied"},
		types:   []string{"BIGINT", "TEXT", "TEXT", "BIGINT"},
		order:   "v.hour, v.rule, v.user_id",
		add:     "(hour, rule, user_id) DO UPDATE SET denied = t.denied + excluded.denied",
	}
)

// text returns the statement for n rows. What is the same to both databases is that a
// CAST tells PostgreSQL what an argument is and leaves numbers of SQLite as they are.
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
	fmt.Fprintf(&b, ")) INSERT INTO %s AS t (%s) SELECT v.%s FROM v %s WHERE TRUE ORDER BY %s ON CONFLICT %s",
		q.table, columns, strings.Join(q.columns, ", v."), q.only, q.order, q.add)
	return b.String()
}

// sizes are how many rows a statement has: few texts are prepared again and again.
var sizes = [...]int{256, 64, 16, 4, 1}

const (
	writeLimit = 10 * time.Second // of a statement
	sweepEvery = time.Hour
)

// write writes what is kept, and forgets what is written.
func (u *Usage) write(ctx context.Context) error {
	moment := func(micros int64) any { return u.c.dialect.Time(time.UnixMicro(micros)) }
	err := writeAll(ctx, u, &userUpsert, u.kept.users, strings.Compare, func(args []any, id string, c *userCount) []any {
		return append(args, id, c.day, c.today, c.month, c.thisMonth, c.total, c.exceeded, moment(c.seen))
	})
	if err != nil {
		return err
	}
	err = writeAll(ctx, u, &keyUpsert, u.kept.keys, strings.Compare, func(args []any, id string, c *keyCount) []any {
		return append(args, id, c.total, moment(c.used))
	})
	if err != nil {
		return err
	}
	inOrder := func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.hour, b.hour), strings.Compare(a.rule, b.rule), strings.Compare(a.user, b.user))
	}
	err = writeAll(ctx, u, &violationUpsert, u.kept.violations, inOrder, func(args []any, v violation, n *denials) []any {
		return append(args, v.hour, v.rule, v.user, int64(*n))
	})
	if err != nil {
		return err
	}
	return u.sweep(ctx)
}

func writeAll[K comparable, V any](ctx context.Context, u *Usage, q *upsert, rows map[K]V, order func(a, b K) int, add func([]any, K, V) []any) error {
	keys := slices.SortedFunc(maps.Keys(rows), order)
	var args []any
	text, of := "", 0
	for len(keys) > 0 {
		n := sizes[slices.IndexFunc(sizes[:], func(n int) bool { return n <= len(keys) })]
		if n != of {
			text, of = q.text(n), n
		}
		args = args[:0]
		for _, k := range keys[:n] {
			args = add(args, k, rows[k])
		}
		if err := u.exec(ctx, text, args...); err != nil {
			return err
		}
		for _, k := range keys[:n] {
			delete(rows, k)
		}
		u.flushed.Add(int64(n))
		keys = keys[n:]
	}
	return nil
}

func (u *Usage) exec(ctx context.Context, text string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	_, err := u.c.db.ExecContext(ctx, text, args...)
	return err
}

// sweep deletes violations that are old, every so often.
func (u *Usage) sweep(ctx context.Context) error {
	now := u.c.options.Now()
	if now.Sub(u.old) < sweepEvery {
		return nil
	}
	if err := u.exec(ctx, "DELETE FROM stint_violations WHERE hour < $1", hourOf(now.Add(-u.o.Retention))); err != nil {
		return err
	}
	u.old = now
	return nil
}
