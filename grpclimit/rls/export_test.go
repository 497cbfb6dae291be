package rls

import (
	"context"

	"google.golang.org/grpc/mem"
)

// CountHits counts hits.
var CountHits = countHits

// Serve answers a message, as the server does, without gRPC. The answer is to be freed.
func Serve(ctx context.Context, s *Service, data []byte) (mem.BufferSlice, error) {
	a, err := shouldRateLimit(s, ctx, func(v any) error { return codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, v) }, nil)
	if err != nil {
		return nil, err
	}
	return codec{}.Marshal(a)
}
