package httplimit_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// servedRules have one place, and a meter for each path.
const servedRules = `
[[rules]]
name = "place"
match = { paths = ["/metered/**", "/place/**"] }
limits = [{ name = "place", limit = "1/30s concurrency" }]
[[rules]]
name = "in"
match = { paths = ["/metered/**"] }
cost = { meter = "request_bytes", reserve = 5 }
limits = [{ name = "in", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "out"
match = { paths = ["/metered/**"] }
cost = { meter = "response_bytes", reserve = 5, on_error = "refund" }
limits = [{ name = "out", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "seconds"
match = { paths = ["/metered/**"] }
cost = { meter = "response_seconds", reserve = 5 }
limits = [{ name = "seconds", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "header"
match = { paths = ["/metered/**"] }
cost = { meter = "header:x-cost", reserve = 5 }
limits = [{ name = "header", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "json"
match = { paths = ["/metered/**"] }
cost = { meter = "json:usage.total", reserve = 5 }
limits = [{ name = "json", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "missing"
match = { paths = ["/metered/**"] }
cost = { meter = "header:x-missing", reserve = 5 }
limits = [{ name = "missing", limit = "100000/1000h fixed_window" }]
`

// used returns what is used of the limits that apply to a path: in, out, seconds, header, json, missing, place.
func used(tb testing.TB, e *engine.Engine, path string) (out string) {
	tb.Helper()
	v, err := e.Peek(tb.Context(), engine.Request{Method: "GET", Path: path, Peer: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"in", "out", "seconds", "header", "json", "missing", "place"} {
		for i := range v.Limits {
			if l := &v.Limits[i]; l.Name == name {
				out += fmt.Sprint(" ", l.Decision.Limit-l.Decision.Remaining)
			}
		}
	}
	return strings.TrimSpace(out)
}

// eventually waits until something is used: requests are settled after the client has its response.
func eventually(tb testing.TB, e *engine.Engine, path, want string) {
	tb.Helper()
	wait.Nil(tb, path, func() error {
		if got := used(tb, e, path); got != want {
			return fmt.Errorf("%s is used, want %s", got, want)
		}
		return nil
	})
}

// doors serve a handler behind each kind of door.
func doors(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, e *engine.Engine, url string)) {
	t.Helper()
	t.Run("middleware", func(t *testing.T) {
		t.Parallel()
		e := gatewayEngine(t, servedRules, identity.Options{})
		test(t, e, serve(t, limited(t, httplimit.Options{Engine: e}, handler), false).URL)
	})
	t.Run("gateway", func(t *testing.T) {
		t.Parallel()
		e := gatewayEngine(t, servedRules, identity.Options{})
		_, s := gateway(t, httplimit.GatewayOptions{Engine: e, Routes: to(serve(t, handler, false).URL)})
		test(t, e, s.URL)
	})
}

// TestServed measures requests of all kinds, and gives their places back.
func TestServed(t *testing.T) {
	t.Parallel()
	const usage = `{"usage":{"total":321}}`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, usage)
	_ = z.Close()
	doors(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metered/plain":
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("X-Cost", "17")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, usage)
		case "/metered/trailer":
			w.Header().Set("Trailer", "X-Cost")
			_, _ = io.WriteString(w, "1234")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Cost", "18")
		case "/metered/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for _, text := range []string{"data: {\"usage\":{\"total\":1}}\n\n", "data: {\"usage\":{\"total\":9}}\n\n"} {
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
			}
		case "/metered/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(zipped.Bytes())
		case "/metered/nothing":
			w.WriteHeader(http.StatusNoContent)
		case "/metered/error":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "1234")
		case "/metered/panic":
			panic(http.ErrAbortHandler)
		case "/metered/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "1234")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}, func(t *testing.T, e *engine.Engine, url string) {
		t.Helper()
		before := [6]int{}
		for _, c := range []struct {
			path string
			used [6]int // in, out, seconds, header, json, missing
		}{
			{"/metered/plain", [6]int{4, len(usage), 1, 17, 321, 5}},
			{"/metered/trailer", [6]int{0, 4, 1, 18, 5, 5}},
			{"/metered/events", [6]int{0, 58, 1, 5, 9, 5}},
			{"/metered/gzip", [6]int{0, zipped.Len(), 1, 5, 321, 5}},
			{"/metered/nothing", [6]int{0, 0, 1, 5, 5, 5}},
			{"/metered/error", [6]int{0, 0, 1, 5, 5, 5}},
			{"/metered/panic", [6]int{0, 0, 1, 5, 5, 5}},
			{"/metered/cut", [6]int{0, 0, 1, 5, 5, 5}},
		} {
			var body io.Reader
			if c.used[0] > 0 {
				body = strings.NewReader("body"[:c.used[0]])
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+c.path, body)
			if err != nil {
				t.Fatal(err)
			}
			tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
			if res, err := tr.RoundTrip(r); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode == http.StatusTooManyRequests {
					t.Fatalf("%s: denied", c.path)
				}
			}
			want := ""
			for i, n := range c.used {
				before[i] += n
				want += fmt.Sprint(before[i], " ")
			}
			eventually(t, e, c.path, want+"0")
		}
	})
}

// TestServedUntilEnd holds a place for as long as a response takes, and until the client leaves.
func TestServedUntilEnd(t *testing.T) {
	t.Parallel()
	doors(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, func(t *testing.T, e *engine.Engine, url string) {
		t.Helper()
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metered/stream", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(res.Body, make([]byte, 9)); err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%d, %v", res.StatusCode, err)
			}
			if a, _ := ask(t, get(t, url+"/place/other")); a.status != http.StatusTooManyRequests {
				t.Errorf("a second request: %d", a.status)
			}
			cancel()
			_ = res.Body.Close()
			eventually(t, e, "/place/other", "0")
		}
		// Who leaves pays what was sent.
		if got := used(t, e, "/metered/stream"); !strings.HasPrefix(got, "0 27 ") {
			t.Errorf("%s is used", got)
		}
	})
}

// TestServedUpgrade holds a place until both ends of a WebSocket are closed, also if the handler has returned
// before.
func TestServedUpgrade(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, e *engine.Engine, s *httptest.Server) {
		t.Helper()
		conn, r := connect(t, s)
		fmt.Fprintf(conn, "GET /place/chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", res, err)
		}
		defer res.Body.Close()
		for range 3 {
			fmt.Fprint(conn, "hello\n")
			if line, err := r.ReadString('\n'); err != nil || line != "hello\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if got := used(t, e, "/place/chat"); got != "1" {
				t.Fatalf("%s places are held", got)
			}
		}
		_ = conn.Close()
		eventually(t, e, "/place/chat", "0")
	}
	echo := func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, rw)
		}()
	}
	t.Run("middleware", func(t *testing.T) {
		t.Parallel()
		e := gatewayEngine(t, servedRules, identity.Options{})
		test(t, e, serve(t, limited(t, httplimit.Options{Engine: e}, echo), false))
	})
	t.Run("gateway", func(t *testing.T) {
		t.Parallel()
		e := gatewayEngine(t, servedRules, identity.Options{})
		_, s := gateway(t, httplimit.GatewayOptions{Engine: e, Routes: to(serve(t, http.HandlerFunc(echo), false).URL)})
		test(t, e, s)
	})
}

// TestServedWriter checks that handlers can do what they can without a limit, and get the server's own writer
// where nothing is settled.
func TestServedWriter(t *testing.T) {
	t.Parallel()
	e := gatewayEngine(t, servedRules, identity.Options{})
	var own http.ResponseWriter
	h := limited(t, httplimit.Options{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/other" {
			if w != own {
				t.Errorf("the writer is a %T", w)
			}
			return
		}
		control := http.NewResponseController(w)
		for name, err := range map[string]error{
			"read deadline":  control.SetReadDeadline(time.Now().Add(time.Minute)),
			"write deadline": control.SetWriteDeadline(time.Now().Add(time.Minute)),
			"full duplex":    control.EnableFullDuplex(),
			"flush":          control.Flush(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := w.(http.Pusher).Push("/x", nil); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("push over HTTP/1: %v", err)
		}
		if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("12345")); n != 5 || err != nil {
			t.Errorf("read from: %d, %v", n, err)
		}
	})
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own = w
		h.ServeHTTP(w, r)
	}), false)
	_, _ = ask(t, get(t, s.URL+"/other"))
	for _, path := range []string{"/place/x", "/metered/x"} {
		if _, body := ask(t, get(t, s.URL+path)); body != "12345" {
			t.Errorf("%s: %q", path, body)
		}
		eventually(t, e, "/place/x", "0")
	}
	if got := used(t, e, "/metered/x"); !strings.HasPrefix(got, "0 5 ") {
		t.Errorf("%s is used", got)
	}
}

// TestServedEstimated says that what a meter could not read is an estimate.
func TestServedEstimated(t *testing.T) {
	t.Parallel()
	const rules = `
		[[rules]]
		name = "json"
		cost = { meter = "json:usage.total", reserve = 5 }
		limits = [{ name = "json", limit = "100000/1000h fixed_window" }]
	`
	for name, c := range map[string]struct {
		body, encoding string
		used           int64
		guessed        bool
	}{
		"exact":   {`{"usage":{"total":321}}`, "", 321, false},
		"missing": {`{"usage":{}}`, "", 5, true},
		"encoded": {strings.Repeat("?", 400), "br", 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			book := make(receipts, 1)
			target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Accept-Encoding"); got != "gzip" {
					t.Errorf("the target may encode as %q", got)
				}
				w.Header().Set("Content-Type", "application/json")
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				_, _ = io.WriteString(w, c.body)
			}), false)
			_, s := gateway(t, httplimit.GatewayOptions{Engine: ledgerEngine(t, rules, identity.Options{}, book), Routes: to(target.URL)})
			ask(t, get(t, s.URL+"/x", "Accept-Encoding", "br, gzip"))
			receipt := <-book
			if receipt.Estimated != c.guessed || receipt.Limits[0].Used != c.used {
				t.Errorf("%d, an estimate: %t; want %d, %t", receipt.Limits[0].Used, receipt.Estimated, c.used, c.guessed)
			}
		})
	}
}

// TestUse has a handler say what it has used: that holds in place of what is measured, and of each meter the last value.
func TestUse(t *testing.T) {
	t.Parallel()
	const rules = `
		[[rules]]
		name = "tokens"
		match = { paths = ["/metered/**"] }
		cost = { meter = "llm.total_tokens", reserve = 50 }
		limits = [{ name = "tokens", limit = "100000/1000h fixed_window" }]
		[[rules]]
		name = "json"
		match = { paths = ["/metered/**"] }
		cost = { meter = "json:rows", reserve = 5 }
		limits = [{ name = "json", limit = "100000/1000h fixed_window" }]
		[[rules]]
		name = "out"
		match = { paths = ["/metered/**"] }
		cost = { meter = "response_bytes" }
		limits = [{ name = "out", limit = "100000/1000h fixed_window" }]
	`
	type meters = map[rule.Meter]int64
	for name, c := range map[string]struct {
		path    string
		told    []engine.Usage
		want    string
		guessed bool
		model   string
	}{
		"nothing":   {"/metered/x", nil, "json 5, out 7, tokens 50", true, ""},
		"by meter":  {"/metered/x", []engine.Usage{{Meters: meters{"llm.total_tokens": 10, "json:rows": 2}, Model: "large"}, {Meters: meters{"llm.total_tokens": 650, "llm.cost": 9}}}, "json 2, out 7, tokens 650", false, "large"},
		"of all":    {"/metered/x", []engine.Usage{{Cost: 8}}, "json 8, out 8, tokens 8", false, ""},
		"estimated": {"/metered/x", []engine.Usage{{Meters: meters{"llm.total_tokens": -1, "json:rows": 0}, Estimated: true}}, "json 0, out 7, tokens 0", true, ""},
		"no meters": {"/x", []engine.Usage{{Cost: 8}}, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			book := make(receipts, 1)
			e := ledgerEngine(t, rules, identity.Options{}, book)
			h := limited(t, httplimit.Options{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
				for _, u := range c.told {
					httplimit.Use(r.Context(), u)
				}
				if httplimit.VerdictOf(r.Context()) == nil {
					t.Error("there is no verdict")
				}
				_, _ = io.WriteString(w, "7 bytes")
			})
			h.ServeHTTP(httptest.NewRecorder(), from("192.0.2.1", "GET", c.path))
			if c.want == "" {
				return
			}
			receipt := <-book
			var got []string
			for s := range receipt.Rules() {
				got = append(got, fmt.Sprint(s.Rule, " ", s.Used))
			}
			if text := strings.Join(got, ", "); text != c.want || receipt.Estimated != c.guessed || receipt.Model != c.model {
				t.Errorf("%s, an estimate: %t, of %q", text, receipt.Estimated, receipt.Model)
			}
		})
	}
}

// TestServedGateway releases places of requests that get no response: no target, one that is too slow, and a body
// that is too large.
func TestServedGateway(t *testing.T) {
	t.Parallel()
	stuck := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client leaves
		<-r.Context().Done()
	}), false)
	for name, c := range map[string]struct {
		route  httplimit.Route
		body   string
		status int
		out    string // what is charged for response_bytes
	}{
		"no target": {httplimit.Route{Targets: []string{"http://" + closedPort(t)}}, "", http.StatusBadGateway, "0"},
		"timeout":   {httplimit.Route{Targets: []string{stuck.URL}, Timeout: 50 * time.Millisecond}, "", http.StatusGatewayTimeout, "0"},
		"too large": {httplimit.Route{Targets: []string{stuck.URL}}, "too large", http.StatusRequestEntityTooLarge, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := gatewayEngine(t, servedRules, identity.Options{})
			_, s := gateway(t, httplimit.GatewayOptions{Engine: e, Routes: []httplimit.Route{c.route}, MaxBody: 4})
			r := get(t, s.URL+"/metered/x")
			if c.body != "" {
				r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(c.body)), int64(len(c.body))
			}
			if a, body := ask(t, r); a.status != c.status {
				t.Fatalf("%d: %s", a.status, body)
			}
			eventually(t, e, "/place/x", "0")
			if got := strings.Fields(used(t, e, "/metered/x"))[1]; got != c.out {
				t.Errorf("%s is charged, want %s", got, c.out)
			}
		})
	}
}
