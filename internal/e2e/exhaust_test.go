package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/torture"
)

const unlimited = "[[rules]]\nname = \"many\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"many\", limit = \"100000000/1s\" }]\n"

// logged returns how many lines of the log have a message, and how many they stand for.
func (p *process) logged(t testing.TB, message string) (lines, all int) {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Msg     string
			LeftOut int `json:"left_out"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, message) {
			lines++
			all += 1 + entry.LeftOut
		}
	}
	return lines, all
}

// TestFilesExhausted opens more connections than a server may have files. The log says so,
// not each time, and when connections end, the server goes on.
func TestFilesExhausted(t *testing.T) {
	t.Parallel()
	s := serve(t, unlimited)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	limit := strconv.Itoa(len(files) + 10)
	if out, err := exec.Command(tool(t, "prlimit"), "--pid", strconv.Itoa(s.Process.Pid), "--nofile="+limit+":"+limit).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var open []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.api, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	const message = "connections cannot be accepted"
	s.wait(t, func() error {
		if n, all := s.logged(t, message); n < 2 || all < 4 {
			return fmt.Errorf("%d lines for %d errors", n, all)
		}
		return nil
	})
	if log := s.output(); !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "ulimit -n") || !strings.Contains(log, "too many open files") {
		t.Error(log)
	}
	for _, c := range open {
		_ = c.Close()
	}
	s.wait(t, func() error { return answers(s.api) })
}

// answers returns an error if a server does not decide a request.
func answers(api string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Post(api+"/v1/check", "application/json", strings.NewReader(`{"path":"/a","ip":"192.0.2.1"}`))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s %w", answer.Status, body, err)
	}
	return nil
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
	attackers, rounds := 2, 1
	if torture.Enabled {
		attackers, rounds = 4, 5
	}
	for range attackers {
		attack.Go(func() {
			for range rounds {
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
