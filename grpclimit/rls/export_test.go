package rls

import (
	"context"

	"google.golang.org/grpc/mem"
)

// Serve answers a message, as the server does, without gRPC.
func Serve(ctx context.Context, s *Service, data []byte) error {
	a, err := shouldRateLimit(s, ctx, func(v any) error { return codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, v) }, nil)
	if err != nil {
		return err
	}
	out, err := codec{}.Marshal(a)
	out.Free()
	return err
}
