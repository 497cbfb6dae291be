//go:build exact

package catalog_test

import (
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
)

// TestUsageAllocations counts what it allocates to count a request.
func TestUsageAllocations(t *testing.T) {
	c, err := catalog.Open("sqlite::memory:", catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	u := c.NewUsage(catalog.UsageOptions{})
	e := engine.Event{User: "ann", Key: "0123456789ABCDEF", At: midnight, Outcome: engine.Denied, Rule: "r"}
	if n := testing.AllocsPerRun(1000, func() { u.Record(t.Context(), &e) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
