package audit_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
)

// denial is an event as engines tell it.
func denial(at time.Time) engine.Event {
	return engine.Event{
		ID: engine.NewID(at), At: at, Outcome: engine.Denied,
		User: "u-48213", Tenant: "acme", Key: "0123456789ABCDEF", Tier: "pro", IP: netip.MustParseAddr("203.0.113.77"),
		Rule: "search-per-user", Limit: "per-minute", Endpoint: "/v1/search/{index}", Method: "GET",
		Used: 600, Max: 600, Cost: 1, Status: 429, RetryAfter: 12345678 * time.Microsecond, Latency: 180 * time.Microsecond,
	}
}

// BenchmarkRecord records denials, and empties the recorder so often that none is dropped.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct {
		name    string
		threads int
		o       audit.RecorderOptions
	}{
		{"keep", 1, audit.RecorderOptions{}},
		{"keep-2", 2, audit.RecorderOptions{}},
		{"truncate", 1, audit.RecorderOptions{Privacy: audit.TruncateIP}},
		{"hash", 1, audit.RecorderOptions{Privacy: audit.HashIP, HashKey: make([]byte, 32)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.o.Region, c.o.Node = "eu-west-1", "node-7"
			c.o.Buffer = 4 << 20
			r := newRecorder(b, c.o)
			var mu sync.Mutex
			var taken audit.Batch
			at := time.Now()
			record := func(e *engine.Event, i int) {
				e.ID[15] = byte(i)
				r.Record(*e)
				if i%4096 == 0 {
					mu.Lock()
					taken = r.Take(taken[:0])
					mu.Unlock()
				}
			}
			b.ReportAllocs()
			if c.threads == 1 {
				e := denial(at)
				for i := 0; b.Loop(); i++ {
					record(&e, i)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					e := denial(at)
					for i := 0; pb.Next(); i++ {
						record(&e, i)
					}
				})
			}
		})
	}
}
