package layer_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
)

// TestOutage has clients of several nodes ask for four times their limit, while the store goes away for some
// time, at any moment, and comes back for one node after another: over all nodes, no window has more than
// 120 of 100.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window", "100/1m fixed_window", "100/1m sliding_window"} {
		for _, nodes := range []int64{2, 3} {
			for _, length := range []time.Duration{150 * time.Millisecond, 2300 * time.Millisecond} {
				if nodes == 2 && length > time.Second && !torture.Enabled {
					continue
				}
				t.Run(fmt.Sprint(text, " on ", nodes, " for ", length), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						limit := parse(t, text)
						span := limit.Window.Length()
						store := memory(t, nil)
						admitted := map[int64]int64{}
						stop := make(chan struct{})
						var mu sync.Mutex
						var wg sync.WaitGroup
						var down []*faulty
						for n := range nodes {
							f := &faulty{Store: store}
							down = append(down, f)
							s := must(t)(layer.New(f, layer.Options{
								Breaker:  layer.BreakerOptions{Probe: 300*time.Millisecond + time.Duration(n)*100*time.Millisecond},
								Fallback: &layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return int(nodes) }},
							}))
							wg.Go(func() {
								a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: limit, Cost: 1}
								for {
									select {
									case <-stop:
										return
									case <-time.After(min(span/400, 50*time.Millisecond) * time.Duration(nodes)):
									}
									if d := decide(t, s, a); d.Allowed {
										mu.Lock()
										admitted[d.At/span.Microseconds()]++
										mu.Unlock()
									}
								}
							})
						}
						for i := range 4 { // the last ones begin when less is used
							<-time.After(2*span + span*time.Duration(9-2*i)/10)
							for _, f := range down {
								f.fail(hang)
							}
							<-time.After(length)
							for _, f := range down {
								f.heal()
							}
						}
						<-time.After(2 * span)
						close(stop)
						wg.Wait()
						worst := slices.Max(slices.Collect(maps.Values(admitted)))
						t.Logf("at most %d", worst)
						if worst > 120 {
							t.Errorf("%s, %d nodes, away for %v: %d admitted in a window", text, nodes, length, worst)
						}
					})
				})
			}
		}
	}
}
