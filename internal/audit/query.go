package audit

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/database"
	"github.com/stintdev/stint/internal/strict"
)

const (
	// maxRange is the longest time that can be asked about.
	maxRange = 366 * day
	// maxPoints is how many points a series has at most.
	maxPoints = 500
	// maxEvents and maxTop are how many events, and names, an answer has at most.
	maxEvents, maxTop = 1000, 1000
)

// Range is a time: From, and what is before To. To is now if it is zero, and From a day
// before.
type Range struct{ From, To time.Time }

func (r *Range) check(p *strict.Report, now time.Time) {
	if r.To.IsZero() {
		r.To = now
	}
	if r.From.IsZero() {
		r.From = r.To.Add(-day)
	}
	r.From, r.To = r.From.UTC().Truncate(time.Microsecond), r.To.UTC().Truncate(time.Microsecond)
	for _, t := range []struct {
		field string
		time.Time
	}{{"from", r.From}, {"to", r.To}} {
		if t.Year() < firstYear || t.Year() > lastYear {
			p.Refuse(t.field, t.Format(time.RFC3339), fmt.Sprintf("a time from the year %d to %d", firstYear, lastYear), "")
			return
		}
	}
	switch {
	case !r.From.Before(r.To):
		p.Refuse("from", r.From.Format(time.RFC3339Nano), "a time before to, which is "+r.To.Format(time.RFC3339Nano), "")
	case r.To.Sub(r.From) > maxRange:
		p.Refuse("from", r.From.Format(time.RFC3339), "at most 366 days before to, which is "+r.To.Format(time.RFC3339), "")
	}
}

// widen makes it whole hours.
func (r *Range) widen() {
	r.From, r.To = r.From.Truncate(time.Hour), ceil(r.To, time.Hour)
}

func ceil(t time.Time, unit time.Duration) time.Time { return t.Add(unit - 1).Truncate(unit) }

// checkLimit makes a number of 0 the default.
func checkLimit(p *strict.Report, limit *int, otherwise, most int) {
	if *limit == 0 {
		*limit = otherwise
	}
	if *limit < 1 || *limit > most {
		p.Refuse("limit", strconv.Itoa(*limit), fmt.Sprintf("a number from 1 to %d", most), "")
	}
}

// checkWord refuses what is not one of some words.
func checkWord(p *strict.Report, field, word string, words []string) {
	if !slices.Contains(words, word) {
		p.Refuse(field, word, "one of "+strings.Join(words, ", "), p.Closest(word, words))
	}
}

func checkOutcome(p *strict.Report, outcome string) {
	if outcome != "" {
		words := make([]string, len(outcomes))
		for word, o := range outcomes {
			words[o] = word
		}
		checkWord(p, "outcome", outcome, words)
	}
}

func failed(p *strict.Report) error {
	if len(p.Problems) > 0 {
		return p.Problems
	}
	return nil
}

// where is a condition with its arguments.
type where struct {
	text strings.Builder
	args []any
}

// and adds a condition, in which ? stands for an argument each.
func (w *where) and(condition string, args ...any) {
	if w.text.Len() > 0 {
		w.text.WriteString(" AND ")
	}
	for _, arg := range args {
		w.args = append(w.args, arg)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(w.args)), 1)
	}
	w.text.WriteString(condition)
}

// is adds that a column has a value, if that is not empty.
func (w *where) is(column, value string) {
	if value != "" {
		w.and(column+" = ?", value)
	}
}

func (w *where) outcome(name string, shadow *bool) {
	if name != "" {
		w.and("outcome = ?", int64(outcomes[name]))
	}
	if shadow != nil {
		w.and("shadow = ?", *shadow)
	}
}

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

// Find returns events, the newest first, and where to go on: the zero Cursor if there are
// no more.
func (s *Store) Find(ctx context.Context, q EventQuery) ([]Event, Cursor, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 100, maxEvents)
	checkOutcome(&p, q.Outcome)
	if err := failed(&p); err != nil {
		return nil, Cursor{}, err
	}
	var events []Event
	err := s.reading(ctx, func(tx *sql.Tx) error {
		months, err := s.tables.list(ctx, tx)
		slices.Reverse(months)
		for _, m := range months {
			if err != nil || len(events) > q.Limit {
				return err
			}
			var w where
			from, to := later(q.From, m.Start()), earlier(q.To, m.End())
			if q.After != (Cursor{}) {
				to = earlier(to, q.After.At.Add(time.Microsecond))
				w.and("(at, id) < (?, ?)", s.db.Time(q.After.At), s.tables.id(q.After.ID))
			}
			if !from.Before(to) {
				continue
			}
			w.and("at >= ? AND at < ?", s.db.Time(from), s.db.Time(to))
			for column, value := range map[string]string{
				"user_id": q.User, "tenant": q.Tenant, "key_id": q.Key, "ip": q.IP, "rule": q.Rule,
				"endpoint": q.Endpoint, "method": q.Method, "region": q.Region, "node": q.Node,
			} {
				w.is(column, value)
			}
			w.outcome(q.Outcome, q.Shadow)
			var some []Event
			// One more than wanted tells whether there are more.
			some, err = s.events(ctx, tx, "SELECT "+strings.Join(columns, ", ")+" FROM "+s.tables.name(m)+" WHERE "+w.text.String()+
				" ORDER BY at DESC, id DESC LIMIT "+strconv.Itoa(q.Limit+1-len(events)), w.args...)
			events = append(events, some...)
		}
		return err
	})
	if err != nil {
		return nil, Cursor{}, s.wrap("find events", err)
	}
	if len(events) <= q.Limit {
		return events, Cursor{}, nil
	}
	last := &events[q.Limit-1]
	return events[:q.Limit], Cursor{last.At, last.ID}, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// reading runs f in a transaction that sees one moment.
func (s *Store) reading(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.Read.BeginTx(ctx, s.db.ReadOnly())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to lose
	return f(tx)
}

// part is a time that a level covers in full.
type part struct {
	level    level
	from, to time.Time
}

// parts divides a time, which is whole units of the finest level, into parts of the
// coarsest levels that fit.
func parts(from, to time.Time, finest, coarsest level) (out []part) {
	if coarsest > finest {
		unit := coarsest.length()
		if inner, outer := ceil(from, unit), to.Truncate(unit); inner.Before(outer) {
			out = append(out, part{coarsest, inner, outer})
			out = append(out, parts(from, inner, finest, coarsest-1)...)
			return append(out, parts(outer, to, finest, coarsest-1)...)
		}
		return parts(from, to, finest, coarsest-1)
	}
	if from.Before(to) {
		out = append(out, part{finest, from, to})
	}
	return out
}

// during adds that a roll-up is in one of the parts.
func (s *Store) during(w *where, parts []part) {
	var conditions []string
	var args []any
	for _, p := range parts {
		conditions = append(conditions, fmt.Sprintf("level = %d AND start >= ? AND start < ?", p.level))
		args = append(args, s.db.Time(p.from), s.db.Time(p.to))
	}
	w.and("("+strings.Join(conditions, " OR ")+")", args...)
}

// subjectParts are the parts for who was refused, of whole hours. What is not in an hour
// yet is in its minutes, so that all can be added.
func subjectParts(r Range) []part {
	return append(parts(r.From, r.To, hour, daily), part{minute, r.From, r.To})
}

// TopQuery asks who or what was refused most.
type TopQuery struct {
	Range        // it is widened to whole hours
	By    string // user, tenant, key, ip, rule or endpoint. Default user
	Rule  string // only by that. Empty: by any
	Limit int    // from 1 to 1,000. Default 10
}

// Refusals are how many decisions were refused: by a limit, and for whatever reason.
type Refusals struct {
	Name            string
	Denied, Refused int64
}

// Top returns those that were denied most, the first first.
func (s *Store) Top(ctx context.Context, q TopQuery) ([]Refusals, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 10, maxTop)
	q.By = cmp.Or(q.By, kinds[0])
	checkWord(&p, "by", q.By, append(slices.Clone(kinds), "rule", "endpoint"))
	if err := failed(&p); err != nil {
		return nil, err
	}
	q.widen()
	var w where
	column, table, sums := "subject", "stint_subject_rollups", "CAST(sum(denied) AS BIGINT) AS denied, CAST(sum(refused) AS BIGINT) AS refused"
	if kind := slices.Index(kinds, q.By); kind >= 0 {
		w.and("kind = " + strconv.Itoa(kind))
		s.during(&w, subjectParts(q.Range))
	} else {
		column, table = q.By, "stint_rollups"
		sums = fmt.Sprintf("CAST(sum(CASE WHEN outcome = %d THEN total ELSE 0 END) AS BIGINT) AS denied, CAST(sum(total) AS BIGINT) AS refused", engine.Denied)
		w.and(fmt.Sprintf("outcome >= %d AND %s <> ''", engine.Denied, column))
		s.during(&w, parts(q.From, q.To, minute, daily))
	}
	w.is("rule", q.Rule)
	top, err := collect(ctx, s.db.Read, func(rows *sql.Rows, r *Refusals) error { return rows.Scan(&r.Name, &r.Denied, &r.Refused) },
		"SELECT "+column+", "+sums+" FROM "+table+" WHERE "+w.text.String()+" GROUP BY "+column+" ORDER BY denied DESC, refused DESC, "+column+" LIMIT "+strconv.Itoa(q.Limit), w.args...)
	return top, s.wrap("top of events", err)
}

// ViolationQuery asks which users were denied by which rules.
type ViolationQuery struct {
	Range             // it is widened to whole hours
	User, Rule string // only theirs. Empty: of all
	Limit      int    // from 1 to 1,000. Default 100
}

// Violation is how often a user was denied by a rule.
type Violation struct {
	User, Rule string
	Denied     int64
}

// Violations returns who was denied by what, the most frequent first.
func (s *Store) Violations(ctx context.Context, q ViolationQuery) ([]Violation, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 100, maxTop)
	if err := failed(&p); err != nil {
		return nil, err
	}
	q.widen()
	var w where
	w.and("kind = 0 AND denied > 0")
	s.during(&w, subjectParts(q.Range))
	w.is("subject", q.User)
	w.is("rule", q.Rule)
	all, err := collect(ctx, s.db.Read, func(rows *sql.Rows, v *Violation) error { return rows.Scan(&v.User, &v.Rule, &v.Denied) },
		"SELECT subject, rule, CAST(sum(denied) AS BIGINT) AS violations FROM stint_subject_rollups WHERE "+w.text.String()+
			" GROUP BY subject, rule ORDER BY violations DESC, subject, rule LIMIT "+strconv.Itoa(q.Limit), w.args...)
	return all, s.wrap("violations", err)
}

// DistinctQuery asks how many there were that a limit has denied something.
type DistinctQuery struct {
	Range        // it is widened to whole hours
	By    string // user, tenant, key or ip. Default user
	Rule  string // only by that. Empty: by any
}

// Distinct returns how many different ones were denied.
func (s *Store) Distinct(ctx context.Context, q DistinctQuery) (int64, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	q.By = cmp.Or(q.By, kinds[0])
	checkWord(&p, "by", q.By, kinds)
	if err := failed(&p); err != nil {
		return 0, err
	}
	q.widen()
	var w where
	w.and("kind = " + strconv.Itoa(slices.Index(kinds, q.By)) + " AND denied > 0")
	s.during(&w, subjectParts(q.Range))
	w.is("rule", q.Rule)
	var n int64
	err := s.db.Read.QueryRowContext(ctx, "SELECT count(DISTINCT subject) FROM stint_subject_rollups WHERE "+w.text.String(), w.args...).Scan(&n)
	return n, s.wrap("distinct clients", err)
}

// SeriesQuery asks how numbers have changed.
type SeriesQuery struct {
	Range // From is rounded down to a whole minute, and To up
	// Step is the time between points, which lie at its multiples; the first and the last
	// may have less. It is whole minutes, whole hours from an hour on, and whole days from
	// a day on, with at most 500 points. 0 is the shortest that looks well.
	Step time.Duration
	// By is what there is a series for each of: outcome, rule, tier, endpoint or region.
	// Empty: there is one.
	By string
	// Only decisions with all of these that are not empty are counted.
	Rule, Tier, Endpoint, Region string
	Outcome                      string
	Shadow                       *bool
	Limit                        int // of series, from 1 to 50. The rest are one. Default 20
}

// Series is how numbers have changed.
type Series struct {
	Name   string // of what it is about
	Rest   bool   // it is all that found no place in others
	Points []Point
}

// Point is numbers of a time.
type Point struct {
	Start         time.Time
	Total         int64 // decisions
	Events        int64 // those of which there is an event
	Cached        int64 // decisions that rest on what was remembered
	P50, P95, P99 time.Duration
}

// steps are those that look well.
var steps = []time.Duration{
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day,
}

// points is how many points there are.
func (q *SeriesQuery) points() int64 {
	return int64(ceil(q.To, q.Step).Sub(q.From.Truncate(q.Step)) / q.Step)
}

func (q *SeriesQuery) check(p *strict.Report, now time.Time) {
	q.Range.check(p, now)
	checkLimit(p, &q.Limit, 20, 50)
	checkOutcome(p, q.Outcome)
	if q.By != "" {
		checkWord(p, "by", q.By, []string{"outcome", "rule", "tier", "endpoint", "region"})
	}
	if len(p.Problems) > 0 {
		return
	}
	q.From, q.To = q.From.Truncate(time.Minute), ceil(q.To, time.Minute)
	if q.Step == 0 {
		for _, q.Step = range steps {
			if q.points() <= maxPoints {
				return
			}
		}
	}
	whole := q.finest().length()
	switch {
	case q.Step < 0 || q.Step%whole != 0:
		p.Refuse("step", q.Step.String(), "whole minutes, whole hours from 1h on, whole days from 24h on", "")
	case q.points() > maxPoints:
		p.Refuse("step", q.Step.String(), fmt.Sprintf("one that makes at most %d points of the time from %s to %s", maxPoints, q.From.Format(time.RFC3339), q.To.Format(time.RFC3339)), "")
	}
}

// finest is the coarsest level of which a step may consist.
func (q *SeriesQuery) finest() level {
	switch {
	case q.Step >= day:
		return daily
	case q.Step >= time.Hour:
		return hour
	default:
		return minute
	}
}

// Series returns the series that were asked for, that with the most decisions first, and
// the rest last. All have the same points. Percentiles are those of all decisions of a
// point, not means of others.
func (s *Store) Series(ctx context.Context, q SeriesQuery) ([]Series, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	if err := failed(&p); err != nil {
		return nil, err
	}
	var w where
	s.during(&w, parts(q.From, q.To, minute, q.finest()))
	for column, value := range map[string]string{"rule": q.Rule, "tier": q.Tier, "endpoint": q.Endpoint, "region": q.Region} {
		w.is(column, value)
	}
	w.outcome(q.Outcome, q.Shadow)
	name := cmp.Or(q.By, "''")
	from := " FROM stint_rollups WHERE " + w.text.String()
	first, points := q.From.Truncate(q.Step), int(q.points())
	var names []string
	all := map[string][]sums{}
	err := s.reading(ctx, func(tx *sql.Tx) (err error) {
		names, err = collect(ctx, tx, func(rows *sql.Rows, name *string) error { return rows.Scan(name) },
			"SELECT CAST("+name+" AS TEXT) AS name"+from+" GROUP BY 1 ORDER BY sum(total) DESC, 1 LIMIT "+strconv.Itoa(q.Limit), w.args...)
		if err != nil {
			return err
		}
		// Rows are added up as they come: there may be very many.
		_, err = collect(ctx, tx, func(rows *sql.Rows, _ *struct{}) error {
			var c counted
			var start database.Stamp
			var name string
			if err := c.scan(rows, &start, &name); err != nil {
				return err
			}
			if !slices.Contains(names, name) {
				name = rest
			}
			if all[name] == nil {
				all[name] = make([]sums, points)
			}
			all[name][start.Sub(first)/q.Step].merge(&c.sums)
			return nil
		}, "SELECT start, CAST("+name+" AS TEXT), "+groupColumns+from, w.args...)
		return err
	})
	if err != nil {
		return nil, s.wrap("series of events", err)
	}
	var out []Series
	for _, name := range names {
		series := Series{Name: name, Points: pointsOf(all[name], first, q.Step)}
		if n, err := strconv.Atoi(name); q.By == "outcome" && err == nil {
			series.Name = engine.Outcome(n).String()
		}
		out = append(out, series)
	}
	if left := all[rest]; left != nil {
		out = append(out, Series{Rest: true, Points: pointsOf(left, first, q.Step)})
	}
	return out, nil
}

// rest is no name of anything: databases do not take it.
const rest = "\x00"

func pointsOf(all []sums, first time.Time, step time.Duration) []Point {
	out := make([]Point, len(all))
	for i := range all {
		n := &all[i]
		out[i] = Point{
			Start: first.Add(time.Duration(i) * step), Total: n.total, Events: n.events, Cached: n.cached,
			P50: n.latency.Quantile(0.5), P95: n.latency.Quantile(0.95), P99: n.latency.Quantile(0.99),
		}
	}
	return out
}
