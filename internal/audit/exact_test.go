//go:build !race

package audit_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint/internal/audit"
)

// TestAllocations counts what it allocates to record a decision, and to take it.
func TestAllocations(t *testing.T) {
	for _, privacy := range []audit.Privacy{audit.KeepIP, audit.TruncateIP, audit.HashIP} {
		r := newRecorder(t, audit.RecorderOptions{Privacy: privacy, HashKey: make([]byte, 32)})
		e := denial(time.Now())
		taken := make(audit.Batch, 0, 1<<20)
		if n := testing.AllocsPerRun(1000, func() {
			r.Record(e)
			taken = r.Take(taken[:0])
		}); n != 0 || len(taken) == 0 {
			t.Errorf("%v: %v allocations, want none", privacy, n)
		}
	}
}

// TestMillionInBoundedMemory has a million events go through much less memory than they
// need. They would take minutes under the race detector.
func TestMillionInBoundedMemory(t *testing.T) {
	if most := trouble(t, 1_000_000, false); most > 16<<20 {
		t.Errorf("%d bytes were in memory", most)
	}
}
