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
		{"counters", "server.counters", "where counters are: memory: or a Redis `URL`"},
		{"database", "server.database", "where rules are: sqlite:FILE or a PostgreSQL `URL`; in the config file, unless set"},
		{"http", "server.http.address", "the `address` of the decision API"},
		{"gateway", "server.gateway.address", "the `address` of the gateway"},
		{"grpc", "server.grpc.address", "the `address` that Envoy asks"},
		{"admin", "server.admin.address", "the `address` of metrics and health"},
	}
	values := make([]string, len(shortcuts))
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Run the server: the gateway (:8000, if there are upstreams), the decision API (:8080),
the rate limit service of Envoy (:8081, if it is configured) and metrics
(127.0.0.1:9090).

Settings come from flags, then the environment (STINT_...), then the config file, then
defaults; "stint config" shows each with its origin. Where nothing is set but where to
listen, the server runs a demo: rules to try and an upstream that echoes.

With --envoy-env it takes the place of envoyproxy/ratelimit, with the environment that
is set for it: its variables mean here what they mean there, STINT_ variables go over
them, and the log says which have no effect.

SIGHUP reads the config file again, as does a change of it. A file that is wrong
changes nothing, and the log, /readyz and the metrics say so.

SIGTERM and SIGINT stop the server: /readyz answers 503 and connections are told to
close, after server.drain_delay it stops listening, and requests that have begun have
server.drain to end. A second signal cuts them off.`,
		Example: `  stint serve
  stint serve --config stint.toml
  stint serve --config stint.toml --counters redis://localhost:6379 --http :9000
  STINT_SERVER_COUNTERS=redis://redis:6379 stint serve --config stint.toml
  REDIS_URL=redis:6379 RUNTIME_ROOT=/data stint serve --envoy-env`,
		Args: nothing,
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
	d, err := daemon.New(ctx, daemon.Options{Source: source, Notes: notes, Program: t.program, Version: versionOf().Version, Out: t.err, Print: t.out})
	if err != nil {
		return advise(source, err)
	}
	failed := d.Start(ctx)
	if failed == nil {
		debug.FreeOSMemory() // the start uses 13 MB that nothing holds any more
		fmt.Fprint(t.out, d.Demo())
		failed = attend(ctx, d, signals)
	}
	if taken := new(daemon.ListenError); errors.As(failed, &taken) {
		failed = advice{failed, fmt.Sprintf("stint serve --%s with another address, such as %s",
			taken.Listener, map[string]string{"gateway": ":8001", "http": ":8090", "grpc": ":8091", "admin": "127.0.0.1:9091"}[taken.Listener])}
	}
	return errors.Join(failed, stop(ctx, d, signals))
}

// attend does what signals say until one says to stop.
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
			_ = d.Reload(ctx) // it is in the log
		}
	}
}

// stop stops the daemon, at once if there is another signal to stop.
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
		return advice{err, "a longer server.drain, if that is not what you want"}
	}
	return nil
}
