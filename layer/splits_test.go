//go:build scale

package layer_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// Servers that are throttled run, one after the other and evenly spaced, for throttleRun of each throttlePeriod, and
// are stopped for the rest of it.
const (
	throttleRun, throttlePeriod = time.Millisecond, 12 * time.Millisecond
	throttleEnv                 = "STINT_TEST_THROTTLE" // the pids
)

// throttle throttles servers, all in the same way, until the function that it returns is called. A process of its own does
// that: one that is busy would be late.
func throttle(t *testing.T, servers []*testredis.Server) (end func()) {
	t.Helper()
	pids := ""
	for _, s := range servers {
		pids += fmt.Sprintln(s.Pid())
	}
	p := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThrottle$")
	p.Env = append(os.Environ(), throttleEnv+"="+pids)
	in, err := p.StdinPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		_ = in.Close()
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestThrottle is the process that throttles.
func TestThrottle(t *testing.T) { //nolint:paralleltest // it is alone in its process
	var pids []int
	for _, text := range strings.Fields(os.Getenv(throttleEnv)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	signal := func(pid int, s syscall.Signal) {
		if err := syscall.Kill(pid, s); err != nil {
			t.Errorf("%d: %v", pid, err)
		}
	}
	if len(pids) == 0 {
		t.Skip("it is started by TestSplitLoad")
	}
	var over atomic.Bool
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		over.Store(true)
	}()
	ticks := time.NewTicker(throttleRun)
	defer ticks.Stop()
	for _, pid := range pids {
		signal(pid, syscall.SIGSTOP)
	}
	each := int(throttlePeriod/throttleRun) / len(pids)
	for n := 0; !over.Load(); n = (n + 1) % (each * len(pids)) {
		<-ticks.C
		switch n % each {
		case 0:
			signal(pids[n/each], syscall.SIGCONT)
		case 1:
			signal(pids[n/each], syscall.SIGSTOP)
		}
	}
	for _, pid := range pids {
		signal(pid, syscall.SIGCONT)
	}
}

// TestSplitLoad has nodes ask for one counter on a Cluster of four primaries, as fast as they can, in one part and in
// eight, in turn. It measures decisions, and what they cost each primary. Two processors do not keep a primary busy: the
// nodes are the bottleneck. So it does the same with primaries that are throttled, each to a twelfth of a processor.
func TestSplitLoad(t *testing.T) { //nolint:paralleltest // it measures
	cluster := testredis.StartPrimaries(t, 4)
	for _, s := range cluster.Nodes() { // they do not take each other for dead while they are stopped
		s.Do(t, "CONFIG", "SET", "cluster-node-timeout", "60000")
	}
	for _, c := range []struct {
		nodes, callers int
		throttled      bool
	}{{16, 16, false}, {128, 2, true}} {
		t.Run(fmt.Sprintf("%d nodes of %d callers, throttled %v", c.nodes, c.callers, c.throttled), func(t *testing.T) {
			var all []stint.Store
			for range c.nodes {
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
				one := splitLoad(t, cluster, all, c.callers, 0, c.throttled)
				t.Logf("%.1f times as many", splitLoad(t, cluster, all, c.callers, 8, c.throttled)/one)
			}
		})
	}
}

// splitLoad returns how many decisions a second nodes get about one counter.
func splitLoad(t *testing.T, cluster *testredis.Cluster, nodes []stint.Store, callers, parts int, throttled bool) float64 {
	t.Helper()
	const length = 3 * time.Second
	limit := stint.Limit{Max: 1 << 40, Window: stint.Every(time.Hour)}
	before := map[string]time.Duration{}
	for _, s := range cluster.Nodes() {
		before[s.Addr()] = cpu(t, s)
	}
	if throttled {
		defer throttle(t, cluster.Nodes())()
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var takes atomic.Int64
	var wg sync.WaitGroup
	for _, s := range nodes {
		for range callers {
			wg.Go(func() {
				a, ds := []stint.Ask{splitAsk(limit, parts, 1)}, make([]stint.Decision, 1)
				for ctx.Err() == nil {
					if err := s.Take(context.Background(), a, ds); err != nil || !ds[0].Allowed || ds[0].Basis != stint.Counted {
						t.Errorf("%+v, %v", ds, err)
						return
					}
					takes.Add(1)
				}
			})
		}
	}
	wg.Wait()
	busy, most := "", 0.0
	for _, s := range cluster.Nodes() {
		used := (cpu(t, s) - before[s.Addr()]).Seconds()
		busy += fmt.Sprintf(" %.1f %%", 100*used/length.Seconds())
		most = max(most, used)
	}
	decisions := float64(takes.Load())
	t.Logf("%d parts: %.0f decisions a second; processor time of the primaries:%s; of the busiest for a decision: %.2f µs",
		max(parts, 1), decisions/length.Seconds(), busy, 1e6*most/decisions)
	return decisions / length.Seconds()
}
