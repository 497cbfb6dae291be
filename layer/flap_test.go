package layer_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
)

// TestFlap has the store go away for each of two nodes again and again, with leases and without. What is decided without
// the store adds at most the shares of the other nodes to a window, and what a node has admitted in less than 0.1 s without
// it and not paid yet. Where that is denied, nothing passes beyond the limit.
func TestFlap(t *testing.T) {
	t.Parallel()
	const nodes, limit = 2, 2000
	const asked = 4 // times in a millisecond
	for _, mode := range []stint.FailMode{stint.FailLocal, stint.FailClosed} {
		most := int64(limit)
		if mode == stint.FailLocal {
			most += (nodes-1)*limit/nodes + 100*asked
		}
		for _, lease := range []time.Duration{0, 100 * time.Millisecond} {
			seeds := uint64(2)
			if torture.Enabled {
				seeds *= 40
			}
			for seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					admitted := map[int64]int64{}
					store, stop := memory(t, nil), make(chan struct{})
					a := stint.Ask{
						Key: stint.Key{Subject: "alice"}, Limit: parse(t, "2000/1s fixed_window"), Cost: 1,
						Policy: &stint.Policy{Lease: lease, OnFailure: mode},
					}
					var down []*faulty
					var wg sync.WaitGroup
					for range nodes {
						f := &faulty{Store: store}
						down = append(down, f)
						s := must(t)(layer.New(f, layer.Options{
							Fallback: &layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return nodes }},
						}))
						wg.Go(func() {
							for {
								select {
								case <-stop:
									return
								case <-time.After(time.Millisecond):
								}
								for range asked {
									d := decide(t, s, a)
									if mu.Lock(); d.Allowed {
										admitted[d.At/1e6]++
									}
									mu.Unlock()
								}
							}
						})
					}
					r := rand.New(rand.NewPCG(seed, 1))
					pass := func(ms int) { <-time.After(time.Duration(r.IntN(ms)) * time.Millisecond) }
					for range 6 {
						pass(1000)
						for _, f := range down {
							f.fail(hang)
							pass(30)
						}
						pass(400)
						for _, f := range down {
							f.heal()
							pass(300)
						}
					}
					close(stop)
					wg.Wait()
					if worst := slices.Max(slices.Collect(maps.Values(admitted))); worst > most {
						t.Errorf("seed %d, leases of %v: %d passed in a window, want at most %d", seed, lease, worst, most)
					}
				})
			}
		}
	}
}
