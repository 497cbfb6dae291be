package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// anywhere puts all listeners on free ports, without a drain delay.
func anywhere(more ...daemon.Flag) []daemon.Flag {
	return append([]daemon.Flag{
		{Name: "--http", Setting: "server.http.address", Value: "127.0.0.1:0"},
		{Name: "--gateway", Setting: "server.gateway.address", Value: "127.0.0.1:0"},
		{Name: "--grpc", Setting: "server.grpc.address", Value: "127.0.0.1:0"},
		{Name: "--admin", Setting: "server.admin.address", Value: "127.0.0.1:0"},
		{Name: "--set", Setting: "server.drain_delay", Value: "0"},
	}, more...)
}

func set(name, value string) daemon.Flag {
	return daemon.Flag{Name: "--set " + name, Setting: name, Value: value}
}

// process is a running daemon.
type process struct {
	*daemon.Daemon
	path    string
	log     lockedBuffer
	printed lockedBuffer
	client  *http.Client
	minutes chan time.Time // of a rolloutClock
}

// adminToken is the token of the daemons in tests.
const adminToken = "the-token-of-these-tests"

// start starts a daemon with a file, and stops it when the test ends.
func start(t testing.TB, text string, flags ...daemon.Flag) *process {
	t.Helper()
	return startIn(t, nil, text, flags...)
}

// startIn is start with an environment.
func startIn(t testing.TB, environ []string, text string, flags ...daemon.Flag) *process {
	t.Helper()
	return startAs(t, daemon.Options{Source: daemon.Source{Environ: environ}}, text, flags...)
}

// startAs is start with options.
func startAs(t testing.TB, o daemon.Options, text string, flags ...daemon.Flag) *process {
	t.Helper()
	p := &process{path: write(t, "stint.toml", text), client: &http.Client{Transport: &http.Transport{}}}
	o.Source.Path, o.Source.Flags = p.path, anywhere(append([]daemon.Flag{set("server.admin.token", adminToken)}, flags...)...)
	o.Out, o.Print = &p.log, &p.printed
	var err error
	p.Daemon, err = daemon.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// get gets a path of a listener as administrator, and returns the status and the body.
func (p *process) get(t testing.TB, listener, path string) (int, string) {
	t.Helper()
	token := ""
	if listener == "admin" {
		token = adminToken
	}
	return fetchAs(t, p.client, token, p.URL(listener)+path)
}

func fetch(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	return fetchAs(t, c, "", url)
}

// fetchAs is fetch with a token, unless it is empty.
func fetchAs(t testing.TB, c *http.Client, token, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// echo returns the configuration of an upstream that echoes requests.
func echo(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(httplimit.Echo())
	t.Cleanup(s.Close)
	return fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", s.URL)
}

// few is a rule that allows three requests of an address.
const few = "[[rules]]\nname = \"few\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"three\", limit = \"3/1h\" }]\n"

func TestDoors(t *testing.T) {
	t.Parallel()
	p := start(t, few+echo(t))
	for i, want := range []int{200, 200, 200, 429} {
		if status, body := p.get(t, "gateway", "/x"); status != want {
			t.Errorf("request %d: %d %s", i, status, body)
		}
	}
	for _, c := range []struct {
		listener, path string
		status         int
		says           string
	}{
		{"http", "/v1/openapi.json", 200, `"openapi"`},
		{"http", "/v1/usage?ip=127.0.0.1", 200, `"remaining":0`},
		{"http", "/healthz", 200, `"status": "ok"`},
		{"http", "/readyz", 200, `"name": "upstreams"`},
		{"http", "/metrics", 404, ""},
		{"gateway", "/readyz", 429, "quota-exceeded"},
		{"admin", "/readyz", 200, `"status": "ok"`},
		{"admin", "/metrics", 200, `stint_decisions_total{outcome="denied",rule="few",source="ip"} 2`},
		{"admin", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"admin", "/debug/pprof/cmdline", 404, ""},
		{"admin", "/v1/usage?ip=127.0.0.1", 404, ""},
	} {
		if status, body := p.get(t, c.listener, c.path); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d, want %d: %s", c.listener, c.path, status, c.status, body)
		}
	}
	if p.Demo() != "" {
		t.Error("there is a demo")
	}
}

func TestNowhere(t *testing.T) {
	t.Parallel()
	p := start(t, few, set("server.admin.address", ""))
	if p.URL("http") == "" || p.URL("gateway") != "" || p.URL("admin") != "" {
		t.Error("want the decision API alone")
	}
}

// TestTaken starts a daemon on a port that is in use: the error names the setting, and no
// other listener stays open.
func TestTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	defer l.Close()
	for name, setting := range map[string]string{
		"gateway": "server.gateway.address", "http": "server.http.address", "admin": "server.admin.address", "region": "region.listener.address",
	} {
		text := few + echo(t)
		if name == "region" {
			text += fmt.Sprintf(ofEU, "")
		}
		d, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Path: write(t, "stint.toml", text), Flags: anywhere(set(setting, l.Addr().String()))}, Out: io.Discard})
		do(t, err)
		err = d.Start(t.Context())
		taken := new(daemon.ListenError)
		if !errors.As(err, &taken) || taken.Listener != name || !errors.Is(err, syscall.EADDRINUSE) ||
			!strings.HasPrefix(err.Error(), setting+": ") {
			t.Errorf("%s: %v", name, err)
		}
		opened := d.URL("gateway")
		do(t, d.Stop(t.Context()), d.Stop(t.Context()))
		if name == "gateway" {
			continue
		}
		if _, err := net.Dial("tcp", strings.TrimPrefix(opened, "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: the gateway at %q is left: %v", name, opened, err)
		}
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", write(t, "stint.toml", few+echo(t))} {
		d, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Path: path}, Out: io.Discard})
		do(t, err)
		if h := d.Health(); h.Status != "not_ready" {
			t.Errorf("%+v", h)
		}
		do(t, d.Stop(t.Context()))
	}
	if _, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Path: write(t, "stint.toml", "x")}}); err == nil {
		t.Error("a daemon of nonsense")
	}
	if _, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Environ: []string{"STINT_SERVER_COUNTERS=redis://a?nonsense=1"}}}); err == nil {
		t.Error("a store of nonsense")
	}
}

// TestDemo starts a daemon without a configuration, and reloads it.
func TestDemo(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	d, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Flags: anywhere()[:3]}, Out: &log, Print: io.Discard})
	do(t, err)
	do(t, d.Start(t.Context()))
	do(t, d.Reload(t.Context()))
	for _, url := range []string{d.URL("gateway"), d.URL("http"), d.URL("admin")} {
		if url == "" || !strings.Contains(d.Demo(), url) {
			t.Errorf("%q is not in: %s", url, d.Demo())
		}
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, want := range []int{200, 200, 200, 200, 200, 429} {
		if status, body := fetch(t, c, d.URL("gateway")+"/search/cats"); status != want {
			t.Errorf("%d, want %d: %s", status, want, body)
		}
	}
	do(t, d.Stop(t.Context()))
	if !strings.Contains(log.String(), "level=INFO msg=stopped") {
		t.Error(log.String())
	}
}

// patient has calls of Redis wait for a busy machine. It ends a URL.
const patient = "?timeout=30s&dial_timeout=30s"

// TestOneRedis has two daemons share one Redis, with many concurrent clients.
func TestOneRedis(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	const most, clients, each = 100, 8, 25
	text := fmt.Sprintf("[server]\ncounters = %q\nstore_budget = \"30s\"\n[[rules]]\nname = \"all\"\nlimits = [{ name = \"all\", limit = \"%d/1000h\" }]\n", redis.URL()+patient, most)
	nodes := []*process{start(t, text), start(t, text)}
	var passed atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			p := nodes[i%len(nodes)]
			for range each {
				var answer struct{ Allowed bool }
				if err := json.Unmarshal([]byte(check(t, p)), &answer); err != nil {
					t.Error(err)
				}
				if answer.Allowed {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != most {
		t.Errorf("%d of %d passed, want %d", passed.Load(), clients*each, most)
	}
}

// check asks the decision API.
func check(t testing.TB, p *process) string {
	t.Helper()
	answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"path": "/", "ip": "192.0.2.1"}`))
	if err != nil {
		t.Error(err)
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Error(answer.Status, err)
	}
	return string(body)
}

// TestNotify listens to notifications like systemd.
func TestNotify(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	do(t, err)
	defer conn.Close()
	next := func() string {
		b := make([]byte, 1000)
		n, err := conn.Read(b)
		do(t, err)
		return string(b[:n])
	}
	path := write(t, "stint.toml", few)
	d, err := daemon.New(t.Context(), daemon.Options{
		Source: daemon.Source{Path: path, Environ: []string{"NOTIFY_SOCKET=" + socket}, Flags: anywhere()}, Out: io.Discard, Print: io.Discard,
	})
	do(t, err)
	do(t, d.Start(t.Context()))
	if got := next(); got != "READY=1" {
		t.Errorf("%q at the start", got)
	}
	put(t, path, "nonsense")
	var last int64
	began := time.Now()
	for _, ok := range []bool{false, true} {
		if err := d.Reload(t.Context()); (err == nil) != ok {
			t.Errorf("%v, want one: %v", err, !ok)
		}
		var at int64
		got := next()
		if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &at); err != nil || at <= last {
			t.Errorf("%q at a reload, after one at %d", got, last)
		}
		if ok && at-last > time.Since(began).Microseconds() {
			t.Errorf("%d µs between reloads, and they took %v", at-last, time.Since(began))
		}
		if got := next(); got != "READY=1" {
			t.Errorf("%q after a reload", got)
		}
		last = at
		put(t, path, few)
	}
	do(t, d.Stop(t.Context()))
	if got := next(); got != "STOPPING=1" {
		t.Errorf("%q at the end", got)
	}
}

// TestLeavesNothing does not run in parallel: it checks all goroutines.
func TestLeavesNothing(t *testing.T) {
	t.Run("daemons", func(t *testing.T) {
		redis := testredis.Start(t)
		p := start(t, few+echo(t), set("server.counters", redis.URL()))
		for range 4 {
			_, _ = p.get(t, "gateway", "/")
		}
		put(t, p.path, few+echo(t)) // other upstreams
		do(t, p.Reload(t.Context()))
		_, _ = p.get(t, "gateway", "/")
		d, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Flags: anywhere()[:3]}, Out: io.Discard, Print: io.Discard})
		do(t, err)
		do(t, d.Start(t.Context()))
		if status, _ := fetch(t, p.client, d.URL("gateway")+"/"); status != http.StatusOK {
			t.Error(status)
		}
		p.client.CloseIdleConnections()
		do(t, d.Stop(t.Context()))
	})
	// A connection that was closed has goroutines that have yet to notice.
	var left string
	wait.For(t, "no goroutine is left", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = ""
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			for _, of := range []string{"stint/internal/daemon.", "stint/httplimit.", "stint/redisstore.", "stint/layer.", "rueidis.", "net/http."} {
				if strings.Contains(stack, of) {
					left += stack + "\n\n"
					break
				}
			}
		}
		return left == ""
	})
}
