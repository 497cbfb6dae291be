package audit

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
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
		w.and(fmt.Sprintf("outcome = %d", outcomes[name])) // in full, since there is an index for some
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

// made is what there is of roll-ups.
type made struct {
	open  [fives + 1][]time.Time // what is not made yet, or to be made anew; its parts are there
	since [fives + 1]time.Time   // before that, all of a level was deleted
}

// made tells what there is of roll-ups in some time.
func (s *Store) made(ctx context.Context, q querier, r Range) (m made, err error) {
	if m.since, err = s.since(ctx, q); err != nil {
		return m, err
	}
	_, err = collect(ctx, q, func(rows *sql.Rows, _ *struct{}) error {
		var l level
		var start database.Stamp
		err := rows.Scan(&l, &start)
		if err == nil && (l == hour || l == daily) {
			m.open[l] = append(m.open[l], start.Time)
		}
		return err
	}, fmt.Sprintf("SELECT DISTINCT level, start FROM stint_rollup_todo WHERE level > %d AND start >= $1 AND start < $2 ORDER BY start", minute), s.db.Time(r.From.Truncate(day)), s.db.Time(r.To))
	m.open[fives] = m.open[hour]
	return m, err
}

// parts divides a time into parts of the coarsest levels that there are, from one on.
func (m *made) parts(from, to time.Time, l level) []part {
	if !from.Before(to) {
		return nil
	}
	if l == minute {
		return []part{{minute, from, to}}
	}
	inner, outer := ceil(from, l.length()), to.Truncate(l.length())
	if !inner.Before(outer) {
		return m.parts(from, to, l.finer())
	}
	out := m.parts(from, inner, l.finer())
	for _, start := range m.open[l] {
		end := start.Add(max(l.length(), time.Hour)) // fives are open as hours are
		if start, end = later(start, inner), earlier(end, outer); !start.Before(end) {
			continue
		}
		if inner.Before(start) {
			out = append(out, part{l, inner, start})
		}
		out = append(out, m.parts(start, end, l.finer())...)
		inner = end
	}
	if inner.Before(outer) {
		out = append(out, part{l, inner, outer})
	}
	return append(out, m.parts(outer, to, l.finer())...)
}

// widen makes a time whole hours, or whole days where there are no hours any more.
func (m *made) widen(r *Range) {
	r.From, r.To = r.From.Truncate(time.Hour), ceil(r.To, time.Hour)
	if r.From.Before(m.since[hour]) {
		r.From = r.From.Truncate(day)
	}
	if r.To.Before(m.since[hour]) {
		r.To = ceil(r.To, day)
	}
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

// lists returns the condition for lists of a kind in whole hours, of the heads where
// there are any, or of all.
func (s *Store) lists(ctx context.Context, q querier, r Range, kind int, heads bool) (*where, error) {
	m, err := s.made(ctx, q, r)
	if err != nil {
		return nil, err
	}
	m.widen(&r)
	not := partHead
	if heads {
		not = partOfAll
	}
	w := new(where)
	w.and(fmt.Sprintf("kind = %d AND part <> %d", kind, not))
	s.during(w, m.parts(r.From, r.To, daily))
	return w, nil
}

// candidate is one that may be among those who were denied most.
type candidate struct {
	name, rule              string
	denied, refused, atMost int64 // atMost is how often it may have been denied
}

// best are those who were denied most.
type best struct {
	limit int
	all   []candidate
	full  bool  // there are as many as wanted
	floor int64 // who was denied less often is not among them, if it is full
	other int64 // how often one may have been denied who was left out
}

func (b *best) offer(name []byte, rule string, denied, refused, atMost int64) {
	if b.full && denied < b.floor {
		b.leave(denied, atMost)
		return
	}
	b.all = append(b.all, candidate{string(name), rule, denied, refused, atMost})
	if len(b.all) >= 2*b.limit+100 {
		b.cut()
	}
}

// leave leaves one out. If all is known of it, there is no doubt.
func (b *best) leave(denied, atMost int64) {
	if atMost > denied {
		b.other = max(b.other, atMost)
	}
}

func (b *best) cut() {
	slices.SortFunc(b.all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.refused, a.refused), strings.Compare(a.name, b.name), strings.Compare(a.rule, b.rule))
	})
	if len(b.all) < b.limit {
		return
	}
	for _, c := range b.all[b.limit:] {
		b.leave(c.denied, c.atMost)
	}
	b.all = b.all[:b.limit]
	b.full, b.floor = true, b.all[b.limit-1].denied
}

// sure reports whether they are those whatever is true of others, of whom none was denied
// more often than that.
func (b *best) sure(others int64) bool {
	if others == 0 {
		return true
	}
	return b.full && others < b.floor && b.other < b.floor &&
		!slices.ContainsFunc(b.all, func(c candidate) bool { return c.atMost > c.denied })
}

// top returns who was denied most, of a kind, in whole hours: each once, or once for each
// rule.
//
// What the heads of lists say is mostly enough to be sure. If it is not, lists are read as
// a whole.
func (s *Store) top(ctx context.Context, r Range, kind, limit int, rule string, apart bool) (all []candidate, err error) {
	err = s.reading(ctx, func(tx *sql.Tx) error {
		for _, heads := range []bool{true, false} {
			w, err := s.lists(ctx, tx, r, kind, heads)
			if err != nil {
				return err
			}
			var others int64 // how often one may have been denied who is in no head
			if heads {
				if err := tx.QueryRowContext(ctx, "SELECT CAST(coalesce(sum(at_most), 0) AS BIGINT) FROM stint_rollup_lists WHERE "+w.text.String(), w.args...).Scan(&others); err != nil {
					return err
				}
			}
			b := best{limit: limit}
			var rules words
			of := -1
			if rule != "" {
				of = idOf(&rules, rule)
			}
			err = s.merge(ctx, tx, &rules, w, -1, func(e *entry) bool {
				missing := others - e.atMost
				if apart {
					for _, p := range fold(e.pairs) {
						if p.denied > 0 && (of < 0 || p.rule == of) {
							b.offer(e.name, rules.all[p.rule], p.denied, 0, p.denied+missing)
						}
					}
					return true
				}
				if denied, refused := e.by(of); refused > 0 {
					b.offer(e.name, "", denied, refused, denied+missing)
				}
				return true
			})
			if err != nil {
				return err
			}
			b.cut()
			if all = b.all; b.sure(others) {
				return nil
			}
		}
		return nil
	})
	return all, err
}

// TopQuery asks who or what was refused most.
type TopQuery struct {
	Range        // it is widened to whole hours, and where it is older than 90 days to whole days
	By    string // user, tenant, key, ip, rule or endpoint. Default user
	Rule  string // only by that. Empty: by any
	Limit int    // from 1 to 1,000. Default 10
}

// Refusals are how many decisions were refused: by a limit, and for whatever reason.
type Refusals struct {
	Name            string
	Denied, Refused int64
}

// Top returns those that were denied most, the first first. Numbers are exact. It takes
// longer where those who were denied most are hard to tell from the others.
func (s *Store) Top(ctx context.Context, q TopQuery) ([]Refusals, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 10, maxTop)
	q.By = cmp.Or(q.By, kinds[0])
	checkWord(&p, "by", q.By, append(slices.Clone(kinds), "rule", "endpoint"))
	if err := failed(&p); err != nil {
		return nil, err
	}
	var all []candidate
	var err error
	if kind := slices.Index(kinds, q.By); kind >= 0 {
		all, err = s.top(ctx, q.Range, kind, q.Limit, q.Rule, false)
	} else {
		all, err = s.topOfCounts(ctx, q)
	}
	var out []Refusals
	for _, c := range all {
		out = append(out, Refusals{c.name, c.denied, c.refused})
	}
	return out, s.wrap("top of events", err)
}

// topOfCounts returns the rules or endpoints that were denied most.
func (s *Store) topOfCounts(ctx context.Context, q TopQuery) ([]candidate, error) {
	d := byRule
	if q.By == "endpoint" {
		d = dimOf(q.Rule, "", "endpoint", "")
	}
	sums := map[string]*Refusals{}
	err := s.reading(ctx, func(tx *sql.Tx) error {
		m, err := s.made(ctx, tx, q.Range)
		if err != nil {
			return err
		}
		m.widen(&q.Range)
		return s.eachCounts(ctx, tx, d, m.parts(q.From, q.To, daily), func(_ time.Time, c *counted) error {
			name := c.rule
			if q.By == "endpoint" {
				name = c.endpoint
			}
			if c.outcome < engine.Denied || name == "" || q.Rule != "" && c.rule != q.Rule {
				return nil
			}
			n := sums[name]
			if n == nil {
				n = new(Refusals)
				sums[name] = n
			}
			n.Refused += c.total
			if c.outcome == engine.Denied {
				n.Denied += c.total
			}
			return nil
		})
	})
	b := best{limit: q.Limit}
	for name, n := range sums {
		b.offer([]byte(name), "", n.Denied, n.Refused, n.Denied)
	}
	b.cut()
	return b.all, err
}

// ViolationQuery asks which users were denied by which rules.
type ViolationQuery struct {
	Range             // it is widened to whole hours, and where it is older than 90 days to whole days
	User, Rule string // only theirs. Empty: of all
	Limit      int    // from 1 to 1,000. Default 100
}

// Violation is how often a user was denied by a rule.
type Violation struct {
	User, Rule string
	Denied     int64
}

// Violations returns who was denied by what, the most frequent first. Numbers are exact.
func (s *Store) Violations(ctx context.Context, q ViolationQuery) ([]Violation, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	checkLimit(&p, &q.Limit, 100, maxTop)
	if err := failed(&p); err != nil {
		return nil, err
	}
	var all []candidate
	var err error
	if q.User == "" {
		all, err = s.top(ctx, q.Range, 0, q.Limit, q.Rule, true)
	} else {
		all, err = s.violationsOf(ctx, q)
	}
	var out []Violation
	for _, c := range all {
		out = append(out, Violation{c.name, c.rule, c.denied})
	}
	return out, s.wrap("violations", err)
}

// violationsOf returns by what a user was denied, of whom lists have a page each.
func (s *Store) violationsOf(ctx context.Context, q ViolationQuery) ([]candidate, error) {
	b := best{limit: q.Limit}
	hash := hashOf([]byte(q.User))
	err := s.reading(ctx, func(tx *sql.Tx) error {
		w, err := s.lists(ctx, tx, q.Range, 0, false)
		if err != nil {
			return err
		}
		w.and("low <= ? AND high >= ?", hash, hash)
		var rules words
		return s.merge(ctx, tx, &rules, w, hash-1, func(e *entry) bool {
			if string(e.name) == q.User {
				for _, p := range fold(e.pairs) {
					if rule := rules.all[p.rule]; p.denied > 0 && (q.Rule == "" || q.Rule == rule) {
						b.offer(e.name, rule, p.denied, 0, p.denied)
					}
				}
			}
			return e.hash == hash
		})
	})
	b.cut()
	return b.all, err
}

// DistinctQuery asks how many there were that a limit has denied something.
type DistinctQuery struct {
	Range        // it is widened to whole hours, and where it is older than 90 days to whole days
	By    string // user, tenant, key or ip. Default user
	Rule  string // only by that. Empty: by any
}

// Distinct returns how many different ones were denied. The number is exact: it takes as
// long as it takes to read all their names.
func (s *Store) Distinct(ctx context.Context, q DistinctQuery) (int64, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	q.By = cmp.Or(q.By, kinds[0])
	checkWord(&p, "by", q.By, kinds)
	if err := failed(&p); err != nil {
		return 0, err
	}
	var n int64
	err := s.reading(ctx, func(tx *sql.Tx) error {
		w, err := s.lists(ctx, tx, q.Range, slices.Index(kinds, q.By), false)
		if err != nil {
			return err
		}
		var rules words
		of := -1
		if q.Rule != "" {
			of = idOf(&rules, q.Rule)
		}
		return s.merge(ctx, tx, &rules, w, -1, func(e *entry) bool {
			if denied, _ := e.by(of); denied > 0 {
				n++
			}
			return true
		})
	})
	return n, s.wrap("distinct clients", err)
}

// SeriesQuery asks how numbers have changed.
type SeriesQuery struct {
	// From is rounded down to a whole minute, and To up; where it is older than 7 days to
	// whole hours, and where it is older than 90 days to whole days.
	Range
	// Step is the time between points, which lie at its multiples; the first and the last
	// may have less. It is whole minutes, whole hours from an hour on, and whole days from
	// a day on, with at most 500 points; an hour or more if From is older than 7 days, and
	// a day or more if it is older than 90 days. 0 is the shortest that looks well.
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
	if q.Step != 0 && (q.Step < 0 || q.Step%q.whole().length() != 0) {
		p.Refuse("step", q.Step.String(), "whole minutes, whole hours from 1h on, whole days from 24h on", "")
	}
}

// fit makes it one that there are roll-ups for.
func (q *SeriesQuery) fit(p *strict.Report, m *made) {
	least := minute
	for _, l := range []level{hour, daily} {
		if q.From.Before(m.since[l-1]) {
			least = l
		}
		if q.To.Before(m.since[l-1]) {
			q.To = ceil(q.To, l.length())
		}
	}
	q.From, q.To = q.From.Truncate(least.length()), ceil(q.To, time.Minute)
	if q.Step == 0 {
		for _, q.Step = range steps {
			if q.Step >= least.length() && q.points() <= maxPoints {
				return
			}
		}
	}
	switch {
	case q.Step < least.length():
		p.Refuse("step", q.Step.String(), fmt.Sprintf("%v or more: what is finer is not kept from %s on any more", least.length(), q.From.Format(time.RFC3339)), "")
	case q.points() > maxPoints:
		p.Refuse("step", q.Step.String(), fmt.Sprintf("one that makes at most %d points of the time from %s to %s", maxPoints, q.From.Format(time.RFC3339), q.To.Format(time.RFC3339)), "")
	}
}

// whole is the level that a step has to consist of.
func (q *SeriesQuery) whole() level {
	switch {
	case q.Step >= day:
		return daily
	case q.Step >= time.Hour:
		return hour
	default:
		return minute
	}
}

// coarsest is the coarsest level that steps consist of.
func (q *SeriesQuery) coarsest() level {
	if l := q.whole(); l != minute || q.Step%fives.length() != 0 {
		return l
	}
	return fives
}

// has reports whether a group is asked for, and returns the name of its series.
func (q *SeriesQuery) has(c *counted) (name string, ok bool) {
	switch {
	case q.Rule != "" && q.Rule != c.rule, q.Tier != "" && q.Tier != c.tier,
		q.Endpoint != "" && q.Endpoint != c.endpoint, q.Region != "" && q.Region != c.region,
		q.Outcome != "" && outcomes[q.Outcome] != c.outcome, q.Shadow != nil && *q.Shadow != c.shadow:
		return "", false
	}
	switch q.By {
	case "outcome":
		name = c.outcome.String()
	case "rule":
		name = c.rule
	case "tier":
		name = c.tier
	case "endpoint":
		name = c.endpoint
	case "region":
		name = c.region
	}
	return name, true
}

// dim is what has to be told apart.
func (q *SeriesQuery) dim() dim {
	with := *q
	for by, into := range map[string]*string{"rule": &with.Rule, "tier": &with.Tier, "endpoint": &with.Endpoint, "region": &with.Region} {
		if q.By == by {
			*into = by
		}
	}
	return dimOf(with.Rule, with.Tier, with.Endpoint, with.Region)
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
	var names []string
	var first time.Time
	all := map[string][]sums{}
	err := s.reading(ctx, func(tx *sql.Tx) error {
		m, err := s.made(ctx, tx, q.Range)
		if err != nil {
			return err
		}
		if q.fit(&p, &m); len(p.Problems) > 0 {
			return nil
		}
		parts := m.parts(q.From, q.To, q.coarsest())
		totals := map[string]int64{}
		err = s.eachCounts(ctx, tx, q.dim(), parts, func(_ time.Time, c *counted) error {
			if name, ok := q.has(c); ok {
				totals[name] += c.total
			}
			return nil
		})
		if err != nil {
			return err
		}
		names = slices.SortedFunc(maps.Keys(totals), func(a, b string) int { return cmp.Or(cmp.Compare(totals[b], totals[a]), strings.Compare(a, b)) })
		names = names[:min(len(names), q.Limit)]
		for _, name := range names {
			all[name] = make([]sums, q.points())
		}
		first = q.From.Truncate(q.Step)
		return s.eachCounts(ctx, tx, q.dim(), parts, func(start time.Time, c *counted) error {
			name, ok := q.has(c)
			if !ok {
				return nil
			}
			points := all[name]
			if points == nil {
				if points = all[rest]; points == nil {
					points = make([]sums, q.points())
					all[rest] = points
				}
			}
			return points[start.Sub(first)/q.Step].add(c)
		})
	})
	if err == nil {
		err = failed(&p)
	}
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		return nil, problems
	}
	if err != nil {
		return nil, s.wrap("series of events", err)
	}
	var out []Series
	for _, name := range names {
		out = append(out, Series{Name: name, Points: pointsOf(all[name], first, q.Step)})
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
