package daemon

import (
	"fmt"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
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
	return fmt.Sprintf("%s central=%s %v secret=%s every %v at %s", r.own, r.central, r.all, string(r.secret), r.interval, r.listener.Address)
}

// Store returns the store of counters, with its layers.
func (d *Daemon) Store() stint.Store { return d.store }

// DelayUntil ends server.drain_delay when the channel is closed, however long it is.
func (d *Daemon) DelayUntil(done <-chan time.Time) {
	d.after = func(time.Duration) <-chan time.Time { return done }
}
