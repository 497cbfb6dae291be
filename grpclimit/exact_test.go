//go:build exact

package grpclimit_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
)

// TestAllocations counts what the interceptor takes, beside the decision: the context,
// the metadata, and the trailers.
func TestAllocations(t *testing.T) {
	w := worldOf(t, `
		[[rules]]
		name     = "each"
		count_by = ["ip"]
		limits   = [ { name = "hourly", limit = "100000000000/1h fixed_window" } ]
	`, identity.Options{})
	limit, err := grpclimit.New(grpclimit.Options{Engine: w.Engine})
	if err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "a", "content-type", "application/grpc", "user-agent", "grpc-go"))
	ctx = grpc.NewContextWithServerTransportStream(ctx, sink{})
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.v1.Orders/Create"}
	q := engine.Request{Method: "POST", Path: info.FullMethod, Peer: netip.MustParseAddr("192.0.2.1")}
	decision := testing.AllocsPerRun(1000, func() { _, _ = w.Decide(ctx, q) })
	all := testing.AllocsPerRun(1000, func() {
		_, _ = limit.Unary(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil })
	})
	if n := all - decision; n > 10 {
		t.Errorf("%v allocations, want 10 at most", n)
	}
}
