package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// served returns the event of a request that passed, and what became of its reservation.
func served(at time.Time, reserved, used int64) (record.Event, record.Settlement) {
	e := record.Event{ID: engine.NewID(at), At: at, User: "alice", Rule: "tokens", Cost: reserved, Weight: 1}
	return e, record.Settlement{Event: e.ID, Rule: "tokens", Meter: tokens, At: at.Add(time.Second), Reserved: reserved, Used: used, Model: "gpt"}
}

func addSettlements(tb testing.TB, s *record.Store, all ...record.Settlement) {
	tb.Helper()
	if err := s.AddSettlements(tb.Context(), all); err != nil {
		tb.Fatal(err)
	}
}

// TestSettlements finds events with what became of their reservations, and nothing twice. It may be known before the event
// is written.
func TestSettlements(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 123456000, time.UTC)
	each(t, now.Add(time.Hour), func(t *testing.T, s *record.Store, db *database.DB) {
		t.Helper()
		less, lessUsed := served(now, 100, 40)
		more, moreUsed := served(now.Add(time.Second), 100, 1<<53-1)
		open, _ := served(now.Add(2*time.Second), 100, 0)
		trial := lessUsed
		trial.Rule, trial.Meter, trial.Shadow, trial.Model, trial.Estimated, trial.Cancelled = "trial", "", true, "", true, true
		other := lessUsed
		other.Used = 99 // it was settled before
		denial := recordtest.Denial(1, now.Add(3*time.Second))
		for range 2 {
			addSettlements(t, s, trial, moreUsed, lessUsed)
			addSettlements(t, s, other)
			recordtest.Write(t, s, less, more, open, denial)
		}
		less.Settled, more.Settled = []record.Settlement{lessUsed, trial}, []record.Settlement{moreUsed}
		if got, want := recordtest.All(t, s, recordtest.Month("2026-03")), []record.Event{less, more, open, denial}; !slices.EqualFunc(got, want, recordtest.Same) {
			t.Errorf("%+v\nwant\n%+v", got, want)
		}
		got, _, err := s.Find(t.Context(), record.EventQuery{User: "alice"})
		if want := []record.Event{open, more, less}; err != nil || !slices.EqualFunc(got, want, recordtest.Same) {
			t.Errorf("found %+v, %v\nwant\n%+v", got, err, want)
		}
		if lessUsed.GivenBack() != 60 || lessUsed.Overshoot() != 0 || moreUsed.GivenBack() != 0 || moreUsed.Overshoot() != 1<<53-101 {
			t.Error("what was given back, or the overshoot, is wrong")
		}
		// No events are stored of these years.
		_, early := served(time.Date(2019, 12, 31, 23, 0, 0, 0, time.UTC), 1, 1)
		_, late := served(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), 1, 1)
		addSettlements(t, s, early, late)
		addSettlements(t, s)
		if n := recordtest.Count(t, db, "SELECT count(*) FROM stint_settlements"); n != 3 {
			t.Errorf("there are %d settlements", n)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.AddSettlements(cancelled, []record.Settlement{lessUsed}); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

// TestDropSettlements drops them with the month of their events, and only that. What is restored has them again.
func TestDropSettlements(t *testing.T) {
	t.Parallel()
	march, now := recordtest.Month("2026-03"), time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, db *database.DB) {
		t.Helper()
		var events []record.Event
		for _, at := range []time.Time{march.Start().Add(-time.Microsecond), march.Start(), march.End().Add(-time.Microsecond), march.End()} {
			e, x := served(at, 100, 40)
			x.At = now // however late
			recordtest.Write(t, s, e)
			addSettlements(t, s, x)
			e.Settled = []record.Settlement{x}
			events = append(events, e)
		}
		count := func(want int64) {
			t.Helper()
			if n := recordtest.Count(t, db, "SELECT count(*) FROM stint_settlements"); n != want {
				t.Errorf("there are %d settlements, want %d", n, want)
			}
		}
		if err := s.Drop(t.Context(), march, 1); !errors.Is(err, record.ErrChanged) {
			t.Errorf("one of two: %v", err)
		}
		count(4)
		if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM stint_rollup_todo"); err != nil { // as if they were rolled up
			t.Fatal(err)
		}
		if err := s.Drop(t.Context(), march, 2); err != nil {
			t.Fatal(err)
		}
		count(2)
		// One that arrives later is dropped with the next attempt, and so are those without any event.
		addSettlements(t, s, events[1].Settled...)
		count(3)
		for range 2 {
			if err := s.Drop(t.Context(), march, 0); err != nil {
				t.Fatal(err)
			}
			count(2)
		}
		for range 2 {
			if err := s.Restore(t.Context(), march, events[1:3]); err != nil {
				t.Fatal(err)
			}
		}
		if got := recordtest.All(t, s, recordtest.Month("2026-02"), march, recordtest.Month("2026-04")); !slices.EqualFunc(got, events, recordtest.Same) {
			t.Errorf("%+v\nwant\n%+v", got, events)
		}
	})
}

// TestSettlersAtOnce has several stores write the same settlements at once, in other batches, while another creates the
// months.
func TestSettlersAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		const n = 300
		var all []record.Settlement
		var events []record.Event
		for i := range n {
			e, x := served(now.Add(-time.Minute).Add(time.Duration(i)*200*time.Millisecond), 100, int64(i)) // from February on
			events, all = append(events, e), append(all, x)
		}
		var wait sync.WaitGroup
		for size := 100; size <= 300; size += 100 {
			s := storeAt(t, recordtest.Open(t, url), now)
			wait.Go(func() {
				for some := range slices.Chunk(slices.Clone(all), size) {
					slices.Reverse(some)
					if err := s.AddSettlements(t.Context(), some); err != nil {
						t.Error(err)
					}
				}
			})
		}
		recordtest.Write(t, storeAt(t, db, now), events...)
		wait.Wait()
		var used int64
		for _, e := range recordtest.All(t, storeAt(t, db, now), recordtest.Month("2026-02"), recordtest.Month("2026-03")) {
			for _, x := range e.Settled {
				used += x.Used
			}
		}
		if want := int64(n * (n - 1) / 2); used != want {
			t.Errorf("%d were used, want %d", used, want)
		}
	})
}

// TestOldMonth writes settlements to a month of which an earlier version has created the table.
func TestOldMonth(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, db *database.DB) {
		t.Helper()
		e, x := served(now.Add(-time.Minute), 100, 40)
		recordtest.Write(t, s, e)
		if db.Postgres() {
			if _, err := db.Write.ExecContext(t.Context(), "DROP TABLE stint_settlements_2026_03"); err != nil {
				t.Fatal(err)
			}
		}
		found := func(want string) {
			t.Helper()
			got, _, err := s.Find(t.Context(), record.EventQuery{Range: query.Range{From: now.Add(-time.Hour), To: now}})
			if text := fmt.Sprint(len(got), len(got) > 0 && len(got[0].Settled) > 0); err != nil || text != want {
				t.Errorf("%s, %v, want %s", text, err, want)
			}
		}
		found("1 false")
		addSettlements(t, s, x)
		found("1 true")
	})
}
