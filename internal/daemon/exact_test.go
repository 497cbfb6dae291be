//go:build exact

package daemon_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/daemon"
)

func TestRecordAllocations(t *testing.T) {
	r := daemon.NewRecorder()
	e := engine.Event{Rule: "search", Outcome: engine.Denied, Shadow: true, Latency: time.Microsecond, Waited: time.Second}
	if n := testing.AllocsPerRun(1000, func() { r.Record(t.Context(), &e) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	r := daemon.NewRecorder()
	e := engine.Event{Rule: "search", Latency: time.Microsecond}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Record(b.Context(), &e)
		}
	})
}
