package httplimit_test

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
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// TestMiddleware checks who is counted, what it costs, and what handlers learn.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	var verdicts []*engine.Verdict
	h := limited(t, httplimit.Options{
		Engine:  w.Engine,
		Cost:    func(r *http.Request) int64 { return r.ContentLength },
		Subject: func(*http.Request) *identity.Subject { return &identity.Subject{User: "alice"} },
	}, func(_ http.ResponseWriter, r *http.Request) {
		verdicts = append(verdicts, httplimit.VerdictOf(r.Context()))
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if httplimit.VerdictOf(ctx) != verdicts[0] {
			t.Error("the verdict is not in contexts that come of the request's")
		}
	})
	for _, want := range []int{200, 429} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("abcd"))
		rec := httptest.NewRecorder()
		if h.ServeHTTP(rec, r); rec.Code != want || rec.Header().Get("X-Ratelimit-Cost") != "4" {
			t.Errorf("%s, want %d", transcript(rec), want)
		}
	}
	if len(verdicts) != 1 || verdicts[0] == nil || verdicts[0].Subject.User != "alice" || verdicts[0].Binding().Decision.Remaining != 1 {
		t.Errorf("the handler has seen %v", verdicts)
	}
	if v := httplimit.VerdictOf(t.Context()); v != nil {
		t.Errorf("a verdict out of nowhere: %v", v)
	}
}

// TestPeers checks that clients are told apart by the addresses they come from.
func TestPeers(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{})
	seen := ""
	h := limited(t, httplimit.Options{Engine: w.Engine}, func(_ http.ResponseWriter, r *http.Request) {
		seen = httplimit.VerdictOf(r.Context()).Subject.IP.String()
	})
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[2001:db8::1]:80": "2001:db8::1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[fe80::1%eth0]:80": "fe80::1", "192.0.2.9": "192.0.2.9", "@": "invalid IP", "": "invalid IP",
	} {
		r := from("192.0.2.1", "GET", "/other")
		r.RemoteAddr = remote
		if h.ServeHTTP(httptest.NewRecorder(), r); seen != want {
			t.Errorf("%q is %s, want %s", remote, seen, want)
		}
	}
}

// failing is a directory that does not answer.
type failing struct{}

func (failing) Key(context.Context, string) (*identity.Key, error) {
	return nil, errors.New("secret of ours")
}

func (failing) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

func (failing) User(context.Context, string) (*identity.User, error) { return nil, nil }

// TestUndecided checks that what cannot be decided is not let through, and that the
// client does not learn why.
func TestUndecided(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{Directory: failing{}})
	r := from("192.0.2.1", "GET", "/search")
	r.Header.Set("X-Api-Key", "stint_0123456789abcdef_0123456789abcdef0123456789abcdef")
	next := func(http.ResponseWriter, *http.Request) { t.Error("let through") }
	rec := httptest.NewRecorder()
	limited(t, httplimit.Options{Engine: w.Engine}, next).ServeHTTP(rec, r)
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" || strings.Contains(rec.Body.String(), "secret") {
		t.Errorf("%s", transcript(rec))
	}
	counted := worldOf(t, oneLimit, identity.Options{})
	counted.store.(*broken).bad = true
	rec = httptest.NewRecorder()
	limited(t, httplimit.Options{Engine: counted.Engine}, next).ServeHTTP(rec, from("192.0.2.1", "GET", "/search"))
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "secret") || !strings.Contains(rec.Body.String(), "could not be checked") {
		t.Errorf("%s", transcript(rec))
	}
	var got error
	rec = httptest.NewRecorder()
	limited(t, httplimit.Options{Engine: w.Engine, OnError: func(w http.ResponseWriter, _ *http.Request, err error) {
		got = err
		w.WriteHeader(http.StatusTeapot)
	}}, next).ServeHTTP(rec, r)
	if rec.Code != http.StatusTeapot || got == nil || !strings.Contains(got.Error(), "secret of ours") {
		t.Errorf("%d, %v", rec.Code, got)
	}
}

// TestConnection has handlers do with the connection what they would do without the
// middleware, on a server.
func TestConnection(t *testing.T) {
	t.Parallel()
	w := worldOf(t, `
		[[rules]]
		name   = "everyone"
		limits = [ { name = "all", limit = "100/1h" } ]
	`, identity.Options{})
	flushed := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/flush", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		select {
		case <-flushed:
		case <-r.Context().Done():
		}
		fmt.Fprintln(w, "second")
	})
	mux.HandleFunc("/control", func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex(), c.Flush()); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, _ *http.Request) {
		c, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(buffer, "HTTP/1.1 101 Switching Protocols\r\nRateLimit: %s\r\n\r\nhello\n", w.Header().Get("Ratelimit"))
		_ = buffer.Flush()
	})
	mux.HandleFunc("/copy", func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("files are not sent by the kernel")
		}
	})
	server := httptest.NewServer(limited(t, httplimit.Options{Engine: w.Engine}, mux.ServeHTTP))
	defer server.Close()
	client := server.Client()

	response, err := client.Get(server.URL + "/flush")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || lines.Text() != "first" || response.Header.Get("Ratelimit") == "" {
		t.Errorf("%q, %v", lines.Text(), response.Header)
	}
	close(flushed)
	if !lines.Scan() || lines.Text() != "second" {
		t.Errorf("%q", lines.Text())
	}
	for _, path := range []string{"/control", "/copy"} {
		response, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /hijack HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	text, err := io.ReadAll(c)
	if err != nil || !strings.HasSuffix(string(text), "hello\n") || !strings.Contains(string(text), `RateLimit: "all";r=`) {
		t.Errorf("%q, %v", text, err)
	}
}

func BenchmarkMiddleware(b *testing.B) {
	w := worldOf(b, `
		[[rules]]
		name     = "each"
		count_by = ["ip"]
		limits   = [ { name = "hourly", limit = "100000000000/1h" } ]
	`, identity.Options{})
	none := worldOf(b, oneLimit, identity.Options{})
	hello := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }
	r := from("192.0.2.1", "GET", "/search")
	bench := func(name string, h http.Handler) {
		b.Run(name, func(b *testing.B) {
			rec := &sink{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(rec, r)
			}
		})
	}
	bench("empty", http.HandlerFunc(hello))
	bench("allowed", limited(b, httplimit.Options{Engine: w.Engine}, hello))
	bench("denied", limited(b, httplimit.Options{Engine: none.Engine}, hello))
}
