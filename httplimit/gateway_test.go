package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// noRules lets everything pass.
const noRules = ""

func gatewayEngine(tb testing.TB, toml string, o identity.Options) *engine.Engine {
	tb.Helper()
	f, err := rule.ParseTOML("test.toml", []byte(toml))
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	who, err := identity.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = who.Close() })
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// serve serves a handler by HTTP/1.1 and h2c, and by HTTP/2 if it is with TLS.
func serve(tb testing.TB, h http.Handler, secure bool) *httptest.Server {
	tb.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.Protocols.SetHTTP2(true)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	tb.Cleanup(s.Close)
	return s
}

// gateway serves a gateway. What o does not have has defaults: no rules, and the
// engine that goes with them.
func gateway(tb testing.TB, o httplimit.GatewayOptions) (*httplimit.Gateway, *httptest.Server) {
	tb.Helper()
	if o.Engine == nil {
		o.Engine = gatewayEngine(tb, noRules, identity.Options{})
	}
	g, err := httplimit.NewGateway(o)
	if err != nil {
		tb.Fatal(err)
	}
	s := serve(tb, g, false)
	tb.Cleanup(func() { _ = g.Stop(context.Background()) })
	return g, s
}

func to(targets ...string) []httplimit.Route { return []httplimit.Route{{Targets: targets}} }

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
}

// ask sends a request, and returns also the body of the answer.
func ask(tb testing.TB, r *http.Request) (answer, string) {
	tb.Helper()
	if r.URL.Path == "" {
		r.URL.Path = "/"
	}
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := tr.RoundTrip(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return answer{res.StatusCode, res.Header}, string(text)
}

func get(tb testing.TB, url string, headers ...string) *http.Request {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// seen is what [httplimit.Echo] tells.
type seen struct {
	Method, Host, Path, Query, Proto, Remote string
	Headers                                  http.Header
}

func parseEcho(tb testing.TB, text string) (s seen) {
	tb.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		tb.Fatalf("%v: %s", err, text)
	}
	return s
}

// wantProblem checks that a response is a problem that says what it should.
func wantProblem(tb testing.TB, a answer, body string, status int, says string) {
	tb.Helper()
	var p struct {
		Status int
		Detail string
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		tb.Errorf("%v: %s", err, body)
	}
	if a.status != status || p.Status != status || !strings.Contains(p.Detail, says) ||
		a.header.Get("Content-Type") != "application/problem+json" {
		tb.Errorf("status %d: %s; want %d and a detail that says %q", a.status, body, status, says)
	}
}

// named is a server that says its name in a header, beside the echo.
func named(tb testing.TB, name string) string {
	tb.Helper()
	return serve(tb, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Name", name)
		httplimit.Echo().ServeHTTP(w, r)
	}), false).URL
}

// TestGatewayRoutes is about which target gets a request, and what it sees.
func TestGatewayRoutes(t *testing.T) {
	t.Parallel()
	base := named(t, "base")
	_, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{
		{Targets: []string{named(t, "any")}},
		{Prefix: "/static", Targets: []string{named(t, "static")}},
		{Host: "api.example.com", Targets: []string{named(t, "api")}, PreserveHost: true},
		{Host: "api.example.com", Prefix: "/v2", Targets: []string{named(t, "v2")}, StripPrefix: true},
		{Host: "api.example.com", Prefix: "/v2/über", Targets: []string{named(t, "deep")}, StripPrefix: true},
		{Host: "*.example.com", Targets: []string{named(t, "wild")}},
		{Host: "*.eu.example.com", Prefix: "/only", Targets: []string{named(t, "eu")}},
		{Host: "based.test", Targets: []string{base + "/base/"}},
		{Host: "stripped.test", Prefix: "/x", Targets: []string{base + "/base"}, StripPrefix: true},
		{Host: "[::1]", Targets: []string{named(t, "v6")}},
	}})
	for _, c := range []struct{ host, path, want string }{
		{"", "/", "any /"},
		{"other.test:8000", "/x?a=b;c&d=%zz", "any /x?a=b;c&d=%zz"},
		{"other.test", "/static", "static /static"},
		{"other.test", "/static/x/", "static /static/x/"},
		{"other.test", "/statics", "any /statics"},
		{"other.test", "//static//x", "static //static//x"},
		{"other.test", "/st%61tic/%2Fx%20y", "static /st%61tic/%2Fx%20y"},
		{"other.test", "/static%2Fx", "any /static%2Fx"},
		{"api.example.com", "/static", "api /static api.example.com"},
		{"API.Example.Com.:443", "/a%2Fb", "api /a%2Fb API.Example.Com.:443"},
		{"api.example.com", "/v2", "v2 /"},
		{"api.example.com", "/v2/", "v2 /"},
		{"api.example.com", "/v2/a%2Fb//c", "v2 /a%2Fb//c"},
		{"api.example.com", "//%762/a", "v2 /a"},
		{"api.example.com", "/v2/%C3%BCber/x%20y", "deep /x%20y"},
		{"api.example.com", "/v2/%C3%BCberx", "v2 /%C3%BCberx"},
		{"api.example.com", "/v22", "api /v22 api.example.com"},
		{"a.example.com", "/v2", "wild /v2"},
		{"a.b.example.com", "/", "wild /"},
		{"example.com", "/", "any /"},
		{"aexample.com", "/", "any /"},
		{"a.eu.example.com", "/only/x", "eu /only/x"},
		{"a.eu.example.com", "/", "404"},
		{"based.test", "/a%2Fb?c", "base /base/a%2Fb?c"},
		{"stripped.test", "/x/a%2Fb", "base /base/a%2Fb"},
		{"stripped.test", "/y", "404"},
		{"[::1]:8000", "/", "v6 /"},
		{strings.Repeat(".", 100_000) + "example.com", "/", "any /"},
		{"other.test", "/a/../b", "400"},
		{"other.test", "/a/%2e%2E", "400"},
		{"other.test", "/a%2f..%2fb", "400"},
		{"other.test", "/a/..;x=y/b", "400"},
		{"other.test", "/./b", "400"},
		{"other.test", "/.well-known/..x/...", "any /.well-known/..x/..."},
	} {
		r := get(t, s.URL)
		r.Host = c.host
		path, query, _ := strings.Cut(c.path, "?")
		r.URL.Opaque, r.URL.RawQuery = path, query
		if strings.HasPrefix(path, "//") {
			r.URL.Opaque = s.URL + path // net/url would take it for a host
		}
		res, body := ask(t, r)
		got := strconv.Itoa(res.status)
		if res.status == http.StatusOK {
			e := parseEcho(t, body)
			got = res.header.Get("X-Name") + " " + e.Path
			if e.Query != "" {
				got += "?" + e.Query
			}
			if !strings.HasPrefix(e.Host, "127.0.0.1:") {
				got += " " + e.Host
			}
		}
		if strings.Contains(r.URL.Opaque, "://") { // the host is that of the URL then
			c.want = strings.Replace(c.want, "v2 /a", "any //%762/a", 1)
		}
		if got != c.want {
			t.Errorf("%.40s %s: %s; want %s", c.host, c.path, got, c.want)
		}
	}
}

// TestGatewayOptions names what is wrong with them.
func TestGatewayOptions(t *testing.T) {
	t.Parallel()
	fine := "http://127.0.0.1:1"
	many := slices.Repeat([]string{fine}, 65)
	for want, edit := range map[string]func(o *httplimit.GatewayOptions, r *httplimit.Route){
		`Engine "nil"`:            func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.Engine = nil },
		`Routes "none"`:           func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.Routes = nil },
		`MaxBody "-1"`:            func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.MaxBody = -1 },
		`Host "API.example.com"`:  func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "API.example.com" },
		`Host "example.com:80"`:   func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "example.com:80" },
		`Host "a.*.com"`:          func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "a.*.com" },
		`Host "*"`:                func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "*" },
		`Host "*."`:               func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "*." },
		`Host ".example.com"`:     func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = ".example.com" },
		`Prefix "api"`:            func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "api" },
		`Prefix "/api/"`:          func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/api/" },
		`Prefix "/a%2Fb"`:         func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/a%2Fb" },
		`Prefix "/api/*"`:         func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/api/*" },
		`Prefix "/"`:              func(o *httplimit.GatewayOptions, r *httplimit.Route) { o.Routes = append(o.Routes, *r) },
		`Targets "0"`:             func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = nil },
		`Targets "65"`:            func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = many },
		`Targets "ftp://x"`:       func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"ftp://x"} },
		`Targets "127.0.0.1"`:     func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"127.0.0.1"} },
		`Targets "http://"`:       func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://"} },
		`Targets "http://x?y"`:    func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://x?y"} },
		`Targets "http://a@x"`:    func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://a@x"} },
		`Targets "http://x/a/.."`: func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://x/a/.."} },
		`Cost "-1"`:               func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Cost = -1 },
		`Timeout "-1s"`:           func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Timeout = -time.Second },
		`Check.Path "x"`:          func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Path: "x"} },
		`Check.Interval "-1ns"`:   func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Interval: -1} },
		`Check.Timeout "-1ns"`:    func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Timeout: -1} },
	} {
		o := httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, identity.Options{}), Routes: to(fine)}
		edit(&o, &o.Routes[0])
		if _, err := httplimit.NewGateway(o); err == nil || !strings.Contains(err.Error(), want+": want ") {
			t.Errorf("%v; want an error about %s", err, want)
		}
	}
}

// TestGatewayLimits is about requests that are counted.
func TestGatewayLimits(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Cost", "RateLimit", "RateLimit-Policy"} {
			w.Header().Set(name, "theirs")
		}
		w.Header().Set("Retry-After", "theirs")
		if r.URL.Path == "/limited/hint" {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{
		Engine: gatewayEngine(t, `
[[rules]]
name = "limited"
match = { paths = ["/limited/**"] }
count_by = ["ip"]
limits = [ { name = "mine", limit = "6/1h fixed_window" } ]
`, identity.Options{}),
		Routes: []httplimit.Route{
			{Targets: []string{target.URL}},
			{Prefix: "/limited/dear", Targets: []string{target.URL}, Cost: 3},
			{Prefix: "/limited/gone", Targets: []string{"http://" + closedPort(t)}},
		},
		MaxBody: 10,
	})
	for _, c := range []struct {
		path, body            string
		status                int
		remaining, cost, next string
	}{
		{"/free", "", 200, "theirs", "theirs", "theirs"},
		{"/limited/a", "", 200, "5", "", "theirs"},
		{"/limited/hint", "", 200, "4", "", "theirs"},
		{"/limited/dear", "", 200, "1", "3", "theirs"},
		{"/limited/dear", "", 429, "1", "3", "some"},
		{"/limited/gone", "", 502, "0", "", ""},
		{"/limited/gone", "", 429, "0", "", "some"},
		{"/free", "much too large", 413, "", "", ""},
	} {
		r := get(t, s.URL+c.path)
		if c.body != "" {
			r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(c.body)), int64(len(c.body))
		}
		res, body := ask(t, r)
		h := res.header
		if next := h.Get("Retry-After"); next != c.next && (c.next != "some" || next == "" || next == "theirs") {
			t.Errorf("%s: retry after %s; want %s", c.path, next, c.next)
		}
		if res.status != c.status || h.Get("X-Ratelimit-Remaining") != c.remaining || h.Get("X-Ratelimit-Cost") != c.cost {
			t.Errorf("%s: %d %v %s; want %+v", c.path, res.status, h, body, c)
		}
		if c.status == 200 && c.remaining != "theirs" && strings.Contains(fmt.Sprint(h["Ratelimit"], h["Ratelimit-Policy"], h["X-Ratelimit-Reset"]), "theirs") {
			t.Errorf("%s: theirs among ours: %v", c.path, h)
		}
		if c.status == 429 {
			wantProblem(t, res, body, 429, "The limit mine")
		}
	}
	if n := served.Load(); n != 4 {
		t.Errorf("the target has served %d; want 4", n)
	}
}

// closedPort is an address that no one listens at: it is bound, so that no other test
// and no gateway under test is given it.
func closedPort(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
}

// TestGatewayForwarded is about what targets are told of clients.
func TestGatewayForwarded(t *testing.T) {
	t.Parallel()
	target := serve(t, httplimit.Echo(), false).URL
	claims := []string{
		"X-Forwarded-For", "192.0.2.7", "X-Forwarded-For", "192.0.2.8", "X-Forwarded-Host", "shop.test", "X-Forwarded-Proto", "https",
		"X-Forwarded-Port", "1", "X-Real-IP", "192.0.2.9", "Forwarded", "for=192.0.2.7", "X-Other", "kept", "Via", "1.1 x",
		"Connection", "X-Hop, X-Forwarded-For", "X-Hop", "1", "Proxy-Authorization", "secret", "TE", "trailers, deflate",
	}
	for name, c := range map[string]struct {
		trusted string
		headers []string
		want    map[string]string
	}{
		"stranger": {"", claims, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "HOST", "X-Forwarded-Proto": "http", "X-Real-Ip": "127.0.0.1",
			"X-Other": "kept", "Via": "1.1 x", "Te": "trailers",
		}},
		"trusted": {"127.0.0.1/32", claims, map[string]string{
			"X-Forwarded-For": "192.0.2.7, 192.0.2.8, 127.0.0.1", "X-Forwarded-Host": "shop.test", "X-Forwarded-Proto": "https",
			"X-Forwarded-Port": "1", "X-Real-Ip": "192.0.2.8", "X-Other": "kept", "Via": "1.1 x", "Te": "trailers",
		}},
		"trusted, silent": {"127.0.0.1/32", nil, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "HOST", "X-Forwarded-Proto": "http", "X-Real-Ip": "127.0.0.1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var who identity.Options
			if c.trusted != "" {
				who.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(c.trusted)}
			}
			_, s := gateway(t, httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, who), Routes: to(target)})
			r := get(t, s.URL, c.headers...)
			r.Header.Set("User-Agent", "") // not sent, and not added
			res, body := ask(t, r)
			if res.status != http.StatusOK {
				t.Fatal(body)
			}
			got := map[string]string{}
			for name, values := range parseEcho(t, body).Headers {
				got[name] = strings.Join(values, "|")
			}
			delete(got, "Accept-Encoding")
			for k, v := range c.want {
				c.want[k] = strings.Replace(v, "HOST", s.Listener.Addr().String(), 1)
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("%v\nwant %v", got, c.want)
			}
		})
	}
}

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
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs should say where
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

// TestGatewayBodies passes a gigabyte there and back without holding it.
func TestGatewayBodies(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 1 << 27
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
	var got int64
	for part := size / 16; ; {
		n, err := io.CopyN(io.Discard, res.Body, part)
		got += n
		runtime.ReadMemStats(&now)
		if grown := int64(now.Sys) - int64(before.Sys); grown > 32<<20 {
			t.Fatalf("%d MiB more memory after %d MiB", grown>>20, got>>20)
		}
		if err != nil {
			break
		}
	}
	if got != size {
		t.Errorf("%d of %d bytes came back", got, size)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestGatewayErrors is about targets that fail, and clients that do.
func TestGatewayErrors(t *testing.T) {
	t.Parallel()
	raw := func(answer string) string { // a server that reads a request, and says something
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, answer)
				_ = c.Close()
			}
		}()
		return "http://" + l.Addr().String()
	}
	silent := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}), false).URL
	trickle := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}), false).URL
	secure := serve(t, httplimit.Echo(), true).URL
	echo := serve(t, httplimit.Echo(), false).URL
	chunked := "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	plain := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, c := range map[string]struct {
		route   httplimit.Route
		request string
		status  int
		says    string
	}{
		"refused":       {httplimit.Route{Targets: []string{"http://" + closedPort(t)}}, plain, 502, "refused"},
		"unknown":       {httplimit.Route{Targets: []string{"http://nowhere.invalid"}}, plain, 502, "reached"},
		"untrusted":     {httplimit.Route{Targets: []string{secure}}, plain, 502, "reached"},
		"reset":         {httplimit.Route{Targets: []string{raw("")}}, plain, 502, "reset"},
		"cut":           {httplimit.Route{Targets: []string{raw("HTTP/1.1 200 OK\r\nX: ")}}, plain, 502, "reset"},
		"not HTTP":      {httplimit.Route{Targets: []string{raw("220 mail.example.com ESMTP\r\n")}}, plain, 502, "no valid response"},
		"no response":   {httplimit.Route{Targets: []string{silent}, ResponseTimeout: time.Millisecond}, plain, 504, "no response in time"},
		"too long":      {httplimit.Route{Targets: []string{silent}, Timeout: time.Millisecond}, plain, 504, "took too long"},
		"no connection": {httplimit.Route{Targets: []string{echo}, DialTimeout: 1}, plain, 504, "no connection in time"},
		"chunk":         {httplimit.Route{Targets: []string{silent}}, chunked + "nonsense\r\n", 400, "could not be read"},
		"large":         {httplimit.Route{Targets: []string{silent}}, chunked + "20\r\n" + strings.Repeat("x", 32) + "\r\n", 413, "larger than 20 bytes"},
		"protocol":      {httplimit.Route{Targets: []string{echo}}, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: \xff\r\n\r\n", 400, "no valid name"},
		"CONNECT":       {httplimit.Route{Targets: []string{echo}}, "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 405, "CONNECT is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			_, s := gateway(t, httplimit.GatewayOptions{
				Routes: []httplimit.Route{c.route}, MaxBody: 20, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			conn, r := connect(t, s)
			_, _ = io.WriteString(conn, c.request)
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			wantProblem(t, answer{res.StatusCode, res.Header}, string(body), c.status, c.says)
			if strings.Contains(string(body), "127.0.0.1") {
				t.Errorf("the target is named to the client: %s", body)
			}
			_ = conn.Close()
			s.Close()
			if logged := strings.Contains(log.String(), c.route.Targets[0]); logged != (c.status >= 500) {
				t.Errorf("%d, and the log says %s", c.status, &log)
			}
		})
	}

	t.Run("cut off while the body is sent", func(t *testing.T) {
		t.Parallel()
		_, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{{Targets: []string{trickle}, Timeout: time.Second}}})
		res, err := http.DefaultTransport.RoundTrip(get(t, s.URL+"/"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("a response that was cut looks whole")
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		t.Parallel()
		arrived := make(chan struct{})
		hang := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		}), false).URL
		g, err := httplimit.NewGateway(httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, identity.Options{}), Routes: to(hang)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		go func() {
			<-arrived
			cancel()
		}()
		g.ServeHTTP(w, get(t, "http://x/").WithContext(ctx))
		if w.Code != 499 || w.Body.Len() > 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if h := g.Health()[0]; h.Failures != 0 {
			t.Errorf("that is the target's fault: %+v", h)
		}
	})
}

// lost is a directory that cannot tell, and that waits for a while before it says so.
type lost struct{ asked chan struct{} }

func (d lost) Key(ctx context.Context, _ string) (*identity.Key, error) {
	if d.asked != nil {
		close(d.asked)
		<-ctx.Done()
	}
	return nil, errors.New("secret of ours")
}

func (lost) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

func (lost) User(context.Context, string) (*identity.User, error) { return nil, nil }

// TestGatewayUndecided lets nothing pass that could not be decided.
func TestGatewayUndecided(t *testing.T) {
	t.Parallel()
	key, _, err := identity.GenerateKey(rand.Reader, "stint", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{http.StatusServiceUnavailable, 499} {
		ctx, cancel := context.WithCancel(t.Context())
		var d lost
		if want == 499 {
			d.asked = make(chan struct{})
			go func() {
				<-d.asked
				cancel()
			}()
		}
		g, err := httplimit.NewGateway(httplimit.GatewayOptions{
			Engine: gatewayEngine(t, noRules, identity.Options{Directory: d}), Routes: to("http://" + closedPort(t)),
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, get(t, "http://x/", "X-API-Key", key).WithContext(ctx))
		if w.Code != want || strings.Contains(w.Body.String(), "secret") || (want == 499) != (w.Body.Len() == 0) {
			t.Errorf("%d %s; want %d", w.Code, w.Body, want)
		}
		cancel()
	}
}

// TestEcho tells what it sees.
func TestEcho(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	httplimit.Echo().ServeHTTP(w, httptest.NewRequest(http.MethodPut, "http://x.test/a%2Fb?c=d", http.NoBody))
	if s := parseEcho(t, w.Body.String()); s.Method != http.MethodPut || s.Host != "x.test" || s.Path != "/a%2Fb" || s.Query != "c=d" {
		t.Errorf("%+v", s)
	}
}

// FuzzGatewayPath sends paths, of which a target must see what was counted: below the
// prefix, and nothing that leads out of it.
func FuzzGatewayPath(f *testing.F) {
	for _, path := range []string{"/", "/v2", "/v2/x", "//v2//x", "/%762/%2e", "/v2/../x", "/v2/a%2fb", "/v2%2fx", "/v2;x", "/v2/%", "*"} {
		f.Add("api.example.com", path)
	}
	f.Add("x.Example.com.:80", "/v2/x")
	f.Add("...", "/")
	f.Add("[::1", "/")
	target := serve(f, httplimit.Echo(), false).URL
	g, err := httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: gatewayEngine(f, noRules, identity.Options{}),
		Routes: []httplimit.Route{
			{Host: "api.example.com", Targets: []string{target}},
			{Host: "*.example.com", Prefix: "/v2", Targets: []string{target + "/base"}, StripPrefix: true},
			{Prefix: "/v2/x", Targets: []string{target}, StripPrefix: true},
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		if strings.ContainsFunc(host, unicode.IsControl) {
			return // which a server does not let in
		}
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || u.Scheme != "" {
			return
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, (&http.Request{
			Method: http.MethodGet, Host: host, URL: u, Header: http.Header{}, RemoteAddr: "192.0.2.1:1",
		}).WithContext(t.Context()))
		if w.Code != http.StatusOK {
			if w.Code != http.StatusNotFound && w.Code != http.StatusBadRequest {
				t.Fatalf("%q %q: %d %s", host, path, w.Code, w.Body)
			}
			return
		}
		got := parseEcho(t, w.Body.String()).Path
		sent := u.EscapedPath()
		if got == sent {
			return
		}
		below, ok := strings.CutPrefix(got, "/base")
		prefix := "/v2"
		if !ok {
			below, prefix = got, "/v2/x"
		}
		if rule.CleanPath(prefix+below) != rule.CleanPath(sent) {
			t.Errorf("%q %q: the target saw %q", host, path, got)
		}
	})
}
