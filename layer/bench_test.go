package layer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
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
