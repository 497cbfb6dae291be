package rollup

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// candidate is a name that may be among those denied most.
type candidate struct {
	name, rule              string
	denied, refused, atMost int64 // atMost is how often it may have been denied
}

// best keeps the candidates that were denied most.
type best struct {
	limit int
	all   []candidate
	full  bool  // there are enough
	floor int64 // if it is full, the least denials to be among them
	other int64 // the most denials that a dropped candidate may have
}

func (b *best) offer(name []byte, rule string, denied, refused, atMost int64) {
	if b.full && denied < b.floor {
		b.drop(denied, atMost)
		return
	}
	b.all = append(b.all, candidate{string(name), rule, denied, refused, atMost})
	if len(b.all) >= 2*b.limit+100 {
		b.cut()
	}
}

// drop drops a candidate, and notes how often it may have been denied if that is uncertain.
func (b *best) drop(denied, atMost int64) {
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
		b.drop(c.denied, c.atMost)
	}
	b.all = b.all[:b.limit]
	b.full, b.floor = true, b.all[b.limit-1].denied
}

// sure reports whether the result is right although clients in no head may have been denied
// others times.
func (b *best) sure(others int64) bool {
	if others == 0 {
		return true
	}
	return b.full && others < b.floor && b.other < b.floor &&
		!slices.ContainsFunc(b.all, func(c candidate) bool { return c.atMost > c.denied })
}

// top returns the clients of a kind that were denied most, in whole hours: each once or, if
// apart, once for each rule.
//
// The heads of lists are usually enough to be sure. If not, it reads the whole lists.
func (s *Store) top(ctx context.Context, r query.Range, kind, limit int, rule string, apart bool) (all []candidate, err error) {
	err = query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		for _, heads := range []bool{true, false} {
			w, others, err := s.lists(ctx, tx, r, kind, heads)
			if err != nil {
				return err
			}
			b := best{limit: limit}
			var rules words
			var f folds
			of := -1
			if rule != "" {
				of = idOf(&rules, rule)
			}
			err = s.merge(ctx, tx, &rules, w, -1, func(e *entry) bool {
				missing := others - e.atMost
				if apart {
					if b.full && e.denied()+missing < b.floor {
						return true // no rule alone can have denied it more often
					}
					for _, p := range f.fold(e.pairs) {
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

// TopQuery selects who or what was refused most.
type TopQuery struct {
	query.Range        // it is widened to whole hours, and where it is older than 90 days to whole days
	By          string // user, tenant, key, ip, path, rule or endpoint. Default user
	Rule        string // that refused them. Empty: any
	Limit       int    // from 1 to 1,000. Default 10
}

// Refusals is how many requests a limit has denied, and how many were refused for any reason.
type Refusals struct {
	Name            string
	Denied, Refused int64
}

// Top returns those that were denied most, the first first. Numbers are exact, but for paths: of these a list
// has only the first 100 of each minute, and 1,000 of each hour and day. It takes longer if the first hardly differ
// from the rest.
func (s *Store) Top(ctx context.Context, q TopQuery) ([]Refusals, error) {
	var p strict.Report
	q.Check(&p, s.o.Now())
	query.CheckLimit(&p, &q.Limit, 10, maxTop)
	q.By = cmp.Or(q.By, kinds[0])
	query.CheckWord(&p, "by", q.By, append(slices.Clone(kinds), "rule", "endpoint"))
	if err := p.Problems.Err(); err != nil {
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
	err := query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		m, err := s.made(ctx, tx, q.Range)
		if err != nil {
			return err
		}
		m.widen(&q.Range)
		return s.eachCounts(ctx, tx, view{dim: d}, m.parts(q.From, q.To, daily), func(_ time.Time, c *counted) error {
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

// ViolationQuery selects denials by user and rule.
type ViolationQuery struct {
	query.Range        // it is widened to whole hours, and where it is older than 90 days to whole days
	User, Rule  string // Empty: all
	Limit       int    // from 1 to 1,000. Default 100
}

// Violation is how often a user was denied by a rule.
type Violation struct {
	User, Rule string
	Denied     int64
}

// Violations returns denials by user and rule, the most frequent first. Numbers are exact.
func (s *Store) Violations(ctx context.Context, q ViolationQuery) ([]Violation, error) {
	var p strict.Report
	q.Check(&p, s.o.Now())
	query.CheckLimit(&p, &q.Limit, 100, maxTop)
	if err := p.Problems.Err(); err != nil {
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

// violationsOf returns the rules that denied a user. It reads one page of each list.
func (s *Store) violationsOf(ctx context.Context, q ViolationQuery) ([]candidate, error) {
	b := best{limit: q.Limit}
	hash := hashOf([]byte(q.User))
	err := query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		w, _, err := s.lists(ctx, tx, q.Range, 0, false)
		if err != nil {
			return err
		}
		w.And("low <= ? AND high >= ?", hash, hash)
		var rules words
		var f folds
		return s.merge(ctx, tx, &rules, w, hash-1, func(e *entry) bool {
			if string(e.name) == q.User {
				for _, p := range f.fold(e.pairs) {
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

// DistinctQuery selects which clients to count.
type DistinctQuery struct {
	query.Range        // it is widened to whole hours, and where it is older than 90 days to whole days
	By          string // user, tenant, key or ip. Default user
	Rule        string // that refused them. Empty: any
}

// countedApart is up to how many clients are counted one by one. The number of more is
// estimated from the first of them: mostly to within 1 %, and nearly always to within 3 %.
// Tests count fewer.
var countedApart int64 = 1 << 14

// firstPages is about how many pages are read at first.
const firstPages = 128

// Distinct returns how many different clients were denied, and whether the number is exact,
// which it is up to 16,384. Of more it reads only the first: names are sorted by a hash, and
// the more there are, the closer together the hashes are.
func (s *Store) Distinct(ctx context.Context, q DistinctQuery) (n int64, exact bool, err error) {
	var p strict.Report
	q.Check(&p, s.o.Now())
	q.By = cmp.Or(q.By, kinds[0])
	query.CheckWord(&p, "by", q.By, clients)
	if err := p.Problems.Err(); err != nil {
		return 0, false, err
	}
	err = query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		kind := slices.Index(kinds, q.By)
		w, others, err := s.lists(ctx, tx, q.Range, kind, true)
		if err == nil && others > 0 { // or all are in heads
			w, _, err = s.lists(ctx, tx, q.Range, kind, false)
		}
		if err != nil {
			return err
		}
		var pages int64
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM stint_rollup_lists WHERE "+w.String(), w.Args...).Scan(&pages); err != nil {
			return err
		}
		var rules words
		of := -1
		if q.Rule != "" {
			of = idOf(&rules, q.Rule)
		}
		const last = math.MaxInt64
		exact = true
		for after, to := int64(-1), last/(1+pages/firstPages); exact && after < last; {
			strip := w.Clone()
			strip.And("low <= ? AND high > ?", to, after)
			err := s.merge(ctx, tx, &rules, strip, after, func(e *entry) bool {
				if e.hash > to {
					return false
				}
				if denied, _ := e.by(of); denied == 0 {
					return true
				}
				if exact = n < countedApart; !exact { // this is one more
					n = int64(float64(countedApart) / ((float64(e.hash) + 1) / last))
					return false
				}
				n++
				return true
			})
			if err != nil {
				return err
			}
			// Continue to where there should be enough of them, and a little further.
			next := 1.2 * float64(countedApart) * float64(to) / float64(max(1, n))
			if after = to; next < last {
				to = max(to+1, int64(next))
			} else {
				to = last
			}
		}
		return nil
	})
	return n, exact, s.wrap("distinct clients", err)
}
