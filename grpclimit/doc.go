// Package grpclimit limits gRPC calls. It has interceptors for servers, which decide calls
// and streams, and for clients that keep to the limits of servers.
//
// A server that needs one limit and no rules:
//
//	limit, err := grpclimit.Limit(store, "100/1m", grpclimit.ByPeer)
//	grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
//
// With rules, an engine decides:
//
//	limit, err := grpclimit.New(grpclimit.Options{Engine: e})
//
// # What rules see
//
// A call is a request with the method POST, as on the wire, and the full name of the gRPC
// method as its path, such as /shop.v1.Orders/Create. Its metadata are the headers, with
// canonical names: authorization is Authorization to rules and identity. Names that begin
// with a colon and binary values (-bin) are left out.
//
// # What holds
//
//   - A call is decided once, by [engine.Engine.Decide], before its handler sees it, and a
//     stream when it is opened. With PerMessage, each message is decided, too.
//   - Trailers tell the verdict, with the names that HTTP has as headers, whether the call
//     passes or not.
//   - A call that could not be decided does not pass.
//   - A client learns no more than over HTTP: which limits deny its call and when to try
//     again, but not what it is counted by.
//   - Work is linear in the metadata, which grpc.MaxHeaderListSize bounds.
//
// # What it does not do
//
// It holds no counters and knows no rules. Its client does not repeat a call that may have
// been executed.
package grpclimit
