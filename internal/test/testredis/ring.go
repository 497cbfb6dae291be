package testredis

import (
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Ring is servers that do not know each other.
type Ring struct{ nodes []*Server }

// StartRing starts so many servers for one test.
func StartRing(t testing.TB, servers int) *Ring {
	t.Helper()
	return testserver.Own(t, func(g *testserver.Group) (*Ring, error) { return newRing(g, servers) })
}

func newRing(g *testserver.Group, servers int) (*Ring, error) {
	r := new(Ring)
	for range servers {
		node, err := start(g, spec{})
		if err != nil {
			return nil, err
		}
		r.nodes = append(r.nodes, node)
	}
	return r, nil
}

// URL returns the addresses of all servers, as in redis+ring://127.0.0.1:1,127.0.0.1:2.
func (r *Ring) URL() string { return "redis+ring://" + addrs(r.nodes) }

// Nodes returns the servers.
func (r *Ring) Nodes() []*Server { return r.nodes }
