package record_test

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// denial is an event as engines tell it.
func denial(at time.Time) engine.Event {
	return engine.Event{
		ID: engine.NewID(at), At: at, Outcome: engine.Denied,
		User: "u-48213", Tenant: "acme", Key: "0123456789ABCDEF", Tier: "pro", IP: netip.MustParseAddr("203.0.113.77"),
		Rule: "search-per-user", Limit: "per-minute", Endpoint: "/v1/search/{index}", Method: "GET", Path: "/v1/search/books",
		Used: 600, Max: 600, Cost: 1, Status: 429, RetryAfter: 12345678 * time.Microsecond, Latency: 180 * time.Microsecond,
	}
}

// BenchmarkRecord records denials, and empties the recorder so often that none is dropped.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct {
		name    string
		threads int
		o       record.RecorderOptions
	}{
		{"keep", 1, record.RecorderOptions{}},
		{"keep-2", 2, record.RecorderOptions{}},
		{"fold", 1, record.RecorderOptions{PerSecond: 10}},
		{"truncate", 1, record.RecorderOptions{Privacy: record.TruncateIP}},
		{"hash", 1, record.RecorderOptions{Privacy: record.HashIP, HashKey: make([]byte, 32)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.o.Region, c.o.Node = "eu-west-1", "node-7"
			c.o.Buffer = 8 << 10
			r := newRecorder(b, c.o)
			var mu sync.Mutex
			var taken record.Batch
			at := time.Now()
			record := func(e *engine.Event, i int) {
				e.ID[15] = byte(i)
				r.Record(b.Context(), e)
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

// indifferent is told of decisions, and keeps nothing.
type indifferent struct{}

func (indifferent) Record(context.Context, *engine.Event) {}

// BenchmarkDecide tells what recording adds to a decision that refuses, all of which are
// kept: to one of which someone is told already, as the metrics of every server are, and to
// one that no one hears of. The engines take turns, since what a machine can do changes by
// more than that; it is the middle one of what many rounds of turns have differed by. Someone
// else empties the recorder, as a pipeline does.
func BenchmarkDecide(b *testing.B) {
	r := newRecorder(b, record.RecorderOptions{Region: "eu-west-1", Node: "node-7", Buffer: 32 << 10})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		var taken record.Batch
		for {
			select {
			case <-tick.C:
				taken = r.Take(taken[:0])
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	const turn = 1000
	q := engine.Request{Method: "GET", Path: "/v1/search/books", Peer: netip.MustParseAddr("203.0.113.77")}
	engines := [...]*engine.Engine{
		refusing(b, engine.Options{}), refusing(b, engine.Options{Recorder: indifferent{}}), refusing(b, engine.Options{Recorder: r}),
	}
	var untold, toTold, toUntold []float64
	for b.Loop() {
		var took [len(engines)]float64
		for i, e := range engines {
			began := time.Now()
			for range turn {
				if _, err := e.Decide(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
			took[i] = float64(time.Since(began).Nanoseconds()) / turn
		}
		untold, toTold, toUntold = append(untold, took[0]), append(toTold, took[2]-took[1]), append(toUntold, took[2]-took[0])
	}
	b.ReportMetric(0, "ns/op")
	for unit, all := range map[string][]float64{"ns/untold": untold, "ns/added-to-told": toTold, "ns/added-to-untold": toUntold} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], unit)
	}
}

// refusing returns an engine that lets one request an hour pass.
func refusing(tb testing.TB, o engine.Options) *engine.Engine {
	tb.Helper()
	var err error
	if o.Store, err = memstore.New(memstore.Options{}); err != nil {
		tb.Fatal(err)
	}
	if o.Rules, err = rule.Compile(rule.File{Rules: []rule.Rule{{
		Name: "search-per-client", Match: rule.Match{Paths: []string{"/v1/search/{index}"}},
		CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "per-hour", Limit: "1/1h"}},
	}}}); err != nil {
		tb.Fatal(err)
	}
	if o.Identity, err = identity.New(identity.Options{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = o.Identity.Close() })
	e, err := engine.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// BenchmarkFlood denies one client 545,000 times within a minute, and reports how large the
// file of the record is then, with and without a bound of the rate.
func BenchmarkFlood(b *testing.B) {
	const flood = 545_000
	for name, perSecond := range map[string]int{"all": 0, "folded": 10} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				file := filepath.Join(b.TempDir(), "stint.db")
				db := recordtest.Open(b, "sqlite:"+file)
				store, err := record.NewStore(db, record.StoreOptions{})
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now().Truncate(time.Minute)
				now := began
				r := newRecorder(b, record.RecorderOptions{PerSecond: perSecond, Buffer: 16 << 10, Region: "eu-west-1", Node: "node-7", Now: func() time.Time { return now }})
				var batch record.Batch
				rows, weight := 0, int64(0)
				put := func(take func(record.Batch) record.Batch) {
					batch = take(batch[:0])
					all := events(b, batch)
					for _, e := range all {
						weight += e.Weight
					}
					rows += len(all)
					recordtest.Write(b, store, all...)
				}
				for i := range flood {
					e := denial(began.Add(time.Duration(i) * time.Minute / flood))
					r.Record(b.Context(), &e)
					if now = e.At; i%5000 == 4999 {
						put(r.Take)
					}
				}
				put(r.TakeAll)
				size, err := store.Size(b.Context(), 0)
				if err != nil || weight != flood {
					b.Fatalf("%d events stand for %d, %v", rows, weight, err)
				}
				b.ReportMetric(float64(size), "bytes")
				b.ReportMetric(float64(rows), "rows")
			}
		})
	}
}
