package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/daemon"
)

func newServe(t *terminal) *cobra.Command {
	var f sourceFlags
	shortcuts := []struct{ flag, setting, usage string }{
		{"counters", "server.counters", "the `URL` of the counters: memory: or a Redis URL"},
		{"database", "server.database", "the `URL` of the database: sqlite:FILE or a PostgreSQL URL (default: none, with rules in the config file)"},
		{"http", "server.http.address", "the `address` of the decision API"},
		{"gateway", "server.gateway.address", "the `address` of the gateway"},
		{"grpc", "server.grpc.address", "the `address` for gRPC: Envoy, and reservations"},
		{"admin", "server.admin.address", "the `address` of the admin API, the dashboard, metrics and health"},
	}
	values := make([]string, len(shortcuts))
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Run the server: the gateway (127.0.0.1:8000, if there are upstreams), the decision API
(127.0.0.1:8080), the rate limit service of Envoy (127.0.0.1:8081, if it is configured), and
the admin API, dashboard and metrics (127.0.0.1:9090). Only this machine can reach these
addresses; with :8080 instead, other machines can reach the decision API, too. The log says
what each listener is bound to.

Settings come from flags, then the environment (STINT_...), then the config file, then
defaults; "stint config" shows each with its origin. If only addresses are set, the server
runs a demo, with example rules and an upstream that echoes requests.

With --envoy-env it replaces envoyproxy/ratelimit in the same environment: the variables of
envoyproxy/ratelimit keep their meaning, STINT_ variables override them, and the log lists
those that have no effect. As there, other machines can reach ports 8080 and 8081.

The config file is read again when it changes, and on SIGHUP. If the new file has problems,
the previous configuration stays in use; the log, /readyz and the metrics report it.

SIGTERM and SIGINT stop the server: /readyz answers 503 and clients are asked to close their
connections; after server.drain_delay the server stops listening; pending requests have
server.drain to finish. A second signal aborts them.`,
		Example: `  stint serve
  stint serve --config stint.toml
  stint serve --config stint.toml --counters redis://localhost:6379 --http :9000
  STINT_SERVER_COUNTERS=redis://redis:6379 stint serve --config stint.toml
  REDIS_URL=redis:6379 RUNTIME_ROOT=/data stint serve --envoy-env`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for i, s := range shortcuts {
				if c.Flags().Changed(s.flag) {
					f.more = append(f.more, daemon.Flag{Name: "--" + s.flag, Setting: s.setting, Value: values[i]})
				}
			}
			source, err := f.source(t)
			if err != nil {
				return err
			}
			return serve(c.Context(), t, source, f.notes)
		},
	}
	f.add(c)
	f.addEnvoy(c)
	for i, s := range shortcuts {
		c.Flags().StringVar(&values[i], s.flag, "", s.usage)
	}
	return c
}

func serve(ctx context.Context, t *terminal, source daemon.Source, notes []string) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	defer runtime.KeepAlive(reserve())
	v := versionOf()
	d, err := daemon.New(ctx, daemon.Options{Source: source, Notes: notes, Program: t.program, Version: v.Version, Commit: v.Commit, Date: v.Date, Out: t.err, Print: t.out})
	if err != nil {
		return advise(source, err)
	}
	failed := d.Start(ctx)
	if failed == nil {
		debug.FreeOSMemory() // startup leaves 13 MB of garbage
		calm, cancel := context.WithCancel(ctx)
		defer cancel()
		go relieve(calm)
		fmt.Fprint(t.out, d.Demo())
		failed = attend(ctx, d, signals)
	}
	if taken := new(daemon.ListenError); errors.As(failed, &taken) {
		try := map[string]string{
			"region":  "another region.listener.address, which the others have to know, too",
			"debug":   "another envoy.debug.address (with --envoy-env: DEBUG_PORT)",
			"metrics": "another envoy.metrics.address (with --envoy-env: PROMETHEUS_ADDR)",
		}[taken.Listener]
		if other, ok := map[string]string{"gateway": "127.0.0.1:8001", "http": "127.0.0.1:8090", "grpc": "127.0.0.1:8091", "admin": "127.0.0.1:9091"}[taken.Listener]; ok {
			try = fmt.Sprintf("stint serve --%s with another address, such as %s", taken.Listener, other)
		}
		failed = advice{failed, try}
	}
	return errors.Join(failed, stop(ctx, d, signals))
}

// attend handles signals until the server is to stop.
func attend(ctx context.Context, d *daemon.Daemon, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.Failed():
			return err
		case s := <-signals:
			if s != syscall.SIGHUP {
				return nil
			}
			_ = d.Reload(ctx) // the error is in the log
		}
	}
}

// stop stops the daemon, at once on another signal.
func stop(ctx context.Context, d *daemon.Daemon, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-signals:
				if s != syscall.SIGHUP {
					cancel()
				}
			}
		}
	}()
	if err := d.Stop(ctx); err != nil {
		return advice{err, "a longer server.drain, to let requests finish"}
	}
	return nil
}
