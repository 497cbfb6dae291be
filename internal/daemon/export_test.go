package daemon

import (
	"github.com/stintdev/stint/engine"
)

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }
)
