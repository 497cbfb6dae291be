package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
)

// TestBadTokens sends tokens that are not accepted: they are rejected, or the handler does
// not get them.
func TestBadTokens(t *testing.T) {
	t.Parallel()
	for _, ignore := range []bool{false, true} {
		w := worldOf(t, "", identity.Options{JWT: &identity.JWTOptions{Secret: "a secret of at least thirty-two bytes", IgnoreBad: ignore}})
		seen := make(chan metadata.MD, 1)
		look := func(ctx context.Context) error { //nolint:unparam // as a handler
			md, _ := metadata.FromIncomingContext(ctx)
			seen <- md
			return nil
		}
		c := client(t, grpclimit.Options{Engine: w.Engine}, &service{
			call: look,
			duplex: func(s grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
				return look(s.Context())
			},
		})
		for _, pairs := range [][]string{
			{"authorization", "Bearer x.y.z"},
			{"authorization", " Bearer x.y.z"},
			{"authorization", "Basic YTpi, Bearer x"},
			{"authorization", "eyJhbGciOiJIUzI1NiJ9.e30.x"},
			{"authorization", "Bearer x", "authorization", "Bearer y"},
		} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), append(pairs, "x-other", "kept")...)
			_, unary := c.EmptyCall(ctx, &grpc_testing.Empty{})
			passes := ignore && len(pairs) == 2 // two are ambiguous
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Unauthenticated}[passes]; status.Code(unary) != want {
				t.Errorf("%q, ignored %v: %v, want %v", pairs, ignore, unary, want)
			}
			check := func() {
				t.Helper()
				if md := <-seen; len(md["authorization"]) > 0 || strings.Join(md["x-other"], "") != "kept" {
					t.Errorf("%q: the handler gets %v", pairs, md)
				}
			}
			if unary == nil {
				check()
			}
			stream, err := c.FullDuplexCall(ctx)
			if err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) != passes {
				t.Errorf("%q, ignored %v: a stream: %v", pairs, ignore, err)
			} else if passes {
				check()
			}
		}
	}
}
