package daemon

import (
	"time"

	"github.com/stintdev/stint/engine"
)

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }
)

// DelayUntil ends server.drain_delay when the channel is closed, however long it is.
func (d *Daemon) DelayUntil(done <-chan time.Time) {
	d.after = func(time.Duration) <-chan time.Time { return done }
}
