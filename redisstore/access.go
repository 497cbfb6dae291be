package redisstore

import (
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// Access is how a store reaches its servers. It is for package doctor, which looks at
// each of them.
type Access struct {
	Sentinel bool // sentinels watch over the servers
	Cluster  bool
	Addrs    []string      // those of the URL, as host:port: the server, the sentinels, or some of the cluster
	Primary  string        // the name by which sentinels know the primary
	Prefix   string        // what the keys of counters begin with, before ":{"
	User     string        // may be empty, which Redis calls "default"
	Timeout  time.Duration // of a call

	config config
}

// Access returns how the store reaches its servers.
func (s *Store) Access() Access {
	c := s.config
	return Access{
		Sentinel: c.topology == sentinel, Cluster: c.topology == cluster, Addrs: slices.Clone(c.addrs),
		Primary: c.primary, Prefix: c.prefix, User: c.user, Timeout: c.timeout, config: c,
	}
}

// Dial connects to one server, as the user that the URL names for servers or for
// sentinels. It waits for answers up to timeout. Close the client.
func (a Access) Dial(addr string, isSentinel bool, timeout time.Duration) (rueidis.Client, error) {
	o := a.config.options()
	o.InitAddress, o.ForceSingleClient, o.PipelineMultiplex = []string{addr}, true, -1
	o.ConnWriteTimeout = timeout
	if isSentinel {
		o.Username, o.Password, o.SelectDB = a.config.sentinelUser, a.config.sentinelPassword, 0
	}
	return rueidis.NewClient(o)
}
