package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

// The first token is good for a day: long enough to make others with it.
const (
	firstTokenName = "first"
	firstTokenLife = 24 * time.Hour
	// firstTokenRetry is the pause between attempts to make it, while the database is away.
	firstTokenRetry = time.Second
)

func (o *operators) close() {
	if o.api != nil {
		o.api.Close()
	}
	if o.own {
		_ = o.tokens.Close() // it is gone with the process
	}
}

// admin is what the admin listener serves: metrics and health to all who reach it, and
// the rest to those who have a token.
func (d *Daemon) admin() http.Handler {
	m, api := http.NewServeMux(), d.operators.api
	m.Handle("/", api)
	d.serveHealth(m)
	m.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{ErrorLog: newErrorLog(d.log)}))
	if d.envoy != nil {
		m.Handle("GET /rlconfig", api.Authorize(catalog.Viewer, http.HandlerFunc(d.envoy.service.ServeConfig)))
	}
	// All of pprof but the command line, which may hold a password.
	for path, serve := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		m.Handle("/debug/pprof/"+path, api.Authorize(catalog.Administrator, serve))
	}
	return m
}

// startAdmin sees to it that there is a token to begin with. If the database is away, it
// is made when that is back.
func (d *Daemon) startAdmin(ctx context.Context) {
	if d.URL(adminListener) == "" || d.makeToken(ctx) == nil {
		return
	}
	d.work.Go(func() {
		t := time.NewTicker(firstTokenRetry)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if d.makeToken(ctx) == nil {
					return
				}
			}
		}
	})
}

// makeToken makes the first token, unless there is one by which others can be made, and
// prints it: this is the only time that it can be seen.
func (d *Daemon) makeToken(ctx context.Context) error {
	if d.config.credentials.adminToken != "" {
		return nil
	}
	text, err := d.operators.tokens.FirstToken(ctx, "stint serve", catalog.Token{
		Name: firstTokenName, Role: catalog.Administrator, Expires: time.Now().Add(firstTokenLife),
	})
	if err != nil || text == "" {
		return err
	}
	d.token = text
	if d.demo == nil { // which shows it itself
		fmt.Fprintf(d.print, "\nThere is no admin token yet. This one is shown once, and good for 24 hours:\n\n  %s\n\nSign in with it at %s, or: STINT_TOKEN=... %s tokens create NAME\n\n",
			text, d.URL(adminListener), d.program)
	}
	return nil
}

// status tells operators what this is.
func (d *Daemon) status() admin.Status {
	s := admin.Status{
		Version: d.version, Mode: "file", File: d.source.Path, Database: "none", Counters: d.countersKind(),
		Rules: d.engine.Rules().Len(), Node: nodeName(d.config.Server.Catalog.Node), Health: d.health(), Now: time.Now().UTC(), Envoy: d.envoy != nil,
		Doors: admin.Doors{HTTP: d.URL(httpListener), Gateway: d.URL(gatewayListener), GRPC: d.URL(grpcListener), Admin: d.URL(adminListener)},
	}
	if c := d.control; c != nil {
		s.Mode, s.File, s.Revision, s.Record = "database", "", c.node.Status().Revision, c.record != nil
		if s.Database = "postgres"; strings.HasPrefix(string(d.config.Server.Database), "sqlite:") {
			s.Database = "sqlite"
		}
	}
	return s
}

func (d *Daemon) countersKind() string {
	if d.redis == nil {
		return "memory"
	}
	return "redis"
}

// health is [Daemon.Health], as the API has it.
func (d *Daemon) health() admin.Health {
	h := d.Health()
	out := admin.Health{Status: h.Status}
	for _, c := range h.Checks {
		out.Checks = append(out.Checks, admin.Check(c))
	}
	return out
}

// nodeState tells the others how this node is.
func (d *Daemon) nodeState() admin.NodeState {
	h, now := d.health(), d.live.Snapshot()
	s := admin.NodeState{
		Status: h.Status, Checks: h.Checks, Counters: d.countersKind(), Store: healthy, Breaker: "none", Replicas: d.countReplicas(),
		Requests: now.Requests, Refused: now.Refused, P99: now.Latency.P99,
	}
	if d.redis != nil {
		s.Breaker = strings.ReplaceAll(d.breakerState(), "-", "_")
		if d.lost.Load() != nil {
			s.Store = degraded
		}
	}
	return s
}

// settings are what is configured, with secrets masked.
func (d *Daemon) settings() []admin.Setting {
	var out []admin.Setting
	for _, s := range d.reloader.Config().Settings() {
		out = append(out, admin.Setting(s))
	}
	return out
}

// envoyLimits are what Envoy is limited by, and what has come of it.
func (d *Daemon) envoyLimits() []admin.EnvoyLimit {
	c := d.envoy.service.Config()
	if c == nil {
		return nil
	}
	hits := map[string]admin.EnvoyHits{}
	for name, h := range d.envoy.service.Stats() {
		hits[name] = admin.EnvoyHits{Within: h.Within, Near: h.Near, Over: h.Over, Shadow: h.Shadow}
	}
	var out []admin.EnvoyLimit
	for l := range c.Limits() {
		one := admin.EnvoyLimit{Path: l.Path, Name: l.Name, Limit: l.Limit.String(), Shadow: l.Shadow, Quota: l.Quota, Hits: hits[l.Path]}
		if l.Unlimited {
			one.Limit = "unlimited"
		}
		out = append(out, one)
	}
	return out
}
