package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// reply is what a server answers.
type reply struct {
	code    codes.Code
	info    time.Duration // in RetryInfo; negative: there is none
	trailer string        // retry-after
}

// replies are a server that gives one after another, and then OK.
type replies struct {
	mu    sync.Mutex
	list  []reply
	first time.Time
	at    []time.Duration // since the first
}

func (a *replies) answer(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.at = append(a.at, time.Since(a.first))
	if len(a.list) == 0 {
		return nil
	}
	r := a.list[0]
	a.list = a.list[1:]
	if r.trailer != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("retry-after", r.trailer))
	}
	s := status.New(r.code, "")
	if r.info >= 0 {
		s, _ = s.WithDetails(&errdetails.ErrorInfo{}, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.info)})
	}
	return s.Err()
}

// inMemory calls with a client of a server that is reached through memory, so that
// time can be virtual. Both are gone when it returns.
func inMemory(t *testing.T, c *grpclimit.Client, s *service, with func(grpc_testing.TestServiceClient), opts ...grpc.ServerOption) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	grpc_testing.RegisterTestServiceServer(server, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	cc, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(c.Unary), grpc.WithStreamInterceptor(c.Stream))
	if err != nil {
		t.Fatal(err)
	}
	with(grpc_testing.NewTestServiceClient(cc))
	_ = cc.Close()
	server.Stop()
	wg.Wait()
}

// near reports whether it took as long as it should, and what is added to that.
func near(took, want time.Duration) bool {
	return took >= want && took <= want+min(want, 10*time.Second)/10+time.Millisecond
}

// TestClientRetries calls, and looks at when it was sent again.
func TestClientRetries(t *testing.T) {
	t.Parallel()
	const s, full = time.Second, codes.ResourceExhausted
	for _, c := range []struct {
		about    string
		retries  int
		patience time.Duration
		replies  []reply
		deadline time.Duration
		code     codes.Code
		waits    []time.Duration // between the times it was sent
	}{
		{about: "it passes"},
		{about: "after RetryInfo", replies: []reply{{full, 7 * s, ""}}, waits: []time.Duration{7 * s}},
		{about: "RetryInfo comes first", replies: []reply{{full, 1500 * time.Millisecond, "9"}}, waits: []time.Duration{1500 * time.Millisecond}},
		{about: "at once", replies: []reply{{full, 0, ""}}, waits: []time.Duration{0}},
		{about: "without RetryInfo it may be anything", replies: []reply{{full, -1, ""}}, code: full},
		{about: "even with a trailer", replies: []reply{{full, -1, "3"}}, code: full},
		{about: "what may have been done", replies: []reply{{codes.Unavailable, s, ""}}, code: codes.Unavailable},
		{about: "no matter of limits", replies: []reply{{codes.Internal, s, ""}}, code: codes.Internal},
		{
			about: "no more than three times", replies: []reply{{full, s, ""}, {full, 2 * s, ""}, {full, s, ""}, {full, s, ""}},
			code: full, waits: []time.Duration{s, 2 * s, s},
		},
		{about: "as often as it is told", retries: 1, replies: []reply{{full, s, ""}, {full, s, ""}}, code: full, waits: []time.Duration{s}},
		{about: "never", retries: -1, replies: []reply{{full, s, ""}}, code: full},
		{about: "not for longer than a minute", replies: []reply{{full, 61 * s, ""}}, code: full},
		{about: "not for ever", replies: []reply{{full, 1<<63 - 1, ""}}, code: full},
		{
			about: "not for longer in all than it is told", patience: 5 * s,
			replies: []reply{{full, 3 * s, ""}, {full, 3 * s, ""}}, code: full, waits: []time.Duration{3 * s},
		},
		{about: "not after its deadline", deadline: 2 * s, replies: []reply{{full, 3 * s, ""}}, code: full},
		{about: "before its deadline", deadline: 5 * s, replies: []reply{{full, 3 * s, ""}}, waits: []time.Duration{3 * s}},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &replies{list: c.replies}
				client := &grpclimit.Client{MaxRetries: c.retries, MaxWait: c.patience}
				inMemory(t, client, &service{call: server.answer}, func(s grpc_testing.TestServiceClient) {
					ctx, cancel := context.WithCancel(t.Context())
					if c.deadline > 0 {
						ctx, cancel = context.WithTimeout(t.Context(), c.deadline)
					}
					defer cancel()
					if _, err := s.EmptyCall(ctx, &grpc_testing.Empty{}); status.Code(err) != c.code {
						t.Errorf("%v, want %s", err, c.code)
					}
				})
				if len(server.at) != len(c.waits)+1 {
					t.Fatalf("sent at %v, want after %v", server.at, c.waits)
				}
				for i, want := range c.waits {
					if took := server.at[i+1] - server.at[i]; !near(took, want) {
						t.Errorf("sent again after %v, want %v", took, want)
					}
				}
			})
		})
	}
}

// TestClientPaces checks that calls wait which are like one that was denied.
func TestClientPaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		about string
		reply reply
		wait  time.Duration // of the next call
	}{
		{"RetryInfo", reply{codes.ResourceExhausted, 5 * time.Second, ""}, 5 * time.Second},
		{"a trailer", reply{codes.ResourceExhausted, -1, "5"}, 5 * time.Second},
		{"a server that cannot", reply{codes.Unavailable, -1, "5"}, 5 * time.Second},
		{"a trailer that cannot be read", reply{codes.ResourceExhausted, -1, "soon"}, 0},
		{"a trailer that is negative", reply{codes.ResourceExhausted, -1, "-5"}, 0},
		{"a trailer out of range", reply{codes.ResourceExhausted, -1, "99999999999999999999"}, 0},
		{"nothing", reply{codes.ResourceExhausted, -1, ""}, 0},
		{"another matter", reply{codes.NotFound, 5 * time.Second, "5"}, 0},
		{"for longer than anyone waits", reply{codes.ResourceExhausted, time.Hour, ""}, 0},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &replies{list: []reply{c.reply}}
				stream := func(s grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
					return server.answer(s.Context())
				}
				inMemory(t, &grpclimit.Client{MaxRetries: -1}, &service{call: server.answer, duplex: stream}, func(s grpc_testing.TestServiceClient) {
					call := func() error {
						_, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{})
						return err
					}
					open := func() error {
						stream, err := s.FullDuplexCall(t.Context())
						if err == nil {
							_, err = stream.Recv()
						}
						if errors.Is(err, io.EOF) {
							return nil
						}
						return err
					}
					for _, send := range []func() error{call, open} {
						server.list, server.at, server.first = []reply{c.reply}, nil, time.Time{}
						if err := send(); status.Code(err) != c.reply.code {
							t.Errorf("%v, want %s", err, c.reply.code)
						}
						begin := time.Now()
						if _, err := s.UnaryCall(t.Context(), &grpc_testing.SimpleRequest{}); err != nil || time.Since(begin) > 0 {
							t.Errorf("another method: %v after %v", err, time.Since(begin))
						}
						if err := send(); err != nil {
							t.Error(err)
						}
						if took := server.at[1]; (c.wait == 0 && took > 0) || !near(took, c.wait) {
							t.Errorf("sent after %v, want %v", took, c.wait)
						}
					}
				})
			})
		})
	}
}

// TestClientCancelled ends contexts of calls that wait.
func TestClientCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &replies{list: []reply{{codes.ResourceExhausted, 30 * time.Second, ""}}}
		inMemory(t, &grpclimit.Client{}, &service{call: server.answer}, func(s grpc_testing.TestServiceClient) {
			for range 2 { // after it was denied, and before it is sent
				ctx, cancel := context.WithCancel(t.Context())
				stop := time.AfterFunc(time.Second, cancel)
				begin := time.Now()
				if _, err := s.EmptyCall(ctx, &grpc_testing.Empty{}); status.Code(err) != codes.Canceled || time.Since(begin) != time.Second {
					t.Errorf("%v after %v", err, time.Since(begin))
				}
				stop.Stop()
			}
		})
		if len(server.at) != 1 {
			t.Errorf("sent at %v", server.at)
		}
	})
}

// TestClientForgets checks that what is remembered is bounded.
func TestClientForgets(t *testing.T) {
	t.Parallel()
	c := new(grpclimit.Client)
	full, err := status.New(codes.ResourceExhausted, "").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cc := dial(t, "127.0.0.1:1")
	for i := range 3000 {
		err := c.Unary(t.Context(), "/m"+strconv.Itoa(i), nil, nil, cc, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return full.Err()
		})
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
	}
	if n := c.Routes(); n != 1024 {
		t.Errorf("%d are remembered", n)
	}
}

// TestClientOfServer has clients keep to the limits of a server: all of their calls
// pass in the end, and no more at a time than may.
func TestClientOfServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file, err := rule.ParseTOML("test.toml", []byte(`
			[[rules]]
			name   = "all"
			limits = [ { name = "all", limit = "5/1s fixed_window" } ]
		`))
		if err != nil {
			t.Fatal(err)
		}
		rules, err := rule.Compile(file)
		if err != nil {
			t.Fatal(err)
		}
		who, err := identity.New(identity.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
		if err != nil {
			t.Fatal(err)
		}
		limit, err := grpclimit.New(grpclimit.Options{Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		windows := map[int64]int{}
		s := &service{call: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			windows[time.Now().Unix()]++
			return nil
		}}
		inMemory(t, &grpclimit.Client{MaxRetries: 20}, s, func(s grpc_testing.TestServiceClient) {
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}, grpc.ChainUnaryInterceptor(limit.Unary))
		passed := 0
		for _, n := range windows {
			if passed += n; n > 5 {
				t.Errorf("%d in one window", n)
			}
		}
		if passed != 20 {
			t.Errorf("%v have passed, want 20", windows)
		}
	})
}
