//go:build !race

package audit_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
)

// TestAllocations counts what it allocates to record a decision, and to take it.
func TestAllocations(t *testing.T) {
	for _, privacy := range []audit.Privacy{audit.KeepIP, audit.TruncateIP, audit.HashIP} {
		r := newRecorder(t, audit.RecorderOptions{Privacy: privacy, HashKey: make([]byte, 32)})
		e := denial(time.Now())
		taken := make(audit.Batch, 0, 1<<20)
		if n := testing.AllocsPerRun(1000, func() {
			r.Record(&e)
			taken = r.Take(taken[:0])
		}); n != 0 || len(taken) == 0 {
			t.Errorf("%v: %v allocations, want none", privacy, n)
		}
	}
}

// TestDecideAllocations counts what a decision allocates, recorded and not.
func TestDecideAllocations(t *testing.T) {
	q := engine.Request{Method: "GET", Path: "/v1/search/books", Peer: netip.MustParseAddr("203.0.113.77")}
	count := func(o engine.Options) float64 {
		e := refusing(t, o)
		return testing.AllocsPerRun(1000, func() {
			if _, err := e.Decide(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		})
	}
	r := newRecorder(t, audit.RecorderOptions{})
	if without, with := count(engine.Options{}), count(engine.Options{Recorder: r}); with != without || len(r.Take(nil)) == 0 {
		t.Errorf("%v allocations, and %v without a recorder", with, without)
	}
}

// TestMillionInBoundedMemory has a million events go through much less memory than they
// need. They would take minutes under the race detector.
func TestMillionInBoundedMemory(t *testing.T) {
	if most := trouble(t, 1_000_000, false); most > 16<<20 {
		t.Errorf("%d bytes were in memory", most)
	}
}
