//go:build exact

package record_test

import (
	"net/netip"
	"runtime"
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

// TestMemoryIsGivenBack records many, and then few.
func TestMemoryIsGivenBack(t *testing.T) {
	r := newRecorder(t, record.RecorderOptions{Buffer: 64 << 10})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	fill := func(n int) {
		e := denial(noon)
		for i := range n {
			e.ID = numbered(i)
			e.ID[15] = byte(i)
			r.Record(t.Context(), &e)
		}
	}
	const many, few = 50_000, 10
	taken := make(record.Batch, 0, 32<<20)
	before := heap()
	fill(many)
	if held := heap() - before; held < many*200 {
		t.Errorf("%d events are held in %d bytes", many, held)
	}
	for range 3 {
		taken = r.Take(taken[:0])
		fill(few)
	}
	if held := heap() - before; held > 1<<20 {
		t.Errorf("%d bytes are held for %d events", held, few)
	}
	if n := len(events(t, r.Take(taken[:0]))); n != few {
		t.Errorf("%d events are there, want %d", n, few)
	}
	runtime.KeepAlive(r)
}

// TestManyInBoundedMemory has events go through much less memory than the 84 MB that they
// need. They would take minutes under the race detector.
func TestManyInBoundedMemory(t *testing.T) {
	if most := trouble(t, 300_000, false); most > 16<<20 {
		t.Errorf("%d bytes were in memory", most)
	}
}
