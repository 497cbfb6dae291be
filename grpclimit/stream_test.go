package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestHeld cancels calls that a rule holds.
func TestHeld(t *testing.T) {
	t.Parallel()
	w := worldOf(t, `
		[[rules]]
		name   = "slow"
		action = "throttle"
		limits = [ { name = "slow", limit = "1/1m burst=5 leaky_bucket" } ]
		max_delay = "1m"
	`, identity.Options{})
	var passed atomic.Int32
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{call: func(context.Context) error { passed.Add(1); return nil }})
	if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.EmptyCall(ctx, &grpc_testing.Empty{})
		done <- err
	}()
	wait.For(t, "what is used, or waits", func() bool { return w.Waiting() == 1 })
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	wait.For(t, "what is used, or waits", func() bool { return w.Waiting() == 0 })
	if n := passed.Load(); n != 1 {
		t.Errorf("%d calls passed, want 1", n)
	}
}

// TestPerMessage counts the messages of streams.
func TestPerMessage(t *testing.T) {
	t.Parallel()
	const rules = `
		[[rules]]
		name   = "messages"
		limits = [ { name = "messages", limit = "3/1m fixed_window" } ]
	`
	for _, c := range []struct {
		about    string
		per      bool
		messages int
		duplex   func(grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error
		answers  int
		code     codes.Code
		trailer  string
	}{
		{about: "not counted", messages: 5, answers: 5, trailer: `"messages";r=2;t=60`},
		{about: "no message", per: true, trailer: `"messages";r=2;t=60`},
		{about: "as many as may pass", per: true, messages: 2, answers: 2, trailer: `"messages";r=0;t=60`},
		{about: "one more", per: true, messages: 3, answers: 2, code: codes.ResourceExhausted, trailer: `"messages";r=0;t=60`},
		{about: "many more", per: true, messages: 9, answers: 2, code: codes.ResourceExhausted, trailer: `"messages";r=0;t=60`},
		{
			about: "a handler that makes light of it", per: true, messages: 4, code: codes.ResourceExhausted, trailer: `"messages";r=0;t=60`,
			duplex: func(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
				if grpclimit.VerdictOf(stream.Context()).Binding().Decision.Remaining != 2 {
					t.Error("the verdict is not that about the opening")
				}
				var first error
				for range 10 {
					if _, err := stream.Recv(); first == nil {
						first = err
					} else if err.Error() != first.Error() {
						t.Errorf("%v after %v", err, first)
					}
				}
				return nil
			},
		},
		{
			about: "a handler that fails", per: true, messages: 1, code: codes.DataLoss, trailer: `"messages";r=1;t=60`,
			duplex: func(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
				_, err := stream.Recv()
				return errors.Join(err, status.Error(codes.DataLoss, ""))
			},
		},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, rules, identity.Options{})
			s := client(t, grpclimit.Options{Engine: w.Engine, PerMessage: c.per}, &service{duplex: c.duplex})
			stream, err := s.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range c.messages {
				if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil {
					break // it has ended
				}
			}
			_ = stream.CloseSend() // it may have ended
			answers := 0
			for {
				if _, err = stream.Recv(); err != nil {
					break
				}
				answers++
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if status.Code(err) != c.code || answers != c.answers {
				t.Errorf("%d answers and %v, want %d and %s", answers, err, c.answers, c.code)
			}
			if got := stream.Trailer()["ratelimit"]; !slices.Equal(got, []string{c.trailer}) {
				t.Errorf("the trailer is %q, want %q", got, c.trailer)
			}
		})
	}
}

// TestTrailersOfHandlers checks that handlers can set trailers of their own.
func TestTrailersOfHandlers(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{})
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{call: func(ctx context.Context) error {
		return errors.Join(grpc.SetTrailer(ctx, metadata.Pairs("mine", "1")), status.Error(codes.NotFound, "not here"))
	}})
	var trailer metadata.MD
	_, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
	if status.Code(err) != codes.NotFound || len(trailer["mine"]) != 1 || len(trailer["ratelimit"]) != 1 {
		t.Errorf("%v, %v", err, trailer)
	}
}
