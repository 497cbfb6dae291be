package region_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/test/wait"
)

// node is a node of a region, with a listener for the others.
type node struct {
	name  string
	home  stint.Store // of the region
	store stint.Store
	links *region.Links
	close func()
}

// world starts regions of one node each, which know each other. The first has the central counters.
func world(t *testing.T, names ...string) []*node {
	t.Helper()
	listeners, urls := map[string]net.Listener{}, map[string]string{}
	var table []link.Region
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[name], urls[name] = l, "http://"+l.Addr().String()
		table = append(table, link.Region{Name: name, Weight: 1})
	}
	var out []*node
	for _, name := range names {
		out = append(out, start(t, name, names[0], table, urls, listeners[name]))
	}
	return out
}

func start(t *testing.T, name, central string, table []link.Region, urls map[string]string, l net.Listener) *node {
	t.Helper()
	n := &node{name: name, home: &gate{Store: memory(t, nil)}}
	peers, others := map[string]string{}, []string(nil)
	for _, r := range table {
		if r.Name != name {
			peers[r.Name], others = urls[r.Name], append(others, r.Name)
		}
	}
	self := gossip.Sender{Region: name, Node: "n", Run: 1}
	told, err := gossip.New(n.home, gossip.Options{Self: self, Peers: others, Weight: 1, Weights: len(table), Local: memory(t, nil), Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	identity := link.Identity{Self: self, Regions: table, Secrets: func() [][]byte { return [][]byte{[]byte("a secret of the regions")} }, Clock: told.Clock, Standing: told.Standing}
	if n.links, err = region.OpenLinks(region.LinksOptions{Identity: identity, Peers: peers, Gossip: told, Interval: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	o := link.ServerOptions{Identity: identity, Receiver: n.links}
	n.store = told
	if name == central {
		o.Central = n.home
	} else {
		n.store = region.NewStore(told, n.links.Central(central))
	}
	server, err := link.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	n.close = func() {
		if err := n.links.Close(); err != nil {
			t.Error(err)
		}
		_ = server.Close()
		<-served
	}
	t.Cleanup(func() { n.close() })
	return n
}

// gate is a store that adjusts when it may, and keeps to its context.
type gate struct {
	stint.Store
	pass atomic.Pointer[func()]
}

func (g *gate) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if pass := g.pass.Load(); pass != nil {
		(*pass)()
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied, err)
	}
	return g.Store.Adjust(ctx, asks, ds)
}

func take(t *testing.T, s stint.Store, a stint.Ask, cost int64) stint.Decision {
	t.Helper()
	a.Cost = cost
	var ds [1]stint.Decision
	if err := s.Take(t.Context(), []stint.Ask{a}, ds[:]); err != nil {
		t.Fatal(err)
	}
	return ds[0]
}

func linked(nodes []*node) func() bool {
	return func() bool {
		for _, n := range nodes {
			for _, s := range n.links.States() {
				if !s.Link.Up || !s.Told.Heard || s.Told.Cut || !s.Told.Consents {
					return false
				}
			}
		}
		return true
	}
}

// TestStopWhileCharging has a node stop while it charges what another region has told: it charges it to the end.
func TestStopWhileCharging(t *testing.T) {
	t.Parallel()
	nodes := world(t, "asia", "europe")
	wait.For(t, "all hear from each other", linked(nodes))
	reached, further := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() {
		close(reached)
		<-further
	})
	nodes[0].home.(*gate).pass.Store(&once)
	const counters = 300
	asks, ds := make([]stint.Ask, counters), make([]stint.Decision, counters)
	for i := range asks {
		asks[i] = stint.Ask{
			Key:    stint.Key{Subject: fmt.Sprint("user ", i), Name: "api:limit"},
			Limit:  stint.Limit{Algorithm: stint.FixedWindow, Max: 100, Window: stint.Every(7 * 24 * time.Hour)},
			Policy: &stint.Policy{Regions: stint.RegionsGossip, Credit: 10}, Cost: 1,
		}
	}
	if err := nodes[1].store.Take(t.Context(), asks, ds); err != nil {
		t.Fatal(err)
	}
	<-reached
	stop, stopped := nodes[0].close, make(chan struct{})
	nodes[0].close = func() {}
	go func() {
		stop()
		close(stopped)
	}()
	wait.For(t, "the link is down", func() bool { return !nodes[1].links.States()[0].Link.Up })
	close(further)
	<-stopped
	for i := range asks {
		if left := take(t, nodes[0].home, asks[i], 0).Remaining; left != 99 {
			t.Fatalf("%d left of counter %d, after one unit of 100 was told", left, i)
		}
	}
}
