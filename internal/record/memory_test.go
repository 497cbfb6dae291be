//go:build torture

package record_test

import (
	"runtime"
	"testing"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/torture"
)

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
	torture.AtLeast(t, "bytes for many events", heap()-before, many*200)
	for range 3 {
		taken = r.Take(taken[:0])
		fill(few)
	}
	torture.AtMost(t, "bytes for few events", heap()-before, 1<<20)
	if n := len(events(t, r.Take(taken[:0]))); n != few {
		t.Errorf("%d events are there, want %d", n, few)
	}
	runtime.KeepAlive(r)
}

// TestManyInBoundedMemory has events go through much less memory than the 84 MB that they need.
func TestManyInBoundedMemory(t *testing.T) {
	torture.AtMost(t, "bytes in memory", trouble(t, 300_000, false), 16<<20)
}
