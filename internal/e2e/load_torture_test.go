//go:build torture

package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/torture"
)

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestLargeBodies sends more through the gateway, in both directions, than it may hold in
// memory.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	const size, slack = int64(256 << 20), 64 // the second in MB
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

// frame appends a frame of HTTP/2.
func frame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
	return append(b, payload...)
}

// resets opens streams of an HTTP/2 connection and cancels them at once. It returns an error
// if the server does not close the connection.
func resets(address string, streams int) error {
	const headers, reset, settings, endOfBoth = 1, 3, 4, 5
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, c) // until the server closes the connection
	}()
	b := frame([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings, 0, 0, nil)
	get := []byte{0x82, 0x86, 0x84, 0x41, 1, 'x'} // GET, http, /, and the authority x
	for i := range uint32(streams) {
		b = frame(b, headers, endOfBoth, 2*i+1, get)
		b = frame(b, reset, 0, 2*i+1, []byte{0, 0, 0, 8})
	}
	_, _ = c.Write(b) // the server may close it before
	select {
	case <-closed:
		return nil
	case <-time.After(patience):
		return errors.New("the connection stays open")
	}
}

// TestRapidResets has clients that open streams and cancel them at once, without end. Their
// connections are closed, and others are served all the time.
func TestRapidResets(t *testing.T) {
	t.Parallel()
	var cancelled atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Honest") != "" {
			return
		}
		<-r.Context().Done() // so that a request that is not cancelled would be seen
		cancelled.Add(1)
	}))
	defer upstream.Close()
	s := serve(t, unlimited+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", upstream.URL))
	var attack, honest sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		attack.Go(func() {
			for range 5 {
				if err := resets(strings.TrimPrefix(s.gateway, "http://"), 20_000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var served int
	honest.Go(func() {
		client := &http.Client{Timeout: patience}
		for {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.gateway+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("X-Honest", "yes")
			answer, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
				t.Errorf("an honest client gets %s", answer.Status)
			}
			served++
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	attack.Wait()
	close(stop)
	honest.Wait()
	_, peak := s.rss(t)
	torture.AtMost(t, "MB while streams are reset", peak>>20, 256)
	if _, all := s.logged(t, "connection closed"); all == 0 {
		t.Error("the log does not say why connections were closed")
	}
	t.Logf("%d honest requests were served meanwhile, and the upstream saw %d that were cancelled", served, cancelled.Load())
}
