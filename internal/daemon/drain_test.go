package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// many is a rule that denies nothing.
const many = "[[rules]]\nname = \"many\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"many\", limit = \"1000000/1s\" }]\n"

// gate is an upstream that holds requests to /slow until it is opened.
type gate struct {
	*httptest.Server
	begun chan struct{}
	open  chan struct{}
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{begun: make(chan struct{}, 1), open: make(chan struct{})}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/slow" {
			g.begun <- struct{}{}
			select {
			case <-g.open:
			case <-r.Context().Done():
			}
		}
		fmt.Fprint(w, "done")
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gate) upstreams() string { return fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", g.URL) }

// TestDrain stops a daemon under load. Clients behave like a load balancer: they keep
// connections until they are asked to close them, and stop some time after /readyz returns
// 503. None of their requests is lost, though they cannot be retried.
func TestDrain(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	p := start(t, many+g.upstreams(), set("server.drain_delay", "5s"), set("server.drain", "10m"))
	gone := make(chan time.Time) // the balancer sends no more requests
	p.DelayUntil(gone)

	slow := make(chan string, 1)
	go func() {
		answer, err := p.client.Get(p.URL("gateway") + "/slow")
		if err != nil {
			slow <- err.Error()
			return
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		slow <- answer.Status + " " + string(body)
	}()
	<-g.begun

	var sent atomic.Int64
	var away atomic.Bool // /readyz says so
	var wg sync.WaitGroup
	warm := make(chan struct{}, 9)
	post := func(c *http.Client) (told bool) {
		answer, err := c.Post(p.URL("gateway")+"/", "text/plain", io.MultiReader(strings.NewReader("some "), strings.NewReader("text")))
		if err != nil {
			t.Errorf("lost: %v", err)
			return true
		}
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" || answer.StatusCode != http.StatusOK {
			t.Errorf("lost: %s %q %v", answer.Status, body, err)
		}
		sent.Add(1)
		return answer.Close
	}
	for i := range cap(warm) {
		wg.Go(func() {
			transport := &http.Transport{}
			if i == 0 {
				transport.Protocols = new(http.Protocols)
				transport.Protocols.SetUnencryptedHTTP2(true)
			}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport}
			post(c)
			warm <- struct{}{}
			for !away.Load() {
				post(c) // those who are told to close come back with another connection
			}
		})
	}
	for range cap(warm) {
		<-warm
	}

	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(context.WithoutCancel(t.Context())) }()
	wait.For(t, "readiness", func() bool {
		status, body := p.get(t, "http", "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "the daemon is stopping")
	})
	if status, _ := p.get(t, "http", "/healthz"); status != http.StatusOK {
		t.Error("it is alive", status)
	}
	if !post(&http.Client{Transport: &http.Transport{}}) {
		t.Error("a connection is not told to close")
	}
	for then := sent.Load() + 50; sent.Load() < then && !t.Failed(); {
		post(p.client)
	}
	away.Store(true)
	wg.Wait()
	close(gone)

	wait.For(t, "no more connections", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.URL("gateway"), "http://"))
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if status, _ := p.get(t, "admin", "/readyz"); status != http.StatusServiceUnavailable {
		t.Error("those who watch cannot", status)
	}
	close(g.open)
	if got := <-slow; got != "200 OK done" {
		t.Errorf("what had begun: %s", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, none lost", sent.Load())
}

// TestSilent stops a daemon quickly while clients are connected that send nothing, or
// nothing more: no request is cut off.
func TestSilent(t *testing.T) {
	t.Parallel()
	p := start(t, many+newGate(t).upstreams())
	for _, l := range []string{"gateway", "http", "admin"} {
		dial(t, p, l)
		p.get(t, l, "/")
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cancel()
	do(t, p.Stop(ctx))
}

// TestCutOff stops a daemon while there are requests that do not end.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for name, hurry := range map[string]bool{"drain": false, "context": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			drain := "10ms"
			if hurry {
				drain = "10m"
			}
			p := start(t, many+g.upstreams(), set("server.drain", drain), set("server.drain_delay", drain))
			failed := make(chan error, 1)
			go func() {
				answer, err := p.client.Get(p.URL("gateway") + "/slow")
				if err == nil {
					err = answer.Body.Close()
				}
				failed <- err
			}()
			<-g.begun
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			defer cancel()
			if hurry {
				cancel()
			}
			if err := p.Stop(ctx); err == nil || !strings.Contains(err.Error(), "gateway: requests were cut off") {
				t.Error(err)
			}
			if <-failed == nil {
				t.Error("a request that was cut off, and was not")
			}
		})
	}
}

// TestCutOffSettled stops a daemon while there are requests that do not end: their places are released before the store is
// closed, though the time to drain is over by then, and there are more than are settled at once.
func TestCutOffSettled(t *testing.T) {
	t.Parallel()
	const places = 100
	g := newGate(t)
	proxy := testredis.StartProxy(t, testredis.Start(t))
	rules := fmt.Sprintf("[[rules]]\nname = \"places\"\nlimits = [{ name = \"places\", limit = \"%d/1h concurrency\" }]\n", places) + g.upstreams()
	redis, budget := set("server.counters", proxy.URL()+patient), set("server.store_budget", "30s")
	p := start(t, rules, redis, budget, set("server.drain", "10ms"), set("server.drain_delay", "10ms"))
	var clients sync.WaitGroup
	for range places {
		clients.Go(func() {
			answer, err := p.client.Get(p.URL("gateway") + "/slow")
			if err == nil {
				_ = answer.Body.Close()
			}
		})
	}
	for range places {
		<-g.begun
	}
	proxy.Set(t, testredis.Fault{Latency: 50 * time.Millisecond})
	if err := p.Stop(context.WithoutCancel(t.Context())); err == nil || !strings.Contains(err.Error(), "gateway: requests were cut off") {
		t.Error(err)
	}
	clients.Wait()
	proxy.Set(t, testredis.Fault{})
	next := start(t, rules, redis, budget)
	status, body := next.send(t, next.client, http.MethodPost, next.URL("http")+"/v1/check", `{"path": "/", "ip": "127.0.0.1", "peek": true}`)
	if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"remaining":%d,`, places)) {
		t.Errorf("the places are not free: %d %s", status, body)
	}
}

// TestUpgraded stops a daemon with an upgraded connection, which ends in time or is cut
// off.
func TestUpgraded(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	}))
	defer upstream.Close()
	for name, ends := range map[string]bool{"ends": true, "is cut off": false} {
		t.Run(name, func(t *testing.T) {
			drain := "1h"
			if !ends {
				drain = "50ms"
			}
			p := start(t, many+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", upstream.URL), set("server.drain", drain))
			conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL("gateway"), "http://"))
			do(t, err)
			defer conn.Close()
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			r := bufio.NewReader(conn)
			answer, err := http.ReadResponse(r, nil)
			do(t, err)
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(answer.Status)
			}
			say := func(text string) string {
				fmt.Fprintln(conn, text)
				line, _ := r.ReadString('\n')
				return strings.TrimSpace(line)
			}
			if got := say("hello"); got != "hello" {
				t.Error(got)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- p.Stop(context.WithoutCancel(t.Context())) }()
			if ends {
				wait.For(t, "stopping", func() bool { return p.Health().Status == "not_ready" })
				if got := say("still there"); got != "still there" {
					t.Error(got)
				}
				do(t, conn.Close())
			}
			if err := <-stopped; (err == nil) != ends {
				t.Error(err)
			}
			if !ends {
				if _, err := r.ReadByte(); err == nil {
					t.Error("it was not cut off")
				}
			}
		})
	}
}
