package daemon

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
)

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }
)

// Store returns the store of counters, with its layers.
func (d *Daemon) Store() stint.Store { return d.store }

// DelayUntil ends server.drain_delay when the channel is closed, however long it is.
func (d *Daemon) DelayUntil(done <-chan time.Time) {
	d.after = func(time.Duration) <-chan time.Time { return done }
}
