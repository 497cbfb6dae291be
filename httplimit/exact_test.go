//go:build !race

package httplimit_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// TestHeaderAllocations counts what headers cost: their text, and their slices.
func TestHeaderAllocations(t *testing.T) {
	w := worldOf(t, oneLimit, identity.Options{})
	v, err := w.Decide(t.Context(), engine.Request{Method: "GET", Path: "/search", Peer: netip.MustParseAddr("192.0.2.1")})
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	if n := testing.AllocsPerRun(1000, func() { httplimit.HeaderSet(0).Set(h, &v) }); n > 2 {
		t.Errorf("%v allocations, want 2 at most", n)
	}
}
