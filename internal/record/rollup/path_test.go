package rollup_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
)

// TestTopPaths has two paths that are denied often, and a client that invents others: they are ranked, and lists do not grow
// with those.
func TestTopPaths(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *rollup.Store, db *database.DB) {
		t.Helper()
		var events []record.Event
		add := func(i int, path, endpoint string, weight int64) {
			e := recordtest.Denial(i, now.AddDate(0, 0, -2).Add(time.Duration(i)*time.Second))
			e.Path, e.Endpoint, e.Weight = path, endpoint, weight
			events = append(events, e)
		}
		for i := range 3000 {
			add(i, fmt.Sprintf("/invented/%d", i), "", 1)
		}
		for i := range 100 {
			add(5000+i, "/search", "/search", 10)
			add(6000+i, "/login", "/**", 5)
			add(7000+i, "", "/**", 50)
		}
		recordtest.Write(t, s, events...)
		rollUp(t, s)
		got, err := s.Top(t.Context(), rollup.TopQuery{Range: query.Range{From: now.AddDate(0, 0, -3), To: now}, By: "path", Limit: 2})
		if want := []rollup.Refusals{{Name: "/search", Denied: 1000, Refused: 1000}, {Name: "/login", Denied: 500, Refused: 500}}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
		all, err := s.Top(t.Context(), rollup.TopQuery{Range: query.Range{From: now.AddDate(0, 0, -3), To: now}, By: "path", Limit: 1000})
		if err != nil || len(all) > 200 { // heads are small here
			t.Errorf("%d paths, %v", len(all), err)
		}
		if n := recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_lists WHERE kind = 4 AND level = 2"); n < 1 || n > 4 {
			t.Errorf("a day has %d pages of paths", n)
		}
		if _, _, err := s.Distinct(t.Context(), rollup.DistinctQuery{Range: query.Range{From: now.AddDate(0, 0, -3), To: now}, By: "path"}); err == nil {
			t.Error("paths are counted as clients")
		}
	})
}
