//go:build exact

package quota_test

import (
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/quota"
)

// TestAllocations counts what the layer adds to its store.
func TestAllocations(t *testing.T) { //nolint:paralleltest // it counts allocations
	of := table(t, "eu", quota.Region{Name: "eu"}, quota.Region{Name: "us"})
	asks := []stint.Ask{ask(t, "1000000000/1s", 1, divided), ask(t, "1000000000/1m", 1, following), ask(t, "1/1h", 1, divided), ask(t, "1000/1h", 1, nil)}
	ds := make([]stint.Decision, len(asks))
	count := func(s stint.Store, asks []stint.Ask) float64 {
		return testing.AllocsPerRun(1000, func() {
			if err := s.Take(t.Context(), asks, ds[:len(asks)]); err != nil {
				t.Fatal(err)
			}
			if err := s.Adjust(t.Context(), asks, ds[:len(asks)]); err != nil {
				t.Fatal(err)
			}
		})
	}
	for n := range asks {
		bare := count(memory(t, nil), asks[:n+1])
		s := around(t, memory(t, nil), quota.Options{Table: of, Weights: quota.Known(t, of)})
		if with := count(s, asks[:n+1]); with > bare {
			t.Errorf("%d asks: %v allocations, and %v without the layer", n+1, with, bare)
		}
	}
}
