package rollup_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/blob/blobtest"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestDropAndRestore is about months that go to an archive, and come back.
func TestDropAndRestore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *rollup.Store, db *database.DB) {
		t.Helper()
		ctx, m := t.Context(), recordtest.Month("2026-01")
		var batch []record.Event
		for i := range 40 {
			batch = append(batch, recordtest.Denial(i, m.Start().Add(time.Duration(i)*time.Minute)))
		}
		recordtest.Write(t, s, batch...)
		recordtest.Write(t, s, recordtest.Denial(1, now))
		other := recordtest.Store(t, db, recordtest.At(now))
		recordtest.Write(t, other, batch[0]) // it knows of the table
		kept := recordtest.All(t, s.Store, m)
		if err := s.Store.Drop(ctx, m, 40); err == nil || !strings.Contains(err.Error(), "not all of it is rolled up") {
			t.Fatalf("dropped before it was rolled up: %v", err)
		}
		if err := s.Drop(ctx, m, 39); !errors.Is(err, record.ErrChanged) || len(recordtest.All(t, s.Store, m)) != 40 {
			t.Fatalf("dropped although it has changed: %v", err)
		}
		if err := s.Drop(ctx, m, 40); err != nil {
			t.Fatal(err)
		}
		totals := func() int64 {
			all, err := s.Series(ctx, rollup.SeriesQuery{Range: query.Range{From: m.Start(), To: m.End()}, Step: 366 * 24 * time.Hour})
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
		if err := s.Drop(ctx, m, 40); !errors.Is(err, record.ErrChanged) {
			t.Errorf("to drop what is gone, and was not: %v", err)
		}
		months, err := s.Months(ctx)
		if err != nil || slices.ContainsFunc(months, func(s record.MonthSize) bool { return s.Month == m }) {
			t.Errorf("months: %v, %v", months, err)
		}

		// One comes late, to a store that does not know that the table has gone.
		late := recordtest.Denial(999, m.Start().Add(time.Hour))
		recordtest.Write(t, other, late, recordtest.Denial(2, now))
		recordtest.Write(t, s, late)
		if n, sum := rollUp(t, s), totals(); n == 0 || sum != 40 {
			t.Errorf("what came late made the roll-ups %d", sum)
		}
		for range 2 {
			if err := s.Restore(ctx, m, kept); err != nil {
				t.Fatal(err)
			}
		}
		if got := recordtest.All(t, s.Store, m); len(got) != 41 {
			t.Errorf("restored %d", len(got))
		}
		if rollUp(t, s); totals() != 40 {
			t.Errorf("after it was restored, roll-ups have %d", totals())
		}
		if err := s.Restore(ctx, recordtest.Month("2026-02"), kept); err == nil {
			t.Error("events of another month were restored")
		}
		if err := s.Drop(ctx, m, 41); err != nil {
			t.Error(err)
		}
		recordtest.Write(t, s, late) // this one knows, and makes a table
		if got := recordtest.All(t, s.Store, m); len(got) != 1 {
			t.Errorf("there are %d", len(got))
		}
	})
}

// TestStart makes tables ahead, and rolls up.
func TestStart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC)
	each(t, now, func(t *testing.T, _ *rollup.Store, db *database.DB) {
		t.Helper()
		s, err := rollup.New(db, rollup.Options{Interval: time.Millisecond, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop() // which was not started
		s.Start(t.Context())
		defer s.Stop()
		recordtest.Write(t, s, recordtest.Denial(1, now.Add(-time.Hour)))
		wait.For(t, "rolled up", func() bool { return recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_lists") > 0 })
		s.Stop()
		for _, m := range []string{"2026_11", "2026_12", "2027_01"} {
			if recordtest.Count(t, db, "SELECT count(*) FROM stint_events_"+m) < 0 {
				t.Error(m)
			}
		}
	})
	for field, o := range map[string]rollup.Options{"DB": {}, "Interval": {Interval: -1}} {
		db := recordtest.Open(t, testdatabase.SQLite(t))
		if field == "DB" {
			db = nil
		}
		_, err := rollup.New(db, o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestArchiveOfStore moves months of a store into an archive, and back.
func TestArchiveOfStore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *rollup.Store, _ *database.DB) {
		t.Helper()
		ctx := t.Context()
		a, err := archive.New(s, blobtest.Open(t, "file://"+t.TempDir()), archive.Options{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		months := []record.Month{recordtest.Month("2026-01"), recordtest.Month("2026-02")}
		recordtest.Write(t, s, recordtest.Events(400, months[1].Start().Add(20*time.Minute), 40*time.Minute)...)
		recordtest.Write(t, s, recordtest.Denial(1, now))
		want := recordtest.All(t, s.Store, months...)
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
		if got := recordtest.All(t, s.Store, months...); !slices.EqualFunc(got, want, recordtest.Same) || len(got) != 400 {
			t.Errorf("%d events are back, want %d", len(got), len(want))
		}
	})
}
