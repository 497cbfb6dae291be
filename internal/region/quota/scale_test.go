//go:build scale

package quota_test

import "testing"

var simLimits = []string{
	"20/1s fixed_window", "20/1s", "200/10s sliding_log", "200/10s fixed_window", "1200/1m fixed_window", "2000/5m fixed_window",
	"6000/10m fixed_window", "600/30s", "1200/1m", "20/1s token_bucket", "20/1s burst=150 token_bucket", "20/1s burst=7 token_bucket",
	"20/1s burst=40 leaky_bucket", "7/1s", "5/1s burst=50 token_bucket",
}

// TestSimulation is TestSum with 10^7 requests. It takes minutes.
func TestSimulation(t *testing.T) { //nolint:paralleltest // it uses all processors as it is
	simulate(t, 10_000_000, simLimits...)
}
