package layer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
)

// BenchmarkAway compares a decision of this node, while the store is out of reach and the
// breaker open, with one of the memory store alone.
func BenchmarkAway(b *testing.B) {
	for _, keys := range []int{1, 10_000, 100_000} {
		subjects := make([]string, keys)
		for i := range subjects {
			subjects[i] = fmt.Sprintf("user:%019d", i)
		}
		limit := stint.Limit{Max: 1e9, Window: stint.Every(time.Hour)}
		plan, err := limit.Compile()
		if err != nil {
			b.Fatal(err)
		}
		run := func(name string, s stint.Store) {
			b.Run(fmt.Sprintf("keys=%d/%s", keys, name), func(b *testing.B) {
				asks, ds := []stint.Ask{{Key: stint.Key{Name: "api"}, Limit: limit, Plan: plan, Cost: 1}}, make([]stint.Decision, 1)
				take := func(i int) {
					asks[0].Key.Subject = subjects[i]
					if err := s.Take(b.Context(), asks, ds); err != nil {
						b.Fatal(err)
					}
				}
				for i := range subjects {
					take(i)
				}
				at := uint32(1)
				for b.Loop() {
					at = at*1664525 + 1013904223
					take(int(uint64(at) * uint64(keys) >> 32))
				}
			})
		}
		open := func() stint.Store {
			s, err := memstore.New(memstore.Options{MaxKeys: 2 * keys})
			if err != nil {
				b.Fatal(err)
			}
			return s
		}
		run("memory", open())
		down := &faulty{Store: memory(b, nil)}
		down.fail(unknown)
		away, err := layer.New(down, layer.Options{
			Fallback: &layer.FallbackOptions{Local: open(), MaxDebts: keys}, Breaker: layer.BreakerOptions{Probe: time.Hour},
		})
		if err != nil {
			b.Fatal(err)
		}
		run("away", away)
	}
}

// BenchmarkRemember compares takes through a stack over Redis that remembers what it says with those through one
// that does not. All counters are used enough to be remembered. Beside that, the fallback alone, over memory.
func BenchmarkRemember(b *testing.B) {
	const keys = 10_000
	limit := stint.Limit{Max: 1e9, Window: stint.Every(time.Hour)}
	plan, err := limit.Compile()
	if err != nil {
		b.Fatal(err)
	}
	for on, open := range map[string]func(layer.FallbackOptions) (stint.Store, error){
		"redis": func(o layer.FallbackOptions) (stint.Store, error) {
			return layer.New(redis(b, testredis.Shared(b).URL()+"?timeout=20s", nil), layer.Options{
				Retry: layer.RetryOptions{Budget: 20 * time.Second}, Breaker: layer.BreakerOptions{Slow: -1}, Fallback: &o,
			})
		},
		"memory": func(o layer.FallbackOptions) (stint.Store, error) { return layer.Fallback(memory(b, nil), o) },
	} {
		run := map[string]func(*testing.B){}
		for name, remember := range map[string]int{"remember": 0, "forget": -1} {
			s, err := open(layer.FallbackOptions{Local: memory(b, nil), Remember: remember})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			asks, ds := make([][]stint.Ask, keys), make([]stint.Decision, 1)
			for i := range asks {
				asks[i] = []stint.Ask{{Key: stint.Key{Subject: fmt.Sprintf("user:%019d", i), Name: "api"}, Limit: limit, Plan: plan, Cost: 2e8}}
				if err := s.Take(b.Context(), asks[i], ds); err != nil {
					b.Fatal(err)
				}
				asks[i][0].Cost = 1
			}
			run[name] = func(b *testing.B) { //nolint:thelper // it is a benchmark
				at := uint32(1)
				for b.Loop() {
					at = at*1664525 + 1013904223
					if err := s.Take(b.Context(), asks[uint64(at)*keys>>32], ds); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		for range 5 { // in turn, since machines get busy and idle
			for _, name := range []string{"forget", "remember"} {
				b.Run(on+"/"+name, run[name])
			}
		}
	}
}

// BenchmarkLease compares a decision by a lease with one of the memory store alone, and what asks pay that are
// not leased.
func BenchmarkLease(b *testing.B) {
	hot := leaseAsk(b, "1000000000000/1h", 100*time.Millisecond)
	plain := hot
	plain.Policy = nil
	for _, c := range []struct {
		name   string
		ask    stint.Ask
		leases bool
	}{{"memory", plain, false}, {"not leased", plain, true}, {"leased", hot, true}} {
		b.Run(c.name, func(b *testing.B) {
			s := memory(b, nil)
			if c.leases {
				s = must(b)(layer.Lease(s, layer.LeaseOptions{}))
			}
			b.Cleanup(func() { _ = s.Close() })
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				asks, ds := []stint.Ask{c.ask}, make([]stint.Decision, 1)
				for pb.Next() {
					if err := s.Take(b.Context(), asks, ds); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkSplit compares takes of asks without parts through Split with those of the store alone, and with takes of a
// counter that has parts. The store is in memory, so that what a layer adds shows.
func BenchmarkSplit(b *testing.B) {
	limit := stint.PerHour(1 << 40)
	plan, err := limit.Compile()
	if err != nil {
		b.Fatal(err)
	}
	ds := make([]stint.Decision, 1)
	run := map[string]func(*testing.B){}
	for name, c := range map[string]struct {
		wrap  bool
		parts int
	}{"alone": {false, 0}, "no parts": {true, 0}, "8 parts": {true, 8}} {
		s := memory(b, nil)
		if c.wrap {
			s = must(b)(layer.Split(s))
		}
		asks := []stint.Ask{splitAsk(limit, c.parts, 1)}
		asks[0].Plan = plan
		run[name] = func(b *testing.B) { //nolint:thelper // it is a benchmark
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Take(b.Context(), asks, ds); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for range 3 { // in turn, since machines get busy and idle
		for _, name := range []string{"alone", "no parts", "8 parts"} {
			b.Run(name, run[name])
		}
	}
}
