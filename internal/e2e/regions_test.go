package e2e_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/rule"
)

// attacked is the limit of each counter that is attacked, and told the credit of a region where it is gossiped.
const attacked, told = 60, 6

// by returns a rule whose counters regions share in that way, for a path of its name.
func by(name string, regions rule.Regions, limit string, lease time.Duration) rule.Rule {
	return rule.Rule{
		Name: name, Match: rule.Match{Paths: []string{"/" + name}}, CountBy: []rule.Dimension{"ip"}, Regions: regions,
		Limits: []rule.Limit{{Name: name, Limit: limit, Lease: rule.Duration(lease)}},
	}
}

// TestRegions has three regions with two nodes each use up counters, asked at all nodes at once: while all is well,
// while a region is cut off, and afterwards. No counter gets more than its bound, and every region has its share.
func TestRegions(t *testing.T) {
	t.Parallel()
	limit := fmt.Sprintf("%d/1000h fixed_window", attacked)
	w := newWorld(t, by("gossip", rule.RegionsGossip, limit, 0), by("quota", rule.RegionsQuota, limit, 0), by("central", rule.RegionsCentral, limit, time.Second))
	w.useUp(t, "all is well", "192.0.2.1")

	w.isolate(t, 2)
	for r := range w.nodes[:2] {
		w.nodes[r][0].ready(t, "degraded", "cut off from us")
	}
	w.nodes[2][0].ready(t, "degraded", "cut off from asia", "cut off from europe")
	w.useUp(t, "a region is cut off", "192.0.2.2")

	w.heal(t)
	w.each(func(r, i int) { w.nodes[r][i].ready(t, allWell) })
	w.useUp(t, "all is well again", "192.0.2.3")
}

// useUp asks for the counters of an address, until no node admits any more, and checks what was admitted.
func (w *world) useUp(t *testing.T, when, ip string) {
	t.Helper()
	for path, most := range map[string]int64{
		"/gossip": attacked + 2*told, "/quota": attacked,
		"/central": attacked + 2*attacked/3, // two regions may not reach the central one, or not in time
	} {
		var mu sync.Mutex
		var regions [3]int64
		for more := true; more; {
			more = false
			var round sync.WaitGroup
			w.each(func(r, i int) {
				for range 8 {
					round.Go(func() {
						v, err := w.ask(w.nodes[r][i], path, ip)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							t.Error(err)
						} else if v.Allowed {
							regions[r]++
							more = true
						}
					})
				}
			})
			round.Wait()
		}
		all := regions[0] + regions[1] + regions[2]
		t.Logf("%s, %s: %d of at most %d, %d", when, path, all, most, regions)
		if all > most || regions[0] == 0 || regions[1] == 0 || regions[2] == 0 {
			t.Errorf("%s, %s: %d admitted, in the regions %d; want at most %d, and something in each", when, path, all, regions, most)
		}
	}
}
