package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stintdev/stint/internal/daemon/envoystats"
	"github.com/stintdev/stint/internal/kit/strict"
)

// This file is what the operators of envoyproxy/ratelimit know: health, the debug port, and metrics
// under its names.

// EnvoyDebug configures the debug port of envoyproxy/ratelimit.
type EnvoyDebug struct {
	Address string `json:"address" doc:"host:port of the debug port of envoyproxy/ratelimit: /rlconfig, /stats and /debug/pprof/, to read without a token; empty: disabled"`
}

// EnvoyMetrics configures metrics under the names of envoyproxy/ratelimit.
type EnvoyMetrics struct {
	Address      string   `json:"address" doc:"host:port where Prometheus gets metrics under the names of envoyproxy/ratelimit, beside all others, without a token; empty: disabled"`
	Path         string   `json:"path" doc:"their path"`
	Milliseconds bool     `json:"milliseconds" doc:"ratelimit_service_response_time_seconds is in milliseconds, as it was in old versions of envoyproxy/ratelimit"`
	Statsd       string   `json:"statsd" doc:"host:port of a statsd server that gets them; empty: none"`
	Protocol     string   `json:"protocol" doc:"how it gets them: tcp, udp or dogstatsd (UDP, with tags as of Datadog)"`
	Interval     Duration `json:"interval" doc:"how often it gets them"`
	Tags         []string `json:"tags" doc:"tags or labels of all these metrics, each as name=value"`
	LocalCache   bool     `json:"local_cache" doc:"also count over_limit_with_local_cache: denials of a moment before that were repeated without asking Redis"`
}

// The values of envoy.health_needs.
const (
	needsDomains = "domains"
	needsRedis   = "redis"
)

// doors returns the listeners for operators.
func (e *Envoy) doors() []door {
	return []door{{debugListener, &Listener{Address: e.Debug.Address}}, {metricsListener, &Listener{Address: e.Metrics.Address}}}
}

// forOperators reports whether the door is for operators, and not for the callers of the service.
func (d door) forOperators() bool {
	return d.name == adminListener || d.name == debugListener || d.name == metricsListener
}

// isWatched reports whether someone gets the metrics under the names of envoyproxy/ratelimit.
func (e *Envoy) isWatched() bool {
	return e.Debug.Address != "" || e.Metrics.Address != "" || e.Metrics.Statsd != ""
}

// checkEnvoyOperate checks the settings for operators. Addresses are checked with all others.
func (k *checker) checkEnvoyOperate() {
	e := &k.config.Envoy
	for i, what := range e.HealthNeeds {
		k.oneOf(strict.Item("envoy.health_needs", i), what, needsDomains, needsRedis)
	}
	for _, d := range e.doors() {
		if d.Address != "" && !e.used() {
			k.Add(d.path()+".address", "needs envoy.config or envoy.xds.server: there is nothing to show otherwise", "")
		}
	}
	m := &e.Metrics
	if !strings.HasPrefix(m.Path, "/") || strings.ContainsAny(m.Path, " {}?#") {
		k.Refuse("envoy.metrics.path", m.Path, "a path, such as /metrics", "")
	}
	if m.Statsd != "" {
		if _, port, err := net.SplitHostPort(m.Statsd); err != nil || port == "" {
			k.Refuse("envoy.metrics.statsd", m.Statsd, "host:port, such as localhost:8125", "")
		}
	}
	k.oneOf("envoy.metrics.protocol", m.Protocol, envoystats.TCP, envoystats.UDP, envoystats.DogStatsD)
	k.between("envoy.metrics.interval", m.Interval, 100*time.Millisecond, time.Hour)
	for i, text := range m.Tags {
		if name, value, ok := strings.Cut(text, "="); !ok || name == "" || value == "" {
			k.Refuse(strict.Item("envoy.metrics.tags", i), text, "name=value", "")
		}
	}
}

// envoyLoads counts the configurations that files had.
type envoyLoads struct {
	mu             sync.Mutex
	hash           [sha256.Size]byte // of the last one
	used, rejected uint64
}

// use counts a configuration that is used, unless it is the one that was used before.
func (l *envoyLoads) use(hash [sha256.Size]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hash != hash {
		l.hash, l.used = hash, l.used+1
	}
}

// reject counts one that is not used. The next is used, even if it is that of before.
func (l *envoyLoads) reject() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hash, l.rejected = [sha256.Size]byte{}, l.rejected+1
}

// rejected is told of configurations that are not used.
func (d *Daemon) rejected(next *Config) {
	if d.envoy != nil && len(next.descriptorProblems) > 0 {
		d.envoy.loads.reject()
	}
}

// loaded returns how many configurations were used so far, and how many were rejected.
func (e *envoy) loaded() (used, rejected uint64) {
	if e.xds != nil {
		s := e.xds.State()
		return s.Accepted, s.Rejected
	}
	e.loads.mu.Lock()
	defer e.loads.mu.Unlock()
	return e.loads.used, e.loads.rejected
}

// isStale reports whether the last configuration over xDS was rejected.
func (e *envoy) isStale() bool { return e != nil && e.xds != nil && e.xds.State().Stale }

// envoyLacks returns what the service lacks to answer Envoy, or "".
func (d *Daemon) envoyLacks() string {
	limits, needs := d.envoy.service.Config(), d.config.Envoy.HealthNeeds
	switch {
	case limits == nil:
		return cmp.Or(d.envoy.problem(), "no domains are loaded")
	case slices.Contains(needs, needsDomains) && len(limits.Domains()) == 0:
		return "there is no domain, and envoy.health_needs wants one"
	case slices.Contains(needs, needsRedis) && d.counters.allDown():
		return "no Redis server decides, and envoy.health_needs wants one"
	}
	return ""
}

// tellEnvoy reports the service as serving to health checks, or as not serving if it lacks
// something. Once the daemon stops, that changes nothing.
func (d *Daemon) tellEnvoy() {
	if d.envoy == nil || d.state.Load() != serving {
		return
	}
	d.envoy.telling.Lock()
	defer d.envoy.telling.Unlock()
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if d.envoyLacks() != "" {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	d.envoy.health.SetServingStatus("", status)
	d.envoy.health.SetServingStatus(envoyService, status)
}

// countedHealth counts the calls of health checks.
type countedHealth struct {
	*health.Server
	stats *envoystats.Stats
}

// Check implements the service.
func (h countedHealth) Check(ctx context.Context, q *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	defer func(began time.Time) { h.stats.Served(envoystats.Check, time.Since(began)) }(time.Now())
	return h.Server.Check(ctx, q)
}

// maxProfile is how long a profile at the debug port may take.
const maxProfile = 5 * time.Minute

// envoyDebug returns the handler of the debug port. It has no token, as in envoyproxy/ratelimit, and
// so nothing that changes anything, or has a secret.
func (d *Daemon) envoyDebug() http.Handler {
	m := http.NewServeMux()
	profile := func(serve http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), maxProfile)
			defer cancel()
			serve(w, r.WithContext(ctx))
		}
	}
	pages := []struct {
		path, what string
		serve      http.HandlerFunc
	}{
		{"/debug/pprof/", "profiles of the process, which go tool pprof reads", profile(pprof.Index)},
		{"/debug/pprof/profile", "a CPU profile", profile(pprof.Profile)},
		{"/debug/pprof/trace", "an execution trace", profile(pprof.Trace)},
		{"/rlconfig", "the limits in use", d.envoy.service.ServeConfig},
		{"/stats", "all counts, and the memory of the process", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_ = d.envoy.stats.WriteText(w) // the client may be gone
		}},
	}
	index := ""
	for _, p := range pages {
		m.HandleFunc("GET "+p.path, p.serve)
		index += fmt.Sprintf("%s: %s\n", p.path, p.what)
	}
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, index)
	})
	return m
}

// envoyMetrics returns the handler of the metrics under the names of envoyproxy/ratelimit, and of all
// others.
func (d *Daemon) envoyMetrics() http.Handler {
	c, r := &d.config.Envoy.Metrics, prometheus.NewRegistry()
	r.MustRegister(d.envoy.stats.Collector(c.Milliseconds))
	m := http.NewServeMux()
	m.Handle("GET "+c.Path, promhttp.HandlerFor(prometheus.Gatherers{r, d.metrics.registry}, promhttp.HandlerOpts{ErrorLog: newErrorLog(d.log)}))
	return m
}

// anyPort is an address on this machine that is free.
const anyPort = "127.0.0.1:0"

// adminMoves reports whether the admin API may be at another port than that of its address, if that is taken: in
// the environment of envoyproxy/ratelimit, which has no admin API, unless someone has chosen the address.
func (d *Daemon) adminMoves() bool {
	given := d.source.Given
	origin := d.config.origins["server.admin.address"]
	return len(given) > 0 && (origin == "" || slices.ContainsFunc(given, func(f Flag) bool { return f.Name == origin }))
}
