// Package httplimit limits HTTP requests. It has a middleware for handlers, a JSON API
// that other programs ask before they serve a request, a client for it, forward-auth for
// proxies, a gateway that is a proxy itself, and a transport for clients that keep to the
// limits of servers.
//
// A program that needs one limit and no rules:
//
//	limit, err := httplimit.Limit(store, "100/1m", httplimit.ByIP)
//	http.ListenAndServe(addr, limit(handler))
//
// With rules, an engine decides:
//
//	limit, err := httplimit.New(httplimit.Options{Engine: e})
//
// # What holds
//
//   - Each request is decided once, by [engine.Engine.Decide], and all doors answer with
//     the same headers and the same problem details.
//   - A client that does what the headers say is not denied, as long as no one else uses
//     the same limits: all numbers are rounded against it.
//   - Numbers that were not counted are not sent.
//   - A request that could not be decided does not pass.
//   - The API reads its input strictly and up to a size, and rejects bad input before
//     anything is counted.
//
// # What it does not do
//
// It holds no counters and knows no rules. The decision API believes its callers: it is
// for a network where these are your own programs.
package httplimit
