package daemon

import (
	"context"
	"maps"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

func (o *operators) close() {
	if o.api != nil {
		o.api.Close()
	}
	if o.own {
		_ = o.tokens.Close() // it is in memory
	}
}

// admin returns the handler of the admin listener. Metrics and health need no token.
func (d *Daemon) admin() http.Handler {
	m, api := http.NewServeMux(), d.operators.api
	m.Handle("/", api)
	d.serveHealth(m)
	m.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{ErrorLog: newErrorLog(d.log), EnableOpenMetrics: true}))
	if d.envoy != nil {
		m.Handle("GET /rlconfig", api.Authorize(catalog.Viewer, http.HandlerFunc(d.envoy.service.ServeConfig)))
	}
	// All of pprof except the command line, which may contain a password.
	for path, serve := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		m.Handle("/debug/pprof/"+path, api.Authorize(catalog.Administrator, serve))
	}
	return m
}

// startAdmin creates the first token. If the database is down, it retries.
func (d *Daemon) startAdmin(ctx context.Context) {
	d.startSignIn(ctx)
	if d.URL(adminListener) != "" && d.createToken(ctx) != nil {
		d.work.Go(func() { every(ctx, time.Second, func() bool { return d.createToken(ctx) != nil }) })
	}
}

// status returns the status of this node for the API.
func (d *Daemon) status() admin.Status {
	s := admin.Status{
		Version: d.version, Mode: "file", File: d.source.Path, Database: "none", Counters: d.countersKind(),
		Rules: d.engine.Rules().Len(), Node: d.config.nodeName(), Region: d.config.Region.Name, Health: d.Health(), Now: time.Now().UTC(), Envoy: d.envoy != nil,
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

// nodeState returns the state that this node reports to others.
func (d *Daemon) nodeState() admin.NodeState {
	h, now := d.Health(), d.live.Snapshot()
	s := admin.NodeState{
		Status: h.Status, Checks: h.Checks, Region: d.config.Region.Name, Counters: d.countersKind(), Store: healthy, Breaker: "none", Replicas: d.countReplicas(),
		Requests: now.Requests, Refused: now.Refused, P99: now.Latency.P99,
	}
	if d.redis != nil {
		s.Breaker = d.counters.breakerState()
		if d.counters.problem() != "" {
			s.Store = degraded
		}
		s.Servers = d.counterServers()
	}
	return s
}

// counterServers returns the Redis servers with their shares, if there are several.
func (d *Daemon) counterServers() (out []admin.CounterServer) {
	shares, up := d.redis.Shares(), d.counters.up()
	if len(shares) < 2 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		works, known := up[name]
		out = append(out, admin.CounterServer{Name: name, Up: works || !known, Share: shares[name]})
	}
	return out
}

// envoyLimits returns the limits of descriptors and their hits, and the files that were not
// read.
func (d *Daemon) envoyLimits() (limits []admin.EnvoyLimit, skipped []admin.EnvoySkipped) {
	c := d.envoy.service.Config()
	if c == nil {
		return nil, nil
	}
	for _, s := range d.reloader.Config().skipped {
		skipped = append(skipped, admin.EnvoySkipped(s))
	}
	hits := map[string]admin.EnvoyHits{}
	for name, h := range d.envoy.service.Stats() {
		hits[name] = admin.EnvoyHits{Within: h.Within, Near: h.Near, Over: h.Over, Shadow: h.Shadow}
	}
	for l := range c.Limits() {
		one := admin.EnvoyLimit{Path: l.Path, Name: l.Name, Limit: l.Limit.String(), Shadow: l.Shadow, Quota: l.Quota, Hits: hits[l.Path]}
		if l.Unlimited {
			one.Limit = "unlimited"
		}
		limits = append(limits, one)
	}
	return limits, skipped
}
