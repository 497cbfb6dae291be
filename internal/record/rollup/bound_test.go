package rollup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/wait"
)

// totals returns the decisions of some days, by outcome, and who was denied most.
func totals(t *testing.T, s *rollup.Store, r query.Range) string {
	t.Helper()
	series, err := s.Series(t.Context(), rollup.SeriesQuery{Range: r, By: "outcome", Step: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, x := range series {
		n := int64(0)
		for _, p := range x.Points {
			n += p.Total
		}
		fmt.Fprintf(&out, "%s %d\n", x.Name, n)
	}
	top, err := s.Top(t.Context(), rollup.TopQuery{Range: r, By: "user", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&out, top)
	return out.String()
}

// TestBound deletes the oldest events of a record that is too large, and only as many as it has
// to. All sums stay as they were, also when more arrives.
func TestBound(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		now := time.Date(2026, 3, 10, 12, 0, 30, 0, time.UTC)
		clock := func() time.Time { return now }
		open := func(most int64) *rollup.Store {
			s, err := rollup.New(db, rollup.Options{Now: clock, MaxBytes: most})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open(0)
		const n = 6000
		all := recordtest.Events(n, now.Add(-time.Minute), 100*time.Minute)
		recordtest.Write(t, s, all...)
		var settled []record.Settlement
		for _, e := range all {
			settled = append(settled, record.Settlement{Event: e.ID, Rule: e.Rule, At: now})
		}
		if err := s.AddSettlements(t.Context(), settled); err != nil {
			t.Fatal(err)
		}
		rollUp(t, s)
		days := query.Range{From: now.Add(-24 * time.Hour), To: now}
		want := totals(t, s, days)
		size, err := s.Size(t.Context(), 0)
		if err != nil || size < n*100 {
			t.Fatalf("%d bytes, %v", size, err)
		}
		each, err := s.RowBytes(t.Context(), record.MonthOf(now))
		if err != nil || each < 100 || each > 1000 {
			t.Fatalf("an event takes %d bytes, %v", each, err)
		}
		if db.Postgres() { // of which the size is an estimate
			if _, err := db.Write.ExecContext(t.Context(), "ANALYZE stint_events"); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Write.ExecContext(t.Context(), "ANALYZE stint_settlements"); err != nil {
				t.Fatal(err)
			}
		}

		inUse, err := s.Size(t.Context(), 1)
		if err != nil || inUse < size/2 || inUse > size {
			t.Errorf("%d of %d bytes are said to be in use, %v", inUse, size, err)
		}

		s = open(size * 2)
		if err := s.Bound(t.Context()); err != nil || s.State().Deleted != 0 || s.State().Bytes != size {
			t.Fatalf("%+v, %v", s.State(), err)
		}
		most := size - 1500*each
		s = open(most)
		if err := s.Bound(t.Context()); err != nil {
			t.Fatal(err)
		}
		state := s.State()
		left := recordtest.All(t, s.Store, record.MonthOf(now))
		if gone := n - len(left); int64(gone) != state.Deleted || gone < 500 || gone > 5000 || !state.Cut.Equal(now) {
			t.Errorf("%d events are left, %+v", len(left), state)
		}
		for _, e := range left {
			if e.At.Before(state.Before) {
				t.Fatalf("an event of %v is left, and those before %v should be gone", e.At, state.Before)
			}
		}
		if kept := recordtest.Count(t, db, "SELECT count(*) FROM stint_settlements"); kept != int64(len(left)) {
			t.Errorf("%d events are left, and the settlements of %d", len(left), kept)
		}
		if got := totals(t, s, days); got != want {
			t.Errorf("sums are\n%swant\n%s", got, want)
		}

		// An event that arrives late does not replace what was counted.
		recordtest.Write(t, s, recordtest.Denial(999, all[0].At))
		rollUp(t, s)
		if got := totals(t, s, days); got != want {
			t.Errorf("after a late event sums are\n%swant\n%s", got, want)
		}
		// One of a minute that is still there counts.
		recordtest.Write(t, s, recordtest.Denial(998, left[len(left)-1].At))
		rollUp(t, s)
		if got := totals(t, s, days); got == want {
			t.Error("a new event does not count")
		}
	})
}

// TestBoundMonths removes whole months first, by the archive if there is one.
func TestBoundMonths(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		now := time.Date(2026, 3, 10, 12, 0, 30, 0, time.UTC)
		s, err := rollup.New(db, rollup.Options{Now: recordtest.At(now)})
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{now.Add(-60 * 24 * time.Hour), now.Add(-30 * 24 * time.Hour), now} {
			recordtest.Write(t, s, recordtest.Events(2000, at.Add(-time.Minute), 10*time.Minute)...)
		}
		rollUp(t, s)
		year := query.Range{From: now.Add(-100 * 24 * time.Hour), To: now}
		top := func() string {
			top, err := s.Top(t.Context(), rollup.TopQuery{Range: year, By: "rule", Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(top)
		}
		want := top()
		if db.Postgres() { // of which the size is an estimate
			if _, err := db.Write.ExecContext(t.Context(), "ANALYZE stint_events"); err != nil {
				t.Fatal(err)
			}
		}
		size, err := s.Size(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		bounded := func(most int64, archive func(context.Context) error) *rollup.Store {
			b, err := rollup.New(db, rollup.Options{Now: recordtest.At(now), MaxBytes: most, Archive: archive})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		broken, asked := errors.New("the archive is away"), 0
		b := bounded(size-1000, func(context.Context) error { asked++; return broken })
		if err := b.Bound(t.Context()); !errors.Is(err, broken) || asked != 1 {
			t.Errorf("%v, the archive was asked %d times", err, asked)
		}
		if months, err := s.Months(t.Context()); err != nil || len(months) != 2 {
			t.Errorf("%v, %v: want both months that are over", months, err)
		}
		// PostgreSQL may learn only later how much was deleted; the record is not too large then.
		wait.Nil(t, "the size of the record", func() error {
			size, err := s.Size(t.Context(), 1)
			if err != nil {
				return err
			}
			if err := bounded(size-1000, nil).Bound(t.Context()); err != nil {
				return err
			}
			months, err := s.Months(t.Context())
			if err == nil && (len(months) != 1 || months[0].Month != recordtest.Month("2026-02")) {
				err = fmt.Errorf("%v: want the newer of the months that are over", months)
			}
			return err
		})
		if left := recordtest.All(t, s.Store, record.MonthOf(now)); len(left) != 2000 {
			t.Errorf("%d events of this month are left", len(left))
		}
		if got := top(); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// TestBoundOpen keeps what is not counted yet, however large it is.
func TestBoundOpen(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		now := time.Date(2026, 3, 10, 12, 0, 30, 0, time.UTC)
		s, err := rollup.New(db, rollup.Options{Now: recordtest.At(now), MaxBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		recordtest.Write(t, s, recordtest.Denial(1, now.Add(-time.Hour)), recordtest.Denial(2, now))
		if err := s.Bound(t.Context()); err == nil || !strings.Contains(err.Error(), "there is nothing to delete") || s.State().Deleted != 0 {
			t.Errorf("%+v, %v", s.State(), err)
		}
		rollUp(t, s)
		if err := s.Bound(t.Context()); err != nil || s.State().Deleted != 1 {
			t.Errorf("%+v, %v", s.State(), err)
		}
		if left := recordtest.All(t, s.Store, record.MonthOf(now)); len(left) != 1 || !left[0].At.Equal(now) || left[0].Outcome != engine.Denied {
			t.Error(left)
		}
	})
}
