//go:build scale

package rollup_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var scaleEvents = flag.Int("events", 10_000_000, "how many events there are in a day")

// TestScaleTop asks who was denied most in the last day.
func TestScaleTop(t *testing.T) {
	now := time.Date(2026, 3, 15, 12, 34, 56, 0, time.UTC)
	db := recordtest.Open(t, testpostgres.Start(t).Database(t))
	s := recordtest.Store(t, db, recordtest.At(now))
	recordtest.Fill(t, s, *scaleEvents, now)
	t.Logf("roll-ups take %d MB, events %d MB",
		recordtest.Count(t, db, "SELECT (pg_total_relation_size('stint_rollup_counts') + pg_total_relation_size('stint_rollup_lists')) >> 20"),
		recordtest.Count(t, db, "SELECT sum(pg_total_relation_size(inhrelid))::bigint >> 20 FROM pg_inherits WHERE inhparent = 'stint_events'::regclass"))
	if _, err := db.Write.ExecContext(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	measure := func(what string, ask func() (int, error)) {
		const times = 40
		took := make([]time.Duration, times)
		n := 0
		for i := range took {
			began := time.Now()
			var err error
			if n, err = ask(); err != nil {
				t.Fatal(err)
			}
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		t.Logf("%-45s %8.1f ms, at most %8.1f ms (%d)", what, took[times/2].Seconds()*1e3, took[times-1].Seconds()*1e3, n)
	}
	top := func(q rollup.TopQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Top(t.Context(), q); return len(all), err }
	}
	series := func(q rollup.SeriesQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Series(t.Context(), q); return len(all), err }
	}
	violations := func(q rollup.ViolationQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Violations(t.Context(), q); return len(all), err }
	}
	distinct := func(q rollup.DistinctQuery) func() (int, error) {
		return func() (int, error) { n, _, err := s.Distinct(t.Context(), q); return int(n), err }
	}
	find := func(q record.EventQuery) func() (int, error) {
		return func() (int, error) { all, _, err := s.Find(t.Context(), q); return len(all), err }
	}
	measure("top 10 users of a day", top(rollup.TopQuery{}))
	measure("top 10 users of a day by a rule", top(rollup.TopQuery{Rule: "rule-3"}))
	measure("top 100 users of a day", top(rollup.TopQuery{Limit: 100}))
	measure("top 1,000 users of a day", top(rollup.TopQuery{Limit: 1000}))
	measure("top 10 addresses of a day", top(rollup.TopQuery{By: "ip"}))
	measure("top 10 users of an hour", top(rollup.TopQuery{Range: query.Range{From: now.Add(-time.Hour)}}))
	measure("top 10 rules of a day", top(rollup.TopQuery{By: "rule"}))
	measure("top 10 endpoints of a day by a rule", top(rollup.TopQuery{By: "endpoint", Rule: "rule-3"}))
	measure("distinct users of a day", distinct(rollup.DistinctQuery{}))
	measure("distinct tenants of a day by a rule", distinct(rollup.DistinctQuery{By: "tenant", Rule: "rule-3"}))
	measure("violations of a user in a day", violations(rollup.ViolationQuery{User: "user-7"}))
	measure("100 violations of a day", violations(rollup.ViolationQuery{}))
	measure("series of a day", series(rollup.SeriesQuery{}))
	measure("series of a day by rule", series(rollup.SeriesQuery{By: "rule"}))
	measure("series of a day by endpoint, denied", series(rollup.SeriesQuery{By: "endpoint", Outcome: "denied"}))
	measure("series of a day by endpoint, of a rule", series(rollup.SeriesQuery{By: "endpoint", Rule: "rule-3"}))
	measure("series of an hour by rule", series(rollup.SeriesQuery{Range: query.Range{From: now.Add(-time.Hour)}, By: "rule"}))
	measure("100 events", find(record.EventQuery{}))
	measure("100 denials of a user", find(record.EventQuery{User: "user-7", Outcome: "denied"}))
	measure("events of a user, where there are none", find(record.EventQuery{User: "user-0", Outcome: "banned"}))
	measure("denials by a rule of a rare address", find(record.EventQuery{Rule: "rule-3", Outcome: "denied", IP: "198.51.100.7"}))
	measure("events of a rare address", find(record.EventQuery{IP: "198.51.100.7"}))
	measure("events of an outcome that there is not", find(record.EventQuery{Outcome: "banned"}))
	measure("1,000 events of an endpoint", find(record.EventQuery{Endpoint: "/v1/resource-3/{id}", Limit: 1000}))
}
