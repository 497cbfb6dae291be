//go:build scale

package audit_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/audit/audittest"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var (
	scaleEvents = flag.Int("events", 10_000_000, "how many events there are in a day")
	scaleWrites = flag.Int("writes", 1_000_000, "how many events are written to measure that")
)

// TestScalePipeline is TestPipelineIntoPostgres with a million events.
func TestScalePipeline(t *testing.T) { intoPostgres(t, 1_000_000) }

// TestScaleWrites compares what a store writes with what COPY from one client does.
func TestScaleWrites(t *testing.T) {
	const size = 5000
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	crowd := audittest.NewCrowd(1)
	var events []audit.Event
	for i := range *scaleWrites {
		events = append(events, crowd.Event(now.Add(time.Duration(i)*20*time.Microsecond)))
	}
	server := testpostgres.Start(t)
	rate := func(what string, write func([]audit.Event) error) float64 {
		began := time.Now()
		for batch := range slices.Chunk(events, size) {
			if err := write(batch); err != nil {
				t.Fatal(err)
			}
		}
		n := float64(len(events)) / time.Since(began).Seconds()
		t.Logf("%s: %.0f events/s", what, n)
		return n
	}
	ceiling := func(what, constraint string) float64 {
		conn, err := pgx.Connect(t.Context(), server.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if _, err := conn.Exec(t.Context(), `CREATE TABLE plain (id uuid NOT NULL, at timestamptz NOT NULL, outcome smallint NOT NULL, shadow boolean NOT NULL, cached boolean NOT NULL,
			user_id text NOT NULL, tenant text NOT NULL, key_id text NOT NULL, tier text NOT NULL, ip text NOT NULL, rule text NOT NULL, limit_name text NOT NULL, endpoint text NOT NULL, method text NOT NULL,
			used bigint NOT NULL, max bigint NOT NULL, cost bigint NOT NULL, status bigint NOT NULL, retry_after_us bigint NOT NULL, waited_us bigint NOT NULL, latency_us bigint NOT NULL,
			region text NOT NULL, node text NOT NULL, weight bigint NOT NULL`+constraint+")"); err != nil {
			t.Fatal(err)
		}
		return rate(what, func(batch []audit.Event) error {
			_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"plain"}, []string{
				"id", "at", "outcome", "shadow", "cached", "user_id", "tenant", "key_id", "tier", "ip", "rule", "limit_name", "endpoint", "method",
				"used", "max", "cost", "status", "retry_after_us", "waited_us", "latency_us", "region", "node", "weight",
			}, pgx.CopyFromSlice(len(batch), func(i int) ([]any, error) {
				e := &batch[i]
				return []any{
					[16]byte(e.ID), e.At, int64(e.Outcome), e.Shadow, e.Cached, e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Rule, e.Limit, e.Endpoint, e.Method,
					e.Used, e.Max, e.Cost, int64(e.Status), e.RetryAfter.Microseconds(), e.Waited.Microseconds(), e.Latency.Microseconds(), e.Region, e.Node, e.Weight,
				}, nil
			}))
			return err
		})
	}
	bare := ceiling("COPY into a table without an index", "")
	unique := ceiling("COPY into a table whose ids are unique", ", PRIMARY KEY (at, id)")
	db := openDatabase(t, server.Database(t))
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s := storeAt(t, db, now)
	own := rate("Store.Write", func(batch []audit.Event) error { return s.Write(t.Context(), batch) })
	t.Logf("Store.Write is %.2f of COPY without an index, %.2f of that with unique ids", own/bare, own/unique)
	rate("Store.Write of what is there already", func(batch []audit.Event) error { return s.Write(t.Context(), batch) })
}

// TestScaleTop asks who was denied most in the last day.
func TestScaleTop(t *testing.T) {
	now := time.Date(2026, 3, 15, 12, 34, 56, 0, time.UTC)
	db := openDatabase(t, testpostgres.Start(t).Database(t))
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s := storeAt(t, db, now)
	audittest.Fill(t, s, *scaleEvents, now)
	t.Logf("roll-ups take %d MB, events %d MB",
		number64(t, db, "SELECT (pg_total_relation_size('stint_rollup_counts') + pg_total_relation_size('stint_rollup_lists')) >> 20"),
		number64(t, db, "SELECT sum(pg_total_relation_size(inhrelid))::bigint >> 20 FROM pg_inherits WHERE inhparent = 'stint_events'::regclass"))
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
	top := func(q audit.TopQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Top(t.Context(), q); return len(all), err }
	}
	series := func(q audit.SeriesQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Series(t.Context(), q); return len(all), err }
	}
	violations := func(q audit.ViolationQuery) func() (int, error) {
		return func() (int, error) { all, err := s.Violations(t.Context(), q); return len(all), err }
	}
	distinct := func(q audit.DistinctQuery) func() (int, error) {
		return func() (int, error) { n, _, err := s.Distinct(t.Context(), q); return int(n), err }
	}
	find := func(q audit.EventQuery) func() (int, error) {
		return func() (int, error) { all, _, err := s.Find(t.Context(), q); return len(all), err }
	}
	measure("top 10 users of a day", top(audit.TopQuery{}))
	measure("top 10 users of a day by a rule", top(audit.TopQuery{Rule: "rule-3"}))
	measure("top 100 users of a day", top(audit.TopQuery{Limit: 100}))
	measure("top 1,000 users of a day", top(audit.TopQuery{Limit: 1000}))
	measure("top 10 addresses of a day", top(audit.TopQuery{By: "ip"}))
	measure("top 10 users of an hour", top(audit.TopQuery{Range: audit.Range{From: now.Add(-time.Hour)}}))
	measure("top 10 rules of a day", top(audit.TopQuery{By: "rule"}))
	measure("top 10 endpoints of a day by a rule", top(audit.TopQuery{By: "endpoint", Rule: "rule-3"}))
	measure("distinct users of a day", distinct(audit.DistinctQuery{}))
	measure("distinct tenants of a day by a rule", distinct(audit.DistinctQuery{By: "tenant", Rule: "rule-3"}))
	measure("violations of a user in a day", violations(audit.ViolationQuery{User: "user-7"}))
	measure("100 violations of a day", violations(audit.ViolationQuery{}))
	measure("series of a day", series(audit.SeriesQuery{}))
	measure("series of a day by rule", series(audit.SeriesQuery{By: "rule"}))
	measure("series of a day by endpoint, denied", series(audit.SeriesQuery{By: "endpoint", Outcome: "denied"}))
	measure("series of a day by endpoint, of a rule", series(audit.SeriesQuery{By: "endpoint", Rule: "rule-3"}))
	measure("series of an hour by rule", series(audit.SeriesQuery{Range: audit.Range{From: now.Add(-time.Hour)}, By: "rule"}))
	measure("100 events", find(audit.EventQuery{}))
	measure("100 denials of a user", find(audit.EventQuery{User: "user-7", Outcome: "denied"}))
	measure("events of a user, where there are none", find(audit.EventQuery{User: "user-0", Outcome: "banned"}))
	measure("denials by a rule of a rare address", find(audit.EventQuery{Rule: "rule-3", Outcome: "denied", IP: "198.51.100.7"}))
	measure("events of a rare address", find(audit.EventQuery{IP: "198.51.100.7"}))
	measure("events of an outcome that there is not", find(audit.EventQuery{Outcome: "banned"}))
	measure("1,000 events of an endpoint", find(audit.EventQuery{Endpoint: "/v1/resource-3/{id}", Limit: 1000}))
}
