package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// world is an engine, its store and its clock.
type world struct {
	*engine.Engine
	store *broken
	clock *storetest.Clock
}

// broken is a store out of reach, if it is so.
type broken struct {
	stint.Store
	down atomic.Bool
}

func (b *broken) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.down.Load() {
		return stint.ErrUnavailable
	}
	return b.Store.Take(ctx, asks, ds)
}

func (b *broken) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.down.Load() {
		return stint.ErrUnavailable
	}
	return b.Store.Adjust(ctx, asks, ds)
}

// worldOf is a world with rules in TOML.
func worldOf(tb testing.TB, toml string, o identity.Options) world {
	tb.Helper()
	w := world{clock: storetest.NewClock()}
	store, err := memstore.New(memstore.Options{Now: w.clock.Now})
	if err != nil {
		tb.Fatal(err)
	}
	w.store = &broken{Store: store}
	f, err := rule.ParseTOML("test.toml", []byte(toml))
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	who, err := identity.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = who.Close() })
	w.Engine, err = engine.New(engine.Options{Store: w.store, Rules: rules, Identity: who, Now: w.clock.Now})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// service is what is limited. Its functions may be nil.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
	call   func(ctx context.Context) error
	duplex func(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error
}

func (s *service) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	if s.call != nil {
		return &grpc_testing.Empty{}, s.call(ctx)
	}
	return &grpc_testing.Empty{}, nil
}

func (s *service) UnaryCall(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{}, nil
}

// FullDuplexCall answers every message, and ends when the client does.
func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	if s.duplex != nil {
		return s.duplex(stream)
	}
	for {
		switch _, err := stream.Recv(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// serve runs a server on the loopback interface, until the test is over, and returns
// its address.
func serve(tb testing.TB, o grpclimit.Options, s *service) string {
	tb.Helper()
	limit, err := grpclimit.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	grpc_testing.RegisterTestServiceServer(server, s)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return start(tb, server)
}

// start starts a server on the loopback interface, until the test is over, and returns its address.
func start(tb testing.TB, server *grpc.Server) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

// dial connects to a server, until the test is over.
func dial(tb testing.TB, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cc.Close() })
	return cc
}

// client is a client of a server that is limited so.
func client(tb testing.TB, o grpclimit.Options, s *service) grpc_testing.TestServiceClient {
	tb.Helper()
	return grpc_testing.NewTestServiceClient(dial(tb, serve(tb, o, s)))
}

// told is what a client sees of a call: its code and message, the details, and the
// trailers.
func told(err error, trailer metadata.MD) string {
	s := status.Convert(err)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", s.Code(), s.Message())
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Fprintf(&b, "info %s %s, id of %d\n", d.GetDomain(), d.GetReason(), len(d.GetMetadata()["decision_id"]))
		case *errdetails.RetryInfo:
			fmt.Fprintf(&b, "retry %s\n", d.GetRetryDelay().AsDuration())
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				fmt.Fprintf(&b, "quota %s: %s\n", v.GetSubject(), v.GetDescription())
			}
		default:
			fmt.Fprintf(&b, "%T\n", d)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(trailer)) {
		// Of a response that is trailers only; and an id, which TestDecisionTrailer checks.
		if name != "content-type" && name != "stint-decision" && !strings.HasPrefix(name, "grpc-") {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(trailer[name], " | "))
		}
	}
	return b.String()
}

const oneLimit = `
	[[rules]]
	name     = "calls"
	match    = { paths = ["/grpc.testing.TestService/**"], methods = ["POST"] }
	count_by = ["ip"]
	limits   = [ { name = "calls", limit = "2/1m fixed_window" } ]
`

// TestDecisionTrailer checks that a client gets the id of the decision, the same as in the details.
func TestDecisionTrailer(t *testing.T) {
	t.Parallel()
	for set, sent := range map[grpclimit.TrailerSet]bool{0: true, grpclimit.ID: true, grpclimit.X | grpclimit.IETF: false, grpclimit.None: false} {
		w := worldOf(t, oneLimit, identity.Options{})
		s := client(t, grpclimit.Options{Engine: w.Engine, Trailers: set}, &service{})
		for range 3 {
			var trailer metadata.MD
			_, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
			got := strings.Join(trailer["stint-decision"], " ")
			if (len(got) == 36) != sent {
				t.Errorf("set %d: %q", set, got)
			}
			for _, detail := range status.Convert(err).Details() {
				if d, ok := detail.(*errdetails.ErrorInfo); ok && sent && d.GetMetadata()["decision_id"] != got {
					t.Errorf("set %d: %q, in the details %v", set, got, d)
				}
			}
		}
	}
}

// TestMarks checks that handlers, and no clients, are told which limits of mark rules a call is over, whatever the client says.
func TestMarks(t *testing.T) {
	t.Parallel()
	w := worldOf(t, strings.ReplaceAll(oneLimit, "count_by", "action = \"mark\"\ncount_by"), identity.Options{})
	var told []string
	tell := func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		told = append(told, strings.Join(md["stint-over"], "|"))
	}
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{
		call: func(ctx context.Context) error {
			tell(ctx)
			return nil
		},
		duplex: func(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
			tell(stream.Context())
			return nil
		},
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "stint-over", "made up", "stint-over", "twice")
	for range 3 {
		var header, trailer metadata.MD
		if _, err := s.EmptyCall(ctx, &grpc_testing.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil || header["stint-over"] != nil || trailer["stint-over"] != nil {
			t.Fatal(header, trailer, err)
		}
	}
	stream, err := s.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	over := `"calls/calls";q=2;over=1;t=60`
	if want := []string{"", "", over, over}; !slices.Equal(told, want) {
		t.Errorf("handlers are told %q, want %q", told, want)
	}
}

// TestAnswers compares what clients see.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const (
		info     = "info github.com/stintdev/stint "
		id       = ", id of 36\n"
		standing = "ratelimit: \"calls\";r=0;t=59\nratelimit-policy: \"calls\";q=2;w=60\nretry-after: 59\n" +
			"x-ratelimit-limit: 2\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1767225660\n"
	)
	for _, c := range []struct {
		about  string
		rules  string
		o      identity.Options
		sets   grpclimit.TrailerSet
		cost   int64
		before int  // calls before the one that is shown
		down   bool // the store
		ban    *identity.Entry
		want   string
	}{
		{
			about: "a limit, the first call", rules: oneLimit,
			want: "OK \nratelimit: \"calls\";r=1;t=59\nratelimit-policy: \"calls\";q=2;w=60\n" +
				"x-ratelimit-limit: 2\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 1767225660\n",
		},
		{
			about: "a limit that is used up", rules: oneLimit, before: 2,
			want: "ResourceExhausted A limit is used up.\n" + info + "DENIED" + id + "retry 58.5s\n" +
				"quota calls: limit calls (2/1m fixed_window)\n" + standing,
		},
		{
			about: "no trailers but retry-after", rules: oneLimit, before: 2, sets: grpclimit.None,
			want: "ResourceExhausted A limit is used up.\n" + info + "DENIED" + id + "retry 58.5s\n" +
				"quota calls: limit calls (2/1m fixed_window)\nretry-after: 59\n",
		},
		{
			about: "a cost that can never pass", rules: oneLimit, cost: 3, sets: grpclimit.X,
			want: "ResourceExhausted This call costs more than a limit ever allows.\n" + info + "DENIED" + id + "quota calls: limit calls (2/1m fixed_window)\n" +
				"x-ratelimit-cost: 3\nx-ratelimit-limit: 2\nx-ratelimit-remaining: 2\nx-ratelimit-reset: 1767225602\n",
		},
		{
			about: "what the rule says", rules: oneLimit + `response = { status = 420, message = "Calm down." }`, before: 2, sets: grpclimit.None,
			want: "ResourceExhausted Calm down.\n" + info + "DENIED" + id + "retry 58.5s\nquota calls: limit calls (2/1m fixed_window)\n",
		},
		{
			about: "limits of several rules that have one name", before: 1, sets: grpclimit.None, rules: `
				[[rules]]
				name   = "everyone"
				limits = [ { name = "hourly", limit = "1000/1h" } ]
				[[rules]]
				name     = "each"
				count_by = ["ip"]
				limits   = [ { name = "hourly", limit = "1/1h fixed_window" } ]
			`,
			want: "ResourceExhausted A limit is used up.\n" + info + "DENIED" + id + "retry 59m58.5s\n" +
				"quota each/hourly: limit hourly (1/1h fixed_window)\nretry-after: 3599\n",
		},
		{
			about: "banned for not stopping", before: 3, sets: grpclimit.None,
			rules: oneLimit + `penalty = { threshold = 1, within = "1h", cooldown = "10m" }`,
			want: "ResourceExhausted Calls from this client are denied.\n" + info + "BANNED" + id + "retry 9m58.5s\n" +
				"quota calls: limit calls (2/1m fixed_window)\nretry-after: 599\n",
		},
		{
			about: "banned for good", rules: oneLimit, ban: &identity.Entry{Value: "127.0.0.1"},
			want: "PermissionDenied Calls from this client are denied.\n" + info + "BANNED" + id,
		},
		{
			about: "banned for a while, with what is not UTF-8", rules: oneLimit,
			ban:  &identity.Entry{Value: "127.0.0.0/8", Until: storetest.Epoch.Add(time.Hour), Reason: "Please write to \xff."},
			want: "PermissionDenied Please write to \uFFFD.\n" + info + "BANNED" + id + "retry 59m58.5s\n",
		},
		{
			about: "blocked", rules: "[[rules]]\nname = \"closed\"\naction = \"block\"",
			want: "PermissionDenied This call is denied.\n" + info + "BLOCKED" + id,
		},
		{
			about: "blocked with 429", rules: "[[rules]]\nname = \"closed\"\naction = \"block\"\nresponse = { status = 429 }",
			want: "ResourceExhausted This call is denied.\n" + info + "BLOCKED" + id,
		},
		{
			about: "credentials are required", rules: oneLimit, o: identity.Options{Require: true}, sets: grpclimit.None,
			want: "Unauthenticated an API key or a token is required\n" + info + "UNAUTHORIZED" + id,
		},
		{about: "exempt", rules: "[[rules]]\nname = \"free\"\naction = \"allow\"", want: "OK \n"},
		{about: "no rule applies", want: "OK \n"},
		{
			about: "the store is out of reach, and the rule is closed", rules: oneLimit + `on_store_failure = "closed"`, down: true, sets: grpclimit.None,
			want: "Unavailable Calls cannot be counted at the moment.\n" + info + "UNAVAILABLE" + id + "retry 1s\nretry-after: 1\n",
		},
		{
			about: "the store is out of reach, and the rule is open", rules: oneLimit + `on_store_failure = "open"`, down: true,
			want: "OK \nratelimit-policy: \"calls\";q=2;w=60\n",
		},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, c.rules, c.o)
			if c.ban != nil {
				if err := w.Ban(*c.ban); err != nil {
					t.Fatal(err)
				}
			}
			calls := 0
			s := client(t, grpclimit.Options{
				Engine: w.Engine, Trailers: c.sets, Cost: func(context.Context, string, any) int64 { return c.cost },
			}, &service{call: func(context.Context) error { calls++; return nil }})
			for range c.before {
				_, _ = s.EmptyCall(t.Context(), &grpc_testing.Empty{})
			}
			w.clock.Add(1500 * time.Millisecond)
			w.store.down.Store(c.down)
			calls = 0
			var trailer metadata.MD
			_, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
			if got := told(err, trailer); got != c.want {
				t.Errorf("%s\nwant\n%s", got, c.want)
			}
			if (calls == 1) != (err == nil) {
				t.Errorf("the handler was called %d times, and the client told %v", calls, err)
			}

			// A stream is told the same.
			stream, err := s.FullDuplexCall(t.Context())
			if err == nil {
				err = stream.CloseSend()
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err = stream.Recv(); errors.Is(err, io.EOF) {
				err = nil
			}
			if got := status.Code(err).String(); c.before != 1 && !strings.HasPrefix(c.want, got) {
				t.Errorf("a stream ends with %s", got)
			}
			if len(trailer["ratelimit"]) != len(stream.Trailer()["ratelimit"]) {
				t.Errorf("a stream has the trailers %v", stream.Trailer())
			}
		})
	}
}

// TestHealth checks that health checks pass, unless they are to be limited.
func TestHealth(t *testing.T) {
	t.Parallel()
	for _, limited := range []bool{false, true} {
		w := worldOf(t, "[[rules]]\nname = \"closed\"\naction = \"block\"", identity.Options{})
		h := grpc_health_v1.NewHealthClient(dial(t, serve(t, grpclimit.Options{Engine: w.Engine, LimitHealth: limited}, &service{})))
		_, err := h.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if got := status.Code(err) == codes.PermissionDenied; got != limited {
			t.Errorf("LimitHealth %t: %v", limited, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		watch, err := h.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if got := status.Code(err) == codes.PermissionDenied; got != limited {
			t.Errorf("LimitHealth %t, a stream: %v", limited, err)
		}
		cancel()
	}
}

// TestUndecided checks that what cannot be decided is not let through, and that the
// client does not learn why.
func TestUndecided(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{Directory: directory{}})
	sent, _ := newKey(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", sent)
	let := &service{call: func(context.Context) error { t.Error("let through"); return nil }}
	var got atomic.Value
	for _, c := range []struct {
		onError func(context.Context, string, error) error
		want    codes.Code
	}{
		{nil, codes.Unavailable},
		{func(context.Context, string, error) error { return nil }, codes.Unavailable},
		{func(_ context.Context, method string, err error) error {
			got.Store(method + ": " + err.Error())
			return status.Error(codes.Aborted, "")
		}, codes.Aborted},
	} {
		s := client(t, grpclimit.Options{Engine: w.Engine, OnError: c.onError}, let)
		_, err := s.EmptyCall(ctx, &grpc_testing.Empty{})
		if status.Code(err) != c.want || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %s", err, c.want)
		}
		stream, err := s.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != c.want {
			t.Errorf("a stream: %v, want %s", err, c.want)
		}
	}
	if text, _ := got.Load().(string); !strings.Contains(text, "secret of ours") || !strings.HasPrefix(text, "/grpc.testing.TestService/") {
		t.Errorf("OnError was told %q", text)
	}
}

// TestExact has many call at once: as many pass as the limit says.
func TestExact(t *testing.T) {
	t.Parallel()
	const callers, each, limit = 16, 25, 100
	w := worldOf(t, `
		[[rules]]
		name     = "each"
		count_by = ["ip"]
		limits   = [ { name = "hourly", limit = "`+strconv.Itoa(limit)+`/1h fixed_window" } ]
	`, identity.Options{})
	var handled, passed, denied atomic.Int32
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{call: func(context.Context) error { handled.Add(1); return nil }})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				switch _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); status.Code(err) {
				case codes.OK:
					passed.Add(1)
				case codes.ResourceExhausted:
					denied.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if handled.Load() != limit || passed.Load() != limit || denied.Load() != callers*each-limit {
		t.Errorf("%d handled, %d passed and %d denied, want %d to pass", handled.Load(), passed.Load(), denied.Load(), limit)
	}
}

// TestDocument checks that the rules of docs/grpc.md can be used, and apply.
func TestDocument(t *testing.T) {
	t.Parallel()
	blocks := testdoc.In(t, "docs/grpc.md", "toml")
	if len(blocks) != 1 {
		t.Fatalf("it has %d examples of rules, want 1", len(blocks))
	}
	w := worldOf(t, blocks[0].Text, identity.Options{})
	v, err := w.Decide(t.Context(), engine.Request{
		Method: http.MethodPost, Path: "/shop.v1.Orders/Create", Subject: &identity.Subject{User: "alice"},
	})
	if err != nil || v.Rule == nil || v.Rule.Name != "orders" {
		t.Errorf("%v, %v", v.Rule, err)
	}

	// The trailers of a call of another service, with as much used.
	w = worldOf(t, strings.NewReplacer("shop.v1.Orders", "grpc.testing.TestService", `"user"`, `"ip"`).Replace(blocks[0].Text), identity.Options{})
	var trailer metadata.MD
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{})
	for range 58 {
		if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := strings.TrimPrefix(told(nil, trailer), "OK \n"), testdoc.In(t, "docs/grpc.md", "text"); len(want) != 1 || !testdoc.Same(got, want[0].Text) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestLongMethod calls a method whose name is too long to be matched.
func TestLongMethod(t *testing.T) {
	t.Parallel()
	w := worldOf(t, "", identity.Options{})
	s, err := grpclimit.New(grpclimit.Options{Engine: w.Engine})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/" + strings.Repeat(";", 8192)}, func(context.Context, any) (any, error) {
		t.Error("it was called")
		return nil, nil
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "8192 bytes") {
		t.Error(err)
	}
}
