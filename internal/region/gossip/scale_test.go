//go:build scale

package gossip

import "testing"

// TestSimulationLong is [TestSimulation] with ten million requests and more.
func TestSimulationLong(t *testing.T) {
	t.Parallel()
	simulations(t, 40_000, 90)
}
