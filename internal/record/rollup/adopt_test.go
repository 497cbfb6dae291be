package rollup_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
)

// together returns a database as earlier versions had it, with the record in the same file.
func together(t *testing.T, url string) (db, before *database.DB) {
	t.Helper()
	db, err := database.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	old := *db
	old.Record = &old
	return db, &old
}

// TestAdopt moves a record that an earlier version has written, with all roll-ups. It is
// interrupted, and an earlier version writes once more.
func TestAdopt(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "stint.db")
	db, before := together(t, url)
	now := time.Date(2026, 3, 1, 3, 0, 30, 0, time.UTC)
	old, s := recordtest.Store(t, before, recordtest.At(now)), recordtest.Store(t, db, recordtest.At(now))
	long := recordtest.Events(300, now.Add(-40*24*time.Hour), time.Hour) // of a month that was dropped
	recordtest.Write(t, old, long...)
	if err := old.Drop(t.Context(), record.MonthOf(long[0].At), int64(len(long))); err != nil {
		t.Fatal(err)
	}
	all := recordtest.Events(1000, now.Add(-time.Minute), 6*time.Hour) // of two months
	recordtest.Write(t, old, all[:800]...)
	rollUp(t, old)
	recordtest.Write(t, old, all[800:]...) // and not all of it is counted

	two := []record.Month{recordtest.Month("2026-02"), recordtest.Month("2026-03")}
	if _, err := s.Months(t.Context()); err == nil || !strings.Contains(err.Error(), "is being moved") {
		t.Errorf("months that are not there yet: %v", err)
	}
	cut, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.Adopt(cut); err == nil {
		t.Error("it was not interrupted")
	}
	if moved, err := s.Adopt(t.Context()); err != nil || moved != int64(len(all)) {
		t.Fatalf("%d events were moved, %v", moved, err)
	}
	rollUp(t, s)

	// What it was to be: all of it in one file.
	_, alone := together(t, "sqlite::memory:")
	plain := recordtest.Store(t, alone, recordtest.At(now))
	recordtest.Write(t, plain, long...)
	if err := plain.Drop(t.Context(), record.MonthOf(long[0].At), int64(len(long))); err != nil {
		t.Fatal(err)
	}
	recordtest.Write(t, plain, all...)
	rollUp(t, plain)
	days := query.Range{From: now.Add(-60 * 24 * time.Hour), To: now}
	same := func() {
		t.Helper()
		if got, want := totals(t, s, days), totals(t, plain, days); got != want {
			t.Errorf("sums are\n%swant\n%s", got, want)
		}
		got, want := recordtest.All(t, s.Store, two...), recordtest.All(t, plain.Store, two...)
		if len(got) != len(want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
		for i := range got {
			if !recordtest.Same(got[i], want[i]) {
				t.Fatalf("%+v, want %+v", got[i], want[i])
			}
		}
	}
	same()
	if n := recordtest.Count(t, db, "SELECT count(*) FROM sqlite_master WHERE name LIKE 'stint_events_2%'") + recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_counts") +
		recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_lists") + recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_todo"); n != 0 {
		t.Errorf("%d tables and rows are left", n)
	}

	// An earlier version runs again for a while, and counts what it writes.
	more := recordtest.Events(300, now.Add(-time.Minute), 3*time.Hour)
	for i := range more {
		more[i].ID[9] ^= 1
	}
	recordtest.Write(t, old, more...)
	rollUp(t, old)
	recordtest.Write(t, plain, more...)
	rollUp(t, plain)
	if moved, err := s.Adopt(t.Context()); err != nil || moved != int64(len(more)) {
		t.Fatalf("%d events were moved, %v", moved, err)
	}
	rollUp(t, s)
	same()
	if months, err := s.Months(t.Context()); err != nil || len(months) != 1 || months[0].Month != two[0] {
		t.Errorf("%v, %v", months, err)
	}
}

// TestRoom writes nothing while the disk has too little room, and everything once it has.
func TestRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := database.Open("sqlite:" + filepath.Join(dir, "stint.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 2, 12, 0, 30, 0, time.UTC)
	full, err := rollup.New(db, rollup.Options{Now: recordtest.At(now), MinFree: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"write":   func() error { return full.Write(t.Context(), recordtest.Events(10, now, time.Hour)) },
		"prepare": func() error { return full.Prepare(t.Context()) },
		"roll up": func() error { _, err := full.Run(t.Context()); return err },
		"adopt":   func() error { _, err := full.Adopt(t.Context()); return err },
	} {
		if err := do(); !errors.Is(err, record.ErrNoRoom) || !strings.Contains(err.Error(), "server.record.min_free") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The catalog is another file, and not concerned.
	if _, err := db.Write.ExecContext(t.Context(), "UPDATE stint_catalog SET revision = revision + 1"); err != nil {
		t.Error(err)
	}
	s := recordtest.Store(t, db, recordtest.At(now))
	recordtest.Write(t, s, recordtest.Events(10, now.Add(-time.Minute), time.Hour)...)
	if rollUp(t, s) == 0 {
		t.Error("nothing was rolled up")
	}
	spool, err := record.OpenSpool(record.SpoolOptions{Dir: filepath.Join(dir, "spool"), MinFree: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	if err := spool.Append(record.Batch("any")); !errors.Is(err, record.ErrNoRoom) || spool.Bytes() != 0 {
		t.Errorf("%v, %d bytes", err, spool.Bytes())
	}
}
