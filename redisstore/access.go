package redisstore

import (
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// Access is how a store reaches its servers. Package doctor uses it to examine each of
// them.
type Access struct {
	Sentinel bool // the addresses are those of sentinels
	Cluster  bool
	Ring     []Share       // the servers of a ring
	Moves    float64       // the part of all subjects that a change of the ring moves, from 0 to 1
	Addrs    []string      // from the URL, as host:port: the server, the sentinels, seeds of the cluster, or all servers of the ring
	Primary  string        // the primary's name in the sentinels' configuration
	Prefix   string        // of counter keys, before ":{"
	User     string        // empty for Redis' user "default"
	Timeout  time.Duration // of a call

	config config
}

// Share is the part of all subjects that a server of a ring has, from 0 to 1: now, and before the change
// that the URL's was describes. Without one, they are the same.
type Share struct {
	Server   string
	Now, Was float64
}

// Access returns how the store reaches its servers.
func (s *Store) Access() Access {
	c := s.config
	a := Access{
		Sentinel: c.topology == sentinel, Cluster: c.topology == cluster, Addrs: slices.Clone(c.addrs),
		Primary: c.primary, Prefix: c.prefix, User: c.user, Timeout: c.timeout, config: c,
	}
	if s.ring != nil {
		a.Addrs = slices.Clone(s.ring.addrs)
		a.Ring, a.Moves = s.ring.shares()
	}
	return a
}

// Dial connects to one server with the URL's credentials for servers or for sentinels.
// Timeout bounds each call. The caller must close the client.
func (a Access) Dial(addr string, isSentinel bool, timeout time.Duration) (rueidis.Client, error) {
	o := a.config.options()
	o.InitAddress, o.ForceSingleClient, o.PipelineMultiplex = []string{addr}, true, -1
	o.ConnWriteTimeout = timeout
	if isSentinel {
		o.Username, o.Password, o.SelectDB = a.config.sentinelUser, a.config.sentinelPassword, 0
	}
	return rueidis.NewClient(o)
}
