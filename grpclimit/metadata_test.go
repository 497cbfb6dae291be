package grpclimit_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
)

// directory has one key.
type directory struct{ key *identity.Key }

func (d directory) Key(_ context.Context, id string) (*identity.Key, error) {
	if d.key == nil {
		return nil, errors.New("secret of ours")
	}
	if id != d.key.ID {
		return nil, nil
	}
	return d.key, nil
}

func (directory) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

func (directory) User(context.Context, string) (*identity.User, error) { return nil, nil }

// newKey returns a key, and what its client sends.
func newKey(tb testing.TB) (string, *identity.Key) {
	tb.Helper()
	text, key, err := identity.GenerateKey(rand.Reader, "stint", "")
	if err != nil {
		tb.Fatal(err)
	}
	key.User = "alice"
	return text, &key
}

// TestMetadata checks what rules and identity see of a call, and what handlers learn.
func TestMetadata(t *testing.T) {
	t.Parallel()
	text, key := newKey(t)
	w := worldOf(t, `
		[[rules]]
		name     = "users"
		match    = { paths = ["/grpc.testing.TestService/EmptyCall"], headers = { X-Plan = "free" } }
		count_by = ["user"]
		limits   = [ { name = "users", limit = "1/1h" } ]
	`, identity.Options{Directory: directory{key}, KeyBearer: true})
	var verdicts []*engine.Verdict
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{call: func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		verdicts = append(verdicts, grpclimit.VerdictOf(ctx))
		if _, ok := peer.FromContext(ctx); !ok {
			t.Error("the handler's context has lost what it had")
		}
		return nil
	}})
	for _, c := range []struct {
		about string
		md    []string
		code  codes.Code
	}{
		{about: "by a header", md: []string{"x-api-key", text, "x-plan", "free"}},
		{about: "the same, used up", md: []string{"X-API-Key", text, "X-Plan", "free"}, code: codes.ResourceExhausted},
		{about: "as a token", md: []string{"authorization", "Bearer " + text, "x-plan", "free"}, code: codes.ResourceExhausted},
		{about: "to which no rule applies", md: []string{"x-api-key", text}},
		{about: "in binary", md: []string{"x-api-key-bin", text, "x-plan-bin", "free"}},
		{about: "that is not good", md: []string{"x-api-key", text + "x"}, code: codes.Unauthenticated},
	} {
		_, err := s.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), c.md...), &grpc_testing.Empty{})
		if status.Code(err) != c.code {
			t.Errorf("a key %s: %v, want %s", c.about, err, c.code)
		}
		if strings.Contains(status.Convert(err).Message(), text) {
			t.Errorf("a key %s is told: %v", c.about, err)
		}
	}
	if len(verdicts) != 3 || verdicts[0] == nil || verdicts[0].Subject.User != "alice" || verdicts[0].Method != http.MethodPost {
		t.Errorf("the handler has seen %v", verdicts)
	}
	if v := grpclimit.VerdictOf(t.Context()); v != nil {
		t.Errorf("a verdict out of nowhere: %v", v)
	}
}

// TestBadMetadata sends what no one should.
func TestBadMetadata(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{})
	limit, err := grpclimit.New(grpclimit.Options{Engine: w.Engine})
	if err != nil {
		t.Fatal(err)
	}
	many := metadata.MD{}
	for i := range 20_000 {
		many.Append("k-"+strconv.Itoa(i), "v")
	}
	for about, md := range map[string]metadata.MD{
		"none": nil, "many names": many, "a long value": {"authorization": {strings.Repeat("x", 4<<20)}},
		"many values": {"x-forwarded-for": slices.Repeat([]string{"1.2.3.4,"}, 100_000)},
		"not UTF-8":   {"x-api-key": {"\xff\xfe\x00"}, "authorization": {"Bearer \xff"}},
		"odd names":   {"": {"a"}, ":path": {"/other"}, "-bin": {"b"}, "a b": {"c"}, "\xff": {"d"}, "ſ": {"e"}},
		"no values":   {"authorization": nil, "x-api-key": {}},
	} {
		w.clock.Add(time.Minute)
		ctx := metadata.NewIncomingContext(t.Context(), md)
		info := &grpc.UnaryServerInfo{FullMethod: grpc_testing.TestService_EmptyCall_FullMethodName}
		called := false
		_, err := limit.Unary(ctx, nil, info, func(context.Context, any) (any, error) { called = true; return nil, nil })
		if err != nil || !called {
			t.Errorf("%s: %v", about, err)
		}
	}

	// And over a connection, as far as gRPC lets it through.
	s := client(t, grpclimit.Options{Engine: w.Engine}, &service{})
	w.clock.Add(time.Minute)
	ctx := metadata.NewOutgoingContext(t.Context(), many)
	for _, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := s.EmptyCall(ctx, &grpc_testing.Empty{}); status.Code(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestPeers checks that clients are told apart by the addresses they come from.
func TestPeers(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{})
	address := serve(t, grpclimit.Options{Engine: w.Engine}, &service{})
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		s := grpc_testing.NewTestServiceClient(dial(t, address, grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", to)
		})))
		for _, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
			if _, err := s.EmptyCall(t.Context(), &grpc_testing.Empty{}); status.Code(err) != want {
				t.Errorf("%s: %v, want %s", from, err, want)
			}
		}
	}

	limit, err := grpclimit.New(grpclimit.Options{Engine: w.Engine})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{addr: &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1}, want: "192.0.2.1"},
		{addr: &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, want: "fe80::1"},
		{addr: text("[2001:db8::1]:80"), want: "2001:db8::1"},
		{addr: &net.UnixAddr{Name: "@"}, want: "invalid IP"},
		{addr: text("bufconn"), want: "invalid IP"},
		{addr: nil, want: "invalid IP"},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.addr})
		info := &grpc.UnaryServerInfo{FullMethod: "/other/Method"}
		_, err := limit.Unary(ctx, nil, info, func(ctx context.Context, _ any) (any, error) {
			if got := grpclimit.VerdictOf(ctx).Subject.IP.String(); got != c.want {
				t.Errorf("%v is %s, want %s", c.addr, got, c.want)
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// text is an address that is no more than that.
type text string

func (text) Network() string { return "" }

func (a text) String() string { return string(a) }

// TestSubject checks that a program can say who is asking, and what that costs.
func TestSubject(t *testing.T) {
	t.Parallel()
	w := worldOf(t, `
		[[rules]]
		name     = "users"
		count_by = ["user"]
		limits   = [ { name = "users", limit = "5/1h" } ]
	`, identity.Options{})
	s := client(t, grpclimit.Options{
		Engine: w.Engine,
		Cost: func(_ context.Context, method string, message any) int64 {
			if m, ok := message.(*grpc_testing.SimpleRequest); ok && method == grpc_testing.TestService_UnaryCall_FullMethodName {
				return int64(m.GetResponseSize())
			}
			return 0
		},
		Subject: func(ctx context.Context, _ string) *identity.Subject {
			return &identity.Subject{User: strings.Join(metadata.ValueFromIncomingContext(ctx, "name"), "")}
		},
	}, &service{})
	for _, c := range []struct {
		user string
		cost int32
		want codes.Code
	}{{"alice", 4, codes.OK}, {"alice", 2, codes.ResourceExhausted}, {"bob", 5, codes.OK}, {"alice", 0, codes.OK}, {"carol", -1, codes.Internal}} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "name", c.user)
		if _, err := s.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: c.cost}); status.Code(err) != c.want {
			t.Errorf("%s, %d: %v, want %s", c.user, c.cost, err, c.want)
		}
	}
}
