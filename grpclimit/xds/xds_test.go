package xds_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/xds"
	"github.com/stintdev/stint/internal/test/wait"
)

// This file is long: one management server, in the test, and everything that it can do wrong.

// TestMain fails if a goroutine of a client or a server is left.
func TestMain(m *testing.M) {
	code := m.Run()
	for end := time.Now().Add(5 * time.Minute); code == 0; <-time.After(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "google.golang.org/grpc") {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
			code = 1
		}
	}
	os.Exit(code)
}

// server is a management server whose answers the test writes.
type server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	*grpc.Server
	sessions chan *session
}

// session is a stream, as the server sees it.
type session struct {
	header   metadata.MD
	requests chan *discovery.DiscoveryRequest
	answers  chan *discovery.DiscoveryResponse // closed: the stream ends
}

func (s *server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	ctx := stream.Context()
	q := &session{requests: make(chan *discovery.DiscoveryRequest, 1), answers: make(chan *discovery.DiscoveryResponse)}
	q.header, _ = metadata.FromIncomingContext(ctx)
	s.sessions <- q
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case q.requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case a, ok := <-q.answers:
			if !ok {
				return nil
			}
			if err := stream.Send(a); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func serve(t *testing.T, l net.Listener, o ...grpc.ServerOption) *server {
	t.Helper()
	s := &server{Server: grpc.NewServer(o...), sessions: make(chan *session, 100)}
	discovery.RegisterAggregatedDiscoveryServiceServer(s, s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return s
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// client is a client that runs. It refuses a domain that is called bad, and puts what
// it uses into a channel.
type client struct {
	*xds.Client
	used chan []descriptor.Named
	stop func() // waits for the end of Run
}

func run(t *testing.T, o xds.Options, before ...func(*xds.Client)) *client {
	t.Helper()
	c := &client{used: make(chan []descriptor.Named, 100)}
	if o.Use == nil {
		o.Use = func(_ context.Context, domains []descriptor.Named) error {
			for _, d := range domains {
				if d.Domain.Domain == "bad" {
					return errors.New("no such domain, \xff" + strings.Repeat("x", 1<<20))
				}
			}
			c.used <- domains
			return nil
		}
	}
	if o.MinPause == 0 {
		o.MinPause, o.MaxPause = time.Millisecond, 10*time.Millisecond
	}
	var err error
	if c.Client, err = xds.New(o); err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		f(c.Client)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := next(t, done); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// next waits for a value.
func next[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	return <-c
}

// wait waits for a state.
func (c *client) wait(t *testing.T, what string, ok func(xds.State) bool) xds.State {
	t.Helper()
	var s xds.State
	wait.Nil(t, what, func() error {
		if s = c.State(); !ok(s) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	return s
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func answer(version string, resources ...*anypb.Any) *discovery.DiscoveryResponse {
	return &discovery.DiscoveryResponse{VersionInfo: version, Nonce: "nonce " + version, TypeUrl: xds.TypeURL, Resources: resources}
}

// TestConversation is a stream from its first request on.
func TestConversation(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l)
	var log strings.Builder // is read when Run has ended
	c := run(t, xds.Options{
		Server: l.Addr().String(), Metadata: map[string]string{"region": "eu"}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Headers: map[string]string{"X-Token": "secret", "x-raw-bin": "\x00\xff"},
	})
	q := next(t, s.sessions)
	for name, want := range map[string]string{"x-token": "secret", "x-raw-bin": "\x00\xff"} {
		if got := q.header.Get(name); !slices.Equal(got, []string{want}) {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	first := next(t, q.requests)
	if first.GetTypeUrl() != xds.TypeURL || first.GetVersionInfo() != "" || first.GetResponseNonce() != "" ||
		first.GetNode().GetId() != "default" || first.GetNode().GetMetadata().AsMap()["region"] != "eu" {
		t.Errorf("the first request: %v", first)
	}

	one := func(name, domain string) *anypb.Any {
		return pack(t, &config.RateLimitConfig{Name: name, Domain: domain})
	}
	garbled := &anypb.Any{TypeUrl: xds.TypeURL, Value: []byte{0xff}}
	for _, step := range []struct {
		answer  *discovery.DiscoveryResponse
		version string // that is in use then
		refused string // why, if it is
		domains string
	}{
		{answer("1", one("a", "web")), "1", "", "a web"},
		{answer("2", one("a", "web"), one("b", "api")), "2", "", "a web, b api"},
		{answer("3", one("a", "bad")), "2", "no such domain", ""},
		{answer("4", one("a", "web"), garbled), "2", "resource 2 of 2", ""},
		{answer("5", one("a", "web"), pack(t, &structpb.Struct{})), "2", "resource 2 of 2", ""},
		{answer("6", one("a", "web"), one("b", "api"), one("a", "etc")), "2", `resource 3 of 3: the name "a" is already used by resource 1`, ""},
		{answer("7", one("", "web"), one("", "api")), "7", "", "resource 1 web, resource 2 api"},
		{answer("8"), "8", "", ""},
		{answer("", one("a", "web")), "", "", "a web"},
	} {
		// To this there is no reply, or it would be taken for the next one.
		q.answers <- &discovery.DiscoveryResponse{VersionInfo: "0", Nonce: "other", TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
		q.answers <- step.answer
		version := step.answer.GetVersionInfo()
		r := next(t, q.requests)
		if r.GetResponseNonce() != step.answer.GetNonce() || r.GetVersionInfo() != step.version || r.GetTypeUrl() != xds.TypeURL {
			t.Errorf("version %q: %v, want version %q and nonce %q", version, r, step.version, step.answer.GetNonce())
		}
		state := c.State()
		if !state.Connected || state.Version != step.version || !strings.Contains(state.Problem, step.refused) ||
			(state.Problem == "") != (step.refused == "") || state.ProblemAt.IsZero() != (step.refused == "") {
			t.Errorf("version %q: the state is %+v", version, state)
		}
		if e := r.GetErrorDetail(); step.refused != "" {
			if e.GetCode() != int32(codes.InvalidArgument) || !strings.Contains(e.GetMessage(), step.refused) || len(e.GetMessage()) > 8<<10 || len(state.Problem) > 9<<10 {
				t.Errorf("version %q: refused with %v, want %q", version, e, step.refused)
			}
			continue
		} else if e != nil {
			t.Errorf("version %q: refused with %v", version, e)
			continue
		}
		var domains []string
		for _, d := range next(t, c.used) {
			domains = append(domains, d.Name+" "+d.Domain.Domain)
		}
		if got := strings.Join(domains, ", "); got != step.domains {
			t.Errorf("version %q: domains %q, want %q", version, got, step.domains)
		}
	}

	close(q.answers)
	if r := next(t, next(t, s.sessions).requests); r.GetResponseNonce() != "" || r.GetNode().GetId() != "default" {
		t.Errorf("the first request after the end of a stream: %v", r)
	}
	c.stop()
	if c.State().Connected {
		t.Error("connected after the end")
	}
	for _, line := range []string{"xds connected", "xds answer ignored", "xds version used", "xds version rejected", "xds connection lost"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("nothing logged of %q", line)
		}
	}
	if strings.Contains(log.String(), "secret") {
		t.Error("a header was logged")
	}
}

// TestRead is about what becomes of a resource.
func TestRead(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l)
	c := run(t, xds.Options{Server: l.Addr().String(), NodeID: "n"})
	q := next(t, s.sessions)
	if r := next(t, q.requests); r.GetNode().GetId() != "n" {
		t.Errorf("the first request: %v", r)
	}

	// newer are fields that the generated code does not have.
	newer := func(b ...[]byte) *config.RateLimitDescriptor {
		d := &config.RateLimitDescriptor{Key: "k"}
		d.ProtoReflect().SetUnknown(slices.Concat(b...))
		return d
	}
	number := func(field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), v)
	}
	raw := func(field protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), v)
	}
	fields := func(m map[string]any) []byte {
		v, err := structpb.NewStruct(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw(8, b)
	}
	limit := func(unit config.RateLimitUnit) *config.RateLimitDescriptor {
		return &config.RateLimitDescriptor{Key: "k", RateLimit: &config.RateLimitPolicy{Unit: unit, RequestsPerUnit: 1}}
	}
	per := func(unit string) descriptor.Descriptor {
		return descriptor.Descriptor{Key: "k", RateLimit: &descriptor.RateLimit{Unit: unit, RequestsPerUnit: 1}}
	}
	group := protowire.AppendTag(protowire.AppendTag(nil, 9, protowire.StartGroupType), 9, protowire.EndGroupType)

	for name, row := range map[string]struct {
		in      *config.RateLimitDescriptor
		want    descriptor.Descriptor
		refused string
	}{
		"all": {
			in: &config.RateLimitDescriptor{
				Key: "k", Value: "v*", ShadowMode: true, DetailedMetric: true,
				RateLimit: &config.RateLimitPolicy{
					Unit: config.RateLimitUnit_MINUTE, RequestsPerUnit: 1<<32 - 1, Name: "n",
					Replaces: []*config.RateLimitReplace{{Name: "a"}, {Name: "b"}},
				},
				Descriptors: []*config.RateLimitDescriptor{{Key: "below", RateLimit: &config.RateLimitPolicy{Unlimited: true}}},
			},
			want: descriptor.Descriptor{
				Key: "k", Value: "v*", ShadowMode: true, DetailedMetric: true,
				RateLimit: &descriptor.RateLimit{
					Unit: "minute", RequestsPerUnit: 1<<32 - 1, Name: "n", Replaces: []descriptor.Replace{{Name: "a"}, {Name: "b"}},
				},
				Descriptors: []descriptor.Descriptor{{Key: "below", RateLimit: &descriptor.RateLimit{Unlimited: true}}},
			},
		},
		"no unit":             {in: limit(0), want: per("")},
		"second":              {in: limit(1), want: per("second")},
		"hour":                {in: limit(3), want: per("hour")},
		"day":                 {in: limit(4), want: per("day")},
		"month":               {in: limit(5), want: per("month")},
		"year":                {in: limit(6), want: per("year")},
		"week":                {in: limit(7), want: per("week")},
		"another unit":        {in: limit(8), want: per("8")},
		"a negative unit":     {in: limit(-1), want: per("-1")},
		"quota":               {in: newer(number(7, 1)), want: descriptor.Descriptor{Key: "k", QuotaMode: true}},
		"quota, twice":        {in: newer(number(7, 1), number(7, 0)), want: descriptor.Descriptor{Key: "k"}},
		"quota of a kind":     {in: newer(raw(7, []byte("true"))), refused: `descriptor 1, "k": quota_mode: want a bool`},
		"metadata":            {in: newer(fields(map[string]any{"a": "b", "n": 1.5, "l": []any{true, nil}})), want: descriptor.Descriptor{Key: "k", Metadata: map[string]any{"a": "b", "n": 1.5, "l": []any{true, nil}}}},
		"metadata, in parts":  {in: newer(fields(map[string]any{"a": "b"}), number(7, 1), fields(map[string]any{"c": "d"})), want: descriptor.Descriptor{Key: "k", QuotaMode: true, Metadata: map[string]any{"a": "b", "c": "d"}}},
		"metadata, garbled":   {in: newer(raw(8, []byte{0xff})), refused: "metadata: want a google.protobuf.Struct: "},
		"metadata of a kind":  {in: newer(number(8, 1)), refused: "metadata: want a google.protobuf.Struct"},
		"fields not known":    {in: newer(number(9, 1), group, raw(99, []byte("x"))), want: descriptor.Descriptor{Key: "k"}},
		"below, of no use":    {in: &config.RateLimitDescriptor{Key: "k", Descriptors: []*config.RateLimitDescriptor{newer(number(8, 1))}}, refused: `"name": descriptor 1, "k": descriptor 1, "k": metadata`},
		"nothing but its key": {in: newer(), want: descriptor.Descriptor{Key: "k"}},
	} {
		q.answers <- answer(name, pack(t, &config.RateLimitConfig{Name: "name", Domain: "web", Descriptors: []*config.RateLimitDescriptor{row.in}}))
		r := next(t, q.requests)
		if got := r.GetErrorDetail().GetMessage(); row.refused != "" || got != "" {
			if row.refused == "" || !strings.Contains(got, row.refused) {
				t.Errorf("%s: refused with %q, want %q", name, got, row.refused)
			}
			continue
		}
		want := []descriptor.Named{{Name: "name", Domain: descriptor.Domain{Domain: "web", Descriptors: []descriptor.Descriptor{row.want}}}}
		if got := next(t, c.used); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// TestRestart is about a server that goes and comes back.
func TestRestart(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l)
	c := run(t, xds.Options{Server: l.Addr().String()})
	q := next(t, s.sessions)
	next(t, q.requests)
	q.answers <- answer("7")
	next(t, q.requests)
	before := c.State()

	s.Stop()
	lost := c.wait(t, "lost", func(s xds.State) bool { return s.Problem != "" })
	if lost.Connected || !lost.Since.After(before.Since) || lost.Version != "7" || !lost.Used.Equal(before.Used) {
		t.Errorf("from %+v to %+v", before, lost)
	}

	s = serve(t, listen(t, "tcp", l.Addr().String()))
	q = next(t, s.sessions)
	if r := next(t, q.requests); r.GetVersionInfo() != "7" || r.GetResponseNonce() != "" || r.GetErrorDetail() != nil {
		t.Errorf("the first request after a restart: %v", r)
	}
	if back := c.State(); !back.Connected || back.Problem != "" || !back.Used.Equal(before.Used) {
		t.Errorf("after a restart: %+v", back)
	}
}

// TestAway is about a server that is not there yet, or is not what it should be.
func TestAway(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	c := run(t, xds.Options{Server: "unix:" + socket})
	c.wait(t, "without a connection", func(s xds.State) bool {
		return !s.Connected && !s.Since.IsZero() && strings.Contains(s.Problem, "unix:"+socket)
	})
	s := serve(t, listen(t, "unix", socket))
	next(t, next(t, s.sessions).requests)
	if state := c.State(); !state.Connected || state.Problem != "" || !state.Used.IsZero() {
		t.Errorf("connected: %+v", state)
	}

	l := listen(t, "tcp", "127.0.0.1:0")
	other := grpc.NewServer()
	served := make(chan error, 1)
	go func() { served <- other.Serve(l) }()
	t.Cleanup(func() { other.Stop(); <-served })
	c = run(t, xds.Options{Server: l.Addr().String()})
	c.wait(t, "refused", func(s xds.State) bool { return strings.Contains(s.Problem, "unknown service") })
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l)
	c := run(t, xds.Options{Server: l.Addr().String(), MaxMessage: 1 << 10, MinPause: time.Hour, MaxPause: time.Hour})
	q := next(t, s.sessions)
	q.answers <- answer("1", pack(t, &config.RateLimitConfig{Domain: strings.Repeat("x", 1<<11)}))
	c.wait(t, "refused", func(s xds.State) bool { return strings.Contains(s.Problem, "larger than max") })
	c.stop() // does not wait for the pause
}

func TestTLS(t *testing.T) {
	t.Parallel()
	// Its certificate is for 127.0.0.1, and it is its own authority.
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	known := x509.NewCertPool()
	known.AddCert(web.Certificate())
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12})))

	run(t, xds.Options{Server: l.Addr().String(), TLS: &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}})
	next(t, next(t, s.sessions).requests)

	for name, row := range map[string]struct {
		tls  *tls.Config
		says string
	}{
		"no one vouches for it": {&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, "certificate"},
		"in plain text":         {nil, ""}, // the server hangs up
	} {
		c := run(t, xds.Options{Server: l.Addr().String(), TLS: row.tls})
		c.wait(t, "refused: "+name, func(s xds.State) bool { return s.Problem != "" && strings.Contains(s.Problem, row.says) })
		c.stop()
		if len(s.sessions) > 0 {
			t.Errorf("%s: connected", name)
		}
	}
}

// TestStopWhileUsed checks that what takes its time is told when it is over, and that
// this is no reason to refuse anything.
func TestStopWhileUsed(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	s := serve(t, l)
	using := make(chan struct{})
	c := run(t, xds.Options{Server: l.Addr().String(), Use: func(ctx context.Context, _ []descriptor.Named) error {
		close(using)
		<-ctx.Done()
		return ctx.Err()
	}})
	q := next(t, s.sessions)
	next(t, q.requests)
	q.answers <- answer("1")
	next(t, using)
	c.stop()
	if state := c.State(); state.Problem != "" || state.Version != "" || state.Connected {
		t.Errorf("stopped: %+v", state)
	}
	if len(q.requests) > 0 {
		t.Errorf("told the server %v", <-q.requests)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	good := xds.Options{Server: "127.0.0.1:1", Use: func(context.Context, []descriptor.Named) error { return nil }}
	if c, err := xds.New(good); err != nil || !c.State().Since.IsZero() {
		t.Errorf("%v, %v", c, err)
	}
	header := func(name, value string) func(*xds.Options) {
		return func(o *xds.Options) { o.Headers = map[string]string{name: value} }
	}
	bad := map[string]struct {
		change func(*xds.Options)
		says   string
	}{
		"no server":         {func(o *xds.Options) { o.Server = "" }, `Server ""`},
		"an unknown target": {func(o *xds.Options) { o.Server = "host:port\x7f" }, `Server "host:port\x7f"`},
		"a node's id":       {func(o *xds.Options) { o.NodeID = "\xff" }, "NodeID"},
		"a node's metadata": {func(o *xds.Options) { o.Metadata = map[string]string{"k": "\xff"} }, `Metadata "k=\xff"`},
		"a size":            {func(o *xds.Options) { o.MaxMessage = -1 }, `MaxMessage "-1"`},
		"no use":            {func(o *xds.Options) { o.Use = nil }, "Use"},
		"a pause":           {func(o *xds.Options) { o.MinPause = -1 }, "MinPause"},
		"pauses":            {func(o *xds.Options) { o.MinPause, o.MaxPause = 2, 1 }, `MaxPause "1ns": want MinPause, 2ns, to 1h`},
		"a long pause":      {func(o *xds.Options) { o.MaxPause = 2 * time.Hour }, `MaxPause "2h0m0s"`},
		"a ping":            {func(o *xds.Options) { o.Ping = time.Second }, `Ping "1s": want 10s or more`},
		"no header":         {header("", "x"), `Headers ""`},
		"a reserved header": {header("grpc-timeout", "x"), `Headers "grpc-timeout"`},
		"the own header":    {header("Content-Type", "x"), `Headers "Content-Type"`},
		"a header's name":   {header(":path", "x"), `Headers ":path"`},
		"a header's space":  {header("a b", "x"), `Headers "a b"`},
		"a header's value":  {header("x-token", "secret\n"), `Headers "x-token"`},
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		o := good
		bad[name].change(&o)
		if _, err := xds.New(o); err == nil || !strings.Contains(err.Error(), bad[name].says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", name, err, bad[name].says)
		}
	}
}
