package archive_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// TestEvents reads the events of times that begin and end within months, and those of a file that was changed.
func TestEvents(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, time.January, 31, 23, 59, 45, 0, time.UTC)
	all := someEvents(begin, 40) // 15 in January
	b := new(memory)
	a := newArchive(t, newMonths(all...), b, inJuly())
	run(t, a)
	read := func(from, to time.Time) (out []record.Event, failed error) {
		for e, err := range a.Events(t.Context(), from, to) {
			if err != nil {
				return out, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	for _, r := range [][2]int{{0, 39}, {3, 12}, {12, 30}, {15, 16}, {39, 39}} {
		from, to := all[r[0]].At, all[r[1]].At
		want := slices.DeleteFunc(slices.Clone(all), func(e record.Event) bool { return e.At.Before(from) || !e.At.Before(to) })
		if got, err := read(from, to); err != nil || !slices.EqualFunc(got, want, recordtest.Same) {
			t.Errorf("%d to %d: %d events, want %d; %v", r[0], r[1], len(got), len(want), err)
		}
	}
	for range a.Events(t.Context(), begin, begin.Add(time.Hour)) {
		break // and nothing more is read
	}
	for _, name := range names(t, b, february.String()) {
		if strings.HasSuffix(name, ".parquet") {
			if err := b.Put(t.Context(), name, strings.NewReader("changed")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := read(begin, begin.Add(time.Hour)); !errors.Is(err, archive.ErrDamaged) || len(got) != 15 {
		t.Errorf("%d events, %v", len(got), err)
	}
}
