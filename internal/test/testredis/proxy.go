package testredis

import (
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Proxy stands between clients and a server, and does to connections what
// networks do.
type Proxy struct{ *testserver.Proxy }

// Fault is what a proxy does. The zero Fault is a good network.
type Fault = testserver.Fault

// StartProxy starts a proxy in front of the server, until t ends.
func StartProxy(t testing.TB, server *Server) *Proxy {
	t.Helper()
	return &Proxy{testserver.StartProxy(t, server.Addr())}
}

// URL is the proxy's, as a Redis server.
func (p *Proxy) URL() string { return "redis://" + p.Addr() }
