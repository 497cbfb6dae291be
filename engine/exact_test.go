//go:build exact

package engine_test

import (
	"testing"

	"github.com/stintdev/stint/engine"
)

// TestAllocations counts what a decision allocates, and one that has room for its verdict.
func TestAllocations(t *testing.T) {
	for name, make := range callers(t) {
		e, q := make()
		for range 100 {
			decide(t, e, q)
		}
		if n := testing.AllocsPerRun(1000, func() { decide(t, e, q) }); n > 2 {
			t.Errorf("%s: %v allocations, want 2 at most", name, n)
		}
		var v engine.Verdict
		if n := testing.AllocsPerRun(1000, func() {
			if err := e.DecideInto(t.Context(), &q, &v); err != nil {
				t.Fatal(err)
			}
		}); n > 1 {
			t.Errorf("%s, into a verdict: %v allocations, want 1 at most", name, n)
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := e.Serve(t.Context(), &q, &v); err != nil {
				t.Fatal(err)
			}
		}); n > 1 {
			t.Errorf("%s, by a door that could settle it: %v allocations, want 1 at most", name, n)
		}
	}
}
