package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

const usedRules = `
	[[rules]]
	name   = "place"
	limits = [ { name = "place", limit = "1/30s concurrency" } ]
	[[rules]]
	name   = "calls"
	limits = [ { name = "calls", limit = "1000/1h fixed_window" } ]
	[[rules]]
	name   = "tokens"
	cost   = { meter = "llm.total_tokens", reserve = 50, max = 400, on_error = "refund" }
	limits = [ { name = "tokens", limit = "1000/1h fixed_window" } ]
	[[rules]]
	name   = "out"
	cost   = { meter = "response_bytes", reserve = 50 }
	limits = [ { name = "out", limit = "1000/1h fixed_window" } ]
`

// TestUse has handlers of calls and streams say what they have used.
func TestUse(t *testing.T) {
	t.Parallel()
	by := func(m rule.Meter, n int64) engine.Usage { return engine.Usage{Meters: map[rule.Meter]int64{m: n}} }
	for name, c := range map[string]struct {
		use  func(ctx context.Context)
		fail error
		want string // calls, tokens, bytes
	}{
		"nothing":        {func(context.Context) {}, nil, "1 50 0"},
		"a meter":        {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.total_tokens", 80)) }, nil, "1 80 0"},
		"what is sent":   {func(ctx context.Context) { grpclimit.Use(ctx, by("response_bytes", 9)) }, nil, "1 50 9"},
		"a cost":         {func(ctx context.Context) { grpclimit.Use(ctx, engine.Usage{Cost: 70}) }, nil, "1 70 70"},
		"the most":       {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.total_tokens", 700)) }, nil, "1 400 0"},
		"less than none": {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.total_tokens", -1)) }, nil, "1 0 0"},
		"another meter":  {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.input_tokens", 70)) }, nil, "1 50 0"},
		"as it goes on": {func(ctx context.Context) {
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() { grpclimit.Use(ctx, by("llm.total_tokens", int64(i))) })
			}
			all.Wait()
			grpclimit.Use(ctx, by("response_bytes", 3))
			grpclimit.Use(ctx, by("llm.total_tokens", 90))
		}, nil, "1 90 3"},
		"it failed": {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.total_tokens", 80)) }, status.Error(codes.Unavailable, "not now"), "1 0 0"},
		"a refusal": {func(ctx context.Context) { grpclimit.Use(ctx, by("llm.total_tokens", 80)) }, status.Error(codes.NotFound, "no such model"), "1 80 0"},
	} {
		for _, how := range []string{"call", "stream", "stream by message"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				w := worldOf(t, usedRules, identity.Options{})
				s := client(t, grpclimit.Options{Engine: w.Engine, PerMessage: how == "stream by message"}, &service{
					call: func(ctx context.Context) error { c.use(ctx); return c.fail },
					duplex: func(stream duplex) error {
						if grpclimit.VerdictOf(stream.Context()) == nil {
							t.Error("the stream has no verdict")
						}
						c.use(stream.Context())
						return c.fail
					},
				})
				var err error
				if how == "call" {
					_, err = s.EmptyCall(t.Context(), &grpc_testing.Empty{})
				} else {
					stream, opened := s.FullDuplexCall(t.Context())
					if opened != nil {
						t.Fatal(opened)
					}
					if _, err = stream.Recv(); errors.Is(err, io.EOF) {
						err = nil
					}
				}
				if status.Code(err) != status.Code(c.fail) {
					t.Fatal(err)
				}
				wait.For(t, "what is used, or waits", func() bool { return w.used(t) == "0 "+c.want })
			})
		}
	}
	grpclimit.Use(t.Context(), engine.Usage{Cost: 1}) // no interceptor has seen it: it does nothing
}

// used returns how many places, calls, tokens and bytes are used.
func (w *world) used(t *testing.T) string {
	t.Helper()
	if err := w.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := w.Peek(t.Context(), engine.Request{Method: http.MethodPost, Path: "/", Peer: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for i := range v.Limits {
		got[v.Limits[i].Name] = v.Limits[i].Decision.Limit - v.Limits[i].Decision.Remaining
	}
	return fmt.Sprint(got["place"], " ", got["calls"], " ", got["tokens"], " ", got["out"])
}
