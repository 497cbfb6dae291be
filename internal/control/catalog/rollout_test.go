package catalog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

const stepped = `
[[rules]]
name     = "search"
count_by = ["user"]
limits   = [{ name = "search", limit = "50/1h" }]
rollout  = { steps = ["1%", "100%"], every = "1h" }
`

// TestRolloutApplied applies a file without a start again and again: the rollout begins once, it goes on when other fields change, and
// stays stopped, unless it goes on by itself, is reverted, or has other steps.
func TestRolloutApplied(t *testing.T) {
	t.Parallel()
	c := opened(t, testdatabase.SQLite(t))
	apply := func(text string) (diff string) {
		t.Helper()
		d, err := c.Apply(t.Context(), parse(t, text), catalog.ApplyOptions{Actor: "ci"})
		if err != nil {
			t.Fatal(err)
		}
		return lines(d)
	}
	get := func() catalog.Record[catalog.Rule] {
		t.Helper()
		r, err := c.Rules.Get(t.Context(), "search")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := time.Now().Add(-time.Second)
	apply(stepped)
	first := get().Value.Rollout
	if first.Start.Before(before) || time.Now().Before(first.Start.Time) {
		t.Fatalf("it begins at %v", first.Start)
	}
	if diff := apply(stepped); diff != "" {
		t.Errorf("applied again: %s", diff)
	}
	apply(strings.Replace(stepped, "50/1h", "60/1h", 1))
	if got := get().Value.Rollout; !got.Start.Equal(first.Start.Time) {
		t.Errorf("with another limit it begins at %v, and not at %v", got.Start, first.Start)
	}
	apply(stepped)
	r := get()
	r.Value.Rollout = r.Value.Rollout.Stop(time.Now(), 0, "denied too much")
	stopped, err := c.Rules.Update(t.Context(), "stint", r.Value, r.Version)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{stepped, strings.Replace(stepped, `every = "1h"`, `every = "1h", start = "`+first.Start.Format(time.RFC3339)+`"`, 1)} {
		apply(text)
		if got := get().Value.Rollout; got.Stopped == nil || got.Stopped.Reason != "denied too much" {
			t.Errorf("applied again after it was taken back: %+v", got)
		}
	}
	if _, err := c.Revert(t.Context(), catalog.RevertOptions{Actor: "alice", Revision: stopped}); err != nil {
		t.Fatal(err)
	}
	if got := get().Value.Rollout; got.Stopped != nil || !got.Start.Equal(first.Start.Time) {
		t.Errorf("reverted: %+v", got)
	}
	apply(strings.Replace(stepped, `"1%"`, `"2%"`, 1))
	if got := get().Value.Rollout; got.Start.Before(first.Start.Time) || got.Stopped != nil {
		t.Errorf("with other steps: %+v", got)
	}
}
