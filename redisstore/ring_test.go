package redisstore //nolint:testpackage // Where a ring places slots is not exported.

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/kit/slot"
	"github.com/stintdev/stint/internal/test/torture"
)

// nodesFor returns n servers of weight 1.
func nodesFor(n int) (nodes []node) {
	for i := range n {
		nodes = append(nodes, node{fmt.Sprintf("redis-%d.example.org:6379", i), 1})
	}
	return nodes
}

// holders returns the names of the slots' servers.
func holders(nodes []node) []string {
	names := make([]string, slot.Count)
	for k, n := range owners(nodes, 2048) {
		names[k] = nodes[n].addr
	}
	return names
}

// shares returns how many slots each server has.
func shares(names []string) map[string]int {
	n := map[string]int{}
	for _, name := range names {
		n[name]++
	}
	return n
}

// fair fails unless a server has so many slots, within 10 %.
func fair(t *testing.T, what string, got int, want float64) {
	t.Helper()
	if math.Abs(float64(got)-want) > want/10 {
		t.Errorf("%s has %d slots, want %.0f within 10 %%", what, got, want)
	}
}

// TestRingGolden pins where slots are. If it fails, processes of two versions count apart: a change of the
// points needs another scheme.
func TestRingGolden(t *testing.T) {
	t.Parallel()
	nodes := []node{{"a:6379", 1}, {"b:6379", 1}, {"c:6379", 2}}
	names := holders(nodes)
	sum := fnv.New64a()
	for _, name := range names {
		fmt.Fprintln(sum, name)
	}
	if got := sum.Sum64(); got != 0x9f9f1224d1e7f2d5 {
		t.Errorf("the table is %#x", got)
	}
	var got []string
	for _, subject := range []string{"alice", "bob", "user:1", "user:2", "ip:192.0.2.1", "tenant:acme"} {
		got = append(got, subject+" "+names[slot.Of("rl:{"+subject+"}:api:sw1h")])
	}
	if want := "alice a:6379, bob c:6379, user:1 b:6379, user:2 c:6379, ip:192.0.2.1 a:6379, tenant:acme b:6379"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
	for p := range nodes[0].points(2048) {
		if p != 0x144551dcaaa3eb1b { // the first eight bytes of sha256("a:6379#0")
			t.Errorf("the first point is %#x", p)
		}
		break
	}
}

// TestRingShares adds one server after another. Each has its share, and the slots that the last one got are
// all that moved; so when it is removed, they go back to where they were.
func TestRingShares(t *testing.T) {
	t.Parallel()
	var before []string
	for n := 1; n <= 10; n++ {
		nodes := nodesFor(n)
		now := holders(nodes)
		for name, got := range shares(now) {
			fair(t, fmt.Sprintf("%s of %d", name, n), got, float64(slot.Count)/float64(n))
		}
		moved := 0
		for k := range before {
			if now[k] == before[k] {
				continue
			}
			if moved++; now[k] != nodes[n-1].addr {
				t.Fatalf("of %d servers: slot %d moved from %s to %s, which was there before", n, k, before[k], now[k])
			}
		}
		if n > 1 {
			fair(t, fmt.Sprintf("what moved to server %d", n), moved, float64(slot.Count)/float64(n))
		}
		before = now
	}
	// One in the middle goes: its slots are all that moves, to all others.
	nodes := nodesFor(10)
	rest := slices.Delete(slices.Clone(nodes), 4, 5)
	slices.Reverse(rest) // the order does not matter
	got := map[string]int{}
	for k, name := range holders(rest) {
		if name != before[k] {
			if before[k] != nodes[4].addr {
				t.Fatalf("slot %d moved from %s to %s", k, before[k], name)
			}
			got[name]++
		}
	}
	if len(got) != 9 {
		t.Errorf("the slots of one server went to %d others, want all 9: %v", len(got), got)
	}
}

// TestRingSpread looks for the server that is furthest from its fair share, in many rings.
func TestRingSpread(t *testing.T) {
	t.Parallel()
	rings := 10
	if torture.Enabled {
		rings = 100
	}
	for _, n := range []int{3, 10} {
		worst := 0.0
		for ring := range rings {
			var nodes []node
			for i := range n {
				nodes = append(nodes, node{fmt.Sprintf("redis-%d-%d:6379", ring, i), 1})
			}
			for _, got := range shares(holders(nodes)) {
				worst = max(worst, math.Abs(float64(n*got)/slot.Count-1))
			}
		}
		t.Logf("%d servers: %.0f %%", n, 100*worst)
		if worst > 0.1 {
			t.Errorf("%d servers: off by %.1f %%, want 10 %% at most", n, 100*worst)
		}
	}
}

func TestRingWeights(t *testing.T) {
	t.Parallel()
	nodes := nodesFor(4)
	before := holders(nodes)
	nodes[1].weight, nodes[2].weight = 2, 5
	now := holders(nodes)
	n := shares(now)
	for i, want := range []float64{1, 2, 5, 1} {
		fair(t, nodes[i].addr, n[nodes[i].addr], want/9*slot.Count)
	}
	for k := range now {
		if now[k] != before[k] && now[k] != nodes[1].addr && now[k] != nodes[2].addr {
			t.Fatalf("slot %d moved to %s, whose weight is as it was", k, now[k])
		}
	}
}

// TestPlacement names the homes of a ring that is changed.
func TestPlacement(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis+ring://a,b":                                     "a:6379, b:6379",
		"redis+ring://a,b?was=b,a":                             "a:6379, b:6379",
		"redis+ring://a,b?was=a":                               "a:6379, a:6379->b:6379",
		"redis+ring://b?was=a,b":                               "a:6379->b:6379, b:6379",
		"redis+ring://a,b,c?was=a,b":                           "a:6379, a:6379->c:6379, b:6379, b:6379->c:6379",
		"redis+ring://a,b?was=a,b,c":                           "a:6379, b:6379, c:6379->a:6379, c:6379->b:6379",
		"redis+ring://a,b?weights=2,1&was_weights=1,1&was=a,b": "a:6379, b:6379, b:6379->a:6379",
	} {
		c, err := parseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		p := newPlacement(&c)
		names := slices.Sorted(slices.Values(p.servers().names))
		if got := strings.Join(names, ", "); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
		for i, probe := range p.servers().probe {
			if probe == "" {
				t.Errorf("%s: no subject is on %s", url, p.servers().names[i])
			}
		}
	}
}

func BenchmarkPlacement(b *testing.B) {
	c, err := parseURL("redis+ring://a,b,c,d,e,f,g,h,i,j")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		newPlacement(&c)
	}
}
