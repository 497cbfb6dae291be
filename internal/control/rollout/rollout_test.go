package rollout_test

import (
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/rollout"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testpostgres.StopShared()
	os.Exit(code)
}

// TestSum has two nodes count a minute: the sum is of both, of that minute alone, and a minute that is written again counts once. What
// is old is deleted.
func TestSum(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db, err := database.Open(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		s, noon := rollout.New(db, nil), time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
		add := func(node string, minutes int, rules map[string]rollout.Minute) {
			t.Helper()
			if err := s.Add(t.Context(), node, noon.Add(time.Duration(minutes)*time.Minute), rules); err != nil {
				t.Fatal(err)
			}
		}
		is := func(minutes int, want map[string]rollout.Minute) {
			t.Helper()
			got, err := s.Sum(t.Context(), noon.Add(time.Duration(minutes)*time.Minute))
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("minute %d: %v, %v; want %v", minutes, got, err, want)
			}
		}
		add("one", 0, map[string]rollout.Minute{"a": {10, 1}, "b": {5, 0}})
		add("one", 0, map[string]rollout.Minute{"a": {30, 2}})
		add("two", 0, map[string]rollout.Minute{"a": {7, 7}})
		add("two", 1, map[string]rollout.Minute{"a": {1, 0}})
		is(0, map[string]rollout.Minute{"a": {37, 9}, "b": {5, 0}})
		is(1, map[string]rollout.Minute{"a": {1, 0}})
		add("two", 61, map[string]rollout.Minute{"b": {2, 1}})
		is(0, map[string]rollout.Minute{})
		is(1, map[string]rollout.Minute{"a": {1, 0}})
		if now, err := s.Time(t.Context()); err != nil || now.IsZero() {
			t.Error(now, err)
		}
	})
}
