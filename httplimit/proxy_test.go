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
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestGatewayProtocols sends a body with trailers, and gets hints, a body and trailers,
// in all protocols on both sides.
func TestGatewayProtocols(t *testing.T) {
	t.Parallel()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Encoding", "gzip") // which it is not, and no one may care
		w.Header().Set("X-Proto", r.Proto)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "%s, %s", body, r.Trailer.Get("X-Sent"))
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	})
	plain, secure := serve(t, h, false), serve(t, h, true)
	roots := secure.Client().Transport.(*http.Transport).TLSClientConfig
	targets := map[string]struct{ url, proto string }{
		"http":  {plain.URL, "HTTP/1.1"},
		"https": {secure.URL, "HTTP/2.0"},
		"h2c":   {"h2c" + strings.TrimPrefix(plain.URL, "http"), "HTTP/2.0"},
	}
	clients := map[string]func(*http.Protocols){
		"http": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2":   func(p *http.Protocols) { p.SetHTTP2(true) },
		"h2c":  func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	}
	for name, target := range targets {
		g, err := httplimit.NewGateway(httplimit.GatewayOptions{
			Engine: gatewayEngine(t, noRules, identity.Options{}),
			Routes: []httplimit.Route{{Targets: []string{target.url}, TLS: roots}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Stop(context.Background()) })
		for client, speak := range clients {
			t.Run(client+" to "+name, func(t *testing.T) {
				t.Parallel()
				s := serve(t, g, client == "h2")
				tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
				defer tr.CloseIdleConnections()
				speak(tr.Protocols)
				if client == "h2" {
					tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				}
				r := get(t, s.URL+"/")
				r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader("hello")), -1
				r.Trailer = http.Header{"X-Sent": {"all"}}
				hint := ""
				r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
						hint = fmt.Sprint(code, " ", h.Get("Link"))
						return nil
					},
				}))
				res, err := tr.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil || string(body) != "hello, all" || res.Header.Get("Content-Encoding") != "gzip" {
					t.Errorf("%q, %v, %v", body, err, res.Header)
				}
				if hint != "103 </style.css>" || res.Trailer.Get("X-Sum") != "42" || res.Trailer.Get("X-Late") != "yes" {
					t.Errorf("hint %q, trailers %v", hint, res.Trailer)
				}
				if got := res.Header.Get("X-Proto"); got != target.proto {
					t.Errorf("the target saw %s; want %s", got, target.proto)
				}
			})
		}
	}
}

// upgrade shakes hands, and then sends back what it gets.
func upgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-WebSocket-Key") != "dGhlIHNhbXBsZSBub25jZQ==" {
		w.WriteHeader(http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-RateLimit-Limit: theirs\r\n\r\n")
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

// TestGatewayUpgrade passes a WebSocket through, also to targets that would rather
// speak HTTP/2.
func TestGatewayUpgrade(t *testing.T) {
	t.Parallel()
	plain, secure := serve(t, http.HandlerFunc(upgrade), false), serve(t, http.HandlerFunc(upgrade), true)
	for _, target := range []string{plain.URL, secure.URL} {
		_, s := gateway(t, httplimit.GatewayOptions{
			Engine: gatewayEngine(t, "[[rules]]\nname = \"all\"\nlimits = [ { name = \"all\", limit = \"9/1h\" } ]", identity.Options{}),
			Routes: []httplimit.Route{{Targets: []string{target}, TLS: secure.Client().Transport.(*http.Transport).TLSClientConfig}},
		})
		conn, r := connect(t, s)
		fmt.Fprintf(conn, "GET /chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close() // the connection goes on
		if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" ||
			!slices.Equal(res.Header["X-Ratelimit-Limit"], []string{"9"}) {
			t.Fatalf("%d, %v", res.StatusCode, res.Header)
		}
		for _, frame := range []string{"\x81\x85\x00\x00\x00\x00hello", "\x88\x80\x00\x00\x00\x00"} {
			got := make([]byte, len(frame))
			_, _ = io.WriteString(conn, frame)
			if _, err := io.ReadFull(r, got); err != nil || string(got) != frame {
				t.Errorf("sent %q, got %q, %v", frame, got, err)
			}
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		if n, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes after the end", n)
		}
	}
}

// TestGatewayUpgradeHTTP does not let a client talk to a target past the limits.
func TestGatewayUpgradeHTTP(t *testing.T) {
	t.Parallel()
	_, s := gateway(t, httplimit.GatewayOptions{Routes: to(serve(t, httplimit.Echo(), false).URL)})
	for protocol, passes := range map[string]bool{"h2c": false, "H2C, websocket": false, "TLS/1.0": false, "HTTP/2.0": false, "irc": true} {
		_, body := ask(t, get(t, s.URL, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", protocol, "HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"))
		h := parseEcho(t, body).Headers
		if got := h.Get("Upgrade") != "" && h.Get("Connection") != ""; got != passes || h.Get("HTTP2-Settings") != "" {
			t.Errorf("%s: the target saw %v", protocol, h)
		}
	}
}

// connect returns a connection to a server, to write on by hand.
func connect(tb testing.TB, s *httptest.Server) (net.Conn, *bufio.Reader) {
	tb.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReader(conn)
}

// TestGatewayStream has the client see each event before the next one is written.
func TestGatewayStream(t *testing.T) {
	t.Parallel()
	for name, header := range map[string][2]string{
		"events": {"Content-Type", "text/event-stream"}, "chunks": {"X", "y"}, "length": {"Content-Length", "15"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := make(chan struct{}, 1)
			target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set(header[0], header[1])
				for range 3 {
					_, _ = io.WriteString(w, "data\n")
					_ = http.NewResponseController(w).Flush()
					select {
					case <-next:
					case <-r.Context().Done():
						return
					}
				}
			}), false)
			_, s := gateway(t, httplimit.GatewayOptions{Routes: to(target.URL)})
			res, err := http.DefaultTransport.RoundTrip(get(t, s.URL+"/"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			r := bufio.NewReader(res.Body)
			for range 3 {
				if line, err := r.ReadString('\n'); err != nil || line != "data\n" {
					t.Fatalf("%q, %v", line, err)
				}
				next <- struct{}{}
			}
			if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%v at the end", err)
			}
		})
	}
}

// TestGatewayContinue has the target say whether the client shall send its body.
func TestGatewayContinue(t *testing.T) {
	t.Parallel()
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{Routes: to(target.URL)})
	for path, want := range map[string][]int{"/yes": {100, 200}, "/no": {403}} {
		conn, r := connect(t, s)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", path)
		for _, status := range want {
			res, err := http.ReadResponse(r, nil)
			if err != nil || res.StatusCode != status {
				t.Fatalf("%s: %v, %v; want %d", path, res, err, status)
			}
			if status == http.StatusContinue {
				_, _ = io.WriteString(conn, "hello")
			} else if body, _ := io.ReadAll(res.Body); status == http.StatusOK && string(body) != "hello" {
				t.Errorf("%s: %q", path, body)
			}
			_ = res.Body.Close()
		}
	}
}

// TestGatewayDuplex has a target that answers while it reads: not a byte of the body is
// lost on the way.
func TestGatewayDuplex(t *testing.T) {
	t.Parallel()
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body) // the client counts
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{Routes: to(target.URL)})
	const part = 1000 // far less than a server would throw away
	for name, c := range map[string]struct{ header, before, after, end string }{
		"length": {"Content-Length: 2000", "", "", ""},
		"chunks": {"Transfer-Encoding: chunked", "3e8\r\n", "\r\n", "0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, r := connect(t, s)
			send := func(letter string) { fmt.Fprint(conn, c.before+strings.Repeat(letter, part)+c.after) }
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", c.header)
			send("a")
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			send("b")
			fmt.Fprint(conn, c.end)
			body, err := io.ReadAll(res.Body)
			if err != nil || string(body) != strings.Repeat("a", part)+strings.Repeat("b", part) {
				t.Errorf("%d bytes, %v; want %d", len(body), err, 2*part)
			}
		})
	}
}

// TestGatewayRest has clients that are answered before they have sent all. What they
// send then is not taken for another request.
func TestGatewayRest(t *testing.T) {
	t.Parallel()
	var hidden atomic.Int64
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hidden":
			hidden.Add(1)
		case "/all":
			_, _ = io.Copy(io.Discard, r.Body)
		default:
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{
		{Targets: []string{target.URL}}, {Prefix: "/down", Targets: []string{"http://127.0.0.1:1"}},
	}})
	const rest = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for path, c := range map[string]struct {
		status int
		close  bool
	}{
		"/at-once": {http.StatusOK, true}, "/down": {http.StatusBadGateway, true}, "/all": {http.StatusOK, false},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			conn, r := connect(t, s)
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, len(rest))
			if !c.close {
				fmt.Fprint(conn, rest)
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
			if res.StatusCode != c.status || res.Close != c.close {
				t.Errorf("%s, close %t; want %d, %t", res.Status, res.Close, c.status, c.close)
			}
			if c.close {
				fmt.Fprint(conn, rest)
				if got, _ := io.ReadAll(r); len(got) > 0 {
					t.Errorf("there is another response: %q", got)
				}
			}
		})
	}
	t.Cleanup(func() {
		if n := hidden.Load(); n > 0 {
			t.Errorf("%d requests were hidden in bodies", n)
		}
	})
}

// TestGatewayBodies passes 32 MiB there and back, or 256 MiB, without holding it.
func TestGatewayBodies(t *testing.T) {
	size := int64(1 << 25)
	if torture.Enabled {
		size <<= 3
	}
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{Routes: to(target.URL), MaxBody: size})
	r := get(t, s.URL+"/")
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(io.LimitReader(zeros{}, size)), size
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got, most int64
	for part := size / 16; ; {
		n, err := io.CopyN(io.Discard, res.Body, part)
		got += n
		runtime.ReadMemStats(&now)
		most = max(most, int64(now.Sys)-int64(before.Sys))
		if err != nil {
			break
		}
	}
	if got != size {
		t.Errorf("%d of %d bytes came back", got, size)
	}
	torture.AtMost(t, "bytes more memory", most, 32<<20)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
