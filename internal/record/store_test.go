package record_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// each runs a test with a store in each kind of database.
func each(t *testing.T, now time.Time, test func(t *testing.T, s *record.Store, db *database.DB)) {
	t.Helper()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		test(t, storeAt(t, db, now), db)
	})
}

// storeAt returns the store in a database, where it is always the same time.
func storeAt(t testing.TB, db *database.DB, now time.Time) *record.Store {
	t.Helper()
	s, err := record.NewStore(db, record.StoreOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore has every field come back, and nothing twice.
func TestStore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		full := record.Event{
			ID: numbered(1), At: now.Add(123456 * time.Microsecond), Outcome: engine.Throttled, Shadow: true, Cached: true,
			User: "u", Tenant: "t", Key: "k", Tier: "r", IP: "i", Rule: "ру́", Limit: "l", Endpoint: "/e\t\\N\"", Method: "GET", Path: "/p/é",
			Used: 1 << 60, Max: -2, Cost: 3, Status: 429, RetryAfter: stint.Never, Waited: 5 * time.Microsecond, Latency: 6 * time.Hour,
			Region: "g", Node: "n", Weight: 100,
		}
		empty := record.Event{ID: numbered(2), At: full.At, Weight: 1}
		for range 3 {
			recordtest.Write(t, s, empty, full, empty)
		}
		if got, want := recordtest.All(t, s, recordtest.Month("2026-03")), []record.Event{full, empty}; !slices.EqualFunc(got, want, recordtest.Same) {
			t.Errorf("%+v\nwant\n%+v", got, want)
		}
		// Some are new.
		more := []record.Event{full, recordtest.Denial(1, now), empty, recordtest.Denial(2, now)}
		recordtest.Write(t, s, more...)
		if got := recordtest.All(t, s, recordtest.Month("2026-03")); len(got) != 4 {
			t.Errorf("there are %d", len(got))
		}
		// The same id at another time is another event.
		again := full
		again.At = again.At.Add(time.Microsecond)
		recordtest.Write(t, s, again)
		if got := recordtest.All(t, s, recordtest.Month("2026-03")); len(got) != 5 {
			t.Errorf("there are %d", len(got))
		}
		recordtest.Write(t, s)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Write(cancelled, []record.Event{full}); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

// TestMonthEdges writes batches across the ends of months and years, and with clocks that
// are wrong.
func TestMonthEdges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		var batch []record.Event
		for i, at := range []time.Time{
			now.Add(-time.Microsecond), now, now.Add(time.Microsecond), // a year's end
			time.Date(2026, 2, 28, 23, 59, 59, 999999000, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
			time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC), // two years late
			time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2099, 12, 31, 23, 59, 59, 999999000, time.UTC),
			time.Date(2026, 1, 1, 0, 30, 0, 0, time.FixedZone("", 3600)), // of the year before
			// These are no times.
			time.Date(2019, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
			{},
			time.Unix(1<<40, 0),
		} {
			e := recordtest.Denial(i, now)
			e.At = at
			batch = append(batch, e)
		}
		recordtest.Write(t, s, batch...)
		recordtest.Write(t, s, batch...)
		if n := s.Refused(); n != 8 {
			t.Errorf("%d were refused", n)
		}
		for m, want := range map[string]int{"2025-12": 2, "2026-01": 2, "2026-02": 1, "2026-03": 1, "2024-02": 1, "2020-01": 1, "2099-12": 1, "2026-04": 0} {
			if m == "2026-04" {
				continue // it has no table, and was not asked for
			}
			got := recordtest.All(t, s, recordtest.Month(m))
			if len(got) != want || slices.ContainsFunc(got, func(e record.Event) bool { return record.MonthOf(e.At) != recordtest.Month(m) }) {
				t.Errorf("%s has %v", m, got)
			}
		}
		months, err := s.Months(t.Context())
		want := []record.MonthSize{{recordtest.Month("2020-01"), 1}, {recordtest.Month("2024-02"), 1}, {recordtest.Month("2025-12"), 2}}
		if err != nil || !slices.Equal(months, want) {
			t.Errorf("months that are over: %v, %v", months, err)
		}
	})
}

// TestPages reads more than a page, from any place.
func TestPages(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		var batch []record.Event
		for i := range 220 {
			batch = append(batch, recordtest.Denial(i, now.Add(time.Duration(i/10)*time.Second))) // 10 at a time
		}
		shuffled := slices.Clone(batch)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		recordtest.Write(t, s, shuffled...)
		got := recordtest.All(t, s, recordtest.Month("2026-03"))
		if !slices.IsSortedFunc(got, func(a, b record.Event) int { return a.At.Compare(b.At) }) || len(got) != len(batch) {
			t.Fatalf("%d events, not in their order", len(got))
		}
		for _, from := range []int{0, 99, 100, 177, len(got) - 1} {
			n := 0
			for e, err := range s.Events(t.Context(), recordtest.Month("2026-03"), record.Cursor{At: got[from].At, ID: got[from].ID}) {
				if n++; err != nil || !recordtest.Same(e, got[from+n]) {
					t.Fatalf("event %d behind %d is %v, %v", n, from, e, err)
				}
				if n == 120 {
					break
				}
			}
			if n != min(120, len(got)-1-from) {
				t.Errorf("%d events are behind %d", n, from)
			}
		}
	})
}

// TestWritersAtOnce has several stores write the same events at once, in other orders.
func TestWritersAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		recordtest.Open(t, url)
		const n, size = 600, 100
		var batch []record.Event
		for i := range n {
			batch = append(batch, recordtest.Denial(i, now.Add(-time.Minute).Add(time.Duration(i)*130*time.Millisecond))) // from February on
		}
		var wg sync.WaitGroup
		for range 3 {
			s := storeAt(t, recordtest.Open(t, url), now)
			wg.Go(func() {
				for _, i := range rand.Perm(n / size) {
					if err := s.Write(t.Context(), batch[i*size:][:size]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		s := storeAt(t, recordtest.Open(t, url), now)
		if got := recordtest.All(t, s, recordtest.Month("2026-02"), recordtest.Month("2026-03")); !slices.EqualFunc(got, batch, recordtest.Same) {
			t.Errorf("there are %d events, want %d", len(got), n)
		}
	})
}

// TestOutcomes holds outcomes to the numbers that databases have.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for n, name := range []string{"allowed", "throttled", "exempt", "denied", "banned", "blocked", "unauthorized", "unavailable"} {
		if got := engine.Outcome(n).String(); got != name {
			t.Errorf("%d is %s, and was %s when events were written", n, got, name)
		}
	}
}
