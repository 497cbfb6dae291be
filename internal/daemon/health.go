package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Health is how the daemon is, in words.
type Health struct {
	// Status is ok, degraded (it serves, and something is wrong), or not_ready.
	Status string `json:"status"`
	// Checks are the parts that can go wrong.
	Checks []HealthCheck `json:"checks"`
}

// HealthCheck is one part of a daemon.
type HealthCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, degraded or not_ready
	// Detail is what is wrong, and what that means for requests.
	Detail string `json:"detail,omitempty"`
}

const (
	healthy  = "ok"
	degraded = "degraded"
	notReady = "not_ready"
)

// Health tells how every part is.
func (d *Daemon) Health() Health {
	h := Health{Status: healthy}
	add := func(name, status, detail string) {
		h.Checks = append(h.Checks, HealthCheck{name, status, detail})
		if status == notReady || (status == degraded && h.Status == healthy) {
			h.Status = status
		}
	}
	// part is degraded if there is something to say about it.
	part := func(name, detail string) {
		if detail == "" {
			add(name, healthy, "")
		} else {
			add(name, degraded, detail)
		}
	}
	switch d.state.Load() {
	case starting:
		add("daemon", notReady, "it is starting")
	case stopping:
		add("daemon", notReady, "it is stopping")
	default:
		add("daemon", healthy, "")
	}
	part("config", d.configProblem())
	part("counters", d.countersProblem())
	if d.control != nil {
		part("catalog", d.catalogProblem())
		if d.control.record != nil {
			part("record", d.recordProblem())
		}
	}
	part("identity", d.identityProblem())
	if len(d.config.Upstreams) > 0 {
		part("upstreams", d.upstreamsProblem())
	}
	if d.envoy != nil {
		part("envoy", d.envoy.problem())
	}
	return h
}

func (d *Daemon) configProblem() string {
	switch s := d.reloader.Status(); {
	case s.Problem != "":
		return fmt.Sprintf("what is configured has problems since %s, and what was in use before stays in use: %s",
			s.ProblemAt.UTC().Format(time.RFC3339), s.Problem)
	case len(s.NeedsRestart) > 0:
		return "these have changed and are read at the start only: " + strings.Join(s.NeedsRestart, ", ")
	}
	return ""
}

func (d *Daemon) countersProblem() string {
	if err := d.lost.Load(); err != nil {
		return "Redis cannot be reached; unless a rule says otherwise, this node counts alone, by its share of the limits: " + (*err).Error()
	}
	return ""
}

func (d *Daemon) identityProblem() string {
	if err := d.reloader.Ready(); err != nil {
		return "tokens signed with keys that were not fetched yet cannot be verified: " + err.Error()
	}
	return ""
}

func (d *Daemon) upstreamsProblem() string {
	var out []string
	all := d.gateway.health()
	for _, t := range all {
		if !t.Healthy {
			out = append(out, t.Target)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d targets are left out: %s", len(out), len(all), strings.Join(shorten(out), ", "))
}

// watch pings Redis every second, so that health checks need not.
func (d *Daemon) watch(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.reach(ctx)
		}
	}
}

// reach notes whether Redis answers.
func (d *Daemon) reach(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch err := d.redis.Ping(asking); {
	case err == nil:
		d.lost.Store(nil)
	case ctx.Err() == nil:
		d.lost.Store(&err)
	}
}

// serveHealth adds /healthz, which is 200 as long as the process answers, and /readyz,
// which is 503 while it starts or stops. Both say what is wrong. A node that is degraded
// stays ready: other nodes would have the same trouble.
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
			_ = e.Encode(h) // the client has left
		})
	}
	serve("/healthz", http.StatusOK)
	serve("/readyz", http.StatusServiceUnavailable)
	if d.envoy != nil {
		serve("/healthcheck", http.StatusInternalServerError) // as envoyproxy/ratelimit does
	}
}
