package rls

import (
	"context"
	"errors"
	"sync"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of all other services
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// NewGRPC returns a server that answers Envoy in the fastest way. Other services can be
// registered with it. Interceptors see the calls of Envoy, but neither requests nor
// responses, because these are not protobuf messages.
func NewGRPC(s *Service, o ...grpc.ServerOption) *grpc.Server {
	others := encoding.GetCodecV2("proto")
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{others}),
		// Workers keep their grown stacks. Calls beyond this number get new goroutines.
		grpc.NumStreamWorkers(256),
	}, o...)...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: rlsv3.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
		Metadata:    rlsv3.RateLimitService_ServiceDesc.Metadata,
	}, s)
	return server
}

// Register adds the service to an existing server. A server of NewGRPC is faster.
func (s *Service) Register(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, s) }

var _ rlsv3.RateLimitServiceServer = (*Service)(nil)

// ShouldRateLimit implements the service of the protocol, for [Service.Register].
func (s *Service) ShouldRateLimit(ctx context.Context, m *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	in, err := proto.Marshal(m)
	if err != nil {
		return nil, invalid("request", err.Error())
	}
	w := s.begin()
	defer s.end(w)
	w.q.readRequest(string(in))
	a, err := s.serve(ctx, w)
	if err != nil {
		return nil, err
	}
	defer a.release()
	out := &rlsv3.RateLimitResponse{}
	return out, proto.Unmarshal(a.append(a.text), out)
}

// codec encodes and decodes this package's messages itself, and leaves others to another
// codec.
type codec struct{ others encoding.CodecV2 }

func (codec) Name() string { return "proto" }

var answers = sync.Pool{New: func() any { return new(answer) }}

// release returns an answer to the pool, unless it is large.
func (a *answer) release() {
	const maxStatuses, maxText = 64, 8 << 10
	if cap(a.statuses) > maxStatuses || cap(a.text) > maxText {
		return
	}
	clear(a.statuses)
	clear(a.headers)
	*a = answer{statuses: a.statuses[:0], headers: a.headers[:0], text: a.text[:0]}
	answers.Put(a)
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.others.Marshal(v)
	}
	defer a.release()
	a.text = a.append(a.text)
	return mem.BufferSlice{mem.Copy(a.text, mem.DefaultBufferPool())}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	q, ok := v.(*request)
	if !ok {
		return c.others.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	q.readRequest(string(b.ReadOnlyData())) // a copy, because gRPC reuses the buffer
	return nil                              // the service reports problems
}

// shouldRateLimit is the method for the codec's messages.
//
//nolint:revive // the order is that of grpc.MethodHandler
func shouldRateLimit(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	s, ok := srv.(*Service)
	if !ok {
		return nil, errors.New("rls: not a service")
	}
	w := s.begin()
	defer s.end(w)
	if err := dec(&w.q); err != nil {
		return nil, err
	}
	if s.o.Served != nil {
		began := s.o.Now()
		defer func() { s.o.Served(s.o.Now().Sub(began)) }()
	}
	if interceptor == nil {
		return s.serve(ctx, w)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: rlsv3.RateLimitService_ShouldRateLimit_FullMethodName}
	return interceptor(ctx, nil, info, func(ctx context.Context, _ any) (any, error) { return s.serve(ctx, w) })
}

func (s *Service) serve(ctx context.Context, w *work) (*answer, error) {
	if err := s.decide(ctx, w); err != nil {
		return nil, err
	}
	a := answers.Get().(*answer)
	if err := s.answer(w, a); err != nil {
		return nil, err
	}
	return a, nil
}
