package testredis

import (
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Proxy is a proxy to a server that simulates network faults.
type Proxy struct{ *testserver.Proxy }

// Fault is a network fault. The zero Fault is none.
type Fault = testserver.Fault

// StartProxy starts a proxy to a server, until t ends.
func StartProxy(t testing.TB, server *Server) *Proxy {
	t.Helper()
	return &Proxy{testserver.StartProxy(t, server.Addr())}
}

// URL returns the Redis URL of the proxy.
func (p *Proxy) URL() string { return "redis://" + p.Addr() }
