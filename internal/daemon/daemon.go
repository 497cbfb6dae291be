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
	"syscall"
	"time"

	"github.com/stintdev/stint/internal/kit/presence"
	"github.com/stintdev/stint/internal/kit/quiet"
)

// Options configure a daemon.
type Options struct {
	// Source is the configuration. If it only sets listeners and logs, the daemon runs a
	// demo: [Daemon.Demo].
	Source Source
	Notes  []string // about the source, logged at startup as warnings
	// Program is the command that started it, such as ./stint, for the commands that the
	// daemon prints. Default stint.
	Program      string
	Version      string // of the program
	Commit, Date string // from which it was built, if they are known
	// Out is the destination of logs, and Print that of the name of the file with the first
	// admin token. Default os.Stderr and os.Stdout.
	Out, Print io.Writer

	clock rolloutClock // tests set it
}

// Daemon is Stint as a process: counters, rules, identity, and listeners.
type Daemon struct {
	source  Source
	program string
	version string
	built   [2]string // the commit, and its date
	config  *Config   // as it was at startup
	log     *slog.Logger
	parts
	reloader     *Reloader
	peers        *presence.Roster // nodes that report to Redis; nil: they do not
	metrics      *metrics
	print        io.Writer
	token        string                            // the file with the first admin token, if there is one
	tokenProblem string                            // why there is none, as it was logged
	tokens       struct{ http, grpc tokenPointer } // of callers
	tickets      ticketKeys
	gateway      gateway
	envoy        *envoy      // nil: not served
	grpc         *grpcServer // nil: it does not listen
	demo         *demo       // nil: this is not a demo
	trace        *tracing    // nil: no tracing

	servers  []*server
	failed   chan error // from listeners that stopped on their own
	state    atomic.Int32
	quit     context.CancelFunc                   // ends background work; nil: there is none
	after    func(time.Duration) <-chan time.Time // time.After, for server.drain_delay
	clock    rolloutClock
	returns  []*returns // what is told after outages
	work     sync.WaitGroup
	counting sync.WaitGroup // reports to Redis, and leaves before the store is closed
	stop     sync.Once
}

// The states of a daemon.
const (
	starting int32 = iota
	serving
	stopping
)

// New reads the configuration and builds a daemon, which does not listen yet. The caller
// must stop it, even if it was not started.
func New(ctx context.Context, o Options) (*Daemon, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	if o.Print == nil {
		o.Print = os.Stdout
	}
	d := &Daemon{source: o.Source, program: cmp.Or(o.Program, "stint"), version: o.Version, built: [2]string{o.Commit, o.Date}, print: o.Print, after: time.After, clock: o.clock}
	var err error
	if d.config, err = d.source.begin(); err != nil {
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
		d.trace.close(ctx)
		d.close(ctx)
		return nil, err
	}
	return d, nil
}

// prepare builds the parts of a new configuration that the reloader does not: upstreams,
// descriptors, certificates, and metrics of rules.
func (d *Daemon) prepare(next *Config) (func(context.Context), error) {
	routes, err := d.gateway.prepare(next)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		d.enable(ctx, next.Enabled)
		d.gateway.use(ctx, routes)
		d.tokens.http.replace(next.credentials.tokens[httpListener])
		d.tokens.grpc.replace(next.credentials.tokens[grpcListener])
		d.tickets.configure(next.credentials.ticketKeys)
		for _, s := range d.servers {
			s.tls.replace(next.credentials.tls[s.name])
		}
		if d.grpc != nil {
			d.grpc.tls.replace(next.credentials.tls[grpcListener])
		}
		if d.regional != nil && d.config.admitsLike(next) {
			d.regional.admit(next)
		}
		if d.envoy != nil && next.descriptors != nil && next.Envoy.readsLike(&d.config.Envoy) {
			d.envoy.loads.use(next.descriptorsHash)
			d.logFiles(ctx, next)
			d.useDescriptors(next.descriptors)
		}
		d.metrics.keep()
	}, nil
}

// Start opens the listeners and serves in the background. When it returns, the daemon is
// ready. The caller must stop the daemon even if Start fails.
func (d *Daemon) Start(ctx context.Context) error {
	use, err := d.prepare(d.config)
	if err != nil {
		return err
	}
	use(ctx)
	if err := d.listen(ctx); err != nil {
		return err
	}
	if d.demo != nil {
		d.work.Go(d.demo.serve)
	}
	ctx, d.quit = context.WithCancel(ctx)
	if d.redis != nil {
		d.watchCounters(ctx)
		if d.peers != nil {
			d.counting.Go(func() { d.countPeers(ctx) })
		}
	}
	d.reloader.Start(ctx)
	if d.control != nil {
		d.control.start(ctx, d)
	}
	d.work.Go(func() { d.cluster.Run(ctx) })
	d.work.Go(func() { d.countMinutes(ctx) })
	d.work.Go(func() { d.followRollouts(ctx) })
	d.failed = make(chan error, len(d.servers)+2)
	if d.regional != nil {
		d.regional.start(ctx, d)
		if l := d.regional.listener; l != nil {
			d.logBound(ctx, regionListener, d.URL(regionListener), l)
		}
	}
	for _, s := range d.servers {
		s.accepting.Add(1)
		d.work.Go(func() {
			if err := s.serve(); err != nil {
				d.failed <- err
			}
		})
		d.logBound(ctx, s.name, s.URL(), s.listener)
	}
	d.state.Store(serving)
	if d.envoy != nil {
		d.startEnvoy(ctx)
	}
	if d.grpc != nil {
		d.startGRPC(ctx)
	}
	d.startAdmin(ctx)
	d.startTickets(ctx)
	d.log.InfoContext(ctx, "ready", "rules", d.engine.Rules().Len(), "counters", d.config.Server.Counters.String(), "database", d.config.Server.Database.String())
	notify(d.source.Environ, "READY=1")
	return nil
}

// listen opens the configured listeners.
func (d *Daemon) listen(ctx context.Context) error {
	api, err := d.api()
	if err != nil {
		return err
	}
	handlers := map[string]http.Handler{httpListener: api, adminListener: d.admin()}
	if len(d.config.Upstreams) > 0 {
		handlers[gatewayListener] = &d.gateway
	}
	if d.envoy != nil {
		handlers[debugListener], handlers[metricsListener] = d.envoyDebug(), d.envoyMetrics()
	}
	for _, l := range append(d.config.Server.doors(), d.config.Envoy.doors()...) {
		h := handlers[l.name]
		if h == nil || l.Address == "" {
			continue
		}
		if !l.forOperators() {
			h = d.trace.around(l.name, h)
		}
		s, err := d.config.listen(ctx, l, h, d.log)
		if l.name == adminListener && d.adminMoves() && errors.Is(err, syscall.EADDRINUSE) {
			elsewhere := *l.Listener
			elsewhere.Address = anyPort
			s, err = d.config.listen(ctx, door{l.name, &elsewhere}, h, d.log)
		}
		if err != nil {
			return err
		}
		d.servers = append(d.servers, s)
	}
	if d.config.ServesGRPC() {
		if d.grpc, err = d.listenGRPC(ctx); err != nil {
			return err
		}
	}
	if d.regional != nil {
		return d.regional.listen(ctx, d)
	}
	return nil
}

// Failed returns a channel with the errors of listeners that stopped on their own.
func (d *Daemon) Failed() <-chan error { return d.failed }

// URL returns the URL of a listener on this machine: gateway, http, grpc, admin, region, debug or metrics. It is
// empty if there is no such listener.
func (d *Daemon) URL(listener string) string {
	for _, s := range d.servers {
		if s.name == listener {
			return s.URL()
		}
	}
	if listener == grpcListener && d.grpc != nil {
		return d.grpc.URL()
	}
	if listener == regionListener && d.regional != nil && d.regional.listener != nil {
		return d.regional.URL()
	}
	return ""
}

// Reload reads the configuration again. An error is also logged.
func (d *Daemon) Reload(ctx context.Context) error {
	notify(d.source.Environ, reloading())
	defer notify(d.source.Environ, "READY=1")
	err := d.reloader.Reload(ctx)
	if d.control != nil && d.control.started {
		err = errors.Join(err, d.control.node.Look(ctx))
	}
	return err
}

// Stop announces that the daemon will stop, and keeps serving for server.drain_delay. Then
// it stops listening, waits up to server.drain for running requests, and closes
// everything. It does not wait any longer when ctx ends. An error means that requests were
// cut off. Stop may be called more than once.
func (d *Daemon) Stop(ctx context.Context) error {
	var err error
	d.stop.Do(func() { err = d.drain(ctx) })
	return err
}

func (d *Daemon) drain(ctx context.Context) error {
	notify(d.source.Environ, "STOPPING=1")
	was := d.state.Swap(stopping)
	if d.grpc != nil {
		d.grpc.health.Shutdown() // which reports that it is not serving
	}
	type stopper interface {
		stop(ctx context.Context) error
	}
	var doors, admin, debug []stopper
	for _, s := range d.servers {
		s.closing.Store(true)
		switch s.name {
		case adminListener, metricsListener:
			admin = append(admin, s)
		case debugListener:
			debug = append(debug, s)
		default:
			doors = append(doors, s)
		}
	}
	if d.grpc != nil {
		doors = append(doors, d.grpc)
	}
	stopAll := func(ctx context.Context, servers []stopper) error {
		errs := make([]error, len(servers))
		var wg sync.WaitGroup
		for i, s := range servers {
			wg.Go(func() { errs[i] = s.stop(ctx) })
		}
		wg.Wait()
		return errors.Join(errs...)
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
	// The listeners of operators stop last, so that they can watch.
	err := stopAll(waiting, doors)
	const longest = 10 * time.Second // as for all tries, also of requests that were cut off: the time to drain is over then
	settling, cancelSettling := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancelSettling()
	_ = d.engine.Settled(settling) // otherwise places come back by themselves
	d.operators.api.Close()
	soon, cancelSoon := context.WithTimeout(waiting, time.Second)
	defer cancelSoon()
	_ = stopAll(soon, debug) // which cuts off profiles: nobody waits for those
	err = errors.Join(err, stopAll(waiting, admin))
	d.trace.close(waiting)
	if d.quit != nil {
		d.quit()
	}
	d.counting.Wait()
	d.reloader.Stop() // before the gateway, which a reload would replace
	d.gateway.stop(context.WithoutCancel(ctx))
	d.close(ctx)
	d.work.Wait()
	quiet.New(d.log.Handler()).Flush()
	d.log.InfoContext(ctx, "stopped")
	return err
}

// every calls do at an interval, until it returns false or ctx ends.
func every(ctx context.Context, interval time.Duration, do func() bool) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !do() {
				return
			}
		}
	}
}

// close closes what New has opened.
func (d *Daemon) close(ctx context.Context) {
	if d.operators != nil {
		d.operators.close()
	}
	if d.regional != nil {
		d.regional.stop()
	}
	if d.control != nil {
		d.control.close(ctx)
	}
	if d.reloader != nil {
		d.reloader.Stop()
	}
	if d.store != nil {
		_ = d.store.Close() // it charges what it owes, and the sums say what it could not
	}
	for _, r := range d.returns {
		r.flush()
	}
	if d.demo != nil {
		d.demo.stop()
	}
}

// Demo returns a guide to the demo, or "" if this is not a demo.
func (d *Daemon) Demo() string {
	if d.demo == nil {
		return ""
	}
	return d.demo.help(d)
}
