package rollup

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
)

// SeriesQuery selects numbers of decisions over time.
type SeriesQuery struct {
	// From is rounded down to a whole minute, and To up; where it is older than 7 days to
	// whole hours, and where it is older than 90 days to whole days.
	query.Range
	// Step is the time between points, which lie at its multiples; the first and the last
	// point may cover less. It is whole minutes, whole hours from an hour on, and whole days
	// from a day on, with at most 500 points; an hour or more if From is older than 7 days,
	// and a day or more if it is older than 90 days. 0 is the shortest usual one that fits.
	Step time.Duration
	// By makes a series for each outcome, rule, tier, endpoint or region. Empty: there is one
	// series.
	By string
	// Only decisions with all of these that are not empty are counted.
	Rule, Tier, Endpoint, Region string
	Outcome                      string
	Shadow                       *bool
	Limit                        int // of series, from 1 to 50; the others are merged. Default 20
}

// Series is numbers of decisions over time.
type Series struct {
	Name   string // the value of By
	Rest   bool   // it is the sum of all series beyond the limit
	Points []Point
	Whole  Point // all points together
}

// Point is the numbers of one step.
type Point struct {
	Start         time.Time
	Total         int64 // decisions
	Events        int64 // stored events
	Cached        int64 // decisions from a cache
	P50, P95, P99 time.Duration
}

// steps are the usual steps.
var steps = []time.Duration{
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day,
}

// points returns the number of points.
func (q *SeriesQuery) points() int64 {
	return int64(query.Ceil(q.To, q.Step).Sub(q.From.Truncate(q.Step)) / q.Step)
}

func (q *SeriesQuery) check(p *strict.Report, now time.Time) {
	q.Check(p, now)
	query.CheckLimit(p, &q.Limit, 20, 50)
	record.CheckOutcome(p, q.Outcome)
	if q.By != "" {
		query.CheckWord(p, "by", q.By, []string{"outcome", "rule", "tier", "endpoint", "region"})
	}
	if q.Step != 0 && (q.Step < 0 || q.Step%q.whole().length() != 0) {
		p.Refuse("step", q.Step.String(), "whole minutes, whole hours from 1h on, whole days from 24h on", "")
	}
}

// fit extends the range to whole roll-ups, and chooses or checks the step.
func (q *SeriesQuery) fit(p *strict.Report, m *made) {
	least := minute
	for _, l := range []level{hour, daily} {
		if q.From.Before(m.since[l-1]) {
			least = l
		}
		if q.To.Before(m.since[l-1]) {
			q.To = query.Ceil(q.To, l.length())
		}
	}
	q.From, q.To = q.From.Truncate(least.length()), query.Ceil(q.To, time.Minute)
	if q.Step == 0 {
		for _, q.Step = range steps {
			if q.Step >= least.length() && q.points() <= maxPoints {
				return
			}
		}
	}
	switch {
	case q.Step < least.length():
		p.Refuse("step", q.Step.String(), fmt.Sprintf("%v or more: finer counts of %s have been deleted", least.length(), q.From.Format(time.RFC3339)), "")
	case q.points() > maxPoints:
		p.Refuse("step", q.Step.String(), fmt.Sprintf("a step with at most %d points from %s to %s", maxPoints, q.From.Format(time.RFC3339), q.To.Format(time.RFC3339)), "")
	}
}

// whole is the level that a step is a multiple of.
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

// coarsest is the coarsest level that can be read.
func (q *SeriesQuery) coarsest() level {
	if l := q.whole(); l != minute || q.Step%fives.length() != 0 {
		return l
	}
	return fives
}

// has reports whether the query selects a group, and returns the name of its series.
func (q *SeriesQuery) has(c *counted) (name string, ok bool) {
	switch {
	case q.Rule != "" && q.Rule != c.rule, q.Tier != "" && q.Tier != c.tier,
		q.Endpoint != "" && q.Endpoint != c.endpoint, q.Region != "" && q.Region != c.region,
		q.Outcome != "" && q.Outcome != c.outcome.String(), q.Shadow != nil && *q.Shadow != c.shadow:
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

// view returns which counts to read.
func (q *SeriesQuery) view() view {
	with := *q
	for by, into := range map[string]*string{"rule": &with.Rule, "tier": &with.Tier, "endpoint": &with.Endpoint, "region": &with.Region} {
		if q.By == by {
			*into = by
		}
	}
	return view{dimOf(with.Rule, with.Tier, with.Endpoint, with.Region), q.Rule, q.Endpoint}
}

// Series returns the series, the one with the most decisions first and the rest last. All have
// the same points.
func (s *Store) Series(ctx context.Context, q SeriesQuery) ([]Series, error) {
	var p strict.Report
	q.check(&p, s.o.Now())
	if err := p.Problems.Err(); err != nil {
		return nil, err
	}
	var out []Series
	err := query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		m, err := s.made(ctx, tx, q.Range)
		if err != nil {
			return err
		}
		if q.fit(&p, &m); len(p.Problems) > 0 {
			return nil
		}
		// Usually there are no more names than the limit, and reading once is enough.
		d := drawing{q: &q, tracks: map[string]*track{}, first: q.From.Truncate(q.Step)}
		parts := m.parts(q.From, q.To, q.coarsest())
		err = s.eachCounts(ctx, tx, q.view(), parts, d.add)
		if errors.Is(err, errTooMany) {
			var names []string
			if names, err = s.names(ctx, tx, &q, m.parts(q.From, q.To, daily)); err != nil {
				return err
			}
			d.begin(names)
			err = s.eachCounts(ctx, tx, q.view(), parts, d.add)
		}
		if err == nil {
			out = d.end()
		}
		return err
	})
	if err == nil {
		err = p.Problems.Err()
	}
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		return nil, problems
	}
	return out, s.wrap("series of events", err)
}

// names returns the names with the most decisions, up to the limit.
func (s *Store) names(ctx context.Context, tx *sql.Tx, q *SeriesQuery, parts []part) ([]string, error) {
	totals := map[string]int64{}
	err := s.eachCounts(ctx, tx, q.view(), parts, func(_ time.Time, c *counted) error {
		if name, ok := q.has(c); ok {
			totals[name] += c.total
		}
		return nil
	})
	names := slices.SortedFunc(maps.Keys(totals), func(a, b string) int { return cmp.Or(cmp.Compare(totals[b], totals[a]), strings.Compare(a, b)) })
	return names[:min(len(names), q.Limit)], err
}

var errTooMany = errors.New("more series than the limit")

// drawing makes series.
type drawing struct {
	q      *SeriesQuery
	tracks map[string]*track
	known  bool // all names that are not in tracks belong to the rest
	first  time.Time
	point  int // the current one
}

// begin starts over with series of these names.
func (d *drawing) begin(names []string) {
	d.known, d.point = true, 0
	clear(d.tracks)
	for _, name := range names {
		d.tracks[name] = d.q.track()
	}
}

// add counts a group, if the query selects it. Groups come in order of time.
func (d *drawing) add(start time.Time, c *counted) error {
	name, ok := d.q.has(c)
	if !ok {
		return nil
	}
	if at := int(start.Sub(d.first) / d.q.Step); at != d.point {
		d.turn(at)
	}
	t := d.tracks[name]
	if t == nil {
		switch {
		case d.known:
			name = rest
		case len(d.tracks) == d.q.Limit:
			return errTooMany
		}
		if t = d.tracks[name]; t == nil {
			t = d.q.track()
			d.tracks[name] = t
		}
	}
	return t.now.add(c)
}

// turn ends the current point and begins another.
func (d *drawing) turn(to int) {
	for _, t := range d.tracks {
		t.put(d.point)
	}
	d.point = to
}

// end returns the series.
func (d *drawing) end() (out []Series) {
	d.turn(0)
	names := slices.SortedFunc(maps.Keys(d.tracks), func(a, b string) int {
		return cmp.Or(compareBool(a == rest, b == rest), cmp.Compare(d.tracks[b].whole.total, d.tracks[a].whole.total), strings.Compare(a, b))
	})
	for _, name := range names {
		t := d.tracks[name]
		one := Series{Name: name, Points: t.points, Whole: t.whole.point(t.points[0].Start)}
		if name == rest {
			one.Name, one.Rest = "", true
		}
		out = append(out, one)
	}
	return out
}

// rest is the name of the series beyond the limit. Databases reject it, so no other has it.
const rest = "\x00"

// track is a series that is made one point at a time: sketches for all points would take
// megabytes.
type track struct {
	points     []Point
	whole, now sums
}

func (q *SeriesQuery) track() *track {
	t := &track{points: make([]Point, q.points())}
	for i := range t.points {
		t.points[i].Start = q.From.Truncate(q.Step).Add(time.Duration(i) * q.Step)
	}
	return t
}

// put ends a point.
func (t *track) put(at int) {
	n := &t.now
	if n.events == 0 {
		return
	}
	t.points[at] = n.point(t.points[at].Start)
	t.whole.merge(n)
	n.latency.Reset()
	*n = sums{latency: n.latency}
}

// point returns the sums as a point.
func (s *sums) point(start time.Time) Point {
	var took [3]time.Duration
	s.latency.Quantiles([]float64{0.5, 0.95, 0.99}, took[:])
	return Point{Start: start, Total: s.total, Events: s.events, Cached: s.cached, P50: took[0], P95: took[1], P99: took[2]}
}
