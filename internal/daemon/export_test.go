package daemon

import "github.com/stintdev/stint/engine"

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }

	// EnvoyVariables are the names of the variables that EnvoyEnv knows.
	EnvoyVariables = func() (names []string) {
		for _, v := range envoyVariables {
			names = append(names, v.name)
		}
		return names
	}
)
