//go:build exact

package record_test

import (
	"testing"

	"github.com/stintdev/stint/internal/record"
)

// TestTapAllocations counts what it allocates to show a decision to no one, and to leave
// one out: nothing.
func TestTapAllocations(t *testing.T) {
	tap := newTap(t, record.TapOptions{PerSecond: 1})
	e := denial(noon)
	record := func() { tap.Record(t.Context(), &e) }
	if n := testing.AllocsPerRun(1000, record); n != 0 {
		t.Errorf("%v allocations while no one watches, want none", n)
	}
	defer tap.Watch().Close()
	record()
	if n := testing.AllocsPerRun(1000, record); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
