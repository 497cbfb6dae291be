//go:build !race

package engine_test

import "testing"

// TestAllocations counts what a decision allocates.
func TestAllocations(t *testing.T) {
	for name, make := range callers(t) {
		e, q := make()
		for range 100 {
			decide(t, e, q)
		}
		if n := testing.AllocsPerRun(1000, func() { decide(t, e, q) }); n > 2 {
			t.Errorf("%s: %v allocations, want 2 at most", name, n)
		}
	}
}
