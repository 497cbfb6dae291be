package testredis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

const slots = 16384

// Cluster is three primaries with a replica each. A node that has been silent
// for a second is taken for dead.
type Cluster struct {
	nodes []*Server
}

// StartCluster starts a cluster of the test's own. It returns when every node
// says that the cluster is well, and every replica has a copy of its primary.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	return testserver.Own(t, newCluster)
}

func newCluster(g *testserver.Group) (*Cluster, error) {
	const primaries = 3
	c := new(Cluster)
	for range 2 * primaries {
		node, err := start(g, spec{args: []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000"}})
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
	}

	// Distinct epochs come first: with equal ones the nodes would have to
	// settle their order among themselves.
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
	// Each meets each: waiting for the gossip would take a second more.
	for i, n := range c.nodes {
		for _, other := range c.nodes[i+1:] {
			if _, err := n.Try("CLUSTER", "MEET", testserver.Host, other.portText()); err != nil {
				return nil, err
			}
		}
	}
	for i, n := range c.nodes[primaries:] {
		err := testserver.Poll(testserver.ReadyLimit, func() error { // An error until they have met.
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
		if err := testserver.Poll(testserver.ReadyLimit, n.seesCluster); err != nil {
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

// seesCluster returns nil when a node sees all slots served and all replicas.
func (s *Server) seesCluster() error {
	view, err := s.view()
	if err != nil {
		return err
	}
	if replicas := strings.Count(view.nodes, "slave"); view.state != "ok" || replicas != 3 {
		return fmt.Errorf("node %s: state %s, %d replicas", s.Addr(), view.state, replicas)
	}
	return nil
}

// URL returns all nodes' addresses, as in
// redis+cluster://127.0.0.1:1,127.0.0.1:2.
func (c *Cluster) URL() string { return "redis+cluster://" + addrs(c.nodes) }

// Nodes returns the nodes: the first three primaries, then a replica of each,
// in the same order.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Primary returns the node that serves a key now. After a Kill it waits for the
// replica that takes over.
func (c *Cluster) Primary(t testing.TB, key string) *Server {
	t.Helper()
	var primary *Server
	err := testserver.Poll(testserver.ReadyLimit, func() (err error) {
		primary, err = c.primary(key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return primary
}

// primary asks every node what it serves itself. A primary that was replaced
// and has not heard of it may claim the slot as well, but in an older epoch.
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

// Migrate moves a slot and its keys from one primary to another, as an operator
// would: a few keys at a time, with clients redirected in between.
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
		migrate := []string{"MIGRATE", testserver.Host, to.portText(), "", "0", "5000", "KEYS"}
		for _, k := range keys {
			migrate = append(migrate, fmt.Sprint(k))
		}
		from.Do(t, migrate...)
	}
	// The new owner first: were it the old one, both would redirect to each
	// other in between.
	to.Do(t, "CLUSTER", "SETSLOT", number, "NODE", toID)
	from.Do(t, "CLUSTER", "SETSLOT", number, "NODE", toID)
	for _, n := range c.nodes {
		// Replicas refuse, and the dead cannot hear it. Gossip tells them.
		_, _ = n.ask(glanceLimit, "CLUSTER", "SETSLOT", number, "NODE", toID)
	}
	// Who takes a slot over takes an epoch above all it has heard of. One that has not heard of
	// this move's would take the slot back in the same epoch, and lose it, with its keys, to
	// what was said before. Of nodes that do not answer nothing is expected.
	err := testserver.Poll(testserver.ReadyLimit, func() error {
		view, err := to.view()
		if err != nil {
			return err
		}
		for _, n := range c.nodes {
			if seen, err := n.view(); err == nil && seen.epochs[toID] != view.epochs[toID] {
				return fmt.Errorf("node %s has not heard of epoch %d", n.Addr(), view.epochs[toID])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// view is what a node says of the cluster and of itself.
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

// serves tells whether a slot, as KEYSLOT returns it, is the node's own. A
// replica has none.
func (v view) serves(slot any) bool {
	n, _ := slot.(int64)
	for _, s := range v.slots {
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			continue // a slot that is on its way, in brackets
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
