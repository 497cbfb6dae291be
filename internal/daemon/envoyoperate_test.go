package daemon_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stintdev/stint/grpclimit/xds"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// envoyHealth returns the health that gRPC reports.
func (p *process) envoyHealth(t *testing.T) string {
	t.Helper()
	conn, err := grpc.NewClient(p.URL("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	defer conn.Close()
	h, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"})
	do(t, err)
	return h.GetStatus().String()
}

// managed is a management server that sends what the test tells it to send.
type managed struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	send chan *discovery.DiscoveryResponse
}

func (m *managed) StreamAggregatedResources(s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		select {
		case a := <-m.send:
			if err := s.Send(a); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// domains is a version with domains of these names.
func domains(t *testing.T, version string, names ...string) *discovery.DiscoveryResponse {
	t.Helper()
	a := &discovery.DiscoveryResponse{VersionInfo: version, TypeUrl: xds.TypeURL, Nonce: version}
	for _, name := range names {
		one, err := anypb.New(&config.RateLimitConfig{Name: name, Domain: name, Descriptors: []*config.RateLimitDescriptor{
			{Key: "k", RateLimit: &config.RateLimitPolicy{Unit: config.RateLimitUnit_HOUR, RequestsPerUnit: 5}},
		}})
		do(t, err)
		a.Resources = append(a.Resources, one)
	}
	return a
}

// TestEnvoyReadiness checks that a node is ready when it has the first version of its domains, over
// HTTP as over gRPC, and that a version that is rejected shows.
func TestEnvoyReadiness(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	m, s := &managed{send: make(chan *discovery.DiscoveryResponse)}, grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(s, m)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	p := start(t, fmt.Sprintf("[envoy]\nhealth_needs = [\"domains\"]\n[envoy.xds]\nserver = %q\n", l.Addr()))
	served := func(code int, health string) {
		t.Helper()
		wait.For(t, health, func() bool {
			got, _ := p.get(t, "http", "/healthcheck")
			return got == code && p.envoyHealth(t) == health
		})
	}
	served(http.StatusInternalServerError, "NOT_SERVING")
	p.becomes(t, "envoy", "not_ready", "no domains have been received yet")
	m.send <- domains(t, "1", "shop")
	served(http.StatusOK, "SERVING")
	p.becomes(t, "envoy", "ok", "")
	if s := p.series(t); s["stint_config_last_reload_successful"] != "1" || s[`stint_envoy_loads_total{result="used"}`] != "1" {
		t.Error(s)
	}
	m.send <- domains(t, "2", "shop", "shop") // twice the same
	p.becomes(t, "envoy", "degraded", `version 1 of the domains stays in use: version "2" was rejected`)
	served(http.StatusOK, "SERVING")
	if s := p.series(t); s["stint_config_last_reload_successful"] != "0" || s[`stint_envoy_loads_total{result="rejected"}`] != "1" {
		t.Error(s)
	}
	m.send <- domains(t, "3") // which health_needs does not accept
	served(http.StatusInternalServerError, "NOT_SERVING")
	p.becomes(t, "envoy", "not_ready", "there is no domain")
	m.send <- domains(t, "4", "shop")
	served(http.StatusOK, "SERVING")
	if s := p.series(t); s["stint_config_last_reload_successful"] != "1" || s[`stint_envoy_loads_total{result="used"}`] != "3" {
		t.Error(s)
	}
}

// TestEnvoyNeedsRedis checks that health checks fail while Redis is away, if that is wanted.
func TestEnvoyNeedsRedis(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	dir := filepath.Dir(write(t, "shop.yaml", shop))
	p := start(t, fmt.Sprintf("[server]\ncounters = %q\n[envoy]\nconfig = %q\nhealth_needs = [\"redis\"]\n", redis.URL(), filepath.Join(dir, "shop.yaml")))
	wait.For(t, "serving", func() bool { return p.envoyHealth(t) == "SERVING" })
	redis.Kill(t)
	wait.For(t, "not serving", func() bool { return p.envoyHealth(t) == "NOT_SERVING" })
	p.becomes(t, "envoy", "not_ready", "no Redis server decides")
}

// TestEnvoyDebug checks what the debug port answers, and that nothing else does there.
func TestEnvoyDebug(t *testing.T) {
	t.Parallel()
	p := start(t, fmt.Sprintf("[envoy]\nconfig = %q\n[envoy.debug]\naddress = \"127.0.0.1:0\"\n", write(t, "shop.yaml", shop)))
	for path, want := range map[string]string{
		"/":                              "/rlconfig: ",
		"/rlconfig":                      "shop.user: unit=MINUTE requests_per_unit=10",
		"/stats":                         "ratelimit.service.config_load_success: 1\n",
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/heap?debug=1":      "heap profile",
		"/debug/pprof/trace?seconds=0.1": "go 1.",
	} {
		if code, body := p.get(t, "debug", path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	for _, path := range []string{
		"/metrics", "/healthz", "/readyz", "/healthcheck", "/json", "/v1/check", "/v1/usage", "/v1/descriptors?domain=shop&entry=user=x", "/v1/rules", "/api/v1/status",
		"/rules", "/status", "/live", "/tokens", "/dashboard", "/index.html", "/debug/vars", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/rlconfig/", "/stats.json",
	} {
		if code, body := p.get(t, "debug", path); code != http.StatusNotFound {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range []string{"/", "/rlconfig", "/stats", "/debug/pprof/heap", "/debug/pprof/profile"} {
			r, err := http.NewRequestWithContext(t.Context(), method, p.URL("debug")+path, http.NoBody)
			do(t, err)
			answer, err := p.client.Do(r)
			do(t, err)
			do(t, answer.Body.Close())
			if answer.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, answer.Status)
			}
		}
	}
}

// TestEnvoyMetrics checks the metrics under the names of envoyproxy/ratelimit, and where they are.
func TestEnvoyMetrics(t *testing.T) {
	t.Parallel()
	file := write(t, "shop.yaml", shop)
	p := start(t, fmt.Sprintf("[server]\nreload_interval = \"20ms\"\n[envoy]\nconfig = %q\n[envoy.metrics]\naddress = \"127.0.0.1:0\"\npath = \"/prom\"\ntags = [\"zone=a\"]\n", file))
	if got := p.envoyHealth(t); got != "SERVING" {
		t.Error(got)
	}
	has := func(line string) bool {
		code, body := p.get(t, "metrics", "/prom")
		return code == http.StatusOK && strings.Contains(body, line+"\n")
	}
	for _, line := range []string{
		`ratelimit_service_config_load_success{zone="a"} 1`, `ratelimit_service_total_requests{grpc_method="Check",zone="a"} 1`,
		`ratelimit_service_response_time_seconds_count{grpc_method="Check",zone="a"} 1`, `stint_rules 0`,
	} {
		if !has(line) {
			t.Errorf("%s is missing", line)
		}
	}
	for _, path := range []string{"/", "/metrics", "/healthz", "/rlconfig", "/debug/pprof/", "/status"} {
		if code, _ := p.get(t, "metrics", path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	do(t, os.WriteFile(file, []byte("domain: shop\ndescriptors: [{kye: user}]\n"), 0o600))
	wait.For(t, "a bad file", func() bool { return has(`ratelimit_service_config_load_error{zone="a"} 1`) })
	do(t, os.WriteFile(file, []byte(shop), 0o600))
	wait.For(t, "a good file", func() bool { return has(`ratelimit_service_config_load_success{zone="a"} 2`) })
}

// TestEnvoyOperateProblems checks the problems of invalid settings.
func TestEnvoyOperateProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"debug = {address = \"127.0.0.1:1\"}":                                                `envoy.debug.address: needs envoy.config or envoy.xds.server`,
		"xds = {server = \"x:1\"}\ndebug = {address = \"here\"}":                             `envoy.debug.address: "here": want host:port`,
		"xds = {server = \"x:1\"}\ndebug = {address = \":9090\"}":                            `envoy.debug.address: ":9090": want a different address: server.admin uses 127.0.0.1:9090`,
		"xds = {server = \"x:1\"}\nmetrics = {address = \":1\"}\ndebug = {address = \":1\"}": `envoy.metrics.address: ":1": want a different address: envoy.debug uses :1`,
		"metrics = {path = \"metrics\"}":                                                     `envoy.metrics.path: "metrics": want a path, such as /metrics`,
		"metrics = {statsd = \"localhost\"}":                                                 `envoy.metrics.statsd: "localhost": want host:port, such as localhost:8125`,
		"metrics = {protocol = \"sctp\"}":                                                    `envoy.metrics.protocol: "sctp": want one of tcp, udp, dogstatsd`,
		"metrics = {interval = \"1ms\"}":                                                     `envoy.metrics.interval: "1ms": want from 100ms to 1h`,
		"metrics = {tags = [\"a\"]}":                                                         `envoy.metrics.tags[0]: "a": want name=value`,
		"health_needs = [\"luck\"]":                                                          `envoy.health_needs[0]: "luck": want one of domains, redis`,
	} {
		if _, err := (daemon.Source{Path: write(t, "stint.toml", "[envoy]\n"+text+"\n")}).Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// TestEnvoyProfileIsCutOff stops a daemon while someone takes a profile.
func TestEnvoyProfileIsCutOff(t *testing.T) {
	t.Parallel()
	p := start(t, fmt.Sprintf("[server]\ndrain_delay = \"0\"\n[envoy]\nconfig = %q\n[envoy.debug]\naddress = \"127.0.0.1:0\"\n", write(t, "shop.yaml", shop)))
	var work sync.WaitGroup
	work.Go(func() {
		if answer, err := p.client.Get(p.URL("debug") + "/debug/pprof/block?seconds=200"); err == nil {
			_ = answer.Body.Close()
		}
	})
	wait.For(t, "the profile", func() bool {
		_, stacks := p.get(t, "debug", "/debug/pprof/goroutine?debug=1")
		return strings.Contains(stacks, "serveDeltaProfile")
	})
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	work.Wait()
}

// TestEnvoyAdminMoves: the admin API, which envoyproxy/ratelimit does not have, takes another port if its own is taken,
// unless someone has chosen that.
func TestEnvoyAdminMoves(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	defer taken.Close()
	at := daemon.Flag{Name: "USE_PROMETHEUS", Setting: "server.admin.address", Value: taken.Addr().String()}
	others := []daemon.Flag{set("server.http.address", "127.0.0.1:0"), set("server.admin.token", adminToken)}
	for name, c := range map[string]struct {
		source daemon.Source
		moves  bool
	}{
		"by default": {daemon.Source{Given: []daemon.Flag{at}, Flags: others}, true},
		"chosen":     {daemon.Source{Given: []daemon.Flag{at}, Flags: append(others, set("server.admin.address", at.Value))}, false},
		"without it": {daemon.Source{Flags: append(others, set("server.admin.address", at.Value))}, false},
	} {
		d, err := daemon.New(t.Context(), daemon.Options{Source: c.source, Out: io.Discard, Print: io.Discard})
		do(t, err)
		err = d.Start(t.Context())
		if (err == nil) != c.moves || c.moves == (d.URL("admin") == "") {
			t.Errorf("%s: %v, at %q", name, err, d.URL("admin"))
		}
		do(t, d.Stop(t.Context()))
	}
}
