package audit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/kit/blob/blobtest"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// kinds are those of databases that several can open. SQLite is slow under the race
// detector, so most tests have its database in memory.
var kinds = []string{"postgres", "sqlite file"}

// databaseOf returns an empty database of a kind, and its URL.
func databaseOf(t testing.TB, kind string) (*database.DB, string) {
	t.Helper()
	url := "sqlite::memory:"
	switch kind {
	case "postgres":
		url = testpostgres.Shared(t).Database(t)
	case "sqlite file":
		url = "sqlite:" + filepath.Join(t.TempDir(), "stint.db")
	}
	db := openDatabase(t, url)
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return db, url
}

func openDatabase(t testing.TB, url string) *database.DB {
	t.Helper()
	db, err := database.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// storeAt returns the store in a database, where it is a time.
func storeAt(t testing.TB, db *database.DB, now time.Time) *audit.Store {
	t.Helper()
	s, err := audit.NewStore(db, audit.StoreOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// each runs a test with a store in each kind of database.
func each(t *testing.T, now time.Time, test func(t *testing.T, s *audit.Store, db *database.DB)) {
	t.Helper()
	for _, kind := range []string{"postgres", "sqlite memory"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, _ := databaseOf(t, kind)
			test(t, storeAt(t, db, now), db)
		})
	}
}

func write(t testing.TB, s *audit.Store, events ...audit.Event) {
	t.Helper()
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

func rollUp(t testing.TB, s *audit.Store) int {
	t.Helper()
	n, err := s.RollUp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// refusal returns the refusal of a number, at a time.
func refusal(n int, at time.Time) audit.Event {
	id := engine.NewID(at)
	copy(id[10:], fmt.Sprintf("%06d", n))
	return audit.Event{
		ID: id, At: at.UTC(), Outcome: engine.Denied, User: "u" + strconv.Itoa(n%7), Tenant: "acme", Key: "k" + strconv.Itoa(n%5), Tier: "free",
		IP: "192.0.2." + strconv.Itoa(n%250), Rule: "r" + strconv.Itoa(n%3), Limit: "requests", Endpoint: "/v1/" + strconv.Itoa(n%2), Method: "GET",
		Used: 10, Max: 10, Cost: 1, Status: 429, RetryAfter: time.Second, Latency: time.Duration(n%1000) * time.Microsecond, Region: "eu", Node: "n1", Weight: 1,
	}
}

// all returns all events, in the order of time and id, by months.
func all(t testing.TB, s *audit.Store, months ...audit.Month) (out []audit.Event) {
	t.Helper()
	for _, m := range months {
		for e, err := range s.Events(t.Context(), m, audit.Cursor{}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
	return out
}

func month(text string) audit.Month {
	m, err := audit.ParseMonth(text)
	if err != nil {
		panic(err)
	}
	return m
}

func number64(t testing.TB, db *database.DB, query string) (n int64) {
	t.Helper()
	if err := db.Read.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStore has every field come back, and nothing twice.
func TestStore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		full := audit.Event{
			ID: numbered(1), At: now.Add(123456 * time.Microsecond), Outcome: engine.Throttled, Shadow: true, Cached: true,
			User: "u", Tenant: "t", Key: "k", Tier: "r", IP: "i", Rule: "ру́", Limit: "l", Endpoint: "/e\t\\N\"", Method: "GET",
			Used: 1 << 60, Max: -2, Cost: 3, Status: 429, RetryAfter: stint.Never, Waited: 5 * time.Microsecond, Latency: 6 * time.Hour,
			Region: "g", Node: "n", Weight: 100,
		}
		empty := audit.Event{ID: numbered(2), At: full.At, Weight: 1}
		for range 3 {
			write(t, s, empty, full, empty)
		}
		if got, want := all(t, s, month("2026-03")), []audit.Event{full, empty}; !slices.Equal(got, want) {
			t.Errorf("%+v\nwant\n%+v", got, want)
		}
		// Some are new.
		more := []audit.Event{full, refusal(1, now), empty, refusal(2, now)}
		write(t, s, more...)
		if got := all(t, s, month("2026-03")); len(got) != 4 {
			t.Errorf("there are %d", len(got))
		}
		// The same id at another time is another event.
		again := full
		again.At = again.At.Add(time.Microsecond)
		write(t, s, again)
		if got := all(t, s, month("2026-03")); len(got) != 5 {
			t.Errorf("there are %d", len(got))
		}
		write(t, s)
	})
}

// TestMonthEdges writes batches across the ends of months and years, and with clocks that
// are wrong.
func TestMonthEdges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		var batch []audit.Event
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
			e := refusal(i, now)
			e.At = at
			batch = append(batch, e)
		}
		write(t, s, batch...)
		write(t, s, batch...)
		if n := s.Refused(); n != 8 {
			t.Errorf("%d were refused", n)
		}
		for m, want := range map[string]int{"2025-12": 2, "2026-01": 2, "2026-02": 1, "2026-03": 1, "2024-02": 1, "2020-01": 1, "2099-12": 1, "2026-04": 0} {
			if m == "2026-04" {
				continue // it has no table, and was not asked for
			}
			got := all(t, s, month(m))
			if len(got) != want || slices.ContainsFunc(got, func(e audit.Event) bool { return audit.MonthOf(e.At) != month(m) }) {
				t.Errorf("%s has %v", m, got)
			}
		}
		months, err := s.Months(t.Context())
		want := []audit.MonthSize{{month("2020-01"), 1}, {month("2024-02"), 1}, {month("2025-12"), 2}}
		if err != nil || !slices.Equal(months, want) {
			t.Errorf("months that are over: %v, %v", months, err)
		}
	})
}

// TestPages reads more than a page, from any place.
func TestPages(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		var batch []audit.Event
		for i := range 2200 {
			batch = append(batch, refusal(i, now.Add(time.Duration(i/100)*time.Second))) // 100 at a time
		}
		shuffled := slices.Clone(batch)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		write(t, s, shuffled...)
		got := all(t, s, month("2026-03"))
		if !slices.IsSortedFunc(got, func(a, b audit.Event) int { return a.At.Compare(b.At) }) || len(got) != len(batch) {
			t.Fatalf("%d events, not in their order", len(got))
		}
		for _, from := range []int{0, 999, 1000, 1777, len(got) - 1} {
			n := 0
			for e, err := range s.Events(t.Context(), month("2026-03"), audit.Cursor{At: got[from].At, ID: got[from].ID}) {
				if n++; err != nil || e != got[from+n] {
					t.Fatalf("event %d behind %d is %v, %v", n, from, e, err)
				}
				if n == 1200 {
					break
				}
			}
			if n != min(1200, len(got)-1-from) {
				t.Errorf("%d events are behind %d", n, from)
			}
		}
	})
}

// TestDropAndRestore is about months that go to an archive, and come back.
func TestDropAndRestore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, db *database.DB) {
		t.Helper()
		ctx, m := t.Context(), month("2026-01")
		var batch []audit.Event
		for i := range 40 {
			batch = append(batch, refusal(i, m.Start().Add(time.Duration(i)*time.Minute)))
		}
		write(t, s, batch...)
		write(t, s, refusal(1, now))
		kept := all(t, s, m)
		if err := s.Drop(ctx, m, 39); !errors.Is(err, audit.ErrChanged) || len(all(t, s, m)) != 40 {
			t.Fatalf("dropped although it has changed: %v", err)
		}
		if err := s.Drop(ctx, m, 40); err != nil {
			t.Fatal(err)
		}
		totals := func() int64 {
			all, err := s.Series(ctx, audit.SeriesQuery{Range: audit.Range{From: m.Start(), To: m.End()}, Step: 366 * 24 * time.Hour})
			if err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			return all[0].Points[0].Total
		}
		if n := totals(); n != 40 {
			t.Errorf("of a month that was dropped, roll-ups have %d", n)
		}
		if err := s.Drop(ctx, m, 0); err != nil {
			t.Errorf("to drop what is gone: %v", err)
		}
		if err := s.Drop(ctx, m, 40); !errors.Is(err, audit.ErrChanged) {
			t.Errorf("to drop what is gone, and was not: %v", err)
		}
		months, err := s.Months(ctx)
		if err != nil || slices.ContainsFunc(months, func(s audit.MonthSize) bool { return s.Month == m }) {
			t.Errorf("months: %v, %v", months, err)
		}

		// One comes late. Another store does not know that the month has gone.
		late := refusal(999, m.Start().Add(time.Hour))
		write(t, storeAt(t, db, now), late)
		write(t, s, late)
		if n, sum := rollUp(t, s), totals(); n == 0 || sum != 40 {
			t.Errorf("what came late made the roll-ups %d", sum)
		}
		for range 2 {
			if err := s.Restore(ctx, m, kept); err != nil {
				t.Fatal(err)
			}
		}
		if got := all(t, s, m); len(got) != 41 {
			t.Errorf("restored %d", len(got))
		}
		if rollUp(t, s); totals() != 40 {
			t.Errorf("after it was restored, roll-ups have %d", totals())
		}
		if err := s.Restore(ctx, month("2026-02"), kept); err == nil {
			t.Error("events of another month were restored")
		}
		if err := s.Drop(ctx, m, 41); err != nil {
			t.Error(err)
		}
		write(t, s, late) // this one knows, and makes a table
		if got := all(t, s, m); len(got) != 1 {
			t.Errorf("there are %d", len(got))
		}
	})
}

// TestDroppedByAnother writes to a month that another store has dropped.
func TestDroppedByAnother(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, db *database.DB) {
		t.Helper()
		m := month("2026-01")
		write(t, s, refusal(1, m.Start()))
		if err := storeAt(t, db, now).Drop(t.Context(), m, 1); err != nil {
			t.Fatal(err)
		}
		write(t, s, refusal(2, m.Start()), refusal(3, now))
		if got := all(t, s, m, month("2026-06")); len(got) != 2 {
			t.Errorf("there are %d", len(got))
		}
	})
}

// TestWritersAtOnce has several stores write the same events at once, in other orders.
func TestWritersAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, url := databaseOf(t, kind)
			const n, size = 600, 100
			var batch []audit.Event
			for i := range n {
				batch = append(batch, refusal(i, now.Add(-time.Minute).Add(time.Duration(i)*130*time.Millisecond))) // from February on
			}
			var wg sync.WaitGroup
			for range 3 {
				s := storeAt(t, openDatabase(t, url), now)
				wg.Go(func() {
					for _, i := range rand.Perm(n / size) {
						if err := s.Write(t.Context(), batch[i*size:][:size]); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			s := storeAt(t, openDatabase(t, url), now)
			if got := all(t, s, month("2026-02"), month("2026-03")); !slices.Equal(got, batch) {
				t.Errorf("there are %d events, want %d", len(got), n)
			}
		})
	}
}

// TestWriteKilled kills PostgreSQL while it writes.
func TestWriteKilled(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	db := openDatabase(t, server.Database(t))
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)
	s := storeAt(t, db, now)
	const batches, size = 20, 1000
	written := make(chan struct{}, batches)
	stopped := make(chan int)
	var want []audit.Event
	for i := range batches * size {
		want = append(want, refusal(i, now.Add(time.Duration(i)*time.Millisecond)))
	}
	go func() {
		for i := range batches {
			if err := s.Write(t.Context(), want[i*size:][:size]); err != nil {
				stopped <- i
				return
			}
			written <- struct{}{}
		}
		stopped <- batches
	}()
	for range 5 {
		<-written
	}
	server.Kill(t)
	failed := <-stopped
	if failed == batches {
		t.Error("all was written before the server was killed")
	}
	err := s.Write(t.Context(), want[:1])
	if !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	server.Restart(t)
	for i := max(0, failed-2); i < batches; i++ {
		write(t, s, want[i*size:][:size]...)
	}
	if got := all(t, s, month("2026-03")); !slices.Equal(got, want) {
		t.Errorf("there are %d events, want %d", len(got), len(want))
	}
}

// TestCanceled ends soon after its context.
func TestCanceled(t *testing.T) {
	t.Parallel()
	each(t, noon, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Write(ctx, []audit.Event{refusal(1, noon)}); !errors.Is(err, context.Canceled) {
			t.Errorf("write: %v", err)
		}
		if _, err := s.RollUp(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("roll up: %v", err)
		}
		write(t, s, refusal(1, noon.Truncate(time.Microsecond)))
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

// TestStart makes tables ahead, and rolls up.
func TestStart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC)
	each(t, now, func(t *testing.T, _ *audit.Store, db *database.DB) {
		t.Helper()
		s, err := audit.NewStore(db, audit.StoreOptions{Interval: time.Millisecond, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop() // which was not started
		s.Start(t.Context())
		defer s.Stop()
		write(t, s, refusal(1, now.Add(-time.Hour)))
		eventually(t, "rolled up", func() bool { return number64(t, db, "SELECT count(*) FROM stint_rollup_lists") > 0 })
		s.Stop()
		for _, m := range []string{"2026_11", "2026_12", "2027_01"} {
			if number64(t, db, "SELECT count(*) FROM stint_events_"+m) < 0 {
				t.Error(m)
			}
		}
	})
	for field, o := range map[string]audit.StoreOptions{"DB": {}, "Interval": {Interval: -1}} {
		db := openDatabase(t, "sqlite::memory:")
		if field == "DB" {
			db = nil
		}
		_, err := audit.NewStore(db, o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestArchiveOfStore moves months of a store into an archive, and back.
func TestArchiveOfStore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		ctx := t.Context()
		a, err := audit.NewArchive(s, blobtest.Open(t, "file://"+t.TempDir()), audit.ArchiveOptions{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		months := []audit.Month{month("2026-01"), month("2026-02")}
		write(t, s, manyEvents(400, months[1].Start().Add(20*time.Minute), 40*time.Minute)...)
		write(t, s, refusal(1, now))
		want := all(t, s, months...)
		report, err := a.Run(ctx)
		if err != nil || len(report.Months) != 2 || !report.Months[0].Dropped || !report.Months[1].Dropped {
			t.Fatalf("%+v, %v", report, err)
		}
		left, err := s.Months(ctx)
		if err != nil || len(left) != 0 {
			t.Errorf("there is still %v, %v", left, err)
		}
		for _, m := range months {
			if _, err := a.Restore(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		if got := all(t, s, months...); !slices.Equal(got, want) || len(got) != 400 {
			t.Errorf("%d events are back, want %d", len(got), len(want))
		}
	})
}
