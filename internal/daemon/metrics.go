package daemon

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
)

// Metric describes a metric, for the documentation.
type Metric struct {
	Name   string
	Type   string
	Labels []string
	Help   string
}

// Metrics returns all metrics of a daemon, except those of Go and of the process.
func Metrics() []Metric { return exported }

var exported = []Metric{
	{"stint_decisions_total", "counter", []string{"rule", "outcome", "source"}, "Decisions, by rule, outcome, and how the client was identified."},
	{"stint_decision_seconds", "histogram", nil, "How long decisions took, without the time that requests were held."},
	{"stint_held_seconds", "histogram", nil, "How long requests were held, for those that were."},
	{"stint_waiting_requests", "gauge", nil, "Requests that are being held."},
	{"stint_model_answers_total", "counter", []string{"kind"}, "Answers of language models: all, and of them those whose usage was estimated, that failed, or that were cut."},
	{"stint_model_tokens_total", "counter", []string{"kind"}, "Tokens that language models have used: input, of it cached and cache_written; output, of it reasoning."},
	{"stint_unsettled_requests", "gauge", nil, "Requests that have ended, and whose places and costs wait to be settled."},
	{"stint_unsettled_lost_total", "counter", nil, "Requests that could not be settled: they cost what was reserved, and their places come back by themselves."},
	{"stint_shadow_denied_total", "counter", []string{"rule"}, "Requests that passed and that a log_only rule would have denied."},
	{"stint_units_total", "counter", []string{"rule", "meter", "what"}, "Units of reservations, by rule and meter: reserved before the cost was known, used of those that were settled, given_back because they were not used, and overshoot, which were used without having been reserved. Only for rules of which something was reserved."},
	{"stint_settlements_total", "counter", []string{"result"}, "Settlements of reservations: committed, cancelled, repeated (they had been settled before), and rejected (tickets that were not made by this cluster, were altered, or had expired)."},
	{"stint_credentials_unaccepted_total", "counter", []string{"reason"}, "API keys, tokens and proxy headers that were not accepted, by reason. Requests that were rejected for it have the outcome unauthorized; the others continued without credentials."},
	{"stint_build_info", "gauge", []string{"version", "commit", "date", "go"}, "Always 1. The labels say which version of Stint runs, from which commit and of what date, and with which version of Go it was built."},
	{"stint_rules", "gauge", nil, "Rules in use, including disabled ones."},
	{"stint_config_last_reload_successful", "gauge", nil, "1 if the current configuration is in use, 0 if it, or the last one over xDS, is invalid and the previous one stays in use."},
	{"stint_config_loaded_timestamp_seconds", "gauge", nil, "When the configuration in use was loaded, in Unix seconds."},
	{"stint_config_needs_restart", "gauge", nil, "Settings that have changed and need a restart."},
	{"stint_store_seconds", "histogram", []string{"layer", "call", "result", "basis"}, "Duration of calls to Redis and to each layer around it, by result, and by what the answer is based on."},
	{"stint_redis_up", "gauge", nil, "1 if Redis makes the decisions, 0 if this node makes some or all of them on its own: a server is down, slow, out of memory or read-only. Only if counters are in Redis."},
	{"stint_redis_server_up", "gauge", []string{"server"}, "The same for each server: 0 if its breaker is open, or it did not decide in time when this node last asked, within the last second. Only if counters are in Redis."},
	{"stint_redis_server_share", "gauge", []string{"server"}, "The part of all clients whose counters each server has, from 0 to 1. Only if counters are in Redis."},
	{"stint_redis_total", "counter", []string{"what"}, "Requests and calls to Redis, and errors. Only if counters are in Redis."},
	{"stint_memory_counters", "gauge", []string{"kind"}, "Counters in the memory of this node: limits, and bans (with violations that have not led to one). If counters are in Redis, those of local decisions."},
	{"stint_memory_evictions_total", "counter", []string{"reason"}, "Counters that memory had no room for before they had recovered: of any client (full), of a client that had more than its share (share), and bans beyond their half (bans)."},
	{"stint_upstream_up", "gauge", []string{"route", "target"}, "1 if a target of the gateway gets requests, 0 if it is down."},
	{"stint_accept_errors_total", "counter", []string{"listener"}, "How often a listener could not accept connections, mostly for lack of open files."},
	{"stint_envoy_quota_requests_total", "counter", []string{"limit", "requests"}, "Requests under quotas of Envoy, by limit: assigned (they may pass), passed and denied (as Envoys report), back (assigned, not used, and given back), and unassigned (a part of those that passed, without an assignment or beyond it)."},
	{"stint_envoy_quota_streams", "gauge", nil, "Envoys that are connected for quotas."},
	{"stint_envoy_quota_buckets", "gauge", nil, "Buckets of Envoys that have quotas now."},
	{"stint_envoy_quota_refused_total", "counter", nil, "Reports of buckets that have no quota, because there are more than 100,000 or their names are longer than 4 KiB."},
	{"stint_envoy_hits_total", "counter", []string{"limit", "hits"}, "Hits of Envoy's descriptors, by limit: within the limit, near it, over it, remembered (a part of those over, denied again without asking Redis), and shadow (a part of those over that passed in shadow_mode)."},
	{"stint_envoy_folded_hits_total", "counter", nil, "Hits that are counted under the limit others, because there are 10,000 names of limits, and descriptors of unknown domains beyond 100."},
	{"stint_envoy_loads_total", "counter", []string{"result"}, "Configurations of Envoy's limits, from files or over xDS: used and rejected."},
	{"stint_replicas", "gauge", nil, "Nodes that share the limits, as far as is known. Only if counters are in Redis."},
	{"stint_lease_units_total", "counter", []string{"limit", "what"}, "Units that this node has taken ahead (lent), by rule and limit, and what became of them: spent, given_back, or kept, which were not spent and stay used because Redis failed, at least until it is back. Only for limits that it has leased, like the next six; other stands for those beyond 1,000."},
	{"stint_lease_units_held", "gauge", []string{"limit"}, "Units that were taken ahead and are held now, as of the last term."},
	{"stint_lease_counters", "gauge", []string{"limit"}, "Counters that are leased now."},
	{"stint_lease_denied_total", "counter", []string{"limit"}, "Denials of leased counters."},
	{"stint_lease_denied_early_total", "counter", []string{"limit"}, "Those of them while other nodes may have held units that they had taken ahead: at most so many were too early, by at most one term."},
	{"stint_lease_others_most_units", "gauge", []string{"limit"}, "The most units that other nodes may have held at such a denial: each at most its part of half of the limit."},
	{"stint_lease_most_used_ratio", "gauge", []string{"limit"}, "The most that Redis has counted of a counter in its window, from all nodes, as a fraction of its capacity: how close to its limit it came. Never above 1."},
	{"stint_lease_full_total", "counter", nil, "How often a counter was not leased because this node had too many leases. Only if counters are in Redis."},
	{"stint_region_link_up", "gauge", []string{"region"}, "1 if this node is connected to the region. Only with other regions, like all of the following that begin with stint_region."},
	{"stint_region_cut", "gauge", []string{"region"}, "1 if no node of this region hears from the region: gossiped limits are divided by weight."},
	{"stint_region_alone", "gauge", []string{"region"}, "1 if the region says that it is cut off from another one, or from its own store: gossiped limits are divided by weight."},
	{"stint_region_round_trip_seconds", "gauge", []string{"region"}, "How long a message to the region and back takes, smoothed."},
	{"stint_region_skew_seconds", "gauge", []string{"region"}, "By how much the clock of the region's store is ahead of the clock of this one's."},
	{"stint_region_lag_seconds", "gauge", []string{"region"}, "How long the region took to acknowledge the last batch, or takes for one that it has not."},
	{"stint_region_backlog", "gauge", []string{"region"}, "Of how many counters the region has to be told."},
	{"stint_region_bytes_total", "counter", []string{"region", "direction"}, "Bytes of messages to and from the region: sent and received."},
	{"stint_region_total", "counter", []string{"what"}, "Units that other regions may never learn of (lost_units, without those of nodes that were killed: nobody can count them), and batches of others that were refused or had come before (refused_batches, duplicate_batches)."},
	{"stint_region_counters", "gauge", nil, "Gossiped counters of which this node has admitted something that has not recovered."},
	{"stint_region_units_total", "counter", []string{"limit", "what"}, "Units of a gossiped limit: admitted by this node, and received from other regions."},
	{"stint_region_denied_total", "counter", []string{"limit"}, "Takes of a gossiped limit that were denied for want of credit, or of a share."},
	{"stint_region_shares_total", "counter", []string{"limit"}, "Takes of a gossiped limit that were decided by this node's share, while a region was cut off."},
	{"stint_region_bound_units", "gauge", []string{"limit"}, "How many units all regions together may admit beyond a gossiped limit."},
	{"stint_region_beyond_units", "gauge", []string{"limit"}, "The most units beyond a gossiped limit that this node has seen, of fixed_window and sliding_window."},
	{"stint_region_central_up", "gauge", nil, "1 if the central region decides, 0 if this node applies its share of central limits. Not in the central region."},
	{"stint_region_central_units_total", "counter", []string{"what"}, "Units of central limits that this node has admitted without the central region: charged there when it was back, lost since it may have been, or recovered by then. Not in the central region."},
	{"stint_region_weights_fresh", "gauge", nil, "1 if the weights of quotas that follow demand were read a moment ago."},
	{"stint_region_refused_total", "counter", []string{"reason"}, "Streams of other regions that were refused, or ended, by reason."},
	{"stint_catalog_revision", "gauge", nil, "The revision of the database in use. Only with a database, like all of the following."},
	{"stint_catalog_current", "gauge", nil, "1 if the newest known revision is in use, 0 if it could not be used or the rules come from disk."},
	{"stint_catalog_history_refused", "gauge", nil, "1 if the database was emptied, set back or replaced, and what was in use before stays in use until someone accepts it."},
	{"stint_database_up", "gauge", nil, "1 if the last query of the database succeeded."},
	{"stint_database_replica_up", "gauge", nil, "1 if the replica of the database is read, 0 if it cannot be, is behind, or is not its replica. Only with server.database_replica, like the next two."},
	{"stint_database_replica_lag_revisions", "gauge", nil, "How many revisions the replica lacks, as of the last look. Not while the database is out of reach."},
	{"stint_database_replica_lag_seconds", "gauge", nil, "How old what the replica has is: 0 if all that has arrived there is in use. Not if it does not say so."},
	{"stint_catalog_loads_total", "counter", nil, "How often rules and lists were read from the database."},
	{"stint_directory_lookups_total", "counter", []string{"kind", "result"}, "Lookups of keys, users and tenants: hit, negative (cached as missing), stale (cached, and could not be refreshed), miss, and failed loads."},
	{"stint_directory_hit_ratio", "gauge", []string{"kind"}, "The fraction of these lookups since startup that did not wait for the database."},
	{"stint_directory_entries", "gauge", []string{"kind"}, "Cached keys, users and tenants."},
	{"stint_usage_total", "counter", []string{"what"}, "Rows of usage of users and keys: written, dropped because there were too many, and failed writes, which are retried."},
	{"stint_record_events_total", "counter", []string{"what"}, "Recorded events: written, folded (another event of the same client stands for them), dropped for lack of space, refused because of an impossible time, and deleted because the record had reached server.record.max_size."},
	{"stint_record_bytes", "gauge", nil, "About how large the record is, with its roll-ups."},
	{"stint_record_max_bytes", "gauge", nil, "How large it may be: server.record.max_size; 0: no limit."},
	{"stint_record_spooled_bytes", "gauge", nil, "Bytes of events on disk that wait for the database."},
	{"stint_record_usage_waiting", "gauge", nil, "Accounts whose usage is in memory and waits for the database."},
	{"stint_record_usage_other_total", "counter", nil, "How often usage was counted as that of other users, keys and models, because there were too many at once."},
	{"stint_record_settlements_total", "counter", []string{"what"}, "What became of the reservations of recorded events, by rule: written, and dropped because there were too many while the database was out of reach."},
}

// metrics are the metrics of a daemon. Labels come from the configuration and the program,
// never from clients.
type metrics struct {
	registry *prometheus.Registry
	meter    layer.Meter
	leases   *layer.LeaseMeter
	ledger   ledger
	daemon   *Daemon
	trace    *tracing                    // nil: none
	descs    map[string]*prometheus.Desc // all but that of held

	latency    layer.Histogram // of all decisions, so it must be cheap
	held       prometheus.Histogram
	unaccepted [identity.HeaderInvalid + 1]atomic.Uint64

	// rules are by name; "" is for decisions without a rule. The map is replaced and never
	// changed, so that decisions need no lock.
	rules atomic.Pointer[map[string]*place]
	mu    sync.Mutex // for replacing it
}

// place holds the tally of a rule, once it has decided something.
type place struct{ atomic.Pointer[tally] }

// tally counts the decisions of a rule.
type tally struct {
	verdicts [engine.Unavailable + 1][identity.ByHeader + 1]atomic.Uint64
	shadow   atomic.Uint64
}

var _ engine.Recorder = (*metrics)(nil)

func newMetrics(d *Daemon) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), leases: layer.NewLeaseMeter(), daemon: d, descs: map[string]*prometheus.Desc{}}
	m.rules.Store(&map[string]*place{"": new(place)})
	for _, e := range exported {
		if e.Name == "stint_held_seconds" {
			m.held = prometheus.NewHistogram(prometheus.HistogramOpts{
				Name: e.Name, Help: e.Help, Buckets: []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60},
			})
			continue
		}
		m.descs[e.Name] = prometheus.NewDesc(e.Name, e.Help, e.Labels, nil)
	}
	m.registry.MustRegister(m, m.held, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Record implements [engine.Recorder].
func (m *metrics) Record(ctx context.Context, e *engine.Event) {
	decided := e.Rule
	if e.Shadow && e.Outcome.Passed() { // otherwise the rule has denied it, and what may take its place would not
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
	m.trace.record(ctx, e)
}

// Observe implements [layer.Observer].
func (m *metrics) Observe(ctx context.Context, c layer.Call) {
	m.meter.Observe(ctx, c)
	m.trace.observe(ctx, &c)
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

// add adds a rule that was removed while it decided.
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

// keep adds all current rules and limits of Envoy, and removes others.
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
	m.ledger.keep(func(rule string) bool { return kept[rule] != nil })
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.descs[name], prometheus.GaugeValue, n, labels...)
	}
	total := func(name string, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.descs[name], prometheus.CounterValue, n, labels...)
	}
	count := func(name string, n uint64, labels ...string) {
		if n > 0 {
			total(name, float64(n), labels...)
		}
	}
	d := m.daemon
	for name, p := range *m.rules.Load() {
		t := p.Load()
		if t == nil {
			continue // it has decided nothing yet
		}
		count("stint_shadow_denied_total", t.shadow.Load(), name)
		for outcome := range t.verdicts {
			for source := range t.verdicts[outcome] {
				count("stint_decisions_total", t.verdicts[outcome][source].Load(), name, engine.Outcome(outcome).String(), identity.Source(source).String())
			}
		}
	}
	m.ledger.collect(count)
	collectModels(d.gateway.models.Counts(), total)
	count("stint_settlements_total", d.tickets.tickets.Rejected(), "rejected")
	for reason := range m.unaccepted {
		count("stint_credentials_unaccepted_total", m.unaccepted[reason].Load(), identity.Reason(reason).String())
	}
	out <- m.histogram("stint_decision_seconds", decisions, m.latency.Read())
	gauge("stint_waiting_requests", float64(d.engine.Waiting()))
	unsettled, lost := d.engine.Unsettled()
	gauge("stint_unsettled_requests", float64(unsettled))
	total("stint_unsettled_lost_total", float64(lost))
	gauge("stint_build_info", 1, d.version, d.built[0], d.built[1], runtime.Version())
	gauge("stint_rules", float64(d.engine.Rules().Len()))
	status := d.reloader.Status()
	gauge("stint_config_last_reload_successful", oneIf(status.Problem == "" && !d.envoy.isStale()))
	gauge("stint_config_loaded_timestamp_seconds", float64(status.Loaded.UnixMicro())/1e6)
	gauge("stint_config_needs_restart", float64(len(status.NeedsRestart)))
	memory := d.memory.Stats()
	gauge("stint_memory_counters", float64(memory.Keys-memory.Bans), "limits")
	gauge("stint_memory_counters", float64(memory.Bans), "bans")
	total("stint_memory_evictions_total", float64(memory.Evicted-memory.EvictedByShare-memory.EvictedBans), "full")
	total("stint_memory_evictions_total", float64(memory.EvictedByShare), "share")
	total("stint_memory_evictions_total", float64(memory.EvictedBans), "bans")
	for _, t := range d.gateway.health() {
		gauge("stint_upstream_up", oneIf(t.Healthy), t.Route, t.Target)
	}
	for _, s := range d.servers {
		total("stint_accept_errors_total", float64(s.acceptor.failed.Load()), s.name)
	}
	if d.grpc != nil {
		total("stint_accept_errors_total", float64(d.grpc.acceptor.failed.Load()), grpcListener)
	}
	if d.envoy != nil {
		for limit, n := range d.envoy.service.Stats() {
			count("stint_envoy_hits_total", n.Within, limit, "within")
			count("stint_envoy_hits_total", n.Near, limit, "near")
			count("stint_envoy_hits_total", n.Over, limit, "over")
			count("stint_envoy_hits_total", n.Remembered, limit, "remembered")
			count("stint_envoy_hits_total", n.Shadow, limit, "shadow")
		}
		if quotas := d.envoy.quotas; quotas != nil {
			collectQuotas(quotas, gauge, total, count)
		}
		total("stint_envoy_folded_hits_total", float64(d.envoy.service.Totals().Folded))
		used, rejected := d.envoy.loaded()
		total("stint_envoy_loads_total", float64(used), "used")
		total("stint_envoy_loads_total", float64(rejected), "rejected")
	}
	if d.redis != nil {
		gauge("stint_redis_up", oneIf(d.counters.problem() == ""))
		for server, up := range d.counters.up() {
			gauge("stint_redis_server_up", oneIf(up), server)
		}
		for server, share := range d.redis.Shares() {
			gauge("stint_redis_server_share", share, server)
		}
		gauge("stint_replicas", float64(d.countReplicas()))
		for o, l := range m.meter.Read() {
			out <- m.histogram("stint_store_seconds", o, l, o.Layer, o.Verb.String(), o.Result.String(), o.Basis.String())
		}
		s := d.redis.Stats()
		for what, n := range map[string]uint64{
			"requests": s.Requests, "calls": s.Calls, "scripts": s.Scripts, "retries": s.Retries, "undone": s.Undone,
			"kept": s.Kept, "unavailable": s.Unavailable, "bad_states": s.BadStates,
		} {
			total("stint_redis_total", float64(n), what)
		}
		m.collectLeases(gauge, total)
	}
	if d.regional != nil {
		d.regional.collect(gauge, total)
	}
	if d.control != nil {
		d.control.collect(gauge, total, count)
	}
}

// takes returns how many takes have been decided so far: without Redis, and all. Those that failed are not
// among them: clients may have caused that.
func (m *metrics) takes() (alone, all uint64) {
	for o, l := range m.meter.Read() {
		if o.Layer != "failmode" || o.Verb != layer.Take || o.Result == layer.Failed {
			continue
		}
		if all += l.Calls; o.Basis >= stint.Local {
			alone += l.Calls
		}
	}
	return alone, all
}

// leased returns what this node has leased: for limits of current rules, and of removed ones while a lease lasts.
func (m *metrics) leased() []layer.Leased {
	rules := *m.rules.Load()
	m.leases.Keep(func(limit string) bool {
		name, _, _ := strings.Cut(limit, ":")
		return rules[name] != nil
	})
	all := m.leases.Read()
	for i := range all {
		all[i].Limit = cmp.Or(all[i].Limit, "other") // which no limit is called: all have a colon
	}
	return all
}

// collectLeases collects the metrics of leases. Limits that were never leased have none.
func (m *metrics) collectLeases(gauge, total func(name string, n float64, labels ...string)) {
	total("stint_lease_full_total", float64(m.leases.Full()))
	for _, l := range m.leased() {
		limit := l.Limit
		for what, n := range map[string]int64{"lent": l.Lent, "spent": l.Spent, "given_back": l.Back, "kept": l.Kept} {
			total("stint_lease_units_total", float64(n), limit, what)
		}
		gauge("stint_lease_units_held", float64(l.Held), limit)
		gauge("stint_lease_counters", float64(l.Counters), limit)
		total("stint_lease_denied_total", float64(l.Denied), limit)
		total("stint_lease_denied_early_total", float64(l.Early), limit)
		gauge("stint_lease_others_most_units", float64(l.MostOut), limit)
		gauge("stint_lease_most_used_ratio", float64(l.MostUsed)/float64(max(l.Cap, 1)), limit)
	}
}

// collect collects the metrics of the database.
func (c *control) collect(gauge, total func(name string, n float64, labels ...string), count func(name string, n uint64, labels ...string)) {
	s := c.node.Status()
	gauge("stint_catalog_revision", float64(s.Revision))
	gauge("stint_catalog_current", oneIf(s.Problem == "" && s.Saved.IsZero()))
	gauge("stint_catalog_history_refused", oneIf(s.Refused))
	gauge("stint_database_up", oneIf(s.Away == nil))
	if r := s.Replica; r != nil {
		gauge("stint_database_replica_up", oneIf(r.Problem == ""))
		if s.Away == nil {
			gauge("stint_database_replica_lag_revisions", float64(r.Behind))
		}
		if r.Lag >= 0 {
			gauge("stint_database_replica_lag_seconds", r.Lag.Seconds())
		}
	}
	count("stint_catalog_loads_total", s.Loads)
	for kind, l := range c.node.Lookups() {
		for result, n := range map[string]int64{
			"hit": l.Hits, "negative": l.NegativeHits, "stale": l.Stale, "miss": l.Misses, "failed": l.LoadErrors,
		} {
			count("stint_directory_lookups_total", uint64(n), kind, result)
		}
		known := l.Hits + l.NegativeHits + l.Stale
		if all := known + l.Misses; all > 0 {
			gauge("stint_directory_hit_ratio", float64(known)/float64(all), kind)
		}
		gauge("stint_directory_entries", float64(l.Len), kind)
	}
	if r := c.record; r != nil {
		state := r.pipeline.State()
		stored := r.store.State()
		for what, n := range map[string]int64{
			"written": state.Written, "folded": state.Folded, "dropped": state.Dropped, "refused": r.store.Refused(), "deleted": stored.Deleted,
		} {
			total("stint_record_events_total", float64(n), what)
		}
		gauge("stint_record_bytes", float64(stored.Bytes))
		gauge("stint_record_max_bytes", float64(r.maxBytes))
		gauge("stint_record_spooled_bytes", float64(state.Spooled))
		booked := r.book.State()
		gauge("stint_record_usage_waiting", float64(booked.Waiting))
		total("stint_record_usage_other_total", float64(booked.Other))
		total("stint_record_settlements_total", float64(booked.Settled), "written")
		total("stint_record_settlements_total", float64(booked.Dropped), "dropped")
	}
	u := c.usage.Stats()
	for what, n := range map[string]float64{"written": float64(u.Flushed), "dropped": float64(u.Dropped), "failed": float64(u.Errors)} {
		total("stint_usage_total", n, what)
	}
}

// bounds are the bounds of exported histograms, a fourth of those that are counted: every series has its own
// buckets, and there are many series.
var bounds = [...]time.Duration{
	4 * time.Microsecond, 16 * time.Microsecond, 64 * time.Microsecond, 256 * time.Microsecond,
	1024 * time.Microsecond, 4096 * time.Microsecond, 16384 * time.Microsecond, 65536 * time.Microsecond,
	262144 * time.Microsecond, 1048576 * time.Microsecond, 4194304 * time.Microsecond,
}

// histogram converts a histogram, to seconds.
func (m *metrics) histogram(name string, of layer.Outcome, l layer.Latency, labels ...string) prometheus.Metric {
	buckets, sum, next := make(map[float64]uint64, len(bounds)), uint64(0), 0
	for i, n := range l.Buckets {
		if sum += n; next < len(bounds) && l.Bound(i) == bounds[next] {
			buckets[bounds[next].Seconds()] = sum
			next++
		}
	}
	return m.trace.examples(prometheus.MustNewConstHistogram(m.descs[name], l.Calls, l.Total.Seconds(), buckets, labels...), of)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
