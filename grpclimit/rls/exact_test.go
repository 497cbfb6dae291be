//go:build exact

package rls_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/memstore"
)

// TestAllocations: the way through the service, without gRPC.
func TestAllocations(t *testing.T) {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rls.New(rls.Options{Store: store, Config: limits(t, plain)})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(ask("d", "path=/"))
	if err != nil {
		t.Fatal(err)
	}
	// The text of the request, that of its keys, the decisions, for gRPC the answer and
	// two headers of it; and one of the test's own.
	const most = 7
	if n := testing.AllocsPerRun(1000, func() {
		out, err := rls.Serve(t.Context(), s, data)
		if err != nil {
			t.Fatal(err)
		}
		out.Free()
	}); n > most {
		t.Errorf("%v allocations, want at most %d", n, most)
	}
}
