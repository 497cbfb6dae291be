//go:build scale

package region_test

import "testing"

// TestCentralLong is [TestCentralNeverBeyond] with ten million requests.
func TestCentralLong(t *testing.T) {
	t.Parallel()
	centralSimulation(t, 25, 50_000)
}
