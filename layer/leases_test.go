//go:build scale

package layer_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
)

// TestLeaseSimulation is TestLeaseBound with 10^8 decisions. It takes minutes.
func TestLeaseSimulation(t *testing.T) { //nolint:paralleltest // it uses all processors as it is
	const want = 100_000_000
	takes, runs := int64(0), 0
	for takes < want {
		for _, text := range []string{
			"1000000/1s fixed_window", "1000000/1s sliding_window", "1000000/1s token_bucket", "1000000/1s burst=100000 leaky_bucket",
			"10000000/10s fixed_window", "10000000/10s sliding_window", "10000/2s sliding_log", "20000/1s fixed_window", "20000/1s sliding_window",
		} {
			for _, term := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
				synctest.Test(t, func(t *testing.T) {
					g := leaseSim{limit: text, term: term, nodes: 4, callers: 8, load: 1.3, faults: true, changes: true, length: 12 * time.Second}.run(t, layer.NewLeaseMeter())
					takes += g.asked.Load()
					runs++
				})
				if t.Failed() {
					t.Fatalf("%s for %v", text, term)
				}
			}
		}
		t.Logf("%d decisions in %d runs, none beyond its limit", takes, runs)
	}
}

// TestLeaseLoad has four processes make 10^7 decisions about one counter, on each kind of store. No window has
// more than the limit.
func TestLeaseLoad(t *testing.T) { //nolint:paralleltest // it measures
	const limit, want = 100_000, 10_000_000
	for name, url := range map[string]string{
		"one Redis": testredis.Start(t).URL(), "Cluster": testredis.StartCluster(t).URL(), "ring": testredis.StartRing(t, 3).URL(),
	} {
		for _, algorithm := range []string{"fixed_window", "sliding_window"} {
			t.Run(name+" "+algorithm, func(t *testing.T) {
				c := startLeaseCluster(t, leaseWorker{
					URL: url + "?timeout=1s&prefix=" + algorithm, Limit: fmt.Sprintf("%d/1s %s", limit, algorithm),
					Term: 100 * time.Millisecond, Nodes: 4, Callers: 16,
				})
				start := time.Now()
				tick := time.NewTicker(100 * time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					if _, allowed, denied, _ := c.read(); allowed+denied > want {
						break
					}
				}
				windows, allowed, denied, leased := c.stop()
				most, least := int64(0), int64(limit)
				for w, n := range windows {
					most = max(most, n)
					if windows[w-1] > 0 && windows[w+1] > 0 {
						least = min(least, n)
					}
				}
				t.Logf("%d decisions in %v, %d of %d allowed were leased; a window has %d to %d of %d",
					allowed+denied, time.Since(start).Round(time.Second), leased, allowed, least, most, limit)
				if most > limit {
					t.Errorf("%d admitted in a window of %d", most, limit)
				}
			})
		}
	}
}

// TestLeaseFailover has the primary of Sentinels die while units are lent. What it had not replicated is
// forgotten, so that a window may have more than the limit: it prints how much.
func TestLeaseFailover(t *testing.T) { //nolint:paralleltest // it measures
	const limit = 5000
	sentinels := testredis.StartSentinels(t)
	c := startLeaseCluster(t, leaseWorker{
		URL: sentinels.URL() + "?timeout=500ms", Limit: fmt.Sprintf("%d/1s fixed_window", limit),
		Term: 100 * time.Millisecond, Nodes: 4, Callers: 4, Pause: 4 * time.Millisecond,
	})
	leasing := func() {
		t.Helper()
		_, _, _, before := c.read()
		eventually(t, func() error {
			if _, _, _, n := c.read(); n < before+8000 {
				return fmt.Errorf("%d takes were leased since then", n-before)
			}
			return nil
		})
	}
	leasing()
	sentinels.Primary(t).Kill(t)
	leasing()
	windows, allowed, _, leased := c.stop()
	most := int64(0)
	for _, n := range windows {
		most = max(most, n)
	}
	t.Logf("%d allowed, %d of them leased; a window has at most %d of %d", allowed, leased, most, limit)
	if most > limit+limit/20 {
		t.Errorf("%d admitted in a window of %d", most, limit)
	}
}
