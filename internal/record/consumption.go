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

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// Account is what the units of requests are recorded by.
type Account struct {
	Start time.Time // of the hour in which they were settled
	// Rule is empty for all rules with the meter: what several of them have counted of one request counts once.
	Rule, Meter string
	Shadow      bool // the rule is log_only
	// Tenant, User, Key and Model are [Other] beyond the bound of a [Book], and empty if there is none.
	Tenant, User, Key, Model string
}

// Units is what requests have used. The most that a number can be is that of a cost.
type Units struct {
	Requests  int64 // that were not cancelled
	Reserved  int64 // before it was known what they use
	Used      int64
	GivenBack int64 // reserved, but not used
	Overshoot int64 // used, but not reserved
	Estimated int64 // used, but estimated: the server has not reported it
}

// Entry is the units of an account.
type Entry struct {
	Account
	Units
}

// mostUnits is the most that is added up: JSON has no larger whole numbers.
const mostUnits = 1<<53 - 1

func (u *Units) add(o *Units) {
	to, from := u.all(), o.all()
	for i := range to {
		*to[i] = min(*to[i]+min(*from[i], mostUnits), mostUnits)
	}
}

// all returns the numbers in the order of unitColumns.
func (u *Units) all() [6]*int64 {
	return [...]*int64{&u.Requests, &u.Reserved, &u.Used, &u.GivenBack, &u.Overshoot, &u.Estimated}
}

var (
	accountColumns = []string{"level", "start", "rule", "meter", "shadow", "tenant", "user_id", "key_id", "model"}
	unitColumns    = []string{"requests", "reserved", "used", "given_back", "overshoot", "estimated"}

	// addUnits adds to a row that exists.
	addUnits = func() string {
		var sets []string
		for _, c := range unitColumns {
			sets = append(sets, fmt.Sprintf("%[1]s = CASE WHEN t.%[1]s + excluded.%[1]s > %[2]d THEN %[2]d ELSE t.%[1]s + excluded.%[1]s END", c, int64(mostUnits)))
		}
		return " ON CONFLICT (" + strings.Join(accountColumns, ", ") + ") DO UPDATE SET " + strings.Join(sets, ", ")
	}()
	intoConsumption = "INSERT INTO stint_consumption AS t (" + strings.Join(slices.Concat(accountColumns, unitColumns), ", ") + ") "
)

// Levels of stint_consumption, as of roll-ups.
const hourLevel, dayLevel = 1, 2

func (a *Account) compare(b *Account) int {
	shadow := 0
	if a.Shadow != b.Shadow {
		shadow = 1
		if b.Shadow {
			shadow = -1
		}
	}
	return cmp.Or(a.Start.Compare(b.Start), strings.Compare(a.Rule, b.Rule), strings.Compare(a.Meter, b.Meter), shadow,
		strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.User, b.User), strings.Compare(a.Key, b.Key), strings.Compare(a.Model, b.Model))
}

// AddConsumption adds entries of different accounts to what is stored of them, all or nothing. A batch that was added
// with the same id within a day is not added again.
func (s *Store) AddConsumption(ctx context.Context, id string, entries []Entry) error {
	err := s.Room()
	if err == nil {
		err = s.Migrate(ctx)
	}
	if err != nil {
		return s.wrap("write usage", err)
	}
	// Sorted, two writers cannot deadlock.
	entries = slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return a.compare(&b.Account) })
	return s.wrap("write usage", inTx(ctx, s.db.Write, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "INSERT INTO stint_consumption_batches (id, at) VALUES ($1, $2) ON CONFLICT DO NOTHING", id, s.db.Time(s.now()))
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
		for some := range slices.Chunk(entries, rowsAtOnce) {
			if err := s.addEntries(ctx, tx, some); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (s *Store) addEntries(ctx context.Context, tx *sql.Tx, entries []Entry) error {
	var args []any
	for i := range entries {
		e := &entries[i]
		args = append(args, hourLevel, s.db.Time(e.Start), e.Rule, e.Meter, e.Shadow, e.Tenant, e.User, e.Key, e.Model)
		for _, n := range e.all() {
			args = append(args, *n)
		}
	}
	_, err := tx.ExecContext(ctx, intoConsumption+"VALUES "+rowsOf(len(entries), len(args))+addUnits, args...)
	return err
}

// ConsumptionQuery selects what requests have used, of all fields that are not empty.
type ConsumptionQuery struct {
	query.Range  // in whole hours; in whole days, if it is 90 days ago
	By           []string
	Rule, Meter  string
	Tenant, User string
	Key, Model   string
	Shadow       bool // of log_only rules, rather than of the others
	Limit        int  // from 1 to 100,000. Default 100
	Skip         int  // how many of the first rows to leave out, at most 1,000,000
}

// Consumption is what requests have used. What it is not grouped by is empty, but for the meter: units of different
// meters are not added up.
type Consumption struct {
	Period                                string // such as 2026-10-31T12:00Z, 2026-10-31 or 2026-10
	Rule, Meter, Tenant, User, Key, Model string
	Units
}

// groups are what consumption can be grouped by, and their columns. Those of periods depend on the database.
var groups = map[string]string{"rule": "rule", "meter": "meter", "tenant": "tenant", "user": "user_id", "key": "key_id", "model": "model", "hour": "", "day": "", "month": ""}

// ConsumptionBy are the names of what consumption can be grouped by.
var ConsumptionBy = []string{"user", "tenant", "key", "model", "rule", "meter", "hour", "day", "month"}

// MaxConsumption is the largest Limit of a [ConsumptionQuery].
const MaxConsumption = 100_000

func (q *ConsumptionQuery) check(p *strict.Report, now time.Time) {
	q.Check(p, now)
	query.CheckLimit(p, &q.Limit, 100, MaxConsumption)
	const maxSkip = 1_000_000
	if q.Skip < 0 || q.Skip > maxSkip {
		p.Refuse("after", strconv.Itoa(q.Skip), "the next of a page before, at most "+strconv.Itoa(maxSkip), "")
	}
	periods := 0
	for i, by := range q.By {
		query.CheckWord(p, "by", by, ConsumptionBy)
		if column, ok := groups[by]; ok && column == "" {
			periods++
		}
		if slices.Contains(q.By[:i], by) || periods > 1 {
			p.Refuse("by", strings.Join(q.By, ","), "each only once, and only one of hour, day and month", "")
			return
		}
	}
}

// where returns the condition of the query.
func (s *Store) consumptionWhere(q *ConsumptionQuery) *query.Where {
	w := new(query.Where)
	to := s.db.Time(query.Ceil(q.To, time.Hour))
	w.And(fmt.Sprintf("(level = %d AND start >= ? AND start < ? OR level = %d AND start >= ? AND start < ?)", hourLevel, dayLevel),
		s.db.Time(q.From.Truncate(time.Hour)), to, s.db.Time(q.From.Truncate(query.Day)), to)
	if w.And("shadow = ?", q.Shadow); q.Rule == "" {
		condition := "rule = ''"
		if slices.Contains(q.By, "rule") {
			condition = "rule <> ''"
		}
		w.And(condition)
	}
	for column, value := range map[string]string{"rule": q.Rule, "meter": q.Meter, "tenant": q.Tenant, "user_id": q.User, "key_id": q.Key, "model": q.Model} {
		w.Is(column, value)
	}
	return w
}

// period returns the expression of a period.
func (s *Store) period(by string) string {
	if s.db.Postgres() {
		format := map[string]string{"hour": `YYYY-MM-DD"T"HH24:MI"Z"`, "day": "YYYY-MM-DD", "month": "YYYY-MM"}[by]
		return "to_char(start AT TIME ZONE 'UTC', '" + format + "')"
	}
	format := map[string]string{"hour": "%Y-%m-%dT%H:%MZ", "day": "%Y-%m-%d", "month": "%Y-%m"}[by]
	return "strftime('" + format + "', start / 1000000, 'unixepoch')"
}

// sum returns the expression of the sum of a column, which does not overflow.
func (s *Store) sum(column string) string {
	if s.db.Postgres() {
		return fmt.Sprintf("CAST(LEAST(sum(%s), %d) AS BIGINT)", column, int64(mostUnits))
	}
	return fmt.Sprintf("CAST(min(total(%s), %d) AS INTEGER)", column, int64(mostUnits)) // such numbers are exact
}

// Consumption returns what requests have used, the most first, and whether there are more rows. Requests of the last
// seconds may be missing: see [Book].
func (s *Store) Consumption(ctx context.Context, q ConsumptionQuery) (rows []Consumption, more bool, err error) {
	var p strict.Report
	if q.check(&p, s.now()); p.Problems.Err() != nil {
		return nil, false, p.Problems.Err()
	}
	var c Consumption
	into := map[string]*string{"rule": &c.Rule, "meter": &c.Meter, "tenant": &c.Tenant, "user": &c.User, "key": &c.Key, "model": &c.Model}
	by := q.By
	if !slices.Contains(by, "meter") {
		by = append(slices.Clone(by), "meter")
	}
	var columns, order []string
	var values []any
	for i, name := range by {
		column, value := groups[name], into[name]
		if column == "" {
			column, value = s.period(name), &c.Period
		}
		columns, values, order = append(columns, column), append(values, value), append(order, strconv.Itoa(i+1))
	}
	grouped := strings.Join(order, ", ")
	for i, n := range c.all() {
		columns, values = append(columns, s.sum(unitColumns[i])), append(values, n)
	}
	w := s.consumptionWhere(&q)
	text := fmt.Sprintf("SELECT %s FROM stint_consumption WHERE %s GROUP BY %s ORDER BY %s DESC, %s LIMIT %d OFFSET %d",
		strings.Join(columns, ", "), w.String(), grouped, s.sum("used"), grouped, q.Limit+1, q.Skip)
	err = query.Each(ctx, s.db.Read, func(r *sql.Rows) error {
		if err := r.Scan(values...); err != nil {
			return err
		}
		rows = append(rows, c)
		return nil
	}, text, w.Args...)
	if more = len(rows) > q.Limit; more {
		rows = rows[:q.Limit]
	}
	return rows, more, s.wrap("find usage", err)
}

const (
	keepHours  = 90 * query.Day
	keepDays   = 7*365*query.Day + 2*query.Day
	keepBatch  = query.Day
	daysAtOnce = 50
)

// FoldConsumption adds up the hours of days that were 90 days ago, and deletes days after 7 years. If another node is
// rolling up, it does nothing.
func (s *Store) FoldConsumption(ctx context.Context) error {
	return s.wrap("add up usage", s.Alone(ctx, func(begin func() (*sql.Tx, error)) error {
		for more, n := true, 0; more && n < daysAtOnce; n++ {
			tx, err := begin()
			if err != nil {
				return err
			}
			if more, err = s.foldDay(ctx, tx); err == nil {
				err = tx.Commit()
			}
			_ = tx.Rollback() // after a commit it does nothing
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// foldDay adds up the first day, and reports whether there was one.
func (s *Store) foldDay(ctx context.Context, tx *sql.Tx) (bool, error) {
	now := s.now()
	if _, err := tx.ExecContext(ctx, "DELETE FROM stint_consumption_batches WHERE at < $1", s.db.Time(now.Add(-keepBatch))); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_consumption WHERE level = %d AND start < $1", dayLevel), s.db.Time(now.Add(-keepDays).Truncate(query.Day))); err != nil {
		return false, err
	}
	old, err := query.Times(ctx, tx, fmt.Sprintf("SELECT start FROM stint_consumption WHERE level = %d AND start < $1 ORDER BY start LIMIT 1", hourLevel),
		s.db.Time(now.Add(-keepHours).Truncate(query.Day)))
	if err != nil || len(old) == 0 {
		return false, err
	}
	day := old[0].Truncate(query.Day)
	var sums []string
	for _, c := range unitColumns {
		sums = append(sums, s.sum(c))
	}
	kept := strings.Join(accountColumns[2:], ", ")
	from, to := s.db.Time(day), s.db.Time(day.Add(query.Day))
	_, err = tx.ExecContext(ctx, fmt.Sprintf("%sSELECT %d, CAST($1 AS TIMESTAMPTZ), %s, %s FROM stint_consumption WHERE level = %d AND start >= $1 AND start < $2 GROUP BY %s%s",
		intoConsumption, dayLevel, kept, strings.Join(sums, ", "), hourLevel, kept, addUnits), from, to)
	if err == nil {
		_, err = tx.ExecContext(ctx, fmt.Sprintf("DELETE FROM stint_consumption WHERE level = %d AND start >= $1 AND start < $2", hourLevel), from, to)
	}
	return true, err
}
