package layer_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
)

// leaseWorker is what a process does that leases: its callers ask until it is killed, or its standard input ends.
// It notes what was admitted in a file that is mapped into memory, so that nothing is lost when it is killed.
type leaseWorker struct {
	URL     string
	Limit   string
	Term    time.Duration
	Budget  time.Duration // of a take; the default is 200 ms
	Nodes   int
	Callers int
	Pause   time.Duration // of a caller after 20 takes
	Calm    time.Duration // of a caller after each take, in every second window
	File    string
	Binary  string // the test's own, if empty
}

// leaseWorkerEnv has a leaseWorker, as JSON.
const leaseWorkerEnv = "STINT_TEST_LEASES"

// tally is the file of a worker: the units that were admitted, by window, and takes by what became of them.
type tally struct {
	windows                 [1 << 16]atomic.Int64 // by number, of which the lower bits are used
	allowed, denied, leased atomic.Int64
	ahead, behind           atomic.Int64 // takes while the clock of the process was wrong by a minute or more
}

// clock returns the time of the machine. That of package time may have been stepped.
func clock() time.Time {
	var now syscall.Timeval
	_ = syscall.Gettimeofday(&now) // it cannot fail
	return time.Unix(now.Unix())
}

// run is the main function of the process.
func (w leaseWorker) run() error {
	t, err := testserver.Memory[tally](w.File)
	if err != nil {
		return err
	}
	redis, err := redisstore.Open(w.URL, redisstore.Options{})
	if err != nil {
		return err
	}
	s, err := layer.New(redis, layer.Options{
		Retry: layer.RetryOptions{Budget: cmp.Or(w.Budget, 200*time.Millisecond)}, Breaker: layer.BreakerOptions{Server: redis.Server},
		Lease: layer.LeaseOptions{Replicas: func() int { return w.Nodes }},
	})
	if err != nil {
		return err
	}
	limit, err := stint.ParseLimit(w.Limit)
	if err != nil {
		return err
	}
	plan, err := limit.Compile()
	if err != nil {
		return err
	}
	window := func(at time.Time) int64 { return at.UnixNano() / int64(limit.Window.Length()) }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range w.Callers {
		wg.Go(func() {
			// Without the store, nothing passes: each decision is one of the store, or of a lease.
			asks := []stint.Ask{{
				Key: stint.Key{Subject: "global", Name: "hot:limit"}, Limit: limit, Plan: plan, Cost: 1,
				Policy: &stint.Policy{Lease: w.Term, OnFailure: stint.FailClosed},
			}}
			ds := make([]stint.Decision, 1)
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if w.Pause > 0 && n%20 == 0 {
					<-time.After(w.Pause)
				}
				before := clock()
				if w.Calm > 0 && window(before)%2 == 0 {
					<-time.After(w.Calm)
					before = clock()
				}
				switch wrong := time.Since(before); {
				case wrong > time.Minute:
					t.ahead.Add(1)
				case wrong < -time.Minute:
					t.behind.Add(1)
				}
				if s.Take(context.Background(), asks, ds) != nil || !ds[0].Allowed {
					t.denied.Add(1)
					continue
				}
				at := window(before)
				if ds[0].Basis == stint.Leased {
					t.leased.Add(1)
				} else {
					at = window(time.UnixMicro(ds[0].At))
				}
				if at != window(clock()) { // the window has turned, or the process was stopped meanwhile
					at = window(time.UnixMicro(ds[0].At))
				}
				t.windows[at%int64(len(t.windows))].Add(1)
				t.allowed.Add(1)
			}
		})
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	close(stop)
	wg.Wait()
	return s.Close()
}

// leaseProcess is a running worker.
type leaseProcess struct {
	*exec.Cmd
	end  func()
	errs bytes.Buffer
}

func startLeaseProcess(t testing.TB, w leaseWorker) *leaseProcess {
	t.Helper()
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	p := &leaseProcess{Cmd: exec.CommandContext(t.Context(), cmp.Or(w.Binary, os.Args[0]), "-test.run=^$")}
	p.Env = append(os.Environ(), leaseWorkerEnv+"="+string(text))
	p.Stderr = &p.errs
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.end = func() { _ = in.Close() }
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// leaseCluster is processes that lease from one Redis, Cluster or ring.
type leaseCluster struct {
	t       testing.TB
	worker  leaseWorker
	tallies []*tally
	running []*leaseProcess
}

func startLeaseCluster(t testing.TB, w leaseWorker) *leaseCluster {
	t.Helper()
	c := &leaseCluster{t: t, worker: w, running: make([]*leaseProcess, w.Nodes)}
	for i := range c.running {
		c.start(i)
	}
	return c
}

func (c *leaseCluster) start(i int) {
	c.t.Helper()
	w := c.worker
	w.File = filepath.Join(c.t.TempDir(), "tally")
	t, err := testserver.Memory[tally](w.File)
	if err != nil {
		c.t.Fatal(err)
	}
	c.tallies = append(c.tallies, t)
	c.running[i] = startLeaseProcess(c.t, w)
}

// stop ends all processes, and returns what they have admitted by window, and their takes.
func (c *leaseCluster) stop() (windows map[int]int64, allowed, denied, leased int64) {
	c.t.Helper()
	for _, p := range c.running {
		p.end()
	}
	for _, p := range c.running {
		if err := p.Wait(); err != nil {
			c.t.Errorf("%v: %s", err, p.errs.String())
		}
	}
	return c.read()
}

func (c *leaseCluster) read() (windows map[int]int64, allowed, denied, leased int64) {
	c.t.Helper()
	windows = map[int]int64{}
	for _, t := range c.tallies {
		for w := range t.windows {
			if n := t.windows[w].Load(); n > 0 {
				windows[w] += n
			}
		}
		allowed, denied, leased = allowed+t.allowed.Load(), denied+t.denied.Load(), leased+t.leased.Load()
	}
	return windows, allowed, denied, leased
}

// TestLeaseProcesses has processes lease from a real Redis, while one is killed, one is stopped for longer than a
// window, and Redis is stopped, and restarted with its data. No window has more than the limit.
func TestLeaseProcesses(t *testing.T) {
	t.Parallel()
	// Patient: a lease that ends before it is used is none.
	window, term, patience, fewer := "2s", 500*time.Millisecond, 30*time.Second, int64(20)
	if torture.Enabled {
		window, term, patience, fewer = "1s", 100*time.Millisecond, 200*time.Millisecond, 1
	}
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			text := "5000/" + window + " " + algorithm
			server := testredis.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			c := startLeaseCluster(t, leaseWorker{
				URL: fmt.Sprintf("%s?timeout=%v", server.URL(), patience), Limit: text, Term: term, Budget: patience, Nodes: 4, Callers: 4, Pause: 4 * time.Millisecond,
			})
			leasing := func(more int64) {
				t.Helper()
				_, _, _, before := c.read()
				eventually(t, func() error {
					if _, _, _, n := c.read(); n < before+more/fewer {
						return fmt.Errorf("%d takes were leased, want %d more than %d", n, more/fewer, before)
					}
					return nil
				})
			}
			leasing(4000)
			if err := c.running[0].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = c.running[0].Wait()
			c.start(0)
			if err := c.running[1].Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			leasing(6000)
			<-time.After(5 * time.Second) // for several windows: what it holds must not be spent any more
			if err := c.running[1].Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			leasing(2000)
			server.Pause(t)
			<-time.After(300 * time.Millisecond)
			server.Resume(t)
			leasing(2000)
			server.Restart(t)
			leasing(4000)
			windows, allowed, denied, leased := c.stop()
			t.Logf("%d allowed, %d of them leased, %d denied in %d windows", allowed, leased, denied, len(windows))
			for w, n := range windows {
				if n > 5000 {
					t.Errorf("%d admitted in window %d, want at most 5000", n, w)
				}
			}
		})
	}
}
