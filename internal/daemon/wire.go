package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
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

// This file names the concrete types that a daemon is made of, and builds them from the
// configuration, from the store up. No other file imports a store, the layers around it,
// or the record; a test sees to that.

// parts are what a daemon is made of.
type parts struct {
	store     stint.Store
	redis     *redisstore.Store // nil: counters are in memory
	breaker   atomic.Uint32     // the layer.State of the breaker around Redis
	engine    *engine.Engine
	control   *control // nil: rules are in the file
	live      *record.Live
	tap       *record.Tap
	operators *operators
}

// control is the database that a daemon follows, and what it writes there.
type control struct {
	catalog *catalog.Catalog
	node    *catalog.Node
	usage   *catalog.Usage
	record  *recording // nil: there is none
	started bool
}

// recording is what a daemon writes down of its decisions.
type recording struct {
	recorder *record.Recorder
	spool    *record.Spool // nil: there is none
	pipeline *record.Pipeline
	store    *rollup.Store
	archive  func(context.Context) error // nil: events stay
	quit     context.CancelFunc          // ends what archives; nil: nothing does
	done     chan struct{}
	started  bool
}

// operators is what operators are served.
type operators struct {
	api *admin.API
	// tokens is the catalog of the rules or, if there is none, one in memory, whose
	// tokens end with the process.
	tokens *catalog.Catalog
	own    bool // it is to be closed
}

// build makes all parts, from the store up.
func (d *Daemon) build(ctx context.Context) error {
	d.metrics = newMetrics(d)
	var err error
	d.store, d.redis, err = d.config.OpenStore(StoreOptions{
		Observer: &d.metrics.meter, Log: d.log, Replicas: d.countReplicas, Breaker: func(s layer.State) { d.breaker.Store(uint32(s)) },
	})
	if err != nil {
		return err
	}
	var database *Content
	if d.live, d.tap, err = d.config.newLive(); err != nil {
		return err
	}
	all := recorders{d.metrics, d.live, d.tap}
	if d.config.Server.Database != "" {
		if database, err = d.openCatalog(ctx); err != nil {
			return err
		}
		all = append(all, d.control.usage)
		if d.config.Server.Record.Enabled {
			if err = d.openRecord(ctx); err != nil {
				return err
			}
			all = append(all, d.control.record.recorder)
		}
	}
	content, err := d.content(database)
	if err != nil {
		return err
	}
	who, err := d.config.Resolver(content, nil)
	if err != nil {
		return err
	}
	d.engine, err = engine.New(engine.Options{
		Store: d.store, Rules: content.Rules, Identity: who, Recorder: all, MaxWaiting: d.config.Server.MaxWaiting,
	})
	if err != nil {
		_ = who.Close() // it never fails
		return err
	}
	d.reloader, err = NewReloader(ReloaderOptions{
		Source: d.source, Config: d.config, Database: database, Resolver: who, Engine: d.engine, Log: d.log, Prepare: d.prepare,
	})
	if err != nil {
		_ = who.Close()
		return err
	}
	if d.envoy, err = d.newEnvoy(); err != nil {
		return err
	}
	d.metrics.keep()
	if err := d.openAdmin(ctx); err != nil {
		return err
	}
	d.gateway.engine, d.gateway.log = d.engine, d.log
	d.gateway.headers, d.gateway.maxBody = d.config.headers(), int64(d.config.Server.MaxBody)
	return nil
}

// content is what decides at the start.
func (d *Daemon) content(database *Content) (Content, error) {
	if database != nil {
		return *database, nil
	}
	return d.config.Content()
}

// breakerState is the state of the breaker around Redis, in a word.
func (p *parts) breakerState() string { return layer.State(p.breaker.Load()).String() }

// StoreOptions are what a store of counters is told, and what it tells.
type StoreOptions struct {
	Observer layer.Observer
	Log      *slog.Logger
	Replicas func() int              // how many share the limits
	Breaker  func(state layer.State) // told when it changes; nil: no one is
}

// OpenStore returns the store of counters, in memory or in Redis. One in Redis is in
// the recommended layers, of which the observer is told, and falls back on this node's
// memory, by its share among the replicas. It need not be there yet. Close the store; the
// Redis beneath it, which is nil if there is none, is closed with it.
func (c *Config) OpenStore(o StoreOptions) (stint.Store, *redisstore.Store, error) {
	s := &c.Server
	local, err := memstore.New(memstore.Options{MaxKeys: s.MaxKeys})
	if err != nil {
		return nil, nil, err
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
			Slow: time.Duration(s.StoreBudget) / 5 * 4, // below the budget, or it is never seen
			OnChange: func(to layer.Change) {
				o.Log.Warn("breaker", "state", to.To.String(), "reason", to.Reason)
				if o.Breaker != nil {
					o.Breaker(to.To)
				}
			},
		},
		Fallback: &layer.FallbackOptions{
			Local: local, Replicas: o.Replicas,
			OnReturn: func(r layer.Return) {
				o.Log.Info("redis is back", "charged", r.Paid, "lost", r.Lost, "recovered", r.Expired)
			},
		},
		Observer: o.Observer,
	})
	if err != nil {
		_ = shared.Close() // the first error counts
		return nil, nil, err
	}
	return stack, shared, nil
}

// newLive returns what knows of the last seconds, and what shows decisions as they are
// made. They show of addresses what the record may keep of them, also if there is no
// record.
func (c *Config) newLive() (*record.Live, *record.Tap, error) {
	o := c.Server.Record.recorder(c.credentials.ipKey, nodeName(c.Server.Catalog.Node))
	live, err := record.NewLive(record.LiveOptions{Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	if err != nil {
		return nil, nil, err
	}
	tap, err := record.NewTap(record.TapOptions{Region: o.Region, Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	return live, tap, err
}

// OpenCatalog returns the catalog in the database that the settings name. The database
// need not be there yet. Close it.
func (c *Config) OpenCatalog(side catalog.Side) (*catalog.Catalog, error) {
	k, err := catalog.Open(string(c.Server.Database), catalog.Options{
		KeyPrefix: c.Identity.APIKeyPrefix, Pepper: c.credentials.pepper, Side: side,
	})
	if err != nil {
		return nil, fmt.Errorf("server.database: %w", err)
	}
	return k, nil
}

// openCatalog opens the database and returns what it has, or what it had when it could
// last be reached.
func (d *Daemon) openCatalog(ctx context.Context) (*Content, error) {
	var side catalog.Side
	if d.redis != nil {
		side = d.redis.Side()
	}
	c, err := d.config.OpenCatalog(side)
	if err != nil {
		return nil, err
	}
	d.control = &control{catalog: c, usage: c.NewUsage(catalog.UsageOptions{Log: d.log})}
	settings := &d.config.Server.Catalog
	d.control.node, err = c.NewNode(catalog.NodeOptions{
		Name: nodeName(settings.Node), Version: d.version, Poll: time.Duration(settings.Poll), Migrate: settings.Migrate,
		LastGood:  d.config.lastGood(d.source.Environ),
		CacheSize: settings.CacheSize, CacheTTL: time.Duration(settings.CacheTTL), Log: d.log,
		State: func() json.RawMessage {
			state, _ := json.Marshal(d.nodeState()) // which has nothing that could not be
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
	first, err := d.control.node.First(ctx)
	if err != nil {
		return nil, fmt.Errorf("server.database: %w", err)
	}
	return &Content{Rules: first.Rules, Lists: first.Lists, Directory: d.control.node.Directory(), Keys: true}, nil
}

// follow has use called with the rules and lists of the database, whenever they change.
func (c *control) follow(ctx context.Context, use func(*rule.Set, identity.Lists) error) {
	c.node.Start(ctx, func(_ context.Context, s *catalog.Snapshot) error { return use(s.Rules, s.Lists) })
}

// Read returns what decides as it is now, in the file or in the database, for those who
// want to look at it once. Call done at the end.
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
		_ = db.Close() // it was only read
	}
	first, err := node.First(ctx)
	if err != nil {
		done()
		return content, nil, fmt.Errorf("server.database: %w", err)
	}
	return Content{Rules: first.Rules, Lists: first.Lists, Directory: node.Directory(), Keys: true}, done, nil
}

// fill puts the rules of the demo into its database.
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

// openRecord makes what records decisions, into the database that is open.
func (d *Daemon) openRecord(ctx context.Context) (err error) {
	s, c := &d.config.Server.Record, d.control
	r := new(recording)
	if r.store, err = rollup.New(c.catalog.Database(), rollup.Options{Log: d.log}); err != nil {
		return err
	}
	if r.recorder, err = record.NewRecorder(s.recorder(d.config.credentials.ipKey, nodeName(d.config.Server.Catalog.Node))); err != nil {
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

func (s *Record) recorder(key identity.Secret, node string) record.RecorderOptions {
	o := record.RecorderOptions{Sample: -1, Region: s.Region, Node: node}
	if s.SampleEvery > 0 {
		o.Sample = 1 / float64(s.SampleEvery)
	}
	switch s.IP {
	case truncateIP:
		o.Privacy = record.TruncateIP
	case hashIP:
		o.Privacy, o.HashKey = record.HashIP, []byte(key)
	}
	return o
}

// openSpool opens the spool. If no place was set for it, it may do without: another
// process may have the usual one.
func (d *Daemon) openSpool(ctx context.Context) (*record.Spool, error) {
	s := &d.config.Server.Record
	dir := s.Spool
	switch {
	case dir == keepNothing || d.config.Server.Database == inMemoryDatabase:
		return nil, nil
	case dir == "":
		if dir = StateDir(d.source.Environ); dir == "" {
			return nil, nil
		}
		dir = filepath.Join(dir, "spool")
	}
	spool, err := record.OpenSpool(record.SpoolOptions{Dir: dir, MaxBytes: int64(s.SpoolSize)})
	switch {
	case err == nil:
		return spool, nil
	case s.Spool != "":
		return nil, fmt.Errorf("server.record.spool: %w", err)
	}
	d.log.WarnContext(ctx, "there is no spool: while the database is away, events are kept in memory as far as they fit", "problem", err.Error())
	return nil, nil
}

// archiving returns what archives months that are old, or deletes them.
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
	a, err := d.config.OpenArchive(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		report, err := a.Run(ctx)
		for _, m := range report.Months {
			d.log.InfoContext(ctx, "month archived", "month", m.Month.String(), "events", m.Events, "files", m.Parts)
		}
		if err == nil {
			_, err = a.Expire(ctx)
		}
		if errors.Is(err, archive.ErrBusy) {
			return nil // another node is at it
		}
		return err
	}, nil
}

// OpenArchive returns the archive that the settings name, of what a store holds.
func (c *Config) OpenArchive(ctx context.Context, store archive.Source, progress func(done, all int64, what string)) (*archive.Archive, error) {
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
		Retention: time.Duration(s.Retention), Keep: keep, Node: nodeName(c.Server.Catalog.Node), Progress: progress,
	})
}

// openAdmin makes what operators are served.
func (d *Daemon) openAdmin(ctx context.Context) (err error) {
	d.operators = new(operators)
	o := admin.Options{
		Engine: d.engine, Resolver: d.reloader.Resolver, Store: d.store, Live: d.live, Tap: d.tap,
		File: d.source.Path, Status: d.status, NodeState: d.nodeState, Settings: d.settings,
		Token: d.config.credentials.adminToken, Web: web.Files(), Log: d.log,
		Document: func() *catalog.Document { return &d.reloader.Config().Document },
	}
	if c := d.control; c != nil {
		o.Catalog, o.NodeID, o.Look = c.catalog, c.node.ID(), c.node.Refresh
		if c.record != nil {
			o.Record = c.record.store
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
	o.Tokens = d.operators.tokens
	d.operators.api, err = admin.New(o)
	return err
}
