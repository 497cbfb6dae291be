//go:build exact

package record_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// TestAllocations counts what it allocates to record a decision, and to take it.
func TestAllocations(t *testing.T) {
	for _, privacy := range []record.Privacy{record.KeepIP, record.TruncateIP, record.HashIP} {
		r := newRecorder(t, record.RecorderOptions{Privacy: privacy, HashKey: make([]byte, 32)})
		e := denial(time.Now())
		taken := make(record.Batch, 0, 1<<20)
		if n := testing.AllocsPerRun(1000, func() {
			r.Record(t.Context(), &e)
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
	r := newRecorder(t, record.RecorderOptions{})
	if without, with := count(engine.Options{}), count(engine.Options{Recorder: r}); with != without || len(r.Take(nil)) == 0 {
		t.Errorf("%v allocations, and %v without a recorder", with, without)
	}
}
