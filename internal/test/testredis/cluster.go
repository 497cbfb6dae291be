package testredis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

const slots = 16384

// Cluster is some primaries, by default three with a replica each. A node that has not answered for a
// second is considered dead.
type Cluster struct {
	nodes []*Server
}

// StartCluster starts a cluster for one test. It returns when every node reports the
// cluster as ok, and every replica is in sync.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	return testserver.Own(t, newCluster)
}

// StartPrimaries starts a cluster of that many primaries, which have no replicas, for one test. None is considered dead,
// so that one may be paused for as long as it takes.
func StartPrimaries(t testing.TB, n int) *Cluster {
	t.Helper()
	return testserver.Own(t, func(g *testserver.Group) (*Cluster, error) {
		c, err := newClusterOf(g, n, 0)
		if err != nil {
			return nil, err
		}
		c.Patience(never)
		return c, nil
	})
}

// Patience sets after how long a node that does not answer is considered dead. At first it is a second.
func (c *Cluster) Patience(d time.Duration) {
	tell(c.nodes, "CONFIG", "SET", "cluster-node-timeout", strconv.FormatInt(d.Milliseconds(), 10))
}

func newCluster(g *testserver.Group) (*Cluster, error) { return newClusterOf(g, 3, 3) }

func newClusterOf(g *testserver.Group, primaries, replicas int) (*Cluster, error) {
	c := new(Cluster)
	for range primaries + replicas {
		node, err := start(g, spec{args: []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000"}})
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
	}

	// Distinct epochs come first: otherwise the nodes would have to resolve conflicts.
	for i, n := range c.nodes {
		if _, err := n.Try("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return nil, err
		}
	}
	for i, n := range c.nodes[:primaries] {
		first, end := i*slots/primaries, (i+1)*slots/primaries
		if _, err := n.Try("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(end-1)); err != nil {
			return nil, err
		}
	}
	// Introduce all nodes to each other: gossip would take a second longer.
	for i, n := range c.nodes {
		for _, other := range c.nodes[i+1:] {
			if _, err := n.Try("CLUSTER", "MEET", testserver.Host, other.portText()); err != nil {
				return nil, err
			}
		}
	}
	for i, n := range c.nodes[primaries:] {
		err := testserver.Poll(testserver.ReadyLimit, func() error { // an error until they have met
			id, err := c.nodes[i].askText("CLUSTER", "MYID")
			if err == nil {
				_, err = n.ask(glanceLimit, "CLUSTER", "REPLICATE", id)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for i, n := range c.nodes {
		if err := testserver.Poll(testserver.ReadyLimit, func() error { return n.seesCluster(primaries, replicas) }); err != nil {
			return nil, err
		}
		if i >= primaries {
			if err := waitInfo(n, "replication", "master_link_status", "up"); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// seesCluster returns nil if a node sees all slots and that many nodes.
func (s *Server) seesCluster(primaries, replicas int) error {
	view, err := s.view()
	if err != nil {
		return err
	}
	p, r := strings.Count(view.nodes, "master"), strings.Count(view.nodes, "slave")
	if view.state != "ok" || p != primaries || r != replicas {
		return fmt.Errorf("node %s: state %s, %d primaries and %d replicas", s.Addr(), view.state, p, r)
	}
	return nil
}

// URL returns the addresses of all nodes, as in redis+cluster://127.0.0.1:1,127.0.0.1:2.
func (c *Cluster) URL() string { return "redis+cluster://" + addrs(c.nodes) }

// Nodes returns the nodes: the primaries, then, if there are any, a replica of each in the same order.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Primary returns the node that serves a key. After a Kill it waits for the failover.
func (c *Cluster) Primary(t testing.TB, key string) *Server {
	t.Helper()
	return testserver.Await(t, func() (*Server, error) { return c.primary(key) })
}

// primary asks every node which slots it serves. A primary that was replaced and does
// not know it may also claim the slot, but in an older epoch.
func (c *Cluster) primary(key string) (*Server, error) {
	var primary *Server
	epoch := -1
	var last error
	for _, n := range c.nodes {
		slot, err := n.ask(glanceLimit, "CLUSTER", "KEYSLOT", key)
		if err != nil {
			last = err
			continue
		}
		view, err := n.view()
		if err != nil {
			last = err
			continue
		}
		if view.state == "ok" && view.epoch > epoch && view.serves(slot) {
			primary, epoch = n, view.epoch
		}
	}
	if primary == nil {
		return nil, fmt.Errorf("no node serves %q; the last error: %w", key, last)
	}
	return primary, nil
}

// Migrate moves a slot and its keys from one primary to another, a few keys at a time,
// with clients redirected in between.
func (c *Cluster) Migrate(t testing.TB, slot int, from, to *Server) {
	t.Helper()
	id := func(s *Server) string { return fmt.Sprint(s.Do(t, "CLUSTER", "MYID")) }
	number, toID := strconv.Itoa(slot), id(to)
	to.Do(t, "CLUSTER", "SETSLOT", number, "IMPORTING", id(from))
	from.Do(t, "CLUSTER", "SETSLOT", number, "MIGRATING", toID)
	for {
		keys, _ := from.Do(t, "CLUSTER", "GETKEYSINSLOT", number, "10").([]any)
		if len(keys) == 0 {
			break
		}
		migrate := []string{"MIGRATE", testserver.Host, to.portText(), "", "0", "60000", "KEYS"}
		for _, k := range keys {
			migrate = append(migrate, fmt.Sprint(k))
		}
		from.Do(t, migrate...)
	}
	// The new owner first: otherwise both would redirect to each other in between.
	to.Do(t, "CLUSTER", "SETSLOT", number, "NODE", toID)
	from.Do(t, "CLUSTER", "SETSLOT", number, "NODE", toID)
	for _, n := range c.nodes {
		// Replicas reject it, and dead nodes do not answer; gossip updates them.
		_, _ = n.ask(glanceLimit, "CLUSTER", "SETSLOT", number, "NODE", toID)
	}
	// A node that takes over a slot uses an epoch above all that it knows. One that does not
	// know that of this move would use the same epoch, and lose the slot with its keys. Nodes
	// that do not answer are ignored.
	testserver.Await(t, func() (view, error) {
		now, err := to.view()
		if err != nil {
			return now, err
		}
		for _, n := range c.nodes {
			if seen, err := n.view(); err == nil && seen.epochs[toID] != now.epochs[toID] {
				return now, fmt.Errorf("node %s does not know epoch %d", n.Addr(), now.epochs[toID])
			}
		}
		return now, nil
	})
}

// view is the state of the cluster and of a node, as the node reports it.
type view struct {
	state  string         // "ok" or "fail"
	nodes  string         // a line for each node
	epoch  int            // of its slots
	epochs map[string]int // of all nodes' slots, by id
	slots  []string       // its own, as in "0-5460", "9000", "[93-<-id]"
}

func (s *Server) view() (view, error) {
	info, err := s.askText("CLUSTER", "INFO")
	if err != nil {
		return view{}, err
	}
	nodes, err := s.askText("CLUSTER", "NODES")
	if err != nil {
		return view{}, err
	}
	v := view{state: infoField(info, "cluster_state"), nodes: nodes, epochs: map[string]int{}}
	for line := range strings.Lines(nodes) {
		// id, address, flags, primary, ping, pong, epoch, link, slots...
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		epoch, err := strconv.Atoi(f[6])
		if err != nil {
			return view{}, fmt.Errorf("node %s: epoch in %q: %w", s.Addr(), line, err)
		}
		v.epochs[f[0]] = epoch
		if slices.Contains(strings.Split(f[2], ","), "myself") {
			v.epoch, v.slots = epoch, f[8:]
		}
	}
	return v, nil
}

// serves reports whether a node serves a slot, as KEYSLOT returns it. A replica serves
// none.
func (v view) serves(slot any) bool {
	n, _ := slot.(int64)
	for _, s := range v.slots {
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			continue // a slot that is being migrated, in brackets
		}
		hi, err := strconv.ParseInt(last, 10, 64)
		if err == nil && lo <= n && n <= hi {
			return true
		}
	}
	return false
}

// waitInfo waits until a field of a section of INFO contains want.
func waitInfo(s *Server, section, field, want string) error {
	return testserver.Poll(testserver.ReadyLimit, func() error {
		info, err := s.askText("INFO", section)
		if err != nil {
			return err
		}
		if got := infoField(info, field); !strings.Contains(got, want) {
			return fmt.Errorf("redis-server %s: %s is %q, want %q", s.Addr(), field, got, want)
		}
		return nil
	})
}
