//go:build scale

package layer_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
)

// TestLeaseLatency has two callers, one for each processor, ask for one hot counter in Redis: one take in 100 takes 10 µs or more at most.
func TestLeaseLatency(t *testing.T) { //nolint:paralleltest // it measures
	store := must(t)(redisstore.Open(testredis.Start(t).URL(), redisstore.Options{}))
	node := must(t)(layer.Lease(store, layer.LeaseOptions{}))
	defer node.Close()
	a := leaseAsk(t, "1000000000/1h", 100*time.Millisecond)
	const takes = 8_000_000
	var took [2][]time.Duration
	var callers sync.WaitGroup
	for i := range took {
		took[i] = make([]time.Duration, 0, takes)
		callers.Go(func() {
			asks, ds := []stint.Ask{a}, make([]stint.Decision, 1)
			for range takes {
				begin := time.Now()
				if err := node.Take(t.Context(), asks, ds); err != nil || !ds[0].Allowed {
					t.Error(ds[0], err)
					return
				}
				took[i] = append(took[i], time.Since(begin))
			}
		})
	}
	callers.Wait()
	all := slices.Concat(took[0], took[1])
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		t.Fatal("no takes")
	}
	t.Logf("%d takes: p50 %v, p99 %v, p99.9 %v, at most %v", n, all[n/2], all[n*99/100], all[n*999/1000], all[n-1])
	if p99 := all[n*99/100]; p99 >= 10*time.Microsecond {
		t.Errorf("p99 is %v, want less than 10µs", p99)
	}
}
