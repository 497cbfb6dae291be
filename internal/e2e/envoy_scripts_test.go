//go:build reference

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/test/testredis"
)

// runScripts runs the scripts of the reference, which send requests through Envoy, and returns which
// have passed. A stand-in for Envoy asks Stint as the example of the reference configures it.
func (s *suite) runScripts(t *testing.T) map[string]bool {
	t.Helper()
	metrics, target := freeAddress(t), freeAddress(t)
	cmd := exec.Command(program.path, "serve", "--envoy-env")
	cmd.Env = []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testredis.Start(t).Addr(), "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + metrics,
		"RUNTIME_ROOT=" + s.dir + "/examples", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=debug",
		"GRPC_PORT=" + target[strings.LastIndexByte(target, ':')+1:], "PORT=0",
		"STINT_SERVER_STORE_BUDGET=30s",
	}
	envoy := httptest.NewServer(&standIn{t, s.routes(t), connect(t, "stint", run(t, cmd), target)})
	defer envoy.Close()
	bin := t.TempDir()
	curl := fmt.Sprintf("#!/bin/sh\nexec %s --connect-to envoy-proxy:8888:%s --connect-to statsd:9102:%s \"$@\"\n",
		tool(t, "curl"), strings.TrimPrefix(envoy.URL, "http://"), metrics)
	if err := os.WriteFile(filepath.Join(bin, "curl"), []byte(curl), 0o700); err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob(filepath.Join(s.dir, "integration-test/scripts/*.sh"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%q, %v", scripts, err)
	}
	results := map[string]bool{}
	for _, script := range scripts {
		if now := time.Now(); now.Second() >= 50 { // no minute may end while one runs
			<-time.After(now.Truncate(time.Minute).Add(time.Minute).Sub(now))
		}
		cmd := exec.Command("bash", script)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		results[filepath.Base(script)] = err == nil
		t.Logf("%s: %v %s", filepath.Base(script), err, out)
	}
	return results
}

// routes returns the routes of the example.
func (s *suite) routes(t *testing.T) []*routev3.Route {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "examples/envoy/proxy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		StaticResources struct {
			Listeners []struct {
				FilterChains []struct {
					Filters []struct {
						TypedConfig struct {
							RouteConfig any `yaml:"route_config"`
						} `yaml:"typed_config"`
					}
				} `yaml:"filter_chains"`
			}
		} `yaml:"static_resources"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(config.StaticResources.Listeners[0].FilterChains[0].Filters[0].TypedConfig.RouteConfig)
	if err != nil {
		t.Fatal(err)
	}
	var routes routev3.RouteConfiguration
	decode(t, string(data), &routes)
	return routes.GetVirtualHosts()[0].GetRoutes()
}

// standIn answers requests as Envoy does, and forwards them to nobody.
type standIn struct {
	t      *testing.T
	routes []*routev3.Route
	stint  *peer
}

func (e *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := arrival{headers: map[string]string{}}
	for name := range r.Header {
		request.headers[strings.ToLower(name)] = r.Header.Get(name)
	}
	q := &rlsv3.RateLimitRequest{Domain: "rl"}
	for _, route := range e.routes {
		if !strings.HasPrefix(r.URL.Path, route.GetMatch().GetPrefix()) {
			continue
		}
		for _, l := range route.GetRoute().GetRateLimits() {
			if d := request.describe(e.t, l); d != nil {
				q.Descriptors = append(q.Descriptors, d)
			}
		}
		break
	}
	a, err := e.stint.ShouldRateLimit(r.Context(), q)
	if err != nil {
		e.t.Error(err)
	}
	left := uint64(1<<32 - 1)
	for _, s := range a.GetStatuses() {
		if s.GetCurrentLimit() != nil {
			left = min(left, uint64(s.GetLimitRemaining()))
		}
	}
	w.Header()["x-ratelimit-remaining"] = []string{strconv.FormatUint(left, 10)} // in lower case, as Envoy has it
	if a.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
}
