package httplimit

import (
	"net/http"
	"slices"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/single"
)

// By says what has a counter of its own: [ByIP], [ByHeader] or [ByFunc]. The zero value
// is ByIP.
//
// A request that has no header, or for which the function returns "", is counted by the
// client's address. Requests without an address, as those over a Unix socket, share one
// counter.
type By struct {
	by  single.By
	key func(*http.Request) string
}

// ByIP counts by the client's address: an IPv4 address, or the /64 network of an IPv6
// address, since who has one address of it has them all. It is the address of the other
// end of the connection. No forwarding header is believed, as clients can send them,
// too. Behind a proxy that is the proxy's address, and all its clients share a counter:
// there use ByIP.[By.Behind].
var ByIP By

// ByHeader counts by the value of a header that a trusted proxy sets, such as the user
// that it has authenticated. It needs [By.Behind]: the header is believed if the peer is
// one of these proxies, and ignored otherwise. So no client can choose a fresh counter for
// each request, or use up that of someone else. A header in two lines is rejected with
// 401, as one of them may be the client's.
//
// For a header that clients send themselves, such as an API key, verify it first and
// count by what it proves, with [ByFunc].
func ByHeader(name string) By {
	return By{by: single.By{HeaderOption: "ByHeader", Header: name}}
}

// ByFunc counts by what the function returns, such as the user that a middleware before
// this one has authenticated. What clients can choose freely is not a good key: they would
// have a fresh counter for each value. Limits over one store that count by different things,
// such as users and tenants, need different names: see [By.Named].
func ByFunc(key func(*http.Request) string) By {
	return By{by: single.By{Keyed: true}, key: key}
}

// Behind says which proxies the requests come through: networks such as 10.0.0.0/8, or
// addresses. If the peer is one of them, the client's address is read from
// X-Forwarded-For, from the right, up to the first address that is not one of them.
func (b By) Behind(proxy string, more ...string) By {
	b.by.Proxies = slices.Concat(b.by.Proxies, []string{proxy}, more)
	return b
}

// Named gives the limit a name, which clients see in RateLimit-Policy. Limits with
// different names have different counters. Without a name, the counters of a limit are
// named by its text: two limits "100/1m" over the same store share their counters, as those
// of several processes should.
func (b By) Named(name string) By {
	b.by.Name = name
	return b
}

// Limit returns a middleware with one limit, for programs that need no rules. The limit is
// as [stint.ParseLimit] reads it, such as "100/1m" or "10/1s token_bucket burst=20".
//
// It is [New] over an engine with one rule: a request over the limit is denied with 429,
// the same headers and the same problem details. When the store cannot be reached,
// requests pass, or this process counts them if the store is one of package layer with a
// Fallback. The store is not closed with the middleware.
func Limit(store stint.Store, limit string, by By) (func(http.Handler) http.Handler, error) {
	if by.by.Keyed && by.key == nil {
		return nil, invalid("ByFunc", "nil", "a function that returns the key of a request")
	}
	e, err := by.by.Engine(store, limit)
	if err != nil {
		return nil, err
	}
	o := Options{Engine: e}
	if by.key != nil {
		o.Subject = func(r *http.Request) *identity.Subject {
			if key := by.key(r); key != "" {
				return &identity.Subject{User: key}
			}
			return nil
		}
	}
	return New(o)
}
