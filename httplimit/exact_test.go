//go:build exact

package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
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

// TestBatchAllocations counts what a batch allocates beyond what its requests say and are
// counted by, which are four texts each.
func TestBatchAllocations(t *testing.T) {
	h := apiOf(t, worldOf(t, roomy, identity.Options{}))
	r := httptest.NewRequest(http.MethodPost, "/v1/check/batch", nil)
	r.Header.Set("Content-Type", "application/json")
	body := `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"path":"/search","user":"alice","ip":"192.0.2.1"},`, 64), ",") + `]}`
	reader := again{strings.NewReader(body)}
	r.Body = reader
	w := &sink{http.Header{}}
	if n := testing.AllocsPerRun(1000, func() { reader.Reset(body); h.ServeHTTP(w, r) }); n > 4*64+32 {
		t.Errorf("%v allocations, want 4 for each of 64 requests, and few more", n)
	}
}
