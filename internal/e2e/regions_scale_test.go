//go:build scale

package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// TestRegionsScale measures what regions cost and how much of a limit can be used, with three regions of two nodes each.
func TestRegionsScale(t *testing.T) { //nolint:paralleltest // it measures
	const limit, wide = "600/10s fixed_window", "100000000/1h fixed_window"
	follow := by("follow", rule.RegionsQuota, limit, 0)
	follow.Weights = rule.WeightsFollow
	w := newWorld(t,
		by("gossip", rule.RegionsGossip, limit, 0), by("central", rule.RegionsCentral, limit, time.Second), follow,
		by("plain", "", wide, 0), by("told", rule.RegionsGossip, wide, 0), by("part", rule.RegionsQuota, wide, 0), by("far", rule.RegionsCentral, wide, time.Second),
	)
	load := func() string {
		text, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text))[:3], " ")
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{{"latency", w.measureLatency}, {"bytes", w.measureBytes}, {"memory", w.measureMemory}, {"usable", w.measureUsable}} {
		t.Run(step.name, func(t *testing.T) {
			before := load()
			step.run(t)
			t.Logf("load of the machine: %s before, %s after", before, load())
		})
	}
}

// measureLatency asks the same node for decisions with and without regions, in turn.
func (w *world) measureLatency(t *testing.T) {
	const rounds = 2000
	w.delay[0][2], w.delay[2][0] = 75*time.Millisecond, 75*time.Millisecond
	w.heal(t)
	memory := serve(t, "[[rules]]\nname = \"plain\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"plain\", limit = \"100000000/1h fixed_window\" }]\n")
	s := w.nodes[2][0]
	took := map[string][]time.Duration{}
	ask := func(name string, s *server, path string) {
		v, err := w.ask(s, path, "192.0.2.1")
		if err != nil || !v.Allowed {
			t.Fatalf("%s: %+v, %v", name, v, err)
		}
		took[name] = append(took[name], v.answered.Sub(v.asked))
	}
	for range rounds {
		ask("memory", memory, "/plain")
		ask("Redis", s, "/plain")
		ask("Redis, gossiped", s, "/told")
		ask("Redis, by quota", s, "/part")
	}
	took["memory, 100 a second"] = w.paced(t, memory, "/plain")
	took["central with a lease, 150 ms away, 100 a second"] = w.paced(t, s, "/far")
	for name, all := range took {
		t.Logf("%s: %s", name, quantiles(all))
	}
}

// paced asks for 100 decisions a second, and returns how long they took, without those of the first two seconds: a lease
// needs some takes to begin.
func (w *world) paced(t *testing.T, s *server, path string) []time.Duration {
	t.Helper()
	const first, all = 200, 1500
	took := make([]time.Duration, all)
	var work sync.WaitGroup
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range all {
		<-tick.C
		work.Go(func() {
			v, err := w.ask(s, path, "192.0.2.1")
			if err != nil || !v.Allowed {
				t.Errorf("%s: %+v, %v", path, v, err)
			}
			took[i] = v.answered.Sub(v.asked)
		})
	}
	work.Wait()
	return took[first:]
}

// measureBytes has one node use many counters, and measures what it sends to another region. The network has no delay, since
// the proxy would pass 32 kB for each.
func (w *world) measureBytes(t *testing.T) {
	w.delay = [3][3]time.Duration{}
	w.heal(t)
	s := w.nodes[2][0]
	for _, active := range []int{1000, 10_000} {
		const seconds = 8
		before, began := s.scrape(t), time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range seconds {
			w.touch(t, s, "/told", 0, active)
			<-tick.C
		}
		after, took := s.scrape(t), time.Since(began)
		rate := func(direction string) float64 {
			series := fmt.Sprintf("stint_region_bytes_total{direction=%q,region=%q}", direction, regionNames[0])
			if _, ok := after[series]; !ok {
				t.Fatalf("no %s", series)
			}
			return (after[series] - before[series]) / took.Seconds()
		}
		t.Logf("%d active counters, each used %d times in %.1f s: %.0f bytes a second sent to a region, %.0f received from it, backlog %v, lag %v s",
			active, seconds, took.Seconds(), rate("sent"), rate("received"),
			after[fmt.Sprintf("stint_region_backlog{region=%q}", regionNames[0])], after[fmt.Sprintf("stint_region_lag_seconds{region=%q}", regionNames[0])])
	}
}

// touch uses a unit of each of so many counters.
func (w *world) touch(t *testing.T, s *server, path string, first, n int) {
	t.Helper()
	const most = 1000
	for i := first; i < first+n; i += most {
		var b strings.Builder
		for j := i; j < i+most; j++ {
			fmt.Fprintf(&b, `{"path": %q, "ip": "10.%d.%d.%d"},`, path, j>>16&255, j>>8&255, j&255)
		}
		var got struct{ Verdicts []verdictOf }
		if err := post(w.client, s.api+"/v1/check/batch", `{"requests": [`+strings.TrimSuffix(b.String(), ",")+`]}`, &got); err != nil {
			t.Fatal(err)
		}
		for j := range got.Verdicts {
			if !got.Verdicts[j].Allowed {
				t.Fatalf("%+v", got.Verdicts[j])
			}
		}
	}
}

// measureMemory has a node know a million counters. Another one in its region has as many clients, of whom it tells no one.
// When all regions know them, it measures what is still sent.
func (w *world) measureMemory(t *testing.T) {
	const clients = 1_000_000
	sent := fmt.Sprintf("stint_region_bytes_total{direction=%q,region=%q}", "sent", regionNames[0])
	for i, path := range []string{"/told", "/plain"} {
		s := w.nodes[1][i]
		before, _ := s.rss(t)
		began, bytes := time.Now(), s.scrape(t)[sent]
		w.touch(t, s, path, 1<<20, clients)
		wait.Nil(t, "nothing is left to send", func() error {
			if n := s.scrape(t)[fmt.Sprintf("stint_region_backlog{region=%q}", regionNames[0])]; n > 0 {
				return fmt.Errorf("a backlog of %v", n)
			}
			return nil
		})
		now, peak := s.rss(t)
		t.Logf("%d clients of %s, %v known counters: %d MB resident, %d MB at most, %d MB before; %.0f bytes sent in %.0f s",
			clients, path, s.scrape(t)["stint_region_counters"], now>>20, peak>>20, before>>20, s.scrape(t)[sent]-bytes, time.Since(began).Seconds())
		const idle = 5 * time.Second
		bytes = s.scrape(t)[sent]
		<-time.After(idle)
		t.Logf("then, %.0f bytes a second", (s.scrape(t)[sent]-bytes)/idle.Seconds())
	}
}

// measureUsable has one region ask for all of each limit, and twice as much.
func (w *world) measureUsable(t *testing.T) {
	const (
		limit, window = 600, 10 * time.Second
		promise       = 3 * time.Minute
		every         = time.Second / 60 // on each of two nodes
	)
	w.delay = [3][3]time.Duration{}
	for from := range w.delay {
		for to := range w.delay[from] {
			w.delay[from][to] = time.Duration(from+to) * 50 * time.Millisecond
		}
	}
	w.heal(t)
	counts := map[string]*atomic.Int64{"/gossip": {}, "/central": {}, "/follow": {}}
	var work sync.WaitGroup
	quit := make(chan struct{})
	for path, n := range counts {
		for _, s := range w.nodes[2] {
			work.Go(func() {
				tick := time.NewTicker(every)
				defer tick.Stop()
				for {
					select {
					case <-quit:
						return
					case <-tick.C:
					}
					work.Go(func() {
						v, err := w.ask(s, path, "192.0.2.9")
						if err != nil {
							t.Error(err)
						}
						if v.Allowed {
							n.Add(1)
						}
					})
				}
			})
		}
	}
	began, share := time.Now(), map[string]float64{}
	for {
		now := time.Now()
		<-time.After(now.Truncate(window).Add(window).Sub(now))
		for path, n := range counts {
			share[path] = float64(n.Swap(0)) / limit
		}
		t.Logf("after %v, one region has used of the limit: gossiped %.3f, central with a lease %.3f, by quota that follows %.3f",
			time.Since(began).Round(time.Second), share["/gossip"], share["/central"], share["/follow"])
		if since := time.Since(began); share["/follow"] >= 0.95 && since > 3*window || since > promise+2*window {
			break
		}
	}
	close(quit)
	work.Wait()
	for path, part := range share {
		if part < 0.95 {
			t.Errorf("%s: one region can use %.3f of the limit, want 0.95", path, part)
		}
	}
	if took := time.Since(began); took > promise+window {
		t.Errorf("weights followed after %v, want %v", took, promise)
	}
}
