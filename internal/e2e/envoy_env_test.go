package e2e_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stintdev/stint/internal/test/testredis"
)

// startInEnv starts the reference, or a stint in its place, in an environment, with a Redis
// of its own at a unix socket.
func startInEnv(t *testing.T, name string, environ []string, command ...string) (*peer, *process) {
	t.Helper()
	dir := t.TempDir()
	redis, socket := filepath.Join(dir, "redis"), filepath.Join(dir, "grpc")
	testredis.Start(t, "--unixsocket", redis)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append([]string{"REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + redis, "GRPC_UDS=" + socket}, environ...)
	p := run(t, cmd)
	return connect(t, name, p, "unix:"+socket), p
}

// TestEnvoyIstio starts Stint in the place of the container of Istio's sample: with its command,
// its variables and its volume. Only addresses and the Redis are of this machine.
func TestEnvoyIstio(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	volume := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(filepath.Join(volume, "..2026"), 0o700); err != nil {
		t.Fatal(err)
	}
	const text = `
domain: echo-ratelimit
descriptors:
  - key: PATH
    value: "/"
    rate_limit:
      unit: minute
      requests_per_unit: 1
  - key: PATH
    rate_limit:
      unit: minute
      requests_per_unit: 100
`
	if err := os.WriteFile(filepath.Join(volume, "..2026", "config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"..data": "..2026", "config.yaml": "..data/config.yaml"} {
		if err := os.Symlink(to, filepath.Join(volume, name)); err != nil {
			t.Fatal(err)
		}
	}
	buildProgram(t)
	command := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Symlink(program.path, command); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command)
	debug, socket := freeAddress(t), filepath.Join(t.TempDir(), "grpc")
	_, port, _ := strings.Cut(debug, ":")
	cmd.Env = []string{
		"LOG_LEVEL=debug", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testredis.Start(t).Addr(), "USE_STATSD=false", "RUNTIME_ROOT=" + root,
		"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true", "HOST=::", "GRPC_HOST=::",
		"PORT=0", "GRPC_UDS=" + socket, "DEBUG_PORT=" + port, "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0",
	}
	p := connect(t, "stint", run(t, cmd), "unix:"+socket)
	over := 0
	for range 3 { // a minute may end within them
		if a := p.ask(t, short(t, "echo-ratelimit: PATH=/")); a.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			over++
		}
	}
	if over == 0 {
		t.Error("all of three requests pass, want one in a minute")
	}
	p.same(t, "echo-ratelimit: PATH=/other", "OK: OK 99")
	w := newClient(t, "127.0.0.1", "http://"+debug).do(t, http.MethodGet, "/rlconfig", "")
	if want := "echo-ratelimit.PATH_/: unit=MINUTE requests_per_unit=1,"; !strings.Contains(w.body, want) {
		t.Errorf("/rlconfig has no %s: %s", want, w.body)
	}
}

// TestEnvoyEnvironment starts the reference and a stint in the same environment, with all of
// it that needs no other servers, and checks that they answer alike.
func TestEnvoyEnvironment(t *testing.T) {
	t.Parallel()
	const common = `
		HOST=127.0.0.1 PORT=0 DEBUG_HOST=127.0.0.1 DEBUG_PORT=0 GRPC_HOST=127.0.0.1 GRPC_PORT=0 GRPC_MAX_CONNECTION_AGE=1h
		GRPC_MAX_CONNECTION_AGE_GRACE=1h GRPC_SERVER_USE_TLS=false GRPC_SERVER_TLS_CERT=/c GRPC_CLIENT_TLS_SAN=envoy LOG_LEVEL=ERROR
		LOG_FORMAT=json CONFIG_TYPE=FILE FORCE_START_WITHOUT_INITIAL_CONFIG=false CONFIG_GRPC_XDS_NODE_ID=x
		XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s XDS_CLIENT_BACKOFF_MAX_INTERVAL=1m XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.5
		XDS_CLIENT_BACKOFF_JITTER=true USE_DOG_STATSD=false USE_DOG_STATSD_MOGRIFIERS=X USE_STATSD=false STATSD_HOST=x STATSD_PORT=8125
		EXTRA_TAGS=a:b STATS_FLUSH_INTERVAL=10s DISABLE_STATS=true USE_PROMETHEUS=false PROMETHEUS_ADDR=:0 PROMETHEUS_PATH=/m
		RUNTIME_IGNOREDOTFILES=false RUNTIME_WATCH_ROOT=false EXPIRATION_JITTER_MAX_SECONDS=300 LOCAL_CACHE_SIZE_IN_BYTES=0
		NEAR_LIMIT_RATIO=0.9 CACHE_KEY_PREFIX={shop}/1 BACKEND_TYPE=redis LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=L
		LIMIT_REMAINING_HEADER=R LIMIT_RESET_HEADER=S REDIS_TYPE=SINGLE REDIS_POOL_SIZE=4 REDIS_PIPELINE_WINDOW=0 REDIS_PIPELINE_LIMIT=0
		REDIS_CLUSTER_PIPELINE_PARALLELISM=1 REDIS_PERSECOND=false REDIS_PERSECOND_URL=/x REDIS_TLS=false REDIS_TLS_CACERT=/ca
		REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false REDIS_TIMEOUT=20s
		REDIS_POOL_ON_EMPTY_BEHAVIOR=WAIT REDIS_STARTUP_INITIAL_INTERVAL=1s REDIS_STARTUP_MAX_INTERVAL=30s
		REDIS_STARTUP_MAX_ELAPSED_TIME=0 MEMCACHE_MAX_IDLE_CONNS=2 MEMCACHE_SRV=x SHADOW_MODE=false QUOTA_MODE=false
		RESPONSE_DYNAMIC_METADATA=false MERGE_DOMAIN_CONFIG=true TRACING_ENABLED=false TRACING_EXPORTER_PROTOCOL=grpc`
	dir := writeDomains(t, map[string]string{
		"a": "domain: shop\ndescriptors: [{key: once, rate_limit: {unit: year, requests_per_unit: 1}}, {key: more, rate_limit: {unit: year, requests_per_unit: 10}}]",
		"b": "domain: shop\ndescriptors: [{key: month, rate_limit: {unit: month, requests_per_unit: 10}}, {key: year, rate_limit: {unit: year, requests_per_unit: 10}}]",
	})
	buildProgram(t)
	for name, more := range map[string][]string{"apart": nil, "together": {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, "shadow": {"SHADOW_MODE=true"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environ := slices.Concat(strings.Fields(common), []string{"RUNTIME_ROOT=" + filepath.Dir(dir), "RUNTIME_APPDIRECTORY=" + filepath.Base(dir)}, more)
			theirs, _ := startInEnv(t, "envoyproxy/ratelimit", environ, buildReference(t))
			ours, process := startInEnv(t, "stint", append(environ, "STINT_SERVER_DRAIN_DELAY=0s"), program.path, "serve", "--envoy-env")
			for _, q := range []string{"shop: once=a | more=a", "shop: once=a | more=a", "shop: more=a", "shop hits=3: month=a | year=a", "shop: unknown=a | month=a"} {
				want, got := theirs.ask(t, short(t, q)), ours.ask(t, short(t, q))
				if brief(got, nil) != brief(want, nil) {
					t.Errorf("%s: %s, want %s\n%s", q, brief(got, nil), brief(want, nil), process.output())
				}
				for i, s := range got.GetStatuses() {
					const slow = 30 * time.Second
					if late := s.GetDurationUntilReset().AsDuration() - want.GetStatuses()[i].GetDurationUntilReset().AsDuration(); late.Abs() > slow {
						t.Errorf("%s: the reset is %v later", q, late)
					}
				}
				if len(got.GetResponseHeadersToAdd()) != len(want.GetResponseHeadersToAdd()) {
					t.Errorf("%s: %v, want %v", q, got.GetResponseHeadersToAdd(), want.GetResponseHeadersToAdd())
				}
			}
		})
	}
}
