package engine_test

import (
	"net/netip"
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/storetest"
)

// TestWindowsOfTiers alternates clients of two tiers at one address, whose limits have different windows:
// each limit is held, and a reset of the address forgets both.
func TestWindowsOfTiers(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, `
[[rules]]
name = "addr"
count_by = ["ip"]
limits = [{ name = "addr", limit = "5/1h" }]
[[tiers]]
name = "gold"
limits = { addr = "5/1m" }
`, engine.Options{Now: clock.Now})
	passed := func() (n int) {
		for i := range 200 {
			q := from("alice", "GET", "/")
			if i%2 == 1 {
				q = from("bob", "GET", "/", "X-Tier", "gold")
			}
			if decide(t, e, q).Outcome == engine.Allowed {
				n++
			}
		}
		return n
	}
	if n := passed(); n != 10 {
		t.Errorf("%d of 200 pass, want 5 of each tier", n)
	}
	if err := e.Reset(t.Context(), identity.Subject{IP: netip.MustParseAddr("192.0.2.7")}, ""); err != nil {
		t.Fatal(err)
	}
	if n := passed(); n != 10 {
		t.Errorf("after a reset, %d of 200 pass, want 5 of each tier", n)
	}
}
