package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/rollout"
	"github.com/stintdev/stint/internal/control/signin"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/web"
)

// This file builds the parts of a daemon from the configuration, from the store up. No
// other file imports a store, the layers around it, or the record, as a test checks.

// parts are the parts of a daemon.
type parts struct {
	store     stint.Store
	redis     *redisstore.Store // nil: counters are in memory
	memory    *memstore.Store   // the counters in memory or, with Redis, those of local decisions
	counters  counterHealth     // of Redis
	regional  *regional         // nil: there are no other regions
	engine    *engine.Engine
	control   *control // nil: rules are in the file
	live      *record.Live
	tap       *record.Tap
	cluster   *record.Cluster // both, of all nodes
	operators *operators
	rollouts  *rollout.Store
}

// control is the database, and what the daemon writes there.
type control struct {
	catalog *catalog.Catalog
	node    *catalog.Node
	usage   *catalog.Usage
	record  *recording // nil: none
	started bool
}

// recording writes the record of decisions.
type recording struct {
	recorder *record.Recorder
	spool    *record.Spool // nil: none
	pipeline *record.Pipeline
	book     *record.Book
	store    *rollup.Store
	maxBytes int64                       // of the store; 0: no limit
	archive  func(context.Context) error // nil: events stay
	quit     context.CancelFunc          // stops archiving; nil: it does not run
	done     chan struct{}
	started  bool
}

// operators is the admin API.
type operators struct {
	api    *admin.API
	signIn *signin.Provider // nil: none
	// tokens is the catalog of the rules or, if there is none, one in memory, whose
	// tokens are lost with the process.
	tokens *catalog.Catalog
	own    bool // tokens is in memory, and closed with the API
}

// build builds all parts, from the store up.
func (d *Daemon) build(ctx context.Context) error {
	d.metrics = newMetrics(d)
	var err error
	if d.trace, err = newTracing(ctx, d.config.Server.Trace); err != nil {
		return err
	}
	d.metrics.trace = d.trace
	d.store, d.redis, err = d.config.OpenStore(StoreOptions{
		Observer: d.metrics, Log: d.log, Replicas: d.countReplicas,
		Breaker:  func(c layer.Change) { d.counters.breaker(c.Server, c.To == layer.BreakerOpen, c.Reason) },
		Memory:   func(s *memstore.Store) { d.memory = s },
		Leases:   d.metrics.leases,
		Returned: d.tellReturns("redis was away"),
	})
	if err != nil {
		return err
	}
	if d.trace != nil {
		d.trace.counted = d.redis == nil
	}
	var database *Content
	if d.live, d.tap, err = d.config.newLive(d.leased); err != nil {
		return err
	}
	all, used := recorders{d.metrics, d.live, d.tap}, ledgers{&d.metrics.ledger, d.live, d.tap}
	if d.config.Server.Database != "" {
		if database, err = d.openCatalog(ctx); err != nil {
			return err
		}
		all = append(all, d.control.usage)
		if d.config.Server.Record.Enabled {
			if err = d.openRecord(ctx); err != nil {
				return err
			}
			all, used = append(all, d.control.record.recorder), append(used, d.control.record.book)
		}
	}
	// A database may be that of several regions. Those that share counters are the nodes of one Redis.
	if d.redis != nil && (d.control == nil || d.config.hasRegion()) && d.config.Server.Replicas == 0 {
		d.peers = d.newPeers()
	}
	d.cluster = d.newCluster()
	if err = d.openRegions(); err != nil {
		return err
	}
	content, err := d.config.content(database)
	if err != nil {
		return err
	}
	who, err := d.config.Resolver(content, nil)
	if err != nil {
		return err
	}
	counting := &switched{Store: d.store}
	d.store = counting
	d.engine, err = engine.New(engine.Options{
		Store: d.store, Rules: content.Rules, Identity: who, Recorder: all, Ledger: used, MaxWaiting: d.config.Server.MaxWaiting,
		MaxPath: d.config.Server.MaxPath,
	})
	if err != nil {
		_ = who.Close() // it never fails
		return err
	}
	counting.engine = d.engine
	d.enable(ctx, d.config.Enabled)
	d.reloader, err = NewReloader(ReloaderOptions{
		Source: d.source, Config: d.config, Database: database, Resolver: who, Engine: d.engine, Log: d.log, Prepare: d.prepare, Rejected: d.rejected,
	})
	if err != nil {
		_ = who.Close()
		return err
	}
	if d.envoy, err = d.newEnvoy(); err != nil {
		return err
	}
	d.rejected(d.config) // if its files have problems
	d.metrics.keep()
	if err := d.openAdmin(ctx); err != nil {
		return err
	}
	if err := d.openTickets(ctx); err != nil {
		return err
	}
	d.gateway.engine, d.gateway.log = d.engine, d.log
	d.gateway.headers, d.gateway.maxBody = d.config.headers(), int64(d.config.Server.MaxBody)
	return nil
}

// switched is the store of counters, which lets everything pass and counts nothing while the engine is disabled: Envoy and
// programs that take units do not ask the engine.
type switched struct {
	stint.Store
	engine *engine.Engine
}

func (s *switched) Place() layer.Place { return layer.PlaceOf(s.Store) }

func (s *switched) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if !s.engine.Disabled() {
		return s.Store.Take(ctx, asks, ds)
	}
	for i := range asks {
		if ds[i] = (stint.Decision{Allowed: true, Basis: stint.Open}); asks[i].Penalty == nil {
			ds[i].Limit = asks[i].Limit.Cap()
		}
	}
	return stint.ValidateTake(asks, ds)
}

// StoreOptions configure a store of counters.
type StoreOptions struct {
	Observer layer.Observer
	Log      *slog.Logger
	Replicas func() int            // how many nodes share the limits
	Breaker  func(layer.Change)    // called when the breaker of a server changes; nil: not called
	Memory   func(*memstore.Store) // called with the counters in memory; nil: not called
	Leases   *layer.LeaseMeter     // counts what is leased; nil: it is not counted
	Returned func(layer.Return)    // called after Redis has come back; nil: not called
}

// checkRedis reports what is wrong with the URL of a Redis store, without its values.
func checkRedis(url string) error { return redisstore.CheckURL(url) }

// OpenStore returns the store of counters, in memory or in Redis. One in Redis has the
// recommended layers around it, and falls back to counters in memory with this node's
// share of the limits. Redis need not be reachable yet. Closing the store also closes the
// Redis store beneath it, which is nil for counters in memory.
func (c *Config) OpenStore(o StoreOptions) (stint.Store, *redisstore.Store, error) {
	s := &c.Server
	local, err := memstore.New(memstore.Options{MaxKeys: s.MaxKeys})
	if err != nil {
		return nil, nil, err
	}
	if o.Memory != nil {
		o.Memory(local)
	}
	if s.Counters == inMemory {
		return local, nil, nil
	}
	shared, err := redisstore.Open(string(s.Counters), redisstore.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("server.counters: %w", err)
	}
	stack, err := layer.New(shared, layer.Options{
		Retry: layer.RetryOptions{Budget: time.Duration(s.StoreBudget)},
		Breaker: layer.BreakerOptions{
			Slow:   slowFor(time.Duration(s.StoreBudget)),
			Server: shared.Server,
			OnChange: func(to layer.Change) {
				o.Log.Warn("breaker", "server", to.Server, "state", to.To.String(), "reason", to.Reason)
				if o.Breaker != nil {
					o.Breaker(to)
				}
			},
		},
		Fallback: &layer.FallbackOptions{
			Local: local, Replicas: o.Replicas, OnReturn: o.Returned,
		},
		Lease:    layer.LeaseOptions{Meter: o.Leases},
		Observer: o.Observer,
	})
	if err != nil {
		_ = shared.Close() // the first error counts
		return nil, nil, err
	}
	return stack, shared, nil
}

// newLive returns the live view and the tap of decisions. They show addresses as they
// would be recorded, even if there is no record.
func (c *Config) newLive(leases func() []record.Leased) (*record.Live, *record.Tap, error) {
	o := c.recorder()
	live, err := record.NewLive(record.LiveOptions{Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey, Leases: leases})
	if err != nil {
		return nil, nil, err
	}
	tap, err := record.NewTap(record.TapOptions{Region: o.Region, Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey, Paths: o.Paths})
	return live, tap, err
}

// newCluster returns the live view of all nodes. They meet in the database, or in Redis if there is none.
func (d *Daemon) newCluster() *record.Cluster {
	o := record.ClusterOptions{Live: d.live, Tap: d.tap}
	switch {
	case d.control != nil:
		o.Board, o.ID, o.Nodes = d.control.catalog.Board(), d.control.node.ID(), d.control.node.Replicas
	case d.peers != nil:
		o.Board, o.ID, o.Nodes = d.redis.Side().Board(), d.peers.Self(), d.peers.Count
	case d.redis != nil: // the settings say how many nodes there are
		o.Board, o.ID, o.Nodes = d.redis.Side().Board(), rand.Text(), d.countReplicas
	}
	return record.NewCluster(o)
}

// leased returns what this node has leased, for the live view.
func (d *Daemon) leased() (out []record.Leased) {
	for _, l := range d.metrics.leased() {
		out = append(out, record.Leased(l))
	}
	return out
}

// OpenCatalog returns the catalog in the configured database, which need not be reachable
// yet. The caller must close it. Rules that are written are checked against the regions only if
// some are configured: those of the nodes may be elsewhere.
func (c *Config) OpenCatalog(side catalog.Side) (*catalog.Catalog, error) {
	if !c.hasRegion() {
		return c.openCatalog(side, nil)
	}
	return c.openCatalog(side, new(c.World()))
}

func (c *Config) openCatalog(side catalog.Side, world *rule.World) (*catalog.Catalog, error) {
	k, err := catalog.Open(string(c.Server.Database), catalog.Options{
		Replica: string(c.Server.ReadReplica), KeyPrefix: c.Identity.APIKeyPrefix, Pepper: c.credentials.pepper, Side: side, Case: c.Case, World: world,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", databaseSetting(err), err)
	}
	return k, nil
}

// openCatalog opens the database and returns its content, or the last good content if it
// cannot be reached.
func (d *Daemon) openCatalog(ctx context.Context) (*Content, error) {
	var side catalog.Side
	if d.redis != nil {
		side = d.redis.Side()
	}
	c, err := d.config.openCatalog(side, new(d.config.World()))
	if err != nil {
		return nil, err
	}
	d.control = &control{catalog: c, usage: c.NewUsage(catalog.UsageOptions{Log: d.log})}
	d.narrow(ctx, slices.Concat(c.Database().Files(), c.Database().Record.Files(), d.stateFiles()))
	settings := &d.config.Server.Catalog
	d.control.node, err = c.NewNode(catalog.NodeOptions{
		Name: d.config.nodeName(), Version: d.version, Poll: time.Duration(settings.Poll), Migrate: settings.Migrate,
		LastGood:  d.config.LastGood(d.source.Environ),
		CacheSize: settings.CacheSize, CacheTTL: time.Duration(settings.CacheTTL), Log: d.log,
		State: func() json.RawMessage {
			state, _ := json.Marshal(d.nodeState()) // always possible
			return state
		},
	})
	if err != nil {
		return nil, err
	}
	if d.demo != nil {
		if err := d.demo.fill(ctx, c); err != nil {
			return nil, err
		}
	}
	return firstContent(ctx, d.control.node)
}

// firstContent returns the content of the database.
func firstContent(ctx context.Context, node *catalog.Node) (*Content, error) {
	first, err := node.First(ctx)
	if err != nil {
		return nil, fmt.Errorf("server.database: %w", err)
	}
	return &Content{Rules: first.Rules, Lists: first.Lists, Directory: node.Directory(), Keys: true}, nil
}

// Read returns the content as it is now, from the file or the database, for commands that
// read it once. The caller must call done.
func (c *Config) Read(ctx context.Context) (content Content, done func(), err error) {
	if c.Server.Database == "" {
		content, err = c.Content()
		return content, func() {}, err
	}
	db, err := c.OpenCatalog(nil)
	if err != nil {
		return content, nil, err
	}
	node, err := db.NewNode(catalog.NodeOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return content, nil, err
	}
	done = func() {
		node.Stop(ctx)
		_ = db.Close() // nothing was written
	}
	first, err := firstContent(ctx, node)
	if err != nil {
		done()
		return content, nil, err
	}
	return *first, done, nil
}

// fill writes the rules of the demo to its database.
func (*demo) fill(ctx context.Context, c *catalog.Catalog) error {
	var d catalog.Document
	if _, problems := strict.TOML("demo-rules.toml", demoRules, &d); len(problems) > 0 {
		return problems
	}
	if _, err := c.Up(ctx, 0); err != nil {
		return err
	}
	_, err := c.Apply(ctx, &d, catalog.ApplyOptions{Actor: "demo"})
	return err
}

// openRecord opens the record of decisions, in the database.
func (d *Daemon) openRecord(ctx context.Context) (err error) {
	s := &d.config.Server.Record
	c, r := d.control, &recording{maxBytes: s.MaxSize}
	r.store, err = rollup.New(c.catalog.Database(), rollup.Options{
		Log: d.log, MaxBytes: s.MaxSize, MinFree: s.MinFree,
		Archive: d.archivingEarly(func() *rollup.Store { return r.store }),
	})
	if err != nil {
		return err
	}
	if err := r.store.Migrate(ctx); err != nil { // it is tried again
		d.log.WarnContext(ctx, "events cannot be recorded yet", "problem", err.Error())
	}
	if r.recorder, err = record.NewRecorder(d.config.recorder()); err != nil {
		return err
	}
	if r.book, err = record.NewBook(record.BookOptions{Add: r.store.AddConsumption, Settle: r.store.AddSettlements, Keeps: r.recorder.Keeps, Log: d.log}); err != nil {
		return err
	}
	if r.spool, err = d.openSpool(ctx); err != nil {
		return err
	}
	c.record = r
	if r.archive, err = d.archiving(ctx, r.store); err != nil {
		return err
	}
	r.pipeline, err = record.NewPipeline(record.PipelineOptions{Recorder: r.recorder, Sink: r.store, Spool: r.spool, Log: d.log})
	return err
}

func (c *Config) recorder() record.RecorderOptions {
	s := &c.Server.Record
	o := record.RecorderOptions{Sample: -1, PerSecond: s.MaxRate, Region: s.Region, Node: c.nodeName()}
	if s.SampleEvery > 0 {
		o.Sample = 1 / float64(s.SampleEvery)
	}
	switch s.IP {
	case truncateIP:
		o.Privacy = record.TruncateIP
	case hashIP:
		o.Privacy, o.HashKey = record.HashIP, []byte(c.credentials.ipKey)
	}
	switch s.Path {
	case keepPath:
		o.Paths = record.KeepPath
	case offPath:
		o.Paths = record.NoPath
	}
	return o
}

// openSpool opens the spool. A default one is optional: another process may be using it.
func (d *Daemon) openSpool(ctx context.Context) (*record.Spool, error) {
	s := &d.config.Server.Record
	dir := d.config.stateDir(s.Spool, d.source.Environ, "spool")
	if dir == "" {
		return nil, nil
	}
	spool, err := record.OpenSpool(record.SpoolOptions{Dir: dir, MaxBytes: int64(s.SpoolSize), MinFree: s.MinFree})
	switch {
	case err == nil:
		return spool, nil
	case s.Spool != "":
		return nil, fmt.Errorf("server.record.spool: %w", err)
	}
	d.log.WarnContext(ctx, "there is no spool: while the database is down, events are kept in memory, and dropped when it is full", "problem", err.Error())
	return nil, nil
}

// archiving returns a function that archives or deletes old months.
func (d *Daemon) archiving(ctx context.Context, store *rollup.Store) (func(context.Context) error, error) {
	s := &d.config.Server.Record
	switch s.Archive {
	case "":
		return nil, nil
	case archiveNone:
		return func(ctx context.Context) error {
			return archive.Discard(ctx, store, time.Now().Add(-time.Duration(s.Retention)))
		}, nil
	}
	a, err := d.config.OpenArchive(ctx, store, time.Duration(s.Retention), nil)
	if err != nil {
		return nil, err
	}
	return d.runArchive(a), nil
}

// archivingEarly returns a function that archives all months that are over, whatever the
// retention is, or nil if there is no archive: then a record that is too large loses them.
func (d *Daemon) archivingEarly(store func() *rollup.Store) func(context.Context) error {
	if to := d.config.Server.Record.Archive; to == "" || to == archiveNone {
		return nil
	}
	return func(ctx context.Context) error {
		const shortest = 24 * time.Hour
		a, err := d.config.OpenArchive(ctx, store(), shortest, nil)
		if err != nil {
			return err
		}
		return d.runArchive(a)(ctx)
	}
}

// runArchive returns a function that archives old months, and removes those from the archive
// that it need not keep.
func (d *Daemon) runArchive(a *archive.Archive) func(context.Context) error {
	return func(ctx context.Context) error {
		report, err := a.Run(ctx)
		for _, m := range report.Months {
			d.log.InfoContext(ctx, "month archived", "month", m.Month.String(), "events", m.Events, "files", m.Parts)
		}
		if err == nil {
			_, err = a.Expire(ctx)
		}
		if errors.Is(err, archive.ErrBusy) {
			return nil // another node is doing it
		}
		return err
	}
}

// OpenArchive returns the configured archive of a store, for events that are older than a time.
func (c *Config) OpenArchive(ctx context.Context, store archive.Source, retention time.Duration, progress func(done, all int64, what string)) (*archive.Archive, error) {
	s := &c.Server.Record
	bucket, err := blob.Open(ctx, string(s.Archive), blob.Options{})
	if err != nil {
		return nil, fmt.Errorf("server.record.archive: %w", err)
	}
	keep := time.Duration(-1)
	if s.ArchiveYears > 0 {
		keep = years(s.ArchiveYears)
	}
	return archive.New(store, bucket, archive.Options{
		Retention: retention, Keep: keep, Node: c.nodeName(), Progress: progress,
	})
}

// openAdmin creates the admin API.
func (d *Daemon) openAdmin(ctx context.Context) (err error) {
	d.operators = new(operators)
	o := admin.Options{
		Engine: d.engine, Resolver: d.reloader.Resolver, Store: d.store, Live: d.cluster,
		File: d.source.Path, Status: d.status, NodeState: d.nodeState,
		Settings: func() []admin.Setting { return d.reloader.Config().Settings() },
		Token:    d.config.credentials.adminToken, Web: web.Files(), Log: d.log,
		Document: func() *catalog.Document { return &d.reloader.Config().Document }, World: new(d.config.World()),
	}
	if c := d.control; c != nil {
		o.Catalog, o.NodeID, o.Look = c.catalog, c.node.ID(), c.node.Refresh
		if c.record != nil {
			o.Record, o.Unsampled = c.record.store, d.config.Server.Record.SampleEvery == 0
		}
		d.operators.tokens = c.catalog
	} else {
		if d.operators.tokens, err = catalog.Open(inMemoryDatabase, catalog.Options{}); err != nil {
			return err
		}
		d.operators.own = true
		if _, err := d.operators.tokens.Up(ctx, 0); err != nil {
			return err
		}
	}
	if d.envoy != nil {
		o.Envoy = d.envoyLimits
	}
	if d.regional != nil {
		o.Regions = d.regions
	}
	o.Tokens = d.operators.tokens
	d.rollouts = rollout.New(d.operators.tokens.Database(), d.clock.now)
	d.openSignIn(&o)
	d.operators.api, err = admin.New(o)
	return err
}
