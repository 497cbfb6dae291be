package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
)

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }
)

// DescribeRegions returns what the wiring gets to know of regions.
func (c *Config) DescribeRegions() string {
	r := c.regions()
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("%s central=%s %v secret=%s every %v at %s", r.own, r.central, r.all, printed(r.secrets), r.interval, r.listener.Address)
}

// printed returns secrets as they are.
func printed(all []identity.Secret) string {
	var out []string
	for _, s := range all {
		out = append(out, string(s))
	}
	return strings.Join(out, ",")
}

// Store returns the store of counters, with its layers.
func (d *Daemon) Store() stint.Store { return d.store }

// DelayUntil ends server.drain_delay when the channel is closed, however long it is.
func (d *Daemon) DelayUntil(done <-chan time.Time) {
	d.after = func(time.Duration) <-chan time.Time { return done }
}

// Returns returns the function that adds up what is told of outages.
func Returns(tell func(layer.Return)) func(layer.Return) { return (&returns{tell: tell}).add }

// Serve serves a handler on a listener, as the gateway is served, and returns what stops that.
func Serve(ctx context.Context, l net.Listener, h http.Handler, stall time.Duration, minBodyRate int) (stop func(context.Context) error) {
	c := Config{credentials: &credentials{}}
	c.Server.StallTimeout, c.Server.MinBodyRate = Duration(stall), minBodyRate
	c.Server.HeaderTimeout, c.Server.IdleTimeout = Duration(10*time.Second), Duration(2*time.Minute)
	s := c.serverOf(ctx, l, door{gatewayListener, &Listener{}}, h, slog.New(slog.DiscardHandler))
	s.accepting.Add(1)
	go func() { _ = s.serve() }()
	return s.stop
}

// SetRolloutClock has rollouts be judged by a clock, and count in the minutes whose beginning is sent when they end.
func (o *Options) SetRolloutClock(now func() time.Time, minutes <-chan time.Time) {
	o.clock = rolloutClock{now: now, minute: func(ctx context.Context) (time.Time, bool) {
		select {
		case <-ctx.Done():
			return time.Time{}, false
		case start := <-minutes:
			return start, true
		}
	}}
}
