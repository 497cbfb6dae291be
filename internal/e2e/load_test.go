package e2e_test

import (
	"bufio"
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
	"github.com/stintdev/stint/internal/test/torture"
)

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestLargeBodies sends more through the gateway, in both directions, than it may hold in
// memory.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	const slack = 64 // MB
	size := int64(8 << 20)
	if torture.Enabled {
		size = 256 << 20
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPut && (err != nil || n != size) {
			t.Errorf("the upstream got %d bytes, %v", n, err)
		}
		if r.Method == http.MethodGet {
			_, _ = io.CopyN(w, zeros{}, size) // the client counts
		}
	}))
	defer upstream.Close()
	s := serve(t, limited("1000/1h", upstream.Listener.Addr().String()))
	c := newClient(t, "127.0.0.1", s.gateway)
	c.do(t, http.MethodHead, "/", "") // connections are there from now on
	before, _ := s.rss(t)
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		var body io.Reader
		if method == http.MethodPut {
			body = io.LimitReader(zeros{}, size)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, s.gateway+"/", body)
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, w.Body)
		w.Body.Close()
		if err != nil || w.StatusCode != http.StatusOK || (method == http.MethodGet && n != size) {
			t.Errorf("%s: got %s and %d bytes, %v", method, w.Status, n, err)
		}
		_, peak := s.rss(t)
		t.Logf("%s of %d MiB: from %d MiB to %d MiB", method, size>>20, before>>20, peak>>20)
		torture.AtMost(t, "MB more while a body passes, "+method, (peak-before)>>20, slack)
	}
}

func TestIdleConnections(t *testing.T) {
	t.Parallel()
	want := 1000
	if torture.Enabled {
		want = 10_000
	}
	const least, spare = 1000, 2000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	count := min(want, int(min(limit.Max, 1<<30))-spare) // Go has raised it as far as it may
	if count < least {
		t.Fatalf("only %d files may be open, want %d", limit.Max, least+spare)
	}
	if count < want {
		t.Logf("only %d files may be open", limit.Max)
	}
	s := serve(t, limited("1000000/1h", "127.0.0.1:9"))
	before, _ := s.rss(t)
	conns := make([]net.Conn, count)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	// The first request opens a connection, and the second finds it still open.
	for round := range 2 {
		var wg sync.WaitGroup
		var next atomic.Int64
		for range 32 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(count); i = next.Add(1) - 1 {
					if err := ask(&conns[i], s.api); err != nil {
						t.Errorf("round %d, connection %d: %v", round, i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	now, _ := s.rss(t)
	t.Logf("%d idle connections hold %d KiB each", count, (now-before)>>10/int64(count))
}

// ask sends a request on a connection, which it opens if necessary.
func ask(conn *net.Conn, url string) (err error) {
	if *conn == nil {
		if *conn, err = net.Dial("tcp", strings.TrimPrefix(url, "http://")); err != nil {
			return err
		}
	}
	if err := (*conn).SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(*conn, "GET /healthz HTTP/1.1\r\nHost: stint\r\n\r\n"); err != nil {
		return err
	}
	w, err := http.ReadResponse(bufio.NewReaderSize(*conn, 512), nil)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	if _, err := io.Copy(io.Discard, w.Body); err != nil || w.StatusCode != http.StatusOK {
		return fmt.Errorf("%s, %w", w.Status, err)
	}
	return nil
}

// TestDrain stops a stint while clients send as fast as they can, each on a connection that
// it keeps as long as possible.
func TestDrain(t *testing.T) {
	t.Parallel()
	const clients = 32
	begun, finish := make(chan struct{}), make(chan struct{})
	answer := strings.Repeat("x", 8<<10)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-finish
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer upstream.Close()
	s := serve(t, limited("1000000000/1h", upstream.Listener.Addr().String()), "STINT_SERVER_DRAIN_DELAY=300ms")
	address := strings.TrimPrefix(s.gateway, "http://")

	exchange := func(conn net.Conn, r *bufio.Reader, path string) (last bool, err error) {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: app\r\n\r\n", path); err != nil {
			return false, err
		}
		w, err := http.ReadResponse(r, nil)
		if err != nil {
			return false, err
		}
		defer w.Body.Close()
		body, err := io.ReadAll(w.Body)
		if err == nil && (w.StatusCode != http.StatusOK || string(body) != answer) {
			err = fmt.Errorf("%s and %d bytes", w.Status, len(body))
		}
		return w.Close, err
	}
	var wg sync.WaitGroup
	// A connection that waits to be accepted when the listener is closed is reset by the
	// kernel.
	var whole, connections, unheard atomic.Int64
	var told atomic.Bool
	busy := make(chan struct{}, clients)
	for range clients {
		wg.Go(func() {
			for {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					if refused := errors.Is(err, syscall.ECONNREFUSED) || reset(err); !refused || !told.Load() {
						t.Error(err)
					}
					return
				}
				connections.Add(1)
				_ = conn.SetDeadline(time.Now().Add(patience)) // reading would tell
				r := bufio.NewReader(conn)
				for n, last := 0, false; !last; n++ {
					last, err = exchange(conn, r, "/")
					if n == 0 && told.Load() && reset(err) {
						unheard.Add(1)
						break
					}
					if err != nil {
						t.Errorf("request %d of a connection: %v", n, err)
						break
					}
					if whole.Add(1); n == 10 {
						select {
						case busy <- struct{}{}:
						default:
						}
					}
				}
				conn.Close()
			}
		})
	}
	slow := dial(t, s.gateway)
	wg.Go(func() {
		if _, err := exchange(slow, bufio.NewReader(slow), "/slow"); err != nil {
			t.Errorf("the slow request: %v", err)
		}
	})
	<-begun
	for range clients {
		<-busy
	}
	told.Store(true)
	s.terminate()
	s.wait(t, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return nil //nolint:nilerr // it is what is waited for
		}
		conn.Close()
		return errors.New("stint still listens")
	})
	close(finish)
	wg.Wait()
	s.stop(t)
	t.Logf("%d requests on %d connections, and %d that were not accepted", whole.Load(), connections.Load(), unheard.Load())
}

func reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// TestTwoNodes has two processes enforce one limit.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	const limit, clients, requests = 300, 16, 40
	redis := testredis.Shared(t)
	a := newApp(t)
	var nodes []*server
	for range 2 {
		config := replace(t, limited(fmt.Sprint(limit, "/1000h"), a.address), "[[upstreams]]", "on_store_failure = \"closed\"\n\n[[upstreams]]")
		nodes = append(nodes, serve(t, config, counting(redis.URL())...))
	}
	var statuses [600]atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			c := newClient(t, "127.0.0.1", nodes[i%2].gateway)
			for answers := 0; answers < requests; {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				w, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				w.Body.Close()
				// On a machine that is busy, a node may lose patience with Redis. Then it
				// refuses, which is not an answer.
				if w.StatusCode != http.StatusServiceUnavailable {
					statuses[w.StatusCode].Add(1)
					answers++
				}
			}
		})
	}
	wg.Wait()
	passed, refused := statuses[http.StatusOK].Load(), statuses[http.StatusTooManyRequests].Load()
	if passed != limit || passed+refused != clients*requests || a.served.Load() != limit {
		t.Errorf("%d passed, %d were refused, the app has seen %d, want %d and %d", passed, refused, a.served.Load(), limit, clients*requests-limit)
	}
}
