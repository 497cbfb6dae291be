package daemon_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
)

// shop is a domain.
const shop = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 10}\n"

// TestEnvoyEnvLoads checks that all settings that variables set exist, and that problems
// name the variable.
func TestEnvoyEnvLoads(t *testing.T) {
	t.Parallel()
	path := write(t, "shop.yaml", shop)
	environ := []string{
		"REDIS_URL=redis:6379", "REDIS_AUTH=hunter2", "RUNTIME_ROOT=" + filepath.Dir(path), "RUNTIME_APPDIRECTORY=shop.yaml", "USE_PROMETHEUS=true",
		"GRPC_MAX_CONNECTION_AGE=36h", "TRACING_ENABLED=true", "NEAR_LIMIT_RATIO=0.9", "LOG_LEVEL=ERROR", "LOG_FORMAT=json", "STINT_SERVER_LOG_FORMAT=text",
	}
	given, _, err := daemon.EnvoyEnv(environ)
	do(t, err)
	c, err := daemon.Source{Given: given, Environ: environ}.Load()
	do(t, err)
	if c.Descriptors() == nil || c.Descriptors().Domain("shop") == nil {
		t.Error("the domain was not read")
	}
	got := settings(c)
	for name, want := range map[string][2]string{
		"server.counters":          {"redis://[redacted]@redis:6379", "REDIS_URL"},
		"server.admin.address":     {"127.0.0.1:9091", "USE_PROMETHEUS"},
		"envoy.metrics.address":    {":9090", "USE_PROMETHEUS"},
		"envoy.metrics.statsd":     {"", "default"},
		"server.log_format":        {"text", "STINT_SERVER_LOG_FORMAT"},
		"server.log_level":         {"error", "LOG_LEVEL"},
		"server.trace.sample":      {"10000", "TRACING_ENABLED"},
		"envoy.config":             {path, "RUNTIME_ROOT"},
		"envoy.max_connection_age": {"36h", "GRPC_MAX_CONNECTION_AGE"},
		"envoy.near_limit_percent": {"90", "NEAR_LIMIT_RATIO"},
		"envoy.fixed_months":       {"true", "--envoy-env"},
		"envoy.independent":        {"true", "--envoy-env"},
		"envoy.allow_empty":        {"true", "--envoy-env"},
		"envoy.dot_files":          {"true", "--envoy-env"},
		"envoy.siblings":           {"false", "--envoy-env"},
	} {
		if s := got[name]; s.Value != want[0] || s.Origin != want[1] {
			t.Errorf("%s: %q of %s, want %q of %s", name, s.Value, s.Origin, want[0], want[1])
		}
	}
	environ = []string{"REDIS_URL=redis:6379", "RUNTIME_ROOT=" + path, "PORT=99999"}
	given, _, err = daemon.EnvoyEnv(environ)
	do(t, err)
	_, err = daemon.Source{Given: given, Environ: environ}.Load()
	want := `PORT: "0.0.0.0:99999": want host:port, such as 127.0.0.1:8080, :8080 for all addresses, or "" to disable it
RUNTIME_ROOT: stat ` + path + `/config: not a directory`
	if err == nil || err.Error() != want {
		t.Error(err)
	}
}

// TestEnvoyEnvAddresses checks that the addresses of envoyproxy/ratelimit replace the
// defaults, but nothing that the config file, the environment or a flag says.
func TestEnvoyEnvAddresses(t *testing.T) {
	t.Parallel()
	environ := []string{"REDIS_URL=redis:6379", "RUNTIME_ROOT=" + filepath.Dir(write(t, "shop.yaml", shop)), "RUNTIME_APPDIRECTORY=shop.yaml"}
	file := write(t, "stint.toml", "[server.http]\naddress = \"127.0.0.1:7000\"\n")
	for name, row := range map[string]struct {
		source     daemon.Source
		http, grpc string
	}{
		"alone":      {http: "0.0.0.0:8080", grpc: "0.0.0.0:8081"},
		"file":       {source: daemon.Source{Path: file}, http: "127.0.0.1:7000", grpc: "0.0.0.0:8081"},
		"variable":   {source: daemon.Source{Environ: []string{"STINT_SERVER_GRPC_ADDRESS=127.0.0.1:7001"}}, http: "0.0.0.0:8080", grpc: "127.0.0.1:7001"},
		"flag":       {source: daemon.Source{Flags: []daemon.Flag{set("server.http.address", ":7002")}}, http: ":7002", grpc: "0.0.0.0:8081"},
		"theirs":     {source: daemon.Source{Path: file, Environ: []string{"PORT=7003"}}, http: "0.0.0.0:7003", grpc: "0.0.0.0:8081"},
		"and theirs": {source: daemon.Source{Environ: []string{"HOST=::1"}}, http: "[::1]:8080", grpc: "0.0.0.0:8081"},
	} {
		row.source.Environ = append(row.source.Environ, environ...)
		given, _, err := daemon.EnvoyEnv(row.source.Environ, row.source.Flags...)
		do(t, err)
		row.source.Given = given
		c, err := row.source.Load()
		do(t, err)
		if c.Server.HTTP.Address != row.http || c.Server.GRPC.Address != row.grpc {
			t.Errorf("%s: %s and %s, want %s and %s", name, c.Server.HTTP.Address, c.Server.GRPC.Address, row.http, row.grpc)
		}
	}
}

// TestXDSHeaders checks that problems with a header do not show it.
func TestXDSHeaders(t *testing.T) {
	t.Parallel()
	got := problems(t, "", "STINT_ENVOY_XDS_SERVER=xds:18000", "STINT_ENVOY_XDS_HEADERS=a=b,hunter2", "STINT_ENVOY_XDS_METADATA=eu")
	if want := "STINT_ENVOY_XDS_METADATA: \"eu\": want name=value\nSTINT_ENVOY_XDS_HEADERS: want name=value"; got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

// TestEnvoyEnvFlags checks that flags replace required variables.
func TestEnvoyEnvFlags(t *testing.T) {
	t.Parallel()
	given, notes, err := daemon.EnvoyEnv([]string{"REDIS_URL=/run/redis.sock", "RUNTIME_ROOT=/data"},
		set("server.counters", "memory:"), set("envoy.xds.server", "xds:18000"))
	do(t, err)
	if got, want := strings.Join(notes, "\n"), "RUNTIME_ROOT: --set envoy.xds.server sets where domains come from\nREDIS_URL: --set server.counters sets where counters are stored"; got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
	for _, f := range given {
		if f.Setting == "server.counters" || f.Setting == "envoy.config" {
			t.Error(f)
		}
	}
}
