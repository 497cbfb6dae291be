package rollup_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
)

// TestDeniedMore compares who was denied in some minutes with what events say.
func TestDeniedMore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 34, 56, 0, time.UTC)
	events := recordtest.Events(600, now, time.Hour)
	each(t, now, func(t *testing.T, s *rollup.Store, _ *database.DB) {
		t.Helper()
		recordtest.Write(t, s, events...)
		to := now.Truncate(time.Minute)
		if _, whole, err := s.DeniedMore(t.Context(), query.Range{From: to.Add(-time.Hour), To: to}, "user", "", 0, 10); err != nil || whole {
			t.Errorf("nothing is rolled up yet: %v, %v", whole, err)
		}
		rollUp(t, s)
		for _, minutes := range []int{1, 7, 40} {
			from := to.Add(-time.Duration(minutes) * time.Minute)
			some := slices.DeleteFunc(slices.Clone(events), func(e record.Event) bool { return e.At.Before(from) || !e.At.Before(to) })
			for _, rule := range []string{"", "r1"} {
				for _, by := range []string{"user", "tenant", "key", "ip"} {
					for _, than := range []int64{0, 3} {
						want := slices.DeleteFunc(topOf(some, counted[by], rule), func(n rollup.Refusals) bool { return n.Denied <= than })
						got, whole, err := s.DeniedMore(t.Context(), query.Range{From: from, To: to}, by, rule, than, 1000)
						order := func(a, b rollup.Refusals) int { return int(b.Denied - a.Denied) }
						if slices.SortFunc(want, order); err != nil || !whole || len(got) != len(want) || !slices.IsSortedFunc(got, order) {
							t.Fatalf("%s, %d minutes, more than %d: %v, %v, %v; want %v", by, minutes, than, got, whole, err, want)
						}
						for _, n := range want {
							if !slices.Contains(got, n) {
								t.Errorf("%s, %d minutes: %v lacks %v", by, minutes, got, n)
							}
						}
						if first, _, err := s.DeniedMore(t.Context(), query.Range{From: from, To: to}, by, rule, than, 2); err != nil || !slices.Equal(first, got[:min(2, len(got))]) {
							t.Errorf("the first two are %v, %v, want %v", first, err, got[:min(2, len(got))])
						}
					}
				}
			}
		}
		if _, _, err := s.DeniedMore(t.Context(), query.Range{From: to.Add(-time.Hour), To: to}, "path", "", 0, 10); err == nil {
			t.Error("paths are no clients")
		}
	})
}
