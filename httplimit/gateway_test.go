package httplimit_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

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
	return ledgerEngine(tb, toml, o, nil)
}

func ledgerEngine(tb testing.TB, toml string, o identity.Options, ledger engine.Ledger) *engine.Engine {
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
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who, Ledger: ledger})
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
			delete(got, "Stint-Decision") // TestGatewayDecision
			for k, v := range c.want {
				c.want[k] = strings.Replace(v, "HOST", s.Listener.Addr().String(), 1)
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("%v\nwant %v", got, c.want)
			}
		})
	}
}

// TestGatewayDecision checks who is told the id of a decision: the target what no client can make up, and the client the
// same, or that of the target's own decision.
func TestGatewayDecision(t *testing.T) {
	t.Parallel()
	const twice = `
		[[rules]]
		name     = "twice"
		match    = { paths = ["/twice"] }
		count_by = ["ip"]
		limits   = [ { name = "address", limit = "1/1h" } ]
	`
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/own" {
			w.Header().Set("Stint-Decision", "own")
		}
		w.Header().Set("Told", strings.Join(r.Header["Stint-Decision"], "|")+strings.Join(r.Header["Stint_decision"], "|"))
	}), false).URL
	for sets, sent := range map[httplimit.HeaderSet]bool{0: true, httplimit.ID: true, httplimit.X | httplimit.IETF: false, httplimit.None: false} {
		_, s := gateway(t, httplimit.GatewayOptions{Engine: gatewayEngine(t, twice, identity.Options{}), Routes: to(target), Headers: sets})
		for _, path := range []string{"/", "/twice", "/own", "/twice"} {
			res, body := ask(t, get(t, s.URL+path, "Stint-Decision", "made up", "Stint_Decision", "made up"))
			told, id := res.header.Get("Told"), res.header.Get("Stint-Decision")
			switch {
			case res.status == http.StatusTooManyRequests:
				if told != "" || (len(id) == 36 && strings.Contains(body, `"decision_id":"`+id+`"`)) != sent {
					t.Errorf("set %d: denied, and told %q: %s", sets, id, body)
				}
			case (len(told) == 36) != sent, path != "/own" && told != id, path == "/own" && id != "own":
				t.Errorf("set %d, %s: the target is told %q, the client %q", sets, path, told, id)
			}
		}
	}
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

// marking marks all but the first request of a client.
const marking = `
	[[rules]]
	name     = "fair"
	count_by = ["ip"]
	limits   = [ { name = "one", limit = "1/1h fixed_window" }, { name = "two", limit = "2/1d fixed_window" } ]
	action   = "mark"
`

// marks are what the targets of three requests are told, of which each costs 1 but the last, which costs 3.
var marks = [...]string{"", `"fair/one";q=1;over=1;t=3600`, `"fair/one";q=1;over=3, "fair/two";q=2;over=2`}

// TestMarks has every door tell the target, and only the target, which limits of mark rules a request is over, whatever the client
// says. In gRPC that is tested there.
func TestMarks(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Told", strings.Join(slices.Concat(r.Header["Stint-Over"], r.Header["Stint_over"]), "|"))
	})
	target := serve(t, echo, false).URL
	worlds := func() world { return worldOf(t, marking, identity.Options{}) }
	_, s := gateway(t, httplimit.GatewayOptions{Engine: worlds().Engine, Routes: []httplimit.Route{{Targets: []string{target}}, {Prefix: "/dear", Targets: []string{target}, Cost: 3}}})
	for i, want := range marks {
		res, _ := ask(t, get(t, s.URL+[]string{"/", "/", "/dear"}[i], "Stint-Over", "made up", "Stint_Over", "made up"))
		if got := res.header.Get("Told"); res.status != 200 || got != want || res.header.Get("Stint-Over") != "" {
			t.Errorf("gateway, request %d: %d, the target is told %q, want %q", i, res.status, got, want)
		}
	}
	w := worlds()
	h := limited(t, httplimit.Options{Engine: w.Engine, Cost: func(r *http.Request) int64 { return int64(len(r.URL.RawQuery)) }}, echo.ServeHTTP)
	for i, want := range marks {
		r := httptest.NewRequest(http.MethodGet, []string{"/", "/", "/?abc"}[i], http.NoBody)
		r.Header["Stint-Over"] = []string{"made up", "twice"}
		rec := httptest.NewRecorder()
		if h.ServeHTTP(rec, r); rec.Code != 200 || rec.Header().Get("Told") != want || rec.Header().Get("Stint-Over") != "" {
			t.Errorf("middleware, request %d: %d, the handler is told %q, want %q", i, rec.Code, rec.Header().Get("Told"), want)
		}
		if len(r.Header["Stint-Over"]) != 2 {
			t.Errorf("middleware, request %d: the caller's headers are now %v", i, r.Header)
		}
	}
	api := apiOf(t, worlds())
	for i, want := range marks[:2] {
		rec := forward(api, "/v1/forward-auth", "X-Forwarded-Uri", "/", "Stint-Over", "made up")
		if got := rec.Header().Get("Stint-Over"); rec.Code != 200 || got != want {
			t.Errorf("forward-auth, request %d: %d, the proxy is told %q, want %q", i, rec.Code, got, want)
		}
	}
	api = apiOf(t, worlds())
	for i, want := range marks {
		var got httplimit.Answer
		rec := call(api, "POST", "/v1/check", []string{`{"path":"/","ip":"192.0.2.1"}`, `{"path":"/","ip":"192.0.2.1"}`, `{"path":"/","ip":"192.0.2.1","cost":3}`}[i])
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || !got.Allowed || got.Over != want {
			t.Errorf("check %d: %s, %v, want %q", i, rec.Body, err, want)
		}
	}
}
