//go:build scale

package quota_test

import "testing"

// TestSimulation is TestSum with 10^7 requests. It takes minutes.
func TestSimulation(t *testing.T) { //nolint:paralleltest // it uses all processors as it is
	simulate(t, 10_000_000)
}
