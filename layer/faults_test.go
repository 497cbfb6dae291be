package layer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// fault is something that happens to Redis, or on the way to it.
type fault struct {
	begin, end func(*testing.T, *testredis.Server, *testredis.Proxy)
	partial    bool // some calls get through
}

// network is a fault of the network.
func network(f testredis.Fault) fault {
	return fault{
		begin: func(t *testing.T, _ *testredis.Server, p *testredis.Proxy) { t.Helper(); p.Set(t, f) },
		end:   func(t *testing.T, _ *testredis.Server, p *testredis.Proxy) { t.Helper(); p.Set(t, testredis.Fault{}) },
	}
}

// command is a fault that commands to the server make and end.
func command(begin, end []string) fault {
	return fault{
		begin: func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Do(t, begin...) },
		end:   func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Do(t, end...) },
	}
}

func faults() map[string]fault {
	resets := network(testredis.Fault{Reset: 0.5})
	resets.partial = true
	return map[string]fault{
		"connection refused": network(testredis.Fault{Refuse: true}),
		"black hole":         network(testredis.Fault{Swallow: true}),
		"5 s latency":        network(testredis.Fault{Latency: 5 * time.Second}),
		"50 % resets":        resets,
		"slow trickle":       network(testredis.Fault{Trickle: 50 * time.Millisecond}),
		"half-open": {
			begin: func(_ *testing.T, _ *testredis.Server, p *testredis.Proxy) { p.Forget() },
			end:   func(*testing.T, *testredis.Server, *testredis.Proxy) {}, partial: true,
		},
		"stopped": {
			begin: func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Pause(t) },
			end:   func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Resume(t) },
		},
		"killed": {
			begin: func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Kill(t) },
			end:   func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) { t.Helper(); s.Restart(t) },
		},
		"out of memory": command([]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}),
		"read-only":     command([]string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}),
		"busy script": {
			begin: func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) {
				t.Helper()
				c, err := net.Dial("tcp", s.Addr())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				fmt.Fprintf(c, "EVAL \"while true do end\" 0\r\n")
			},
			end: func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) {
				t.Helper()
				eventually(t, func() error { _, err := s.Try("SCRIPT", "KILL"); return err })
			},
		},
	}
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	wait.Nil(t, "no error", f)
}

// outcome is how takes went.
type outcome struct {
	latencies []time.Duration
	bases     map[stint.Basis]int
	denied    int
}

// load takes on several goroutines, for that long. Each take is of a counter of
// its own.
func load(t *testing.T, s stint.Store, mode stint.FailMode, length time.Duration) outcome {
	t.Helper()
	var (
		wg sync.WaitGroup
		mu sync.Mutex
		o  = outcome{bases: map[stint.Basis]int{}}
	)
	watch, start := torture.Start(t), time.Now()
	for g := range 16 {
		wg.Go(func() {
			for i := 0; time.Since(start) < length; i++ {
				asks := ask(fmt.Sprintf("user:%d-%d", g, i%100), 1_000_000, 1)
				asks[0].Policy = &stint.Policy{OnFailure: mode}
				begin := watch.Took()
				out, err := storetest.Take(context.Background(), s, asks)
				took := watch.Took() - begin
				if err != nil {
					t.Errorf("a decision was lost: %v", err)
					return
				}
				mu.Lock()
				o.latencies = append(o.latencies, took)
				o.bases[out[0].Basis]++
				if !out[0].Allowed {
					o.denied++
				}
				mu.Unlock()
				<-time.After(time.Millisecond)
			}
		})
	}
	wg.Wait()
	slices.Sort(o.latencies)
	return o
}

// TestFaults breaks Redis in every way, under load. No decision is lost or late,
// and nothing grows; when the fault ends, Redis decides again.
func TestFaults(t *testing.T) {
	t.Parallel()
	const budget = 50 * time.Millisecond
	for name, f := range faults() {
		for mode, o := range map[string]struct {
			options layer.Options
			mode    stint.FailMode
			basis   stint.Basis
			denies  bool
		}{
			"local":  {layer.Options{Fallback: new(layer.FallbackOptions)}, stint.FailLocal, stint.Local, false},
			"open":   {layer.Options{}, stint.FailOpen, stint.Open, false},
			"closed": {layer.Options{}, stint.FailClosed, stint.Closed, true},
		} {
			if mode != "local" && name != "black hole" && name != "connection refused" {
				continue // what comes after the breaker does not care
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				server := testredis.Start(t, "--busy-reply-threshold", "50")
				proxy := testredis.StartProxy(t, server)
				o.options.Retry = layer.RetryOptions{Budget: budget, Dial: budget}
				if o.options.Fallback != nil {
					o.options.Fallback = &layer.FallbackOptions{Local: memory(t, nil)}
				}
				s := must(t)(layer.New(redis(t, proxy.URL()+"?dial_timeout=50ms&timeout=500ms", nil), o.options))
				counted := func() error {
					out, err := storetest.Take(t.Context(), s, ask("alice", 1_000_000, 1))
					if err == nil && out[0].Basis != stint.Counted {
						err = errors.New(out[0].Basis.String())
					}
					return err
				}
				eventually(t, counted)
				before := runtime.NumGoroutine()

				f.begin(t, server, proxy)
				got := load(t, s, o.mode, 800*time.Millisecond)
				grown, links := runtime.NumGoroutine()-before, proxy.Links()
				f.end(t, server, proxy)
				healed := torture.Start(t)
				eventually(t, counted)
				recovery := healed.Took()

				n := len(got.latencies)
				t.Logf("%d decisions, %v", n, got.bases)
				torture.AtMost(t, "p99 of a decision", got.latencies[n*99/100].Round(time.Millisecond), 100*time.Millisecond)
				torture.AtMost(t, "until the store decides again", recovery.Round(time.Millisecond), 2*time.Second)
				torture.AtMost(t, "more goroutines", grown, 1500)
				torture.AtMost(t, "connections", links, 40)
				if !f.partial {
					torture.AtLeast(t, "percent of decisions by the policy of the outage", got.bases[o.basis]*100/n, 80)
				}
				if o.denies != (got.denied > 0) {
					t.Errorf("%d of %d denied", got.denied, n)
				}
			})
		}
	}
}

// TestAwayAtStart opens a stack before there is a Redis.
func TestAwayAtStart(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	server.Kill(t)
	s := must(t)(layer.New(redis(t, server.URL()+"?dial_timeout=50ms", nil), layer.Options{
		Fallback: &layer.FallbackOptions{Local: memory(t, nil)},
	}))
	if got := load(t, s, stint.FailLocal, 300*time.Millisecond); got.bases[stint.Local] != len(got.latencies) {
		t.Errorf("%v; want all local", got.bases)
	}
	server.Restart(t)
	start := torture.Start(t)
	eventually(t, func() error {
		out, err := storetest.Take(t.Context(), s, ask("alice", 1000, 1))
		if err == nil && out[0].Basis != stint.Counted {
			err = errors.New("not counted")
		}
		return err
	})
	torture.AtMost(t, "until the store decides", start.Took(), 2*time.Second)
}
