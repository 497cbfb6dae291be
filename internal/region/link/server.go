package link

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

var (
	errClosing  = errors.New("this node stops")
	errReplaced = errors.New("the node has opened another stream")
)

// Server takes the streams of nodes of other regions.
type Server struct {
	o       ServerOptions
	grpc    *grpc.Server
	closing context.Context // done when Close is called
	cancel  context.CancelFunc
	work    sync.WaitGroup // goroutines that may end after their streams
	streams atomic.Int64
	traffic traffic
	refused map[Reason]*atomic.Uint64

	mu         sync.Mutex
	nodes      map[node]*inbound
	handshakes []*handshake // oldest first
}

// handshake is one that is not done.
type handshake struct{ end context.CancelCauseFunc }

// node is whose stream it is. Another run of the process is the same node.
type node struct{ region, name string }

// NewServer returns a server. It does nothing until [Server.Serve] is called.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.settle(); err != nil {
		return nil, err
	}
	if o.Receiver == nil {
		return nil, invalid("Receiver", "nil", "what takes the batches")
	}
	s := &Server{o: o, nodes: map[node]*inbound{}, refused: map[Reason]*atomic.Uint64{}}
	for _, r := range Reasons {
		s.refused[r] = new(atomic.Uint64)
	}
	s.closing, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // lives until Close
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage), grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxConcurrentStreams(1), grpc.ConnectionTimeout(o.pace.handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 2 * o.pace.handshake, Time: 10 * time.Second, Timeout: 5 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	linkpb.RegisterLinkServer(s.grpc, door{server: s})
	return s, nil
}

// door is what gRPC calls, so that no one else does.
type door struct {
	linkpb.UnimplementedLinkServer
	server *Server
}

// Open implements [linkpb.LinkServer].
func (d door) Open(wire grpc.BidiStreamingServer[linkpb.Frame, linkpb.Frame]) error {
	return d.server.open(wire)
}

// Serve takes streams from a listener, which it closes, until Close is called.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Close ends all streams, and waits for what they do.
func (s *Server) Close() error {
	s.cancel()
	s.grpc.Stop()
	s.work.Wait()
	return nil
}

// Refused returns how many streams were refused or ended, by reason. It has all reasons.
func (s *Server) Refused() map[Reason]uint64 {
	out := map[Reason]uint64{}
	for r, n := range s.refused {
		out[r] = n.Load()
	}
	return out
}

// Peer is a node of another region that has a stream to this one.
type Peer struct {
	gossip.Sender
	Since time.Time
	Measured
}

// Peers returns the nodes that have a stream, in their order.
func (s *Server) Peers() []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Peer
	for _, in := range s.nodes {
		out = append(out, Peer{in.from, in.since, in.meter.measured()})
	}
	slices.SortFunc(out, func(a, b Peer) int {
		if a.Region != b.Region {
			return cmp.Compare(a.Region, b.Region)
		}
		return cmp.Compare(a.Node, b.Node)
	})
	return out
}

// Traffic returns how many bytes of messages were sent and received.
func (s *Server) Traffic() (sent, received uint64) {
	return s.traffic.sent.Load(), s.traffic.received.Load()
}

// open takes a stream, until it ends. What it returns, the client is told.
func (s *Server) open(wire grpc.BidiStreamingServer[linkpb.Frame, linkpb.Frame]) error {
	ctx, end := context.WithCancelCause(wire.Context())
	defer end(nil)
	defer context.AfterFunc(s.closing, func() { end(errClosing) })()
	from, err := s.accept(ctx, end, wire)
	address := ""
	if p, ok := grpcpeer.FromContext(wire.Context()); ok {
		address = p.Addr.String()
	}
	r := refused(err)
	if r == nil {
		s.o.Log.Info("the stream of another region has ended", "region", from.Region, "node", from.Node, "address", address, "error", err)
		return status.Error(codes.Unavailable, err.Error())
	}
	s.refused[r.reason].Add(1)
	s.o.Log.Warn("refused a stream of another region", "reason", string(r.reason), "node", from.Node, "address", address, "error", r.text)
	return r
}

// accept does the handshake with a client, and serves it.
func (s *Server) accept(ctx context.Context, end context.CancelCauseFunc, wire stream) (from gossip.Sender, err error) {
	h := s.begin(end)
	defer s.done(h)
	timer := time.AfterFunc(s.o.pace.handshake, func() {
		end(refuse(TooSlow, "a handshake takes at most %v", s.o.pace.handshake))
	})
	defer timer.Stop()
	nonce := newNonce()
	hello, secret, err := s.greet(ctx, wire, nonce)
	if err != nil {
		return from, err
	}
	s.done(h)
	defer s.streams.Add(-1)
	if s.streams.Add(1) > MaxStreams {
		return from, refuse(TooMany, "region %s has %d streams", s.o.Self.Region, MaxStreams)
	}
	from = gossip.Sender{Region: hello.GetRegion(), Node: hello.GetNode(), Run: hello.GetRun()}
	in := &inbound{
		session: newSession(ctx, end, wire, &s.o.Identity, &s.traffic),
		server:  s, from: from, since: time.Now(), gone: make(chan struct{}), batches: make(chan gossip.Batch, MaxBatches),
	}
	if err := s.enter(in); err != nil {
		return from, err
	}
	defer s.leave(in)
	welcome, err := s.o.welcome(nonce, hello, secret)
	if err != nil {
		return from, err
	}
	if err := wire.Send(&linkpb.Frame{Kind: &linkpb.Frame_Welcome{Welcome: welcome}}); err != nil {
		return from, err
	}
	timer.Stop() // if it was too late, the context is done
	s.o.Log.Info("a stream of another region", "region", from.Region, "node", from.Node)
	return from, in.serve()
}

// begin begins a handshake. If there are too many, the oldest is ended: those who have no secret cannot keep out those who
// have one, and answer at once.
func (s *Server) begin(end context.CancelCauseFunc) *handshake {
	h := &handshake{end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handshakes = append(s.handshakes, h)
	if len(s.handshakes) > MaxHandshakes {
		s.handshakes[0].end(refuse(TooMany, "region %s has %d newer connections in their handshake", s.o.Self.Region, MaxHandshakes))
		s.handshakes = slices.Delete(s.handshakes, 0, 1)
	}
	return h
}

// done ends a handshake, if it is not over.
func (s *Server) done(h *handshake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.handshakes, h); i >= 0 {
		s.handshakes = slices.Delete(s.handshakes, i, i+1)
	}
}

// greet sends a challenge, and returns the hello that answers it, and the secret by which that is proved.
func (s *Server) greet(ctx context.Context, wire stream, nonce []byte) (hello *linkpb.Hello, secret []byte, err error) {
	if err := wire.Send(&linkpb.Frame{Kind: &linkpb.Frame_Challenge{Challenge: nonce}}); err != nil {
		return nil, nil, err
	}
	type arrival struct {
		frame *linkpb.Frame
		err   error
	}
	first := make(chan arrival, 1)
	s.work.Go(func() { // Recv ends with the stream
		f, err := wire.Recv()
		first <- arrival{f, err}
	})
	select {
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case a := <-first:
		if a.err != nil {
			return nil, nil, a.err
		}
		m := a.frame.GetHello()
		if m == nil {
			return nil, nil, unexpected(a.frame)
		}
		from := certificate(ctx)
		if secret, err = s.o.prove(m, nonce, from); err != nil {
			return nil, nil, err
		}
		hello, err = s.o.check(m, from)
		return hello, secret, err
	}
}

// certificate returns the certificate of a client that TLS has verified, or nil.
func certificate(ctx context.Context) *x509.Certificate {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// enter makes this the stream of its node, once an older one has ended: batches of a node are received one
// after the other.
func (s *Server) enter(in *inbound) error {
	key := node{in.from.Region, in.from.Node}
	for {
		s.mu.Lock()
		old := s.nodes[key]
		if old == nil {
			s.nodes[key] = in
		}
		s.mu.Unlock()
		if old == nil {
			return nil
		}
		old.end(errReplaced)
		select {
		case <-old.gone:
		case <-in.ctx.Done():
			return context.Cause(in.ctx)
		}
	}
}

func (s *Server) leave(in *inbound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node{in.from.Region, in.from.Node})
	close(in.gone)
}
