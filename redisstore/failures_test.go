package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// This file is long: one case for each way in which Redis fails, on one proxy.

// ask is one unit of a subject, out of n.
func ask(subject string, n int64) []stint.Ask {
	return []stint.Ask{{Key: stint.Key{Subject: subject, Name: "api"}, Limit: limitOf(stint.SlidingWindow, n), Cost: 1}}
}

// eventually waits for f, which may fail meanwhile.
func eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Since(start) > within {
			t.Fatalf("after %v still: %v", within, err)
		}
		<-tick.C
	}
}

// replicates waits until writes to a primary arrive at its replicas, which takes about a second after
// they are attached.
func replicates(t testing.TB, primary *testredis.Server, replicas []*testredis.Server, look ...string) {
	t.Helper()
	primary.Do(t, "SET", "{alice}", "x")
	for _, r := range replicas {
		eventually(t, 10*time.Second, func() error {
			if v, err := r.Try(look...); err != nil || v == nil || v == int64(0) {
				return fmt.Errorf("%v: %v, %w", look, v, err)
			}
			return nil
		})
	}
}

// TestFailover kills the primary under load. Decisions resume, and no more is admitted beyond the limit
// than what the replica had not yet received.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) (url string, primary func() *testredis.Server){
		"sentinel": func(t testing.TB) (string, func() *testredis.Server) {
			t.Helper()
			s := testredis.StartSentinels(t)
			replicates(t, s.Primary(t), s.Servers(), "GET", "{alice}")
			return s.URL(), func() *testredis.Server { return s.Primary(t) }
		},
		"cluster": func(t testing.TB) (string, func() *testredis.Server) {
			t.Helper()
			c := testredis.StartCluster(t)
			p := c.Primary(t, "{alice}")
			i := slices.Index(c.Nodes(), p)
			replicates(t, p, c.Nodes()[i+3:i+4], "DBSIZE")
			return c.URL(), func() *testredis.Server { return c.Primary(t, "{alice}") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, primary := start(t)
			s := open(t, url, redisstore.Options{})
			const limit = 40_000
			var (
				wg       sync.WaitGroup
				mu       sync.Mutex
				admitted []time.Time
				killed   atomic.Pointer[time.Time]
				failed   atomic.Int64
				back     atomic.Pointer[time.Time]
				half     = make(chan struct{})
			)
			for range 16 {
				wg.Go(func() {
					for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
						out, err := storetest.Take(t.Context(), s, ask("alice", limit))
						now := time.Now()
						if err != nil {
							only(t, err)
							failed.Add(1)
							<-time.After(time.Millisecond)
							continue
						}
						if k := killed.Load(); k != nil && failed.Load() > 0 {
							back.CompareAndSwap(nil, &now)
						}
						if !out[0].Allowed {
							return
						}
						mu.Lock()
						if admitted = append(admitted, now); len(admitted) == limit/2 {
							close(half)
						}
						mu.Unlock()
					}
				})
			}
			<-half
			p := primary()
			now := time.Now()
			p.Kill(t)
			dead := time.Since(now)
			killed.Store(&now)
			wg.Wait()
			if back.Load() == nil {
				t.Fatal("no decision failed, or none came back")
			}
			if outage := back.Load().Sub(now); outage > 15*time.Second {
				t.Errorf("decisions came back after %v", outage)
			}
			recent := 0
			for _, at := range admitted {
				if d := at.Sub(now); d > -100*time.Millisecond && d < dead {
					recent++
				}
			}
			excess := len(admitted) - limit
			t.Logf("decisions came back after %v; %d failed; %d of %d admitted too many, where %d were admitted in the last 100ms before",
				back.Load().Sub(now).Round(time.Millisecond), failed.Load(), excess, limit, recent)
			if excess > recent {
				t.Errorf("%d admitted too many, but only %d could have been lost", excess, recent)
			}
		})
	}
}

// TestRestart restarts Redis without its data: only the counts are lost.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	for want := int64(9); want >= 7; want-- {
		if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil || out[0].Remaining != want {
			t.Fatal(out, err)
		}
	}
	server.Kill(t)
	// The first may have been on its way, the second has not.
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrUnavailable) {
		t.Fatalf("take from a dead Redis: %v; want ErrUnavailable", err)
	}
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrNotApplied) {
		t.Fatalf("take from a dead Redis: %v; want ErrNotApplied", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, stint.ErrUnavailable) {
		t.Fatalf("ping of a dead Redis: %v; want ErrUnavailable", err)
	}
	server.Restart(t)
	eventually(t, 5*time.Second, func() error { return s.Ping(t.Context()) })
	if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil || out[0].Remaining != 9 {
		t.Fatal(out, err)
	}
}

// TestScriptFlush removes the script from Redis, which callers do not notice.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	for i := range int64(5) {
		server.Do(t, "SCRIPT", "FLUSH")
		if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil || out[0].Remaining != 9-i {
			t.Fatal(out, err)
		}
	}
	if n := s.Stats().Scripts; n != 5 {
		t.Errorf("sent the script %d times, want 5", n)
	}
}

// TestAbsent opens a store before Redis runs.
func TestAbsent(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	server.Kill(t)
	s := open(t, server.URL(), redisstore.Options{})
	start := time.Now()
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) {
		t.Fatalf("take: %v; want ErrUnavailable and ErrNotApplied", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, stint.ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("ping: %v; want ErrUnavailable, and why", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v to say so", took)
	}
	server.Restart(t)
	eventually(t, 5*time.Second, func() error { return s.Ping(t.Context()) })
	if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil || out[0].Remaining != 9 {
		t.Fatal(out, err)
	}
}

// TestDisconnected repeatedly closes all connections under load.
func TestDisconnected(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	const limit = 3000
	var admitted, failed atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for t.Context().Err() == nil {
				out, err := storetest.Take(t.Context(), s, ask("alice", limit))
				switch {
				case err != nil:
					only(t, err)
					failed.Add(1)
				case out[0].Allowed:
					admitted.Add(1)
				default:
					return
				}
			}
		})
	}
	for admitted.Load()+failed.Load() < limit/2 {
		server.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	wg.Wait()
	if a, f := admitted.Load(), failed.Load(); a > limit || a+f < limit {
		t.Errorf("%d admitted and %d failed, of %d", a, f, limit)
	}
}

// TestPause pauses Redis. Callers wait until their deadline or the store's timeout.
func TestPause(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL()+"?timeout=2s", redisstore.Options{})
	takes := func() error {
		_, err := storetest.Take(t.Context(), s, ask("alice", 100))
		return err
	}
	eventually(t, 10*time.Second, takes)
	for name, c := range map[string]struct {
		timeout, most time.Duration
	}{
		"a deadline of 5ms": {5 * time.Millisecond, time.Second},
		"a late deadline":   {time.Minute, 3500 * time.Millisecond},
		"no deadline":       {0, 3500 * time.Millisecond},
	} {
		server.Do(t, "CLIENT", "PAUSE", "4000", "ALL")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				ctx, cancel := context.Background(), func() {}
				if c.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
				}
				defer cancel()
				start := time.Now()
				_, err := storetest.Take(ctx, s, ask("alice", 100))
				if took := time.Since(start); !errors.Is(err, stint.ErrUnavailable) || took > c.most {
					t.Errorf("%s: %v after %v; want ErrUnavailable within %v", name, err, took, c.most)
				}
			})
		}
		wg.Wait()
		eventually(t, 10*time.Second, takes)
	}
}

// TestQueue overflows the queue. Callers that gave up are not charged when Redis comes back.
func TestQueue(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL()+"?timeout=10s", redisstore.Options{})
	const limit, takers, most = 100_000, 15_000, 10_000 // waiting; some more are on their way
	if _, err := storetest.Take(t.Context(), s, ask("alice", limit)); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	var wg sync.WaitGroup
	var refused atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range takers {
		wg.Go(func() {
			_, err := storetest.Take(ctx, s, ask("alice", limit))
			if !errors.Is(err, stint.ErrUnavailable) {
				t.Errorf("take: %v; want ErrUnavailable", err)
			} else if strings.Contains(err.Error(), "the queue is full") {
				refused.Add(1)
			}
		})
	}
	eventually(t, 10*time.Second, func() error {
		if n := refused.Load(); n == 0 || n > takers-most {
			return fmt.Errorf("%d of %d refused, where %d may wait", n, takers, most)
		}
		return nil
	})
	cancel()
	wg.Wait()
	if n := s.Stats().Unavailable; n != takers {
		t.Errorf("%d counted as unavailable, want %d", n, takers)
	}
	server.Resume(t)
	eventually(t, 5*time.Second, func() error {
		out, err := storetest.Take(t.Context(), s, ask("alice", limit))
		if err == nil && limit-out[0].Remaining > takers-most {
			t.Errorf("%v; want no charge for those in the queue, who have left", out)
		}
		return err
	})
}

// TestHalf takes from two servers of which one does not reply. The charge of the other is undone, even
// after the caller has given up.
func TestHalf(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	s := open(t, c.URL(), redisstore.Options{})
	deaf := c.Primary(t, "{alice}")
	other := "bob"
	for i := 0; c.Primary(t, "{"+other+"}") == deaf; i++ {
		other = fmt.Sprint("bob-", i)
	}
	both := append(ask("alice", 10), ask(other, 10)...)
	if _, err := storetest.Take(t.Context(), s, both); err != nil {
		t.Fatal(err)
	}
	deaf.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := storetest.Take(ctx, s, both)
	deaf.Resume(t)
	if !errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("take: %v; want ErrUnavailable", err)
	}
	eventually(t, 5*time.Second, func() error {
		out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: both[1].Key, Limit: both[1].Limit}})
		if err == nil && out[0].Remaining != 9 {
			err = fmt.Errorf("%d remain, want 9", out[0].Remaining)
		}
		return err
	})
	if n := s.Stats().Undone; n == 0 {
		t.Error("nothing was undone")
	}
}

// TestMigration migrates a slot back and forth under load, which callers do not notice.
func TestMigration(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	s := open(t, c.URL(), redisstore.Options{})
	asks := func(i int) []stint.Ask {
		var out []stint.Ask
		for _, a := range stint.Algorithms() {
			out = append(out, stint.Ask{Key: stint.Key{Subject: "alice", Name: "all"}, Limit: limitOf(a, 1200), Cost: 1})
		}
		// A counter that may not exist yet.
		return append(out, stint.Ask{Key: stint.Key{Subject: "alice", Name: strconv.Itoa(i)}, Limit: limitOf(stint.FixedWindow, 1), Cost: 1})
	}
	var admitted, next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				out, err := storetest.Take(t.Context(), s, asks(int(next.Add(1))))
				if err != nil {
					t.Error(err)
					return
				}
				for _, d := range out {
					if !d.Allowed {
						return
					}
				}
				admitted.Add(1)
			}
		})
	}
	from, to := c.Primary(t, "{alice}"), c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	slot := int(from.Do(t, "CLUSTER", "KEYSLOT", "{alice}").(int64))
	moves := 0
	for ; moves < 20 && admitted.Load() < 1000; moves++ {
		c.Migrate(t, slot, from, to)
		from, to = to, from
	}
	wg.Wait()
	if n := admitted.Load(); n != 1200 {
		t.Errorf("%d admitted over %d moves, want 1200 (%+v)", n, moves, s.Stats())
	}
	t.Logf("%d moves, %+v", moves, s.Stats())
}

// TestGarbage connects the store to a server that is not Redis, or only looks like it.
func TestGarbage(t *testing.T) {
	t.Parallel()
	const hello = "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n"
	for name, replies := range map[string]struct{ hello, eval string }{
		"a web server":       {hello: "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"},
		"noise":              {hello: "\x00\xff\x13\r\n\r\n"},
		"silence":            {},
		"OK":                 {hello, "+OK\r\n"},
		"a number":           {hello, ":1\r\n"},
		"nothing":            {hello, "*0\r\n"},
		"null":               {hello, "$-1\r\n"},
		"too little":         {hello, "*2\r\n:1\r\n:1\r\n"},
		"too many passed":    {hello, "*5\r\n:1763164800000000\r\n:1\r\n:1\r\n:2\r\n$-1\r\n"},
		"fewer than none":    {hello, "*5\r\n:1763164800000000\r\n:1\r\n:1\r\n:-1\r\n$-1\r\n"},
		"denied for nothing": {hello, "*5\r\n:1763164800000000\r\n:1\r\n:1\r\n:0\r\n$-1\r\n"},
		"of another group":   {hello, "*5\r\n:1763164800000000\r\n:1\r\n:2\r\n:1\r\n$-1\r\n"},
		"of more groups":     {hello, "*5\r\n:1763164800000000\r\n:2\r\n:1\r\n:1\r\n$-1\r\n"},
		"text for the time":  {hello, "*3\r\n$3\r\nnow\r\n:0\r\n$-1\r\n"},
		"a list for a state": {hello, "*3\r\n:1763164800000000\r\n:0\r\n*1\r\n:1\r\n"},
		"a short text":       {hello, "$18\r\n123456789012345678\r\n"},
		"a long text":        {hello, "$20\r\n12345678901234567890\r\n"},
		"an error":           {hello, "-ERR no\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						defer c.Close()
						impostor(c, replies.hello, replies.eval)
					})
				}
			})
			s := open(t, "redis://"+l.Addr().String(), redisstore.Options{})
			for range 3 {
				if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrUnavailable) || out != nil {
					t.Errorf("%v, %v; want ErrUnavailable", out, err)
				}
			}
			if n := s.Stats().Unavailable; n != 3 {
				t.Errorf("%d counted, want 3", n)
			}
			s.Close()
			l.Close()
			wg.Wait()
		})
	}
}

// impostor replies to commands with given texts.
func impostor(c net.Conn, hello, eval string) {
	r := bufio.NewReader(c)
	for {
		var n int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
			return
		}
		var command string
		for i := range n {
			var size int
			if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
				return
			}
			arg := make([]byte, size+2)
			if _, err := io.ReadFull(r, arg); err != nil {
				return
			}
			if i == 0 {
				command = string(arg[:size])
			}
		}
		reply := "+OK\r\n"
		switch command {
		case "HELLO":
			reply = hello
		case "EVALSHA", "EVAL":
			reply = eval
		}
		if _, err := io.WriteString(c, reply); err != nil || reply == "" {
			return
		}
	}
}

// TestMissingCommand uses a Redis that lacks a command of the script.
func TestMissingCommand(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t, "--rename-command", "MGET", "")
	s := open(t, server.URL(), redisstore.Options{})
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrUnavailable) || !strings.Contains(err.Error(), "Unknown Redis command") {
		t.Errorf("%v; want ErrUnavailable that says what is missing", err)
	}
}

// TestLeavesNothing checks that a closed store leaves no goroutines.
func TestLeavesNothing(t *testing.T) { //nolint:paralleltest // it looks at all goroutines
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			s := openPatient(t, urlOf(t), redisstore.Options{})
			for range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				if _, err := storetest.Take(ctx, s, append(ask("alice", 10), ask("bob", 10)...)); err != nil {
					t.Fatal(err)
				}
				cancel()
			}
			s.Close()
			eventually(t, time.Minute, func() error {
				buf := make([]byte, 1<<20)
				for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
					if strings.Contains(g, "rueidis") || strings.Contains(g, "redisstore.(*Store)") {
						return errors.New(g)
					}
				}
				return nil
			})
		})
	}
}
