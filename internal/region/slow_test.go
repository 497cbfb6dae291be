//go:build torture

package region_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestLinks has three regions tell each other what they admit, over TCP, and one of them leave: it tells what it has
// not told yet, and the others go on with their shares.
func TestLinks(t *testing.T) {
	t.Parallel()
	nodes := world(t, "asia", "europe", "us")
	wait.For(t, "all hear from each other", linked(nodes))
	a := stint.Ask{
		Key:    stint.Key{Subject: "alice", Name: "api:limit"},
		Limit:  stint.Limit{Algorithm: stint.FixedWindow, Max: 100, Window: stint.Every(time.Hour)},
		Policy: &stint.Policy{Regions: stint.RegionsGossip, Credit: 10},
	}
	for range 3 {
		for _, n := range nodes {
			if d := take(t, n.store, a, 5); !d.Allowed {
				t.Fatalf("%s: %+v", n.name, d)
			}
		}
	}
	left := func(n *node) int64 { return take(t, n.home, a, 0).Remaining }
	wait.For(t, "every region knows of all 45 units", func() bool {
		return left(nodes[0]) == 55 && left(nodes[1]) == 55 && left(nodes[2]) == 55
	})
	take(t, nodes[2].store, a, 5)
	nodes[2].close()
	nodes[2].close = func() {}
	if left(nodes[0]) != 50 || left(nodes[1]) != 50 {
		t.Errorf("%d and %d left after a region has left; want 50", left(nodes[0]), left(nodes[1]))
	}
	wait.For(t, "the others find that it is gone", func() bool {
		return nodes[0].links.States()[1].Told.Cut && nodes[1].links.States()[1].Told.Cut
	})
	n := 0
	wait.For(t, "one of the others has used its share", func() bool {
		if take(t, nodes[0].store, a, 1).Allowed {
			n++
		}
		return n >= 16
	})
	for range 5 {
		if take(t, nodes[0].store, a, 1).Allowed {
			n++
		}
	}
	if n > 16+10 {
		t.Errorf("%d admitted by one of three regions after one is gone; want a third of 50, and its credit", n)
	}
}

// TestCentral has a region ask another for its central counters, and fail while that is away.
func TestCentral(t *testing.T) {
	t.Parallel()
	nodes := world(t, "asia", "europe")
	wait.For(t, "all hear from each other", linked(nodes))
	a := stint.Ask{
		Key:    stint.Key{Subject: "alice", Name: "api:limit"},
		Limit:  stint.Limit{Algorithm: stint.FixedWindow, Max: 10, Window: stint.Every(time.Hour)},
		Policy: centralPolicy,
	}
	for i, n := range []*node{nodes[0], nodes[1], nodes[1]} {
		if d := take(t, n.store, a, 3); !d.Allowed || d.Remaining != 7-3*int64(i) {
			t.Fatalf("take %d, in %s: %+v", i, n.name, d)
		}
	}
	for _, n := range nodes {
		if d := take(t, n.store, a, 2); d.Allowed {
			t.Errorf("beyond the limit, in %s: %+v", n.name, d)
		}
	}
}
