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
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// This file is long: one case for each way in which Redis fails, on one proxy.

// ask is one unit of a subject, out of n.
func ask(subject string, n int64) []stint.Ask {
	return []stint.Ask{{Key: stint.Key{Subject: subject, Name: "api"}, Limit: limitOf(stint.SlidingWindow, n), Cost: 1}}
}

// offset returns how much of the replication stream a server has.
func offset(t testing.TB, s *testredis.Server, field string) int {
	t.Helper()
	_, rest, _ := strings.Cut(s.Do(t, "INFO", "replication").(string), "\n"+field+":")
	text, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFailover kills the primary under load. Decisions resume, and no more is admitted beyond the limit
// than what the replicas had not yet received. A subscriber of the same server is told, and hears again.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) (url string, primary func() (*testredis.Server, []*testredis.Server), patience func(time.Duration)){
		"sentinel": func(t testing.TB) (string, func() (*testredis.Server, []*testredis.Server), func(time.Duration)) {
			t.Helper()
			s := testredis.StartSentinels(t)
			return s.URL(), func() (*testredis.Server, []*testredis.Server) { return s.Servers()[0], s.Servers()[1:] }, s.Patience
		},
		"cluster": func(t testing.TB) (string, func() (*testredis.Server, []*testredis.Server), func(time.Duration)) {
			t.Helper()
			c := testredis.StartCluster(t)
			return c.URL(), func() (*testredis.Server, []*testredis.Server) {
				p := c.Primary(t, "{alice}")
				i := slices.Index(c.Nodes(), p)
				return p, c.Nodes()[i+3 : i+4]
			}, c.Patience
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, primary, patience := start(t)
			patience(time.Hour) // until one is killed
			s := open(t, url, redisstore.Options{})
			x := s.Side()
			hears := func(p *testredis.Server) bool { return len(p.Do(t, "PUBSUB", "CHANNELS", "*side/*").([]any)) > 0 }
			e := listen(t, x, "news")
			p, replicas := primary()
			for !hears(p) { // in a Cluster, any node may do
				e.cancel()
				<-e.done
				wait.For(t, "it hears no more", func() bool { return !hears(p) })
				e = listen(t, x, "news")
			}
			const limit = 6000
			var (
				wg                     sync.WaitGroup
				admitted, old, failed  atomic.Int64 // old: asked for before the primary was dead
				killed, back, stop, up atomic.Bool
				dead                   = make(chan struct{})
			)
			for range 16 {
				wg.Go(func() {
					for !stop.Load() {
						if admitted.Load() > limit*3/4 {
							<-dead
						}
						before := !killed.Load()
						out, err := storetest.Take(t.Context(), s, ask("alice", limit))
						if err != nil {
							only(t, err)
							failed.Add(1)
							<-time.After(time.Millisecond)
							continue
						}
						if !before {
							back.Store(true)
						}
						if !out[0].Allowed {
							up.Store(true)
							return
						}
						admitted.Add(1)
						if before {
							old.Add(1)
						}
					}
				})
			}
			kept := int64(0) // admitted, and known to the replicas
			for kept < limit/4 {
				n, at := admitted.Load(), offset(t, p, "master_repl_offset")
				for _, r := range replicas {
					wait.For(t, "the replica follows", func() bool { return offset(t, r, "slave_repl_offset") >= at })
				}
				kept = n
			}
			watch := torture.Start(t)
			p.Kill(t)
			killed.Store(true)
			close(dead)
			patience(time.Second)
			wait.For(t, "decisions come back", back.Load)
			torture.AtMost(t, "until decisions come back", watch.Took().Round(time.Millisecond), 15*time.Second)
			wait.For(t, "the limit is used up", up.Load)
			stop.Store(true)
			wg.Wait()
			excess, lost := admitted.Load()-limit, old.Load()-kept
			t.Logf("%d failed; %d of %d admitted too many, where %d may have been lost", failed.Load(), excess, limit, lost)
			if excess > lost {
				t.Errorf("%d admitted too many, but only %d could have been lost", excess, lost)
			}
			e.want(t, connected)
			e.reaches(t, x)
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
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
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
	watch := torture.Start(t)
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) {
		t.Fatalf("take: %v; want ErrUnavailable and ErrNotApplied", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, stint.ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("ping: %v; want ErrUnavailable, and why", err)
	}
	torture.AtMost(t, "until both have failed", watch.Took(), time.Second)
	server.Restart(t)
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
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

// TestPause stops Redis. Callers wait until their deadline or the store's timeout.
func TestPause(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	short, long := openURL(t, server.URL()+"?timeout=300ms&dial_timeout=30s", redisstore.Options{}), openURL(t, server.URL(), redisstore.Options{})
	for _, s := range []*redisstore.Store{short, long} {
		wait.Nil(t, "a take", func() error { _, err := storetest.Take(t.Context(), s, ask("alice", 100)); return err })
	}
	server.Pause(t)
	var wg sync.WaitGroup
	for name, c := range map[string]struct {
		s             *redisstore.Store
		timeout, most time.Duration
	}{
		"a deadline of 5ms": {long, 5 * time.Millisecond, 100 * time.Millisecond},
		"a late deadline":   {short, 10 * time.Minute, time.Second},
		"no deadline":       {short, 0, time.Second},
	} {
		for range 8 {
			wg.Go(func() {
				ctx, cancel := context.Background(), func() {}
				if c.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
				}
				defer cancel()
				watch := torture.Start(t)
				if _, err := storetest.Take(ctx, c.s, ask("alice", 100)); !errors.Is(err, stint.ErrUnavailable) {
					t.Errorf("%s: %v; want ErrUnavailable", name, err)
				}
				torture.AtMost(t, name, watch.Took(), c.most)
			})
		}
	}
	wg.Wait()
	server.Resume(t)
	for _, s := range []*redisstore.Store{short, long} {
		wait.Nil(t, "a take", func() error { _, err := storetest.Take(t.Context(), s, ask("alice", 100)); return err })
	}
}

// TestQueue overflows the queue. Callers that gave up are not charged when Redis comes back.
func TestQueue(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	const limit, most = 100_000, 100 // waiting; some more are on their way
	redisstore.SetQueue(s, most)
	if _, err := storetest.Take(t.Context(), s, ask("alice", limit)); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	var wg sync.WaitGroup
	var refused atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	takers := int64(0)
	wait.For(t, "some are refused", func() bool {
		for range 20 {
			takers++
			wg.Go(func() {
				_, err := storetest.Take(ctx, s, ask("alice", limit))
				if !errors.Is(err, stint.ErrUnavailable) {
					t.Errorf("take: %v; want ErrUnavailable", err)
				} else if strings.Contains(err.Error(), "the queue is full") {
					refused.Add(1)
				}
			})
		}
		return refused.Load() > 0
	})
	if n := redisstore.Waiting(s, &ask("alice", limit)[0]); n != most {
		t.Errorf("%d wait, want %d", n, most)
	}
	cancel()
	wg.Wait()
	if n := refused.Load(); n > takers-most {
		t.Errorf("%d of %d refused, where %d may wait", n, takers, most)
	}
	if n := s.Stats().Unavailable; n != uint64(takers) {
		t.Errorf("%d counted as unavailable, want %d", n, takers)
	}
	server.Resume(t)
	wait.Nil(t, "a take", func() error {
		out, err := storetest.Take(t.Context(), s, ask("alice", limit))
		if err == nil && limit-out[0].Remaining > takers-most {
			t.Errorf("%v; want no charge for those in the queue, who have left", out)
		}
		return err
	})
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
			s := open(t, "redis://"+l.Addr().String()+"?timeout=500ms&dial_timeout=500ms", redisstore.Options{}) // for silence
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
			s := open(t, urlOf(t), redisstore.Options{})
			for range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				if _, err := storetest.Take(ctx, s, append(ask("alice", 10), ask("bob", 10)...)); err != nil {
					t.Fatal(err)
				}
				cancel()
			}
			s.Close()
			wait.Nil(t, "no goroutines", func() error {
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
