package grpclimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/wait"
)

const servedRules = `
	[[rules]]
	name   = "place"
	limits = [ { name = "place", limit = "1/30s concurrency" } ]
	[[rules]]
	name   = "out"
	cost   = { meter = "response_bytes", reserve = 50, on_error = "refund" }
	limits = [ { name = "out", limit = "1000/1h fixed_window" } ]
	[[rules]]
	name   = "header"
	cost   = { meter = "header:X-Cost", reserve = 50 }
	limits = [ { name = "header", limit = "1000/1h fixed_window" } ]
`

type duplex = grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]

// TestServed measures calls and streams, and holds their places until they end.
func TestServed(t *testing.T) {
	t.Parallel()
	w := worldOf(t, servedRules, identity.Options{})
	used := func(want string) func() bool {
		return func() bool {
			v, err := w.Peek(t.Context(), engine.Request{Method: http.MethodPost, Path: "/", Peer: netip.MustParseAddr("127.0.0.1")})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{}
			for i := range v.Limits {
				got[v.Limits[i].Name] = v.Limits[i].Decision.Limit - v.Limits[i].Decision.Remaining
			}
			return fmt.Sprint(got["place"], got["out"], got["header"]) == strings.TrimSpace(want)
		}
	}
	outcome := error(nil)
	s := client(t, grpclimit.Options{Engine: w.Engine, PerMessage: true}, &service{
		call: func(ctx context.Context) error {
			if err := grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "7")); err != nil {
				t.Error(err)
			}
			return outcome
		},
		duplex: func(stream duplex) error {
			if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: []byte("123")}}); err != nil {
				return err
			}
			stream.SetTrailer(metadata.Pairs("x-cost", "30"))
			if _, err := stream.Recv(); err != nil {
				return err
			}
			<-stream.Context().Done()
			return stream.Context().Err()
		},
	})
	if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "what is used, or waits", used("0 0 7"))
	outcome = status.Error(codes.Unavailable, "not now")
	if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	wait.For(t, "what is used, or waits", used("0 0 14"))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := s.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	// A message takes no further place. It is charged what is reserved for it.
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "what is used, or waits", used("1 100 114"))
	if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("another call: %v", err)
	}
	cancel() // it has used what was sent
	wait.For(t, "what is used, or waits", used("0 57 94"))
}
