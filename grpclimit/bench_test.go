package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
)

// BenchmarkUnary measures what the interceptor takes, beside the decision itself.
func BenchmarkUnary(b *testing.B) {
	each := `
		[[rules]]
		name     = "each"
		count_by = ["ip"]
		limits   = [ { name = "hourly", limit = "%d/1h fixed_window" } ]
	`
	w, none := worldOf(b, fmt.Sprintf(each, 100_000_000_000), identity.Options{}), worldOf(b, fmt.Sprintf(each, 1), identity.Options{})
	ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "a", "content-type", "application/grpc", "user-agent", "grpc-go", "x-request", "1"))
	ctx = grpc.NewContextWithServerTransportStream(ctx, sink{})
	info := &grpc.UnaryServerInfo{FullMethod: grpc_testing.TestService_EmptyCall_FullMethodName}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.Run("decide", func(b *testing.B) {
		q := engine.Request{Method: "POST", Path: info.FullMethod, Peer: netip.MustParseAddr("192.0.2.1")}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = w.Decide(ctx, q)
		}
	})
	for _, c := range []struct {
		name string
		o    grpclimit.Options
	}{
		{"allowed", grpclimit.Options{Engine: w.Engine}},
		{"allowed, no trailers", grpclimit.Options{Engine: w.Engine, Trailers: grpclimit.None}},
		{"denied", grpclimit.Options{Engine: none.Engine}},
	} {
		limit, err := grpclimit.New(c.o)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = limit.Unary(ctx, nil, info, handler)
			}
		})
	}
}

// sink is a stream that takes trailers.
type sink struct{}

func (sink) Method() string { return "" }

func (sink) SetHeader(metadata.MD) error { return nil }

func (sink) SendHeader(metadata.MD) error { return nil }

func (sink) SetTrailer(metadata.MD) error { return nil }
