package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a daemon is made of.
type Options struct {
	// Source is where its configuration comes from. If that says nothing but where to
	// listen and how to log, the daemon shows what it can do: [Daemon.Demo].
	Source Source
	// Notes are logged at the start, as warnings: what else is to be known of the source.
	Notes []string
	// Program is how it was started, such as ./stint, for the commands that the daemon
	// prints. Default stint.
	Program string
	// Version is that of the program, for those who look at its nodes.
	Version string
	// Out is where it logs, and Print where it prints what a person has to see once: the
	// first admin token. Default os.Stderr and os.Stdout.
	Out, Print io.Writer
}

// Daemon is Stint as a process: counters, rules, identity, and the doors to them.
type Daemon struct {
	source  Source
	program string
	version string
	config  *Config // as it was at the start
	log     *slog.Logger
	parts
	reloader *Reloader
	peers    atomic.Int64 // nodes that Redis has seen lately; 0: not asked yet
	metrics  *metrics
	print    io.Writer
	token    string // the first, if it was made here
	gateway  gateway
	envoy    *envoy   // nil: it is not served
	demo     *demo    // nil: it is for real
	trace    *tracing // nil: there is none

	servers []*server
	failed  chan error // a server that ended by itself
	state   atomic.Int32
	lost    atomic.Pointer[error]                // why Redis could not be reached; nil: it can
	quit    context.CancelFunc                   // ends what works in the background; nil: nothing does
	after   func(time.Duration) <-chan time.Time // time.After, for server.drain_delay
	work    sync.WaitGroup
	stop    sync.Once
}

// The states of a daemon.
const (
	starting int32 = iota
	serving
	stopping
)

// New reads the configuration and builds what it says. Nothing listens yet. Stop the
// daemon, also if it was not started.
func New(ctx context.Context, o Options) (*Daemon, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	if o.Print == nil {
		o.Print = os.Stdout
	}
	d := &Daemon{source: o.Source, program: cmp.Or(o.Program, "stint"), version: o.Version, print: o.Print, after: time.After}
	var err error
	if d.config, err = d.source.Load(); err != nil {
		return nil, err
	}
	if d.config.bare() {
		if d.demo, err = newDemo(); err != nil {
			return nil, err
		}
		d.source.Path, d.source.text = demoFile, d.demo.text()
		if d.config, err = d.source.Load(); err != nil {
			d.demo.stop()
			return nil, err
		}
	}
	d.log = d.config.Logger(o.Out)
	for _, note := range o.Notes {
		d.log.Warn("note", "text", note)
	}
	if err := d.build(ctx); err != nil {
		d.close(ctx)
		return nil, err
	}
	return d, nil
}

// prepare makes of a new configuration what the reloader does not know of: the
// gateway's upstreams, what Envoy is limited by, certificates, and metrics of rules.
func (d *Daemon) prepare(next *Config) (func(context.Context), error) {
	p, err := d.gateway.prepare(next)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		d.gateway.use(ctx, p)
		for _, s := range d.servers {
			s.tls.replace(next.credentials.tls[s.name])
		}
		if d.envoy != nil && d.envoy.grpc != nil {
			d.envoy.grpc.tls.replace(next.credentials.tls[grpcListener])
		}
		if d.envoy != nil && next.descriptors != nil && next.Envoy.readsLike(&d.config.Envoy) {
			d.useDescriptors(next.descriptors)
		}
		d.metrics.keep()
	}, nil
}

// Start listens, and serves in the background. When it returns, the daemon is ready.
// Stop it also if this fails.
func (d *Daemon) Start(ctx context.Context) error {
	use, err := d.prepare(d.config)
	if err != nil {
		return err
	}
	use(ctx)
	if d.trace, err = newTracing(ctx, d.config.Server.Trace); err != nil {
		return err
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	if d.demo != nil {
		d.work.Go(d.demo.serve)
	}
	ctx, d.quit = context.WithCancel(ctx)
	if d.redis != nil {
		d.reach(ctx)
		d.work.Go(func() { d.watch(ctx) })
		if d.control == nil && d.config.Server.Replicas == 0 {
			d.work.Go(func() { d.present(ctx) })
		}
	}
	d.reloader.Start(ctx)
	if d.control != nil {
		d.control.start(ctx, d)
	}
	d.failed = make(chan error, len(d.servers)+1)
	for _, s := range d.servers {
		s.accepting.Add(1)
		d.work.Go(func() {
			if err := s.serve(); err != nil {
				d.failed <- err
			}
		})
		d.log.InfoContext(ctx, "listening", "listener", s.name, "url", s.URL())
	}
	d.state.Store(serving)
	if d.envoy != nil {
		d.startEnvoy(ctx)
	}
	d.startAdmin(ctx)
	d.log.InfoContext(ctx, "ready", "rules", d.engine.Rules().Len(), "counters", d.config.Server.Counters.String(), "database", d.config.Server.Database.String())
	notify(d.source.Environ, "READY=1")
	return nil
}

// listen opens the listeners that there should be.
func (d *Daemon) listen(ctx context.Context) error {
	api, err := d.api()
	if err != nil {
		return err
	}
	handlers := map[string]http.Handler{httpListener: api, adminListener: d.admin()}
	if len(d.config.Upstreams) > 0 {
		handlers[gatewayListener] = &d.gateway
	}
	for _, l := range d.config.Server.doors() {
		h := handlers[l.name]
		if h == nil || l.Address == "" {
			continue
		}
		if l.name != adminListener {
			h = d.trace.around(l.name, h)
		}
		s, err := d.config.listen(ctx, l, h, d.log)
		if err != nil {
			return err
		}
		d.servers = append(d.servers, s)
	}
	if d.envoy != nil && d.config.Server.GRPC.Address != "" {
		d.envoy.grpc, err = d.config.listenGRPC(ctx, d.envoy)
	}
	return err
}

// Failed tells of a listener that ended by itself.
func (d *Daemon) Failed() <-chan error { return d.failed }

// URL is where a listener can be reached from this machine: gateway, http, grpc or admin.
// It is empty if there is none.
func (d *Daemon) URL(listener string) string {
	for _, s := range d.servers {
		if s.name == listener {
			return s.URL()
		}
	}
	if listener == grpcListener && d.envoy != nil && d.envoy.grpc != nil {
		return d.envoy.grpc.URL()
	}
	return ""
}

// Reload reads the configuration again. That it could not be used is logged, too.
func (d *Daemon) Reload(ctx context.Context) error {
	notify(d.source.Environ, reloading())
	defer notify(d.source.Environ, "READY=1")
	err := d.reloader.Reload(ctx)
	if d.control != nil && d.control.started {
		err = errors.Join(err, d.control.node.Look(ctx))
	}
	return err
}

// Stop first lets it be known that the daemon will stop, and goes on for
// server.drain_delay; then it stops listening and waits up to server.drain for the
// requests that have begun, and closes everything. It hurries as soon as ctx ends. An
// error says that requests were cut off. Stop may be called more than once.
func (d *Daemon) Stop(ctx context.Context) error {
	var err error
	d.stop.Do(func() { err = d.drain(ctx) })
	return err
}

func (d *Daemon) drain(ctx context.Context) error {
	notify(d.source.Environ, "STOPPING=1")
	was := d.state.Swap(stopping)
	if d.envoy != nil {
		d.envoy.health.Shutdown() // which says that it is not serving
	}
	var doors, admin []*server
	for _, s := range d.servers {
		s.closing.Store(true)
		if s.name == adminListener {
			admin = append(admin, s)
		} else {
			doors = append(doors, s)
		}
	}
	if was == serving {
		d.log.InfoContext(ctx, "stopping", "delay", d.config.Server.DrainDelay.String(), "drain", d.config.Server.Drain.String())
		select {
		case <-d.after(time.Duration(d.config.Server.DrainDelay)):
		case <-ctx.Done():
		}
	}
	waiting, cancel := context.WithTimeout(ctx, time.Duration(d.config.Server.Drain))
	defer cancel()
	// Those who watch see the others end.
	err := d.stopDoors(waiting, doors)
	d.operators.api.Close()
	err = errors.Join(err, stopAll(waiting, admin))
	d.trace.close(waiting)
	if d.quit != nil {
		d.quit()
	}
	d.reloader.Stop() // it may be about to use another gateway
	d.gateway.stop(context.WithoutCancel(ctx))
	d.close(ctx)
	d.work.Wait()
	d.log.InfoContext(ctx, "stopped")
	return err
}

// stopDoors stops them, and Envoy's, at the same time.
func (d *Daemon) stopDoors(ctx context.Context, doors []*server) error {
	var calls error
	var wg sync.WaitGroup
	if d.envoy != nil && d.envoy.grpc != nil {
		wg.Go(func() { calls = d.envoy.grpc.stop(ctx) })
	}
	err := stopAll(ctx, doors)
	wg.Wait()
	return errors.Join(err, calls)
}

// stopAll stops servers at the same time.
func stopAll(ctx context.Context, servers []*server) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.stop(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// close closes what New has opened.
func (d *Daemon) close(ctx context.Context) {
	if d.operators != nil {
		d.operators.close()
	}
	if d.control != nil {
		d.control.close(ctx)
	}
	if d.reloader != nil {
		d.reloader.Stop()
	}
	if d.store != nil {
		_ = d.store.Close() // counters need no farewell
	}
	if d.demo != nil {
		d.demo.stop()
	}
}

// Demo says what to try, if the daemon was started without any configuration.
func (d *Daemon) Demo() string {
	if d.demo == nil {
		return ""
	}
	return d.demo.help(d)
}
