// Package httplimit is the doors for HTTP: middleware for handlers, a JSON API that
// decides about requests it is told of, forward-auth for proxies that ask before
// they pass a request on, a gateway that passes requests on itself, and a transport
// for clients that know their limits.
//
//	limit, err := httplimit.New(httplimit.Options{Engine: e})
//	http.ListenAndServe(addr, limit(handler))
//
// # What holds
//
//   - Every door makes one decision for a request, by [engine.Engine.Decide], and
//     says it with the same headers and the same problem details.
//   - A client that does what the headers say is not refused, as long as no one else
//     uses the same limits: every number is rounded against it.
//   - A number that no one has counted is not said.
//   - What could not be decided is not let through.
//   - What a caller of the API sends is read strictly and up to a size, and refused
//     before anything is counted.
//
// # What it refuses to do
//
// It decides nothing, holds no counters and knows no rules. The decision API
// believes its callers, and is for a network where these are one's own.
package httplimit
