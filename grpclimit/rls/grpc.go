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
)

// NewGRPC returns a server that answers Envoy by the shortest way, and has room for
// other services. Interceptors see its calls, but neither requests nor answers, which
// are no protobuf messages.
func NewGRPC(s *Service, o ...grpc.ServerOption) *grpc.Server {
	others := encoding.GetCodecV2("proto")
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{others}),
		// Goroutines that live on have grown their stacks already. As many calls as there
		// are of them can wait for a store; those beyond get new ones.
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

// Register adds the service to a server that is there already. NewGRPC's needs less
// time for a request.
func (s *Service) Register(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, s) }

// codec reads and writes this package's messages, and has others read and written as
// ever.
type codec struct{ others encoding.CodecV2 }

func (codec) Name() string { return "proto" }

var answers = sync.Pool{New: func() any { return new(answer) }}

// release lets go of an answer that was sent.
func (a *answer) release() {
	const most = 64
	if cap(a.statuses) > most {
		return
	}
	clear(a.statuses)
	clear(a.headers)
	*a = answer{statuses: a.statuses[:0], headers: a.headers[:0]}
	answers.Put(a)
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.others.Marshal(v)
	}
	defer a.release()
	n := a.size()
	if mem.IsBelowBufferPoolingThreshold(n) {
		return mem.BufferSlice{mem.SliceBuffer(a.append(make([]byte, 0, n)))}, nil
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(n)
	*b = a.append((*b)[:0])
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	q, ok := v.(*request)
	if !ok {
		return c.others.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	q.readRequest(string(b.ReadOnlyData())) // gRPC uses the buffer again
	return nil                              // what is wrong with it is told by the service
}

// shouldRateLimit is the method, without protobuf's own messages.
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
	if interceptor == nil {
		return s.serve(ctx, w)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: rlsv3.RateLimitService_ShouldRateLimit_FullMethodName}
	return interceptor(ctx, nil, info, func(ctx context.Context, _ any) (any, error) { return s.serve(ctx, w) })
}

func (s *Service) serve(ctx context.Context, w *work) (any, error) {
	if err := s.decide(ctx, w); err != nil {
		return nil, err
	}
	a := answers.Get().(*answer)
	if err := s.answer(w, a); err != nil {
		return nil, err
	}
	return a, nil
}
