package grpclimit

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/field"
)

// TrailerSet says which trailers tell a client about its limits. The zero value is X,
// IETF and ID. It is the same type as httplimit.HeaderSet.
type TrailerSet = field.Set

const (
	// X is x-ratelimit-limit, -remaining and -reset, of the binding limit, and
	// x-ratelimit-cost if the call does not cost 1.
	X = field.X
	// IETF is ratelimit-policy and ratelimit, of all limits.
	IETF = field.IETF
	// None is none of them. A denied call still gets retry-after.
	None = field.None
	// ID is stint-decision, the id of the decision, whether a limit applied or not.
	ID = field.ID
)

// Options are the settings of a server's interceptors. Engine is required.
type Options struct {
	Engine   *engine.Engine
	Trailers TrailerSet // default X, IETF and ID
	// Cost returns what a call costs, in place of what rules say; 0 leaves it to them. The
	// message is the request, with PerMessage a message of the stream, or nil when a stream
	// is opened.
	Cost func(ctx context.Context, method string, message any) int64
	// Subject returns who is asking, if the program knows: any of User, Tenant, Key, Tier
	// and IP. If it is nil or returns nil, the engine's identity finds out.
	Subject func(ctx context.Context, method string) *identity.Subject
	// PerMessage decides each message that the server receives on a stream, as well as
	// opening the stream. The stream ends with the first message that is denied.
	PerMessage bool
	// LimitHealth limits the service grpc.health.v1.Health like any other. By default its
	// calls pass, so that a server under load is not taken for dead.
	LimitHealth bool
	// OnError returns the status of a call that could not be decided, because its context
	// has ended, the directory could not look up its key, a counter is broken, or the name
	// of the method is too long. The call does not pass; if OnError returns nil, it gets the
	// default: Canceled or DeadlineExceeded if the context has ended, InvalidArgument if the
	// name is too long, Unavailable if a retry may succeed, and otherwise Internal, which
	// does not say why.
	OnError func(ctx context.Context, method string, err error) error
}

// Server limits the calls of a server. Unary and Stream are its interceptors. Put them
// before interceptors that do work.
//
// The metadata stint-over says which limits of mark rules a call is over, and by how much. With PerMessage it is about the call,
// and not about its messages.
//
// Under rules with a meter or limits of concurrency, a call is served until its handler returns or
// panics. Then its places are released, and its costs corrected to what was measured, in the
// background: see [engine.Engine.Settled]. Bytes are those of messages as protobuf encodes them, and
// header:NAME is metadata that the handler sends, as a header or a trailer; a json:PATH and tokens are not measured. What
// the handler says with [Use] holds in place of that. With
// PerMessage, messages take no further places, and the costs of each stay as they were reserved.
type Server struct{ o Options }

// New returns interceptors for a server.
func New(o Options) (*Server, error) {
	if o.Engine == nil {
		return nil, &stint.InvalidError{Field: "Engine", Value: "nil", Want: "what engine.New returns"}
	}
	return &Server{o}, nil
}

// Unary decides a call. It is a [grpc.UnaryServerInterceptor].
func (s *Server) Unary(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if s.passes(info.FullMethod) {
		return handler(ctx, message)
	}
	q := s.request(ctx, info.FullMethod)
	d := &field.Decided{Context: ctx}
	serving, err := s.decide(ctx, &q, message, &d.Verdict)
	_ = grpc.SetTrailer(ctx, s.trailers(&d.Verdict)) // it fails if no server made the context, as in a test
	if err != nil {
		return nil, err
	}
	tell(d)
	if serving != nil {
		return serveUntilEnd(serving).unary(d, message, handler)
	}
	return handler(d, message)
}

// Stream decides a stream, and with PerMessage its messages. It is a
// [grpc.StreamServerInterceptor].
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if s.passes(info.FullMethod) {
		return handler(srv, stream)
	}
	ctx := stream.Context()
	q := s.request(ctx, info.FullMethod)
	d := &field.Decided{Context: ctx}
	serving, err := s.decide(ctx, &q, nil, &d.Verdict)
	if err != nil || !s.o.PerMessage {
		stream.SetTrailer(s.trailers(&d.Verdict))
	}
	if err != nil {
		return err
	}
	tell(d)
	if serving != nil {
		next := handler
		handler = func(srv any, stream grpc.ServerStream) error { return serveUntilEnd(serving).stream(srv, stream, next) }
	}
	if !s.o.PerMessage {
		return handler(srv, &opened{stream, d})
	}
	q.Held = true
	m := &metered{opened: opened{stream, d}, server: s, request: q}
	m.last.Store(&metering{verdict: d.Verdict})
	err = handler(srv, m)
	last := m.last.Load()
	stream.SetTrailer(s.trailers(&last.verdict)) // once, since a second call would add to them
	if last.err != nil {
		return last.err // whatever the handler returns
	}
	return err
}

// over is the metadata that says which limits of mark rules a call is over.
var over = strings.ToLower(field.Over)

// tell changes the metadata that the handler gets. It removes a token that was not accepted, and did not lead to a rejection, and
// says which limits of mark rules the call is over, whatever the client says.
func tell(d *field.Decided) {
	text, bad := field.OverOf(&d.Verdict), d.Verdict.Subject.BadToken
	if text == "" && !bad && metadata.ValueFromIncomingContext(d.Context, over) == nil {
		return
	}
	md, _ := metadata.FromIncomingContext(d.Context) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Delete(over)
	if text != "" {
		md.Set(over, text)
	}
	if bad {
		md.Delete("authorization")
	}
	d.Context = metadata.NewIncomingContext(d.Context, md)
}

// passes reports whether the method is not limited at all.
func (s *Server) passes(method string) bool {
	return !s.o.LimitHealth && strings.HasPrefix(method, "/grpc.health.v1.Health/")
}

func (s *Server) request(ctx context.Context, method string) engine.Request {
	q := engine.Request{Method: http.MethodPost, Path: method, Headers: headersOf(ctx), Peer: peerOf(ctx)}
	if s.o.Subject != nil {
		q.Subject = s.o.Subject(ctx, method)
	}
	return q
}

// decide decides a call or a message, and returns the status if it is denied. If it could
// not be decided, the verdict is zero. The serving is what has to be settled of it, or nil.
func (s *Server) decide(ctx context.Context, q *engine.Request, message any, v *engine.Verdict) (*engine.Serving, error) {
	if s.o.Cost != nil {
		q.Cost = s.o.Cost(ctx, q.Path, message)
	}
	serving, err := s.o.Engine.Serve(ctx, q, v)
	if err != nil {
		return nil, s.undecided(ctx, q.Path, err)
	}
	if !v.Outcome.Passed() {
		return nil, denial(v)
	}
	return serving, nil
}

// undecided returns the status if deciding failed. It does not say why: errors may hold
// what clients should not see.
func (s *Server) undecided(ctx context.Context, method string, err error) error {
	if s.o.OnError != nil {
		if err := s.o.OnError(ctx, method, err); err != nil {
			return err
		}
	}
	return notDecided(ctx, err)
}

// notDecided is the default of OnError.
func notDecided(ctx context.Context, err error) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if long, ok := errors.AsType[*engine.PathError](err); ok {
		return status.Error(codes.InvalidArgument, "The name of the method is longer than "+strconv.Itoa(long.Most)+" bytes.")
	}
	code := codes.Internal
	if errors.Is(err, stint.ErrUnavailable) || errors.Is(err, identity.ErrDirectory) {
		code = codes.Unavailable // a retry may succeed
	}
	return status.Error(code, "The limits of this call could not be checked.")
}

func (s *Server) trailers(v *engine.Verdict) metadata.MD {
	md := metadata.MD{}
	s.o.Trailers.SetLower(md, v)
	return md
}

// headersOf returns the metadata of a call as headers with canonical names.
func headersOf(ctx context.Context) map[string][]string {
	md, _ := metadata.FromIncomingContext(ctx) // a copy, with names in lower case
	for name, values := range md {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case strings.HasPrefix(name, ":"), strings.HasSuffix(name, "-bin"):
			delete(md, name)
		case canonical != name: // otherwise the loop has just added it
			delete(md, name)
			md[canonical] = values
		}
	}
	return md
}

// peerOf returns the address of the other end of the connection. It is invalid if there
// is none, as with a Unix socket.
func peerOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	a, _ := netip.ParseAddrPort(p.Addr.String()) // the type of a server behind net/http
	return a.Addr()
}

// opened is a stream that has passed. Its context holds the verdict.
type opened struct {
	grpc.ServerStream
	ctx *field.Decided
}

// Context implements [grpc.ServerStream].
func (o *opened) Context() context.Context { return o.ctx }

// metered is a stream whose messages are decided, too.
type metered struct {
	opened
	server  *Server
	request engine.Request           // used by RecvMsg, which is not called concurrently
	last    atomic.Pointer[metering] // atomic, as a handler may return while another goroutine receives
}

// metering is the verdict on a message, and the status if it was denied.
type metering struct {
	verdict engine.Verdict
	err     error
}

// RecvMsg implements [grpc.ServerStream].
func (m *metered) RecvMsg(message any) error {
	if last := m.last.Load(); last.err != nil {
		return last.err
	}
	if err := m.ServerStream.RecvMsg(message); err != nil {
		return err // io.EOF, or the connection failed
	}
	next := new(metering)
	_, next.err = m.server.decide(m.ctx, &m.request, message, &next.verdict) // what it costs stays as reserved
	m.last.Store(next)
	return next.err
}

// VerdictOf returns the verdict on the call of this context, or nil if the call has not
// passed an interceptor. For a stream it is the verdict on opening it.
func VerdictOf(ctx context.Context) *engine.Verdict {
	return field.VerdictOf(ctx)
}
