package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/test/testdoc"
)

// blocks returns the code blocks of a document in a language.
func blocks(t testing.TB, document, language string) []string {
	t.Helper()
	var out []string
	for _, b := range testdoc.In(t, "docs/"+document, language) {
		out = append(out, b.Text)
	}
	return out
}

// replace replaces pairs of strings, each of which must be present.
func replace(t testing.TB, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("there is no %q in\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// others are entries for the configurations in the documents, to check that a proxy
// forwards method, path, address and headers.
const others = `
[[rules]]
name   = "closed"
match  = { paths = ["/closed/**"], methods = ["DELETE"] }
action = "block"

[[rules]]
name     = "marked"
match    = { paths = ["/marked"] }
count_by = ["ip"]
limits   = [{ name = "hour", limit = "1/1000h fixed_window" }]
action   = "mark"

[[exemptions]]
ip = "127.0.0.9"

[[api_keys]]
id   = "7Qm2xKc9Tn4Lw8Zb"
hash = "sha256:ee9c859c26d6b7e6e3b663354ed5947d41ef6e14f87c9dfa625f960a84bdd935"
`

// app is the upstream of proxies. It echoes the body.
type app struct {
	address string
	served  atomic.Int64
	marks   chan string // what it is told of requests for /marked
}

func newApp(t testing.TB) *app {
	t.Helper()
	a := &app{marks: make(chan string, 8)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.served.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/own":
			w.WriteHeader(http.StatusForbidden)
		case "/marked":
			a.marks <- strings.Join(r.Header["Stint-Over"], "|")
		}
		_, _ = w.Write(body) // the client would tell
	}))
	t.Cleanup(s.Close)
	a.address = strings.TrimPrefix(s.URL, "http://")
	return a
}

// client returns a client with its own address.
type client struct {
	http.Client
	url string
}

func newClient(t testing.TB, from, url string) *client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{http.Client{Transport: transport, Timeout: patience}, url}
}

// answer is a response that was read completely.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request with headers, which are pairs of a name and a value.
func (c *client) do(t testing.TB, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{w.StatusCode, w.Header, string(text)}
}

func TestNginx(t *testing.T) {
	t.Parallel()
	guide := blocks(t, "nginx.md", "nginx")
	if len(guide) != 3 {
		t.Fatalf("nginx.md has %d pieces, want the server, and two for when Stint is away", len(guide))
	}
	a := newApp(t)
	s := serve(t, blocks(t, "nginx.md", "toml")[0]+others)
	address := strings.TrimPrefix(s.api, "http://")
	closed := startNginx(t, a, address, guide[0])
	open := startNginx(t, a, address, replace(t, guide[0], "internal;", "internal;\n"+guide[1], "location @refused", guide[2]+"location @refused"))
	checkMarks(t, closed, a)
	checkProxy(t, closed, a, func(a answer) {
		var problem struct {
			Status     int
			RetryAfter int `json:"retry_after"`
		}
		if err := json.Unmarshal([]byte(a.body), &problem); err != nil || problem.Status != 429 ||
			strconv.Itoa(problem.RetryAfter) != a.header.Get("Retry-After") {
			t.Errorf("got %s, %v, want what the document says", a.body, err)
		}
	})
	// The other one uses the same Stint, which has counted.
	if w := newClient(t, "127.0.0.2", open).do(t, http.MethodGet, "/", ""); w.status != http.StatusTooManyRequests {
		t.Errorf("got %d, want 429", w.status)
	}
	s.stop(t)
	before := a.served.Load()
	if w := newClient(t, "127.0.0.2", closed).do(t, http.MethodGet, "/", ""); w.status != http.StatusInternalServerError {
		t.Errorf("Stint is away: got %d, want 500", w.status)
	}
	if n := a.served.Load() - before; n != 0 {
		t.Errorf("Stint is away: %d requests have passed", n)
	}
	if w := newClient(t, "127.0.0.2", open).do(t, http.MethodPost, "/", "through"); w.status != http.StatusOK || w.body != "through" {
		t.Errorf("Stint is away and need not be there: got %d %q, want 200", w.status, w.body)
	}
}

// startNginx starts nginx with a server in front of the app, and returns its URL.
func startNginx(t testing.TB, a *app, stint, site string) string {
	t.Helper()
	address := freeAddress(t)
	return runNginx(t, address, replace(t, site, "listen 80;", "listen "+address+";", "stint:8080", stint, "app:3000", a.address))
}

// runNginx starts nginx with a server that listens at an address, and returns its URL.
func runNginx(t testing.TB, address, site string) string {
	t.Helper()
	dir := t.TempDir()
	const main = `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path       proxy;
    fastcgi_temp_path     fastcgi;
    uwsgi_temp_path       uwsgi;
    scgi_temp_path        scgi;
%s
}
`
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, main, site), 0o600); err != nil {
		t.Fatal(err)
	}
	startProxy(t, address, exec.Command(tool(t, "nginx"), "-e", "stderr", "-p", dir, "-c", config))
	return "http://" + address
}

func TestCaddy(t *testing.T) {
	t.Parallel()
	guide := blocks(t, "caddy.md", "caddyfile")
	if len(guide) != 2 {
		t.Fatalf("caddy.md has %d pieces, want that which tells clients how they stand, and the short one", len(guide))
	}
	a := newApp(t)
	s := serve(t, blocks(t, "caddy.md", "toml")[0]+others)
	address := strings.TrimPrefix(s.api, "http://")
	long, short := startCaddy(t, a, address, guide[0]), startCaddy(t, a, address, guide[1])
	checkMarks(t, long, a)
	checkProxy(t, long, a, func(a answer) {
		has(t, a.body, "quota-exceeded", `"violated-policies":["address"]`)
	})
	if w := newClient(t, "127.0.0.2", short).do(t, http.MethodGet, "/", ""); w.status != http.StatusTooManyRequests ||
		w.header.Get("Retry-After") == "" {
		t.Errorf("the short one: got %d %v, want 429", w.status, w.header)
	}
	if w := newClient(t, "127.0.0.4", short).do(t, http.MethodPost, "/", "hello"); w.status != http.StatusOK || w.body != "hello" {
		t.Errorf("the short one: got %d %q, want 200 and the body", w.status, w.body)
	}
	s.stop(t)
	before := a.served.Load()
	for _, url := range []string{long, short} {
		if w := newClient(t, "127.0.0.2", url).do(t, http.MethodGet, "/", ""); w.status != http.StatusBadGateway {
			t.Errorf("Stint is away: got %d, want 502", w.status)
		}
	}
	if n := a.served.Load() - before; n != 0 {
		t.Errorf("Stint is away: %d requests have passed", n)
	}
}

// startCaddy starts Caddy with a site in front of the app, and returns its URL.
func startCaddy(t testing.TB, a *app, stint, site string) string {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	site = replace(t, site, "api.example.com", "http://"+address, "stint:8080", stint, "app:3000", a.address)
	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, []byte("{\n\tadmin off\n\tauto_https off\n}\n"+site), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool(t, "caddy"), "run", "--config", config, "--adapter", "caddyfile")
	cmd.Env = []string{"HOME=" + dir}
	startProxy(t, address, cmd)
	return "http://" + address
}

// TestTraefik has a proxy do what Traefik's documentation says that Traefik does with this
// configuration: Debian has no Traefik.
func TestTraefik(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	s := serve(t, replace(t, blocks(t, "traefik.md", "toml")[0], "10.0.0.0/8", "127.0.0.1")+others)
	config := blocks(t, "traefik.md", "yaml")
	if len(config) != 1 {
		t.Fatalf("traefik.md has %d configurations", len(config))
	}
	url := startTraefik(t, replace(t, config[0], "http://stint:8080", s.api, "app:3000", a.address))
	checkMarks(t, url, a)
	c := newClient(t, "127.0.0.2", url)
	for i := range 10 {
		w := c.do(t, http.MethodPost, "/search", "hello", "X-Forwarded-For", "192.0.2."+strconv.Itoa(i), "X-Original-URI", "/"+strconv.Itoa(i), "X-Original-Method", "PUT")
		if w.status != http.StatusOK || w.body != "hello" {
			t.Fatalf("request %d: got %d %q, want 200 and its body", i, w.status, w.body)
		}
	}
	if w := c.do(t, http.MethodPost, "/search", ""); w.status != http.StatusTooManyRequests || w.header.Get("Retry-After") == "" || !strings.Contains(w.body, "quota-exceeded") {
		t.Errorf("got %d %v %s, want 429", w.status, w.header, w.body)
	}
	neighbour := newClient(t, "127.0.0.3", url)
	for request, want := range map[string]int{"GET /": 200, "GET /own": 403, "GET /closed/door": 200, "DELETE /closed/door": 403} {
		method, path, _ := strings.Cut(request, " ")
		if w := neighbour.do(t, method, path, ""); w.status != want {
			t.Errorf("%s: got %d, want %d", request, w.status, want)
		}
	}
	s.stop(t)
	if w := neighbour.do(t, http.MethodGet, "/", ""); w.status != http.StatusInternalServerError {
		t.Errorf("Stint is down: got %d, want 500", w.status)
	}
}

// startTraefik serves a configuration of Traefik, and returns its URL.
func startTraefik(t testing.TB, config string) string {
	t.Helper()
	type middleware struct {
		Headers struct {
			CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
		}
		ForwardAuth struct {
			Address             string
			AuthResponseHeaders []string `yaml:"authResponseHeaders"`
		} `yaml:"forwardAuth"`
	}
	var c struct {
		HTTP struct {
			Routers map[string]struct {
				Rule, Service string
				Middlewares   []string
			}
			Middlewares map[string]middleware
			Services    map[string]struct {
				LoadBalancer struct{ Servers []struct{ URL string } } `yaml:"loadBalancer"`
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(config))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	router := c.HTTP.Routers["api"]
	target, err := url.Parse(c.HTTP.Services[router.Service].LoadBalancer.Servers[0].URL)
	if err != nil || router.Rule != "Host(`api.example.com`)" || len(router.Middlewares) != len(c.HTTP.Middlewares) {
		t.Fatalf("%+v, %v", c, err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range router.Middlewares {
			m := c.HTTP.Middlewares[name]
			for header, value := range m.Headers.CustomRequestHeaders {
				if r.Header.Set(header, value); value == "" {
					r.Header.Del(header)
				}
			}
			if m.ForwardAuth.Address != "" && !forwardAuth(t, w, r, m.ForwardAuth.Address, m.ForwardAuth.AuthResponseHeaders) {
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// forwardAuth asks about a request as Traefik does, and answers it if it does not pass.
func forwardAuth(t testing.TB, w http.ResponseWriter, r *http.Request, address string, copied []string) (pass bool) {
	t.Helper()
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Error(err)
		return false
	}
	ask.Header = r.Header.Clone()
	ask.Header.Del("Content-Length")
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	for name, value := range map[string]string{"Method": r.Method, "Proto": "http", "Host": r.Host, "Uri": r.RequestURI, "For": host} {
		ask.Header.Set("X-Forwarded-"+name, value)
	}
	answer, err := http.DefaultTransport.RoundTrip(ask)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode < 300 {
		for _, name := range copied {
			if r.Header.Del(name); answer.Header.Get(name) != "" {
				r.Header.Set(name, answer.Header.Get(name))
			}
		}
		return true
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body) // the client would notice
	return false
}

func startProxy(t testing.TB, address string, cmd *exec.Cmd) {
	t.Helper()
	run(t, cmd).wait(t, func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// checkMarks checks that a proxy tells the app which requests are over a limit of a mark rule, whatever clients say.
func checkMarks(t *testing.T, url string, a *app) {
	t.Helper()
	c := newClient(t, "127.0.0.5", url)
	for _, want := range []string{"", `"marked/hour";q=1;over=1;t=`} {
		if w := c.do(t, http.MethodGet, "/marked", "", "Stint-Over", "made up"); w.status != http.StatusOK {
			t.Fatalf("got %d", w.status)
		}
		if got := <-a.marks; !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("the app is told %q, want %q", got, want)
		}
	}
}

// checkProxy checks that a proxy limits clients to ten requests a minute, by address, and
// sends them the headers.
func checkProxy(t *testing.T, url string, a *app, refusal func(answer)) {
	t.Helper()
	const policy = `"address";q=10;w=60`
	before := a.served.Load()
	c := newClient(t, "127.0.0.2", url)
	for i := range 10 {
		// What a client says of itself counts for nothing.
		w := c.do(t, http.MethodPost, "/search?q=cats", "hello", "X-Forwarded-For", "192.0.2."+strconv.Itoa(i),
			"X-Real-IP", "192.0.2.1", "X-Forwarded-Uri", "/"+strconv.Itoa(i), "X-Original-URI", "/"+strconv.Itoa(i), "X-Forwarded-Method", "PUT")
		if w.status != http.StatusOK || w.body != "hello" {
			t.Fatalf("request %d: got %d %q, want 200 and its body", i, w.status, w.body)
		}
		if got, want := w.header.Get("Ratelimit"), fmt.Sprintf(`"address";r=%d;t=`, 9-i); !strings.HasPrefix(got, want) {
			t.Errorf("request %d: RateLimit is %q, want %s...", i, got, want)
		}
		if got := w.header.Get("Ratelimit-Policy"); got != policy {
			t.Errorf("request %d: RateLimit-Policy is %q, want %s", i, got, policy)
		}
	}

	w := c.do(t, http.MethodPost, "/search", "hello")
	if w.status != http.StatusTooManyRequests || w.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("got %d %v, want 429 and a problem", w.status, w.header)
	}
	// The window slides: the first unit of ten is back a tenth of a window after its end.
	if n, err := strconv.Atoi(w.header.Get("Retry-After")); err != nil || n < 1 || n > 66 {
		t.Errorf("Retry-After is %q, want 1 to 66", w.header.Get("Retry-After"))
	}
	if got := w.header.Get("Ratelimit"); !strings.HasPrefix(got, `"address";r=0;t=`) || w.header.Get("Ratelimit-Policy") != policy {
		t.Errorf("got %q and %q, want that nothing is left", got, w.header.Get("Ratelimit-Policy"))
	}
	refusal(w)
	if n := a.served.Load() - before; n != 10 {
		t.Errorf("the app has seen %d requests, want 10", n)
	}

	neighbour := newClient(t, "127.0.0.3", url)
	for _, c := range []struct {
		client       *client
		method, path string
		key          string
		status       int
		told         bool
	}{
		{neighbour, http.MethodGet, "/", "", 200, true},
		{neighbour, http.MethodGet, "/own", "", 403, true},
		{neighbour, http.MethodGet, "/closed/door", "", 200, true},
		{neighbour, http.MethodDelete, "/closed/door", "", 403, false},
		{neighbour, http.MethodGet, "/", "stint_7Qm2xKc9Tn4Lw8Zb_000000000000000000000000000", 401, true},
		{newClient(t, "127.0.0.9", url), http.MethodGet, "/", "", 200, false},
	} {
		headers := []string{"RateLimit", "forged"}
		if c.key != "" {
			headers = append(headers, "X-API-Key", c.key)
		}
		w := c.client.do(t, c.method, c.path, "", headers...)
		if _, told := w.header["Ratelimit"]; w.status != c.status || told != c.told {
			t.Errorf("%s %s: got %d %v, want %d, and RateLimit: %t", c.method, c.path, w.status, w.header, c.status, c.told)
		}
		if challenged := w.header.Get("WWW-Authenticate") != ""; challenged != (c.status == http.StatusUnauthorized) {
			t.Errorf("%s %s: WWW-Authenticate: %t", c.method, c.path, challenged)
		}
	}
}
