package record_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// TestFind pages through events by all filters.
func TestFind(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	events := recordtest.Events(500, now, 4*24*time.Hour) // from February on
	yes := true
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		recordtest.Write(t, s, events...)
		long := query.Range{From: now.AddDate(0, 0, -5)}
		for name, c := range map[string]struct {
			q    record.EventQuery
			want func(e *record.Event) bool
		}{
			"all":      {record.EventQuery{Range: long, Limit: 1000}, func(*record.Event) bool { return true }},
			"a day":    {record.EventQuery{Limit: 7}, func(e *record.Event) bool { return e.At.After(now.AddDate(0, 0, -1)) }},
			"user":     {record.EventQuery{Range: long, User: "u3"}, func(e *record.Event) bool { return e.User == "u3" }},
			"rest":     {record.EventQuery{Range: long, Tenant: "acme", Key: "k1", Rule: "r1", Endpoint: "/v1/1", Method: "GET", Region: "eu", Node: "n1"}, func(e *record.Event) bool { return e.Key == "k1" && e.Rule == "r1" && e.Endpoint == "/v1/1" }},
			"ip":       {record.EventQuery{Range: long, IP: "192.0.2.7", Limit: 1}, func(e *record.Event) bool { return e.IP == "192.0.2.7" }},
			"denied":   {record.EventQuery{Range: long, Outcome: "denied"}, func(e *record.Event) bool { return e.Outcome == engine.Denied }},
			"shadow":   {record.EventQuery{Range: long, Shadow: &yes}, func(e *record.Event) bool { return e.Shadow }},
			"none":     {record.EventQuery{Range: long, User: "x' OR '1'='1"}, func(*record.Event) bool { return false }},
			"no month": {record.EventQuery{Range: query.Range{From: now.AddDate(-1, 0, 0), To: now.AddDate(0, -2, 0)}}, func(*record.Event) bool { return false }},
			"to": {
				record.EventQuery{Range: query.Range{From: events[100].At, To: events[200].At}, Limit: 33},
				func(e *record.Event) bool { return !e.At.Before(events[100].At) && e.At.Before(events[200].At) },
			},
		} {
			var want, got []record.Event
			for i := range events {
				if e := &events[len(events)-1-i]; c.want(e) {
					want = append(want, *e)
				}
			}
			for q := c.q; ; {
				some, next, err := s.Find(t.Context(), q)
				if err != nil || len(some) > max(100, q.Limit) {
					t.Fatalf("%s: %d events, %v", name, len(some), err)
				}
				if got = append(got, some...); next == (record.Cursor{}) {
					break
				}
				if q.After, err = record.ParseCursor(next.String()); err != nil || q.After != next {
					t.Fatalf("%s: the cursor %v became %v: %v", name, next, q.After, err)
				}
			}
			if !slices.EqualFunc(got, want, recordtest.Same) {
				t.Errorf("%s: %d events, want %d", name, len(got), len(want))
			}
		}
	})
}

// TestFindBounded looks for what is rare among many: answers may be short, and all of them
// together are complete.
func TestFindBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 10, 0, time.UTC)
	var events []record.Event
	for i := range 2_200 {
		e := recordtest.Denial(i, now.Add(-time.Duration(i+1)*100*time.Millisecond)) // from February on
		e.User, e.Rule, e.Node = "ann", "r1", "n1"
		if i%100 == 0 { // also the first that an answer does not look at
			e.IP = "2001:db8::1"
		}
		events = append(events, e)
	}
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		recordtest.Write(t, s, events...)
		for name, q := range map[string]record.EventQuery{
			"in order": {IP: "2001:db8::1"},
			"by user":  {IP: "2001:db8::1", User: "ann"},
			"by rule":  {IP: "2001:db8::1", Rule: "r1", Outcome: "denied"},
			"one":      {IP: "2001:db8::1", Limit: 1},
			"none":     {Node: "n2"},
		} {
			var got []record.Event
			calls, short := 0, 0
			for {
				some, next, err := s.Find(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				calls++
				got = append(got, some...)
				if next == (record.Cursor{}) {
					break
				}
				if len(some) < cmp.Or(q.Limit, 100) {
					short++
				}
				q.After = next
			}
			want := slices.DeleteFunc(slices.Clone(events), func(e record.Event) bool { return e.IP != q.IP })
			if !slices.EqualFunc(got, want, recordtest.Same) {
				t.Errorf("%s: %d events, want %d", name, len(got), len(want))
			}
			if short == 0 && q.Limit == 0 || calls > 60 {
				t.Errorf("%s: %d answers, %d of them short", name, calls, short)
			}
		}
	})
}
