//go:build scale

package layer_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
)

// cpu returns the processor time that a server has used.
func cpu(t *testing.T, s *testredis.Server) (sum time.Duration) {
	t.Helper()
	for line := range strings.Lines(fmt.Sprint(s.Do(t, "INFO", "cpu"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(seconds * float64(time.Second))
		}
	}
	return sum
}

// TestSplitLoad has nodes ask for one counter on a Cluster of four primaries, as fast as they can, in one part and in
// eight, in turn. It measures decisions, and what they cost each primary.
func TestSplitLoad(t *testing.T) { //nolint:paralleltest // it measures
	const nodes, callers, length = 16, 16, 3 * time.Second
	cluster := testredis.StartPrimaries(t, 4)
	limit := stint.Limit{Max: 1 << 40, Window: stint.Every(time.Hour)}
	var all []stint.Store
	for range nodes {
		base, err := redisstore.Open(cluster.URL()+"?timeout=5s", redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, must(t)(layer.New(base, layer.Options{
			Retry:   layer.RetryOptions{Budget: 5 * time.Second},
			Breaker: layer.BreakerOptions{Slow: -1, Server: base.Server},
		})))
	}
	for range 3 {
		for _, parts := range []int{0, 8} {
			before := map[string]time.Duration{}
			for _, s := range cluster.Nodes() {
				before[s.Addr()] = cpu(t, s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), length)
			var takes atomic.Int64
			var wg sync.WaitGroup
			for _, s := range all {
				for range callers {
					wg.Go(func() {
						a, ds := []stint.Ask{splitAsk(limit, parts, 1)}, make([]stint.Decision, 1)
						for ctx.Err() == nil {
							if err := s.Take(context.Background(), a, ds); err != nil || !ds[0].Allowed {
								t.Errorf("%+v, %v", ds, err)
								return
							}
							takes.Add(1)
						}
					})
				}
			}
			wg.Wait()
			cancel()
			busy := ""
			for _, s := range cluster.Nodes() {
				busy += fmt.Sprintf(" %.0f %%", 100*(cpu(t, s)-before[s.Addr()]).Seconds()/length.Seconds())
			}
			t.Logf("%d parts: %.0f decisions a second; processor time of the primaries:%s", max(parts, 1), float64(takes.Load())/length.Seconds(), busy)
		}
	}
}
