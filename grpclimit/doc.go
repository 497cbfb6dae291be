// Package grpclimit is the doors for gRPC: interceptors for servers, which decide about
// calls and streams, and for clients that know their limits.
//
//	limit, err := grpclimit.New(grpclimit.Options{Engine: e})
//	grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
//
// # What rules see
//
// A call is a request with method POST, which it is on the wire, and the full name of
// its method as path, such as /shop.v1.Orders/Create. Headers are its metadata, with
// canonical names: what a client sends as authorization is Authorization to rules and
// identity. Names that begin with a colon and values in binary (-bin) are left out.
//
// # What holds
//
//   - A call is decided once, by [engine.Engine.Decide], before its handler sees it, and
//     so is a stream when it is opened. Only PerMessage decides about more.
//   - The verdict is told in trailers, with the fields that HTTP has as headers, whether
//     the call passes or not.
//   - What could not be decided is not let through.
//   - A client learns no more than over HTTP: which limits refuse it and when to come
//     back, and not by what it is counted.
//   - Work is linear in the metadata that gRPC has read, which grpc.MaxHeaderListSize
//     bounds.
//
// # What it refuses to do
//
// It decides nothing, holds no counters and knows no rules. Its client sends nothing
// again that may have been done.
package grpclimit
