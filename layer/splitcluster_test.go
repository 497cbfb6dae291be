package layer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestSplitCluster has the parts of a counter in different slots of a Redis Cluster, on several primaries.
func TestSplitCluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.SharedCluster(t)
	const parts, units, nodes = 8, 200, 3
	limit := stint.Limit{Algorithm: stint.FixedWindow, Max: units, Window: parse(t, "1/year").Window}
	url := fmt.Sprintf("%s?timeout=30s&dial_timeout=30s&prefix=split%d", cluster.URL(), stores.Add(1))
	var all []*redisstore.Store
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range nodes {
		base, err := redisstore.Open(url, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, base)
		s := must(t)(layer.New(base, layer.Options{
			Retry:   layer.RetryOptions{Budget: 30 * time.Second},
			Breaker: layer.BreakerOptions{Slow: -1, Server: base.Server},
		}))
		for range 4 {
			wg.Go(func() {
				for range 2 * units / nodes / 4 {
					ds, err := storetest.Take(context.Background(), s, []stint.Ask{splitAsk(limit, parts, 1)})
					if err != nil || ds[0].Basis > stint.Remembered {
						t.Error(ds, err)
						return
					}
					if ds[0].Allowed {
						passed.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := passed.Load(); n != units {
		t.Errorf("%d passed, want %d", n, units)
	}
	slots, servers := map[any]bool{}, map[string]int{}
	for _, a := range partsOf(t, limit, parts) {
		servers[all[0].Server(&a)]++
		slots[cluster.Nodes()[0].Do(t, "CLUSTER", "KEYSLOT", a.Key.String())] = true
	}
	for _, n := range servers {
		if len(slots) != parts || len(servers) != 3 || n > 3 {
			t.Errorf("%d parts are in %d slots on servers with %v; want 3, 3 and 2", parts, len(slots), servers)
		}
	}
	d := take(t, must(t)(layer.Split(all[1])), splitAsk(limit, parts, 1))[0]
	if d.Allowed || d.Remaining != 0 || d.Limit != units || d.RetryAfter <= 0 || d.RetryAfter > d.ResetAfter {
		t.Errorf("exhausted: %+v", d)
	}
}

// TestSplitShardDown kills a primary that has some parts of a counter, and no replica. The other parts are counted, and
// when they are exhausted, takes are denied. When the primary is back, so are its parts.
func TestSplitShardDown(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartPrimaries(t, 3)
	for _, n := range cluster.Nodes() {
		n.Do(t, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	shared, err := redisstore.Open(cluster.URL()+"?timeout=30s&dial_timeout=30s", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := must(t)(layer.New(shared, layer.Options{
		Retry:    layer.RetryOptions{Budget: 2 * time.Second}, // for which a server that is gone is asked again
		Breaker:  layer.BreakerOptions{Slow: -1, Server: shared.Server},
		Fallback: &layer.FallbackOptions{Local: memory(t, nil)},
	}))
	eventually(t, func() error {
		if names := shared.Servers(); len(names) != 3 {
			return fmt.Errorf("%v", names)
		}
		return shared.Ping(t.Context())
	})
	const parts, units = 8, 80_000
	limit := stint.Limit{Algorithm: stint.FixedWindow, Max: units, Window: parse(t, "1/year").Window}
	dead, lost := cluster.Nodes()[0], int64(0)
	for _, a := range partsOf(t, limit, parts) {
		if shared.Server(&a) == dead.Addr() {
			lost += a.Limit.Max
		}
	}
	if lost == 0 || lost == units {
		t.Fatalf("%d units are on %s", lost, dead.Addr())
	}
	counted := func(cost int64) func() error {
		return func() error {
			if d := take(t, s, splitAsk(limit, parts, cost))[0]; d.Basis != stint.Counted || !d.Allowed {
				return fmt.Errorf("%+v", d)
			}
			return nil
		}
	}
	eventually(t, counted(1))
	dead.Kill(t)
	eventually(t, counted(1))
	passed := int64(0)
	eventually(t, func() error {
		for {
			d := take(t, s, splitAsk(limit, parts, 500))[0]
			switch {
			case d.Allowed && d.Basis == stint.Counted:
				passed += d.Cost
			case d.Allowed: // not yet
			case d.Basis != stint.Counted || d.RetryAfter > time.Second:
				return fmt.Errorf("the denial: %+v", d)
			default:
				return nil
			}
		}
	})
	if most := units - lost; passed > most || passed < most/2 {
		t.Errorf("%d units were counted by the servers that live, of %d", passed, most)
	}
	dead.Restart(t)
	eventually(t, counted(500))
}
