//go:build scale

package record_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var scaleWrites = flag.Int("writes", 1_000_000, "how many events are written to measure that")

// TestScalePipeline is TestPostgresKilled with a million events.
func TestScalePipeline(t *testing.T) { killPostgres(t, 1_000_000) }

// TestScaleWrites compares what a store writes with what COPY from one client does.
func TestScaleWrites(t *testing.T) {
	const size = 5000
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	crowd := recordtest.NewCrowd(1)
	var events []record.Event
	for i := range *scaleWrites {
		events = append(events, crowd.Event(now.Add(time.Duration(i)*20*time.Microsecond)))
	}
	server := testpostgres.Start(t)
	rate := func(what string, write func([]record.Event) error) float64 {
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
		return rate(what, func(batch []record.Event) error {
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
	s := storeAt(t, recordtest.Open(t, server.Database(t)), now)
	own := rate("Store.Write", func(batch []record.Event) error { return s.Write(t.Context(), batch) })
	t.Logf("Store.Write is %.2f of COPY without an index, %.2f of that with unique ids", own/bare, own/unique)
	rate("Store.Write of what is there already", func(batch []record.Event) error { return s.Write(t.Context(), batch) })
}
