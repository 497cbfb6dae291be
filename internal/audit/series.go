package audit

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

	"github.com/stintdev/stint/internal/strict"
)

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
	all := map[string]*track{}
	err := s.reading(ctx, func(tx *sql.Tx) error {
		m, err := s.made(ctx, tx, q.Range)
		if err != nil {
			return err
		}
		if q.fit(&p, &m); len(p.Problems) > 0 {
			return nil
		}
		totals := map[string]int64{}
		err = s.eachCounts(ctx, tx, q.dim(), m.parts(q.From, q.To, daily), func(_ time.Time, c *counted) error {
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
			all[name] = q.track()
		}
		first, point := q.From.Truncate(q.Step), 0
		turn := func(next int) { // they come in the order of time
			for _, t := range all {
				t.put(point)
			}
			point = next
		}
		err = s.eachCounts(ctx, tx, q.dim(), m.parts(q.From, q.To, q.coarsest()), func(start time.Time, c *counted) error {
			name, ok := q.has(c)
			if !ok {
				return nil
			}
			if at := int(start.Sub(first) / q.Step); at != point {
				turn(at)
			}
			t := all[name]
			if t == nil {
				if t = all[rest]; t == nil {
					t = q.track()
					all[rest] = t
				}
			}
			return t.now.add(c)
		})
		turn(0)
		return err
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
		out = append(out, Series{Name: name, Points: all[name].points})
	}
	if left := all[rest]; left != nil {
		out = append(out, Series{Rest: true, Points: left.points})
	}
	return out, nil
}

// rest is no name of anything: databases do not take it.
const rest = "\x00"

// track is a series that is being made, of which one point at a time is counted: sketches
// of all of them would be megabytes.
type track struct {
	points []Point
	now    sums
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
	var took [3]time.Duration
	n.latency.quantiles([]float64{0.5, 0.95, 0.99}, took[:])
	t.points[at] = Point{Start: t.points[at].Start, Total: n.total, Events: n.events, Cached: n.cached, P50: took[0], P95: took[1], P99: took[2]}
	n.latency.reset()
	*n = sums{latency: n.latency}
}
