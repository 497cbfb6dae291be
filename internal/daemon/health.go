package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
)

type (
	// Health is the health of the daemon, as the admin API shows it.
	Health = admin.Health
	// HealthCheck is the health of one part of the daemon.
	HealthCheck = admin.Check
)

// The statuses of Health and HealthCheck.
const (
	healthy  = "ok"
	degraded = "degraded" // it serves, with restrictions
	notReady = "not_ready"
)

// disabled says what enabled = false means.
const disabled = "enabled is false: every request passes, and nothing is counted"

// enable has requests limited, or not, and says so.
func (d *Daemon) enable(ctx context.Context, on bool) {
	was := d.engine.Disabled()
	d.engine.Disable(!on)
	if !on {
		d.log.WarnContext(ctx, disabled)
	} else if was {
		d.log.InfoContext(ctx, "enabled is true: requests are limited again")
	}
}

// Health returns the health of all parts.
func (d *Daemon) Health() Health {
	h := Health{Status: healthy}
	check := func(name, problem, status string) {
		if problem == "" {
			status = healthy
		}
		h.Checks = append(h.Checks, HealthCheck{Name: name, Status: status, Detail: problem})
		if status == notReady || (status == degraded && h.Status == healthy) {
			h.Status = status
		}
	}
	check("daemon", map[int32]string{starting: "the daemon is starting", stopping: "the daemon is stopping"}[d.state.Load()], notReady)
	if d.engine.Disabled() {
		check("enabled", disabled, degraded)
	}
	check("config", d.configProblem(), degraded)
	check("counters", d.counters.problem(), degraded)
	check("memory", d.memoryProblem(), degraded)
	if d.redis != nil {
		check("nodes", d.nodesProblem(), degraded)
	}
	if d.regional != nil {
		check("regions", d.regional.problem(), degraded)
	}
	if d.control != nil {
		check("catalog", d.catalogProblem(), degraded)
		if d.config.Server.ReadReplica != "" {
			check("replica", d.replicaProblem(), degraded)
		}
		if d.control.record != nil {
			check("record", d.recordProblem(), degraded)
		}
	}
	check("identity", d.identityProblem(), degraded)
	if len(d.config.Upstreams) > 0 {
		check("upstreams", d.upstreamsProblem(), degraded)
	}
	if d.envoy != nil {
		if lacks := d.envoyLacks(); lacks != "" {
			check("envoy", lacks, notReady)
		} else {
			check("envoy", d.envoy.problem(), degraded)
		}
	}
	return h
}

func (d *Daemon) configProblem() string {
	switch s := d.reloader.Status(); {
	case s.Problem != "":
		return fmt.Sprintf("the configuration is invalid since %s, and the previous one stays in use: %s",
			s.ProblemAt.UTC().Format(time.RFC3339), s.Problem)
	case len(s.NeedsRestart) > 0:
		return "a restart is needed for changes of " + strings.Join(s.NeedsRestart, ", ")
	}
	return ""
}

// memoryProblem says that clients have lost their counters within the last minute. Those of a client that
// has more than its share do not matter: no one else loses by it.
func (d *Daemon) memoryProblem() string {
	s := d.memory.Stats()
	if s.LastLost.IsZero() || time.Since(s.LastLost) > time.Minute {
		return ""
	}
	return fmt.Sprintf("server.max_keys (%d) is too low: %d counters and %d bans of clients were dropped before they had recovered, the last at %s, and these clients start anew",
		d.config.Server.MaxKeys, s.Evicted-s.EvictedByShare-s.EvictedBans, s.EvictedBans, s.LastLost.UTC().Format(time.RFC3339))
}

func (d *Daemon) identityProblem() string {
	if err := d.reloader.Ready(); err != nil {
		return "the keys of tokens have not been fetched yet, so tokens signed with them cannot be verified: " + err.Error()
	}
	return ""
}

func (d *Daemon) upstreamsProblem() string {
	var down []string
	all := d.gateway.health()
	for _, t := range all {
		if !t.Healthy {
			down = append(down, t.Target)
		}
	}
	if len(down) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d targets are down: %s", len(down), len(all), strings.Join(shorten(down), ", "))
}

// watchCounters asks the Redis servers for a decision, and goes on to watch them, so that health checks
// need not ask them.
func (d *Daemon) watchCounters(ctx context.Context) {
	h := &d.counters
	h.budget = time.Duration(d.config.Server.StoreBudget)
	h.report = func() {
		if d.control != nil {
			d.control.node.Report()
		}
		d.tellEnvoy()
	}
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var first sync.WaitGroup
	for _, name := range d.redis.Servers() {
		first.Go(func() { h.ask(soon, d.redis, name) })
	}
	first.Wait()
	d.work.Go(func() { h.watch(ctx, d.redis, d.metrics.takes) })
}

// serveHealth adds /healthz, which is always 200, and /readyz, which is 503 while the
// daemon starts or stops, and while it has no limits for Envoy. Both return all checks. A
// degraded node stays ready: the other nodes probably have the same problem.
func (d *Daemon) serveHealth(m *http.ServeMux) {
	serve := func(path string, bad int) {
		m.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			h := d.Health()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			if h.Status == notReady {
				w.WriteHeader(bad)
			}
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			_ = e.Encode(h) // the client may be gone
		})
	}
	serve("/healthz", http.StatusOK)
	serve("/readyz", http.StatusServiceUnavailable)
	if d.envoy != nil {
		serve("/healthcheck", http.StatusInternalServerError) // as envoyproxy/ratelimit does
	}
}
