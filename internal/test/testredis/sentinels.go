package testredis

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

// primaryName is what the sentinels call the primary.
const primaryName = "primary"

// Sentinels is a primary with two replicas and three sentinels, of which two must agree
// that the primary is down. They do when it has not answered for a second.
type Sentinels struct {
	servers, nodes []*Server
}

// StartSentinels starts servers and sentinels for one test. It returns when a failover
// would succeed.
func StartSentinels(t testing.TB) *Sentinels {
	t.Helper()
	return testserver.Own(t, newSentinels)
}

func newSentinels(g *testserver.Group) (*Sentinels, error) {
	s := new(Sentinels)
	for i := range 3 {
		// In the file, since sentinels change it there.
		config := ""
		if i > 0 {
			config = fmt.Sprintf("replicaof %s %d\n", testserver.Host, s.servers[0].Port)
		}
		server, err := start(g, spec{config: config})
		if err != nil {
			return nil, err
		}
		s.servers = append(s.servers, server)
	}
	// A sentinel that finds no replicas retries only after ten seconds, so the
	// sentinels are started last.
	for i := range 2 {
		if err := waitInfo(s.servers[0], "replication", fmt.Sprintf("slave%d", i), "state=online"); err != nil {
			return nil, err
		}
	}
	sentinel := spec{
		args: []string{"--sentinel"},
		config: fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]d 2
sentinel down-after-milliseconds %[1]s 1000
sentinel failover-timeout %[1]s 3000
`, primaryName, testserver.Host, s.servers[0].Port),
		// By default sentinels poll every one to ten seconds, which is long for
		// a test. Pings must be well below the second after which a primary is
		// down, which starts before the first ping: otherwise sentinels would
		// fail over from a healthy primary. Faster pings than this would make a
		// failover fail: a replica, which is polled once a second, must have
		// reported within the time of five pings.
		setup: []string{"SENTINEL", "DEBUG", "ping-period", "300", "publish-period", "300", "info-period", "300"},
	}
	for range 3 {
		node, err := start(g, sentinel)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, node)
	}
	for _, n := range s.nodes {
		if err := testserver.Poll(testserver.ReadyLimit, n.seesAll); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// seesAll returns nil if a sentinel knows the primary, the replicas and its peers, and
// has heard from all of them.
func (s *Server) seesAll() error {
	for _, c := range []struct {
		list string
		want map[string]string
	}{
		{"MASTERS", map[string]string{"flags": "master", "num-slaves": "2", "num-other-sentinels": "2"}},
		{"REPLICAS", map[string]string{"flags": "slave", "master-link-status": "ok"}},
		{"SENTINELS", map[string]string{"flags": "sentinel"}},
	} {
		c.want["last-ping-sent"] = "0" // all pings were answered
		args := []string{"SENTINEL", c.list}
		if c.list != "MASTERS" {
			args = append(args, primaryName)
		}
		reply, err := s.ask(glanceLimit, args...)
		if err != nil {
			return err
		}
		instances, _ := reply.([]any)
		for _, instance := range instances {
			fields, _ := instance.([]any) // name, value, name, value
			for name, want := range c.want {
				if i := slices.Index(fields, any(name)); i < 0 || fields[i+1] != want {
					return fmt.Errorf("sentinel %s: %s is not %s in %v", s.Addr(), name, want, fields)
				}
			}
		}
	}
	return nil
}

// Patience sets after how long a primary that does not answer is down. At first it is a second.
func (s *Sentinels) Patience(d time.Duration) {
	tell(s.nodes, "SENTINEL", "SET", primaryName, "down-after-milliseconds", strconv.FormatInt(d.Milliseconds(), 10))
}

// URL returns the sentinels' addresses and the primary's name, as in
// redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/primary.
func (s *Sentinels) URL() string {
	return "redis+sentinel://" + addrs(s.nodes) + "/" + primaryName
}

// Servers returns the servers: the first primary, then its replicas.
func (s *Sentinels) Servers() []*Server { return s.servers }

// Nodes returns the sentinels.
func (s *Sentinels) Nodes() []*Server { return s.nodes }

// Primary returns the server that two sentinels and the server itself consider the
// primary. After a Kill it waits for the failover.
func (s *Sentinels) Primary(t testing.TB) *Server {
	t.Helper()
	return testserver.Await(t, s.primary)
}

func (s *Sentinels) primary() (*Server, error) {
	votes := map[string]int{}
	for _, n := range s.nodes {
		// A sentinel that does not answer has no vote.
		reply, _ := n.ask(glanceLimit, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", primaryName)
		if at, ok := reply.([]any); ok && len(at) == 2 {
			votes[fmt.Sprintf("%v:%v", at...)]++
		}
	}
	for _, server := range s.servers {
		if votes[server.Addr()] < 2 {
			continue
		}
		info, err := server.askText("INFO", "replication")
		if err != nil {
			return nil, err
		}
		if role := infoField(info, "role"); role != "master" {
			return nil, fmt.Errorf("%s is the primary for the sentinels and a %s for itself", server.Addr(), role)
		}
		return server, nil
	}
	return nil, fmt.Errorf("the sentinels name these primaries: %v", votes)
}
