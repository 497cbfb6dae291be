package daemon

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
)

// Metric is one of the daemon's metrics, as the documentation lists it.
type Metric struct {
	Name   string
	Type   string
	Labels []string
	Help   string
}

// Metrics are all that a daemon has, besides those of Go and of the process.
func Metrics() []Metric { return exported[:] }

// The metrics, by their places in exported.
const (
	decisionsTotal = iota
	decisionSeconds
	heldSeconds
	waitingRequests
	shadowDeniedTotal
	unacceptedTotal
	rulesGauge
	reloadGauge
	loadedGauge
	restartGauge
	storeSeconds
	redisUp
	redisTotal
	upstreamUp
	envoyHits
	replicasGauge
	catalogRevision
	catalogCurrent
	databaseUp
	catalogLoads
	directoryLookups
	directoryRatio
	directoryEntries
	usageTotal
	recordTotal
	recordSpooled
)

var exported = [...]Metric{
	decisionsTotal:    {"stint_decisions_total", "counter", []string{"rule", "outcome", "source"}, "Requests decided, by the rule that decided, what became of them, and what told who was asking."},
	decisionSeconds:   {"stint_decision_seconds", "histogram", nil, "How long decisions took, without the time that requests were held."},
	heldSeconds:       {"stint_held_seconds", "histogram", nil, "How long requests were held that were held."},
	waitingRequests:   {"stint_waiting_requests", "gauge", nil, "Requests that are held now."},
	shadowDeniedTotal: {"stint_shadow_denied_total", "counter", []string{"rule"}, "Requests that passed and that a rule with log_only would have refused."},
	unacceptedTotal:   {"stint_credentials_unaccepted_total", "counter", []string{"reason"}, "API keys, tokens and headers of proxies that were sent and not accepted, by reason. A request that was refused for it has the outcome unauthorized; the others went on without."},
	rulesGauge:        {"stint_rules", "gauge", nil, "Rules in use, those that are not enabled included."},
	reloadGauge:       {"stint_config_last_reload_successful", "gauge", nil, "1 if what is configured is in use, 0 if it has problems and what was in use before stays."},
	loadedGauge:       {"stint_config_loaded_timestamp_seconds", "gauge", nil, "When the configuration in use was loaded, in Unix seconds."},
	restartGauge:      {"stint_config_needs_restart", "gauge", nil, "Settings that have changed and are read at the start only."},
	storeSeconds:      {"stint_store_seconds", "histogram", []string{"layer", "call", "result", "basis"}, "Calls to Redis and to each layer around it: how long they took, what came of them, and what the answer rests on."},
	redisUp:           {"stint_redis_up", "gauge", nil, "1 if Redis could be reached within the last seconds. Only if counters are there."},
	redisTotal:        {"stint_redis_total", "counter", []string{"what"}, "What was sent to Redis, and what went wrong. Only if counters are there."},
	envoyHits:         {"stint_envoy_hits_total", "counter", []string{"limit", "hits"}, "Hits of Envoy's descriptors, by the limit that applied: those within it, of these those near it, those over it, and of these those that passed in shadow_mode."},
	replicasGauge:     {"stint_replicas", "gauge", nil, "Nodes that share the limits, as far as is known. Only if counters are in Redis."},
	catalogRevision:   {"stint_catalog_revision", "gauge", nil, "The revision of the database that is served. Only if there is one, as all that follow."},
	catalogCurrent:    {"stint_catalog_current", "gauge", nil, "1 if what is served is all that the database was last known to have, 0 if a newer revision could not be used or it comes from disk."},
	databaseUp:        {"stint_database_up", "gauge", nil, "1 if the database could be asked the last time."},
	catalogLoads:      {"stint_catalog_loads_total", "counter", nil, "How often rules and lists were read from the database."},
	directoryLookups:  {"stint_directory_lookups_total", "counter", []string{"kind", "result"}, "Lookups of keys, users and tenants: hit, negative (known not to be there), stale (known, and could not be asked again), miss, and of loads those that failed."},
	directoryRatio:    {"stint_directory_hit_ratio", "gauge", []string{"kind"}, "The part of these lookups since the start that did not wait for the database."},
	directoryEntries:  {"stint_directory_entries", "gauge", []string{"kind"}, "How many are remembered now."},
	usageTotal:        {"stint_usage_total", "counter", []string{"what"}, "What users and keys have used, in rows: written, dropped since there were too many, and writes that failed and are tried again."},
	recordTotal:       {"stint_record_events_total", "counter", []string{"what"}, "Events of the record: written, dropped since there was no room for them, and refused since their time cannot be."},
	recordSpooled:     {"stint_record_spooled_bytes", "gauge", nil, "Events that wait on disk for the database."},
	upstreamUp:        {"stint_upstream_up", "gauge", []string{"route", "target"}, "1 if a target of the gateway gets its share of requests, 0 if it is left out."},
}

// metrics counts what the daemon does. Labels are what the configuration names and
// what the program knows, never anything that a client sends.
type metrics struct {
	registry *prometheus.Registry
	meter    layer.Meter
	daemon   *Daemon
	descs    [len(exported)]*prometheus.Desc

	latency    layer.Histogram // of all decisions, so it is one that costs them little
	held       prometheus.Histogram
	unaccepted [identity.HeaderInvalid + 1]atomic.Uint64

	// rules are by name; "" is that of no rule. They are replaced and never changed: who
	// decides waits for no one who counts rules, or reads what was counted.
	rules atomic.Pointer[map[string]*place]
	mu    sync.Mutex // of those who replace them
}

// place is where the tally of a rule is, once it has decided something.
type place struct{ atomic.Pointer[tally] }

// tally is what became of requests that a rule decided.
type tally struct {
	verdicts [engine.Unavailable + 1][identity.ByHeader + 1]atomic.Uint64
	shadow   atomic.Uint64
}

var _ engine.Recorder = (*metrics)(nil)

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(), daemon: d,
		held: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: exported[heldSeconds].Name, Help: exported[heldSeconds].Help,
			Buckets: []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60},
		}),
	}
	m.rules.Store(&map[string]*place{"": new(place)})
	for i, e := range exported {
		m.descs[i] = prometheus.NewDesc(e.Name, e.Help, e.Labels, nil)
	}
	m.registry.MustRegister(m, m.held, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Record implements [engine.Recorder].
func (m *metrics) Record(e *engine.Event) {
	decided := e.Rule
	if e.Shadow {
		m.of(e.Rule).shadow.Add(1)
		decided = ""
	}
	m.of(decided).verdicts[e.Outcome][e.Source].Add(1)
	if e.Unaccepted != identity.NoReason {
		m.unaccepted[e.Unaccepted].Add(1)
	}
	m.latency.Observe(e.Latency)
	if e.Waited > 0 {
		m.held.Observe(e.Waited.Seconds())
	}
}

// of returns the tally of a rule.
func (m *metrics) of(name string) *tally {
	p := (*m.rules.Load())[name]
	if p == nil {
		p = m.add(name)
	}
	t := p.Load()
	if t == nil {
		p.CompareAndSwap(nil, new(tally))
		t = p.Load()
	}
	return t
}

// add makes a place for a rule that had been in use when it decided.
func (m *metrics) add(name string) *place {
	m.mu.Lock()
	defer m.mu.Unlock()
	rules := *m.rules.Load()
	if rules[name] == nil {
		rules = maps.Clone(rules)
		rules[name] = new(place)
		m.rules.Store(&rules)
	}
	return rules[name]
}

// keep makes places for the rules, and limits of Envoy, that there are, and forgets others.
func (m *metrics) keep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.daemon.engine.Rules().Rules()
	before, kept := *m.rules.Load(), make(map[string]*place, len(all)+1)
	keep := func(name string) {
		if kept[name] = before[name]; kept[name] == nil {
			kept[name] = new(place)
		}
	}
	keep("")
	for _, r := range all {
		keep(r.Name)
	}
	if m.daemon.envoy != nil {
		if limits := m.daemon.envoy.service.Config(); limits != nil {
			for l := range limits.Limits() {
				keep(l.Path)
			}
		}
	}
	m.rules.Store(&kept)
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for i, d := range m.descs {
		if i != heldSeconds { // which is a collector itself
			out <- d
		}
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	count := func(i int, n uint64, labels ...string) {
		if n > 0 {
			out <- prometheus.MustNewConstMetric(m.descs[i], prometheus.CounterValue, float64(n), labels...)
		}
	}
	gauge := func(i int, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.descs[i], prometheus.GaugeValue, n, labels...)
	}
	for name, p := range *m.rules.Load() {
		t := p.Load()
		if t == nil {
			continue // it has decided nothing yet
		}
		count(shadowDeniedTotal, t.shadow.Load(), name)
		for outcome := range t.verdicts {
			for source := range t.verdicts[outcome] {
				count(decisionsTotal, t.verdicts[outcome][source].Load(), name, engine.Outcome(outcome).String(), identity.Source(source).String())
			}
		}
	}
	for reason := range m.unaccepted {
		count(unacceptedTotal, m.unaccepted[reason].Load(), identity.Reason(reason).String())
	}
	out <- m.histogram(decisionSeconds, m.latency.Read())
	d := m.daemon
	gauge(waitingRequests, float64(d.engine.Waiting()))
	gauge(rulesGauge, float64(d.engine.Rules().Len()))
	status := d.reloader.Status()
	gauge(reloadGauge, oneIf(status.Problem == ""))
	gauge(loadedGauge, float64(status.Loaded.UnixMicro())/1e6)
	gauge(restartGauge, float64(len(status.NeedsRestart)))
	for _, t := range d.gateway.health() {
		gauge(upstreamUp, oneIf(t.Healthy), t.Route, t.Target)
	}
	if d.envoy != nil {
		for limit, n := range d.envoy.service.Stats() {
			count(envoyHits, n.Within, limit, "within")
			count(envoyHits, n.Near, limit, "near")
			count(envoyHits, n.Over, limit, "over")
			count(envoyHits, n.Shadow, limit, "shadow")
		}
	}
	if d.redis != nil {
		gauge(redisUp, oneIf(d.lost.Load() == nil))
		gauge(replicasGauge, float64(d.countReplicas()))
		m.collectStore(out)
	}
	if d.control != nil {
		m.collectCatalog(out, gauge, count)
	}
}

// collectCatalog collects what is known of the database.
func (m *metrics) collectCatalog(out chan<- prometheus.Metric, gauge func(i int, n float64, labels ...string), count func(i int, n uint64, labels ...string)) {
	c := m.daemon.control
	s := c.node.Status()
	gauge(catalogRevision, float64(s.Revision))
	gauge(catalogCurrent, oneIf(s.Problem == "" && s.Saved.IsZero()))
	gauge(databaseUp, oneIf(s.Away == nil))
	count(catalogLoads, s.Loads)
	for kind, l := range c.node.Lookups() {
		for result, n := range map[string]int64{
			"hit": l.Hits, "negative": l.NegativeHits, "stale": l.Stale, "miss": l.Misses, "failed": l.LoadErrors,
		} {
			count(directoryLookups, uint64(n), kind, result)
		}
		known := l.Hits + l.NegativeHits + l.Stale
		if all := known + l.Misses; all > 0 {
			gauge(directoryRatio, float64(known)/float64(all), kind)
		}
		gauge(directoryEntries, float64(l.Len), kind)
	}
	if r := c.record; r != nil {
		state := r.pipeline.State()
		for what, n := range map[string]int64{"written": state.Written, "dropped": state.Dropped, "refused": r.store.Refused()} {
			out <- prometheus.MustNewConstMetric(m.descs[recordTotal], prometheus.CounterValue, float64(n), what)
		}
		gauge(recordSpooled, float64(state.Spooled))
	}
	u := c.usage.Stats()
	for what, n := range map[string]float64{"written": float64(u.Flushed), "dropped": float64(u.Dropped), "failed": float64(u.Errors)} {
		out <- prometheus.MustNewConstMetric(m.descs[usageTotal], prometheus.CounterValue, n, what)
	}
}

// collectStore collects what is counted of calls to Redis.
func (m *metrics) collectStore(out chan<- prometheus.Metric) {
	for o, l := range m.meter.Read() {
		out <- m.histogram(storeSeconds, l, o.Layer, o.Verb.String(), o.Result.String(), o.Basis.String())
	}
	s := m.daemon.redis.Stats()
	for what, n := range map[string]uint64{
		"requests": s.Requests, "calls": s.Calls, "scripts": s.Scripts, "retries": s.Retries, "undone": s.Undone,
		"kept": s.Kept, "unavailable": s.Unavailable, "bad_states": s.BadStates,
	} {
		out <- prometheus.MustNewConstMetric(m.descs[redisTotal], prometheus.CounterValue, float64(n), what)
	}
}

// histogram returns times as they are collected, in seconds.
func (m *metrics) histogram(i int, l layer.Latency, labels ...string) prometheus.Metric {
	buckets, sum := make(map[float64]uint64, len(l.Buckets)), uint64(0)
	for i, n := range l.Buckets[:len(l.Buckets)-1] {
		sum += n
		buckets[l.Bound(i).Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(m.descs[i], l.Calls, l.Total.Seconds(), buckets, labels...)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
