package layer_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// TestLeaseAlone has one node that is asked for more than the limit: none of its denials is early, whatever it has
// taken ahead, spent and given back, and whether or not it has heard of it.
func TestLeaseAlone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"500/1s fixed_window", "500/1s sliding_window", "500/1s sliding_log"} {
		for _, term := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, time.Second} {
			for _, faults := range []bool{false, true} {
				t.Run(fmt.Sprint(text, " for ", term, ", faults: ", faults), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						meter := layer.NewLeaseMeter()
						node := newLeasing(t, memory(t, nil), 4*time.Millisecond, layer.LeaseOptions{Meter: meter})
						a, other := leaseAsk(t, text, term), leaseAsk(t, "700/3s fixed_window", term)
						steps := 2000
						if torture.Enabled {
							steps *= 10
						}
						for n := range steps {
							<-time.After(time.Millisecond)
							switch n % 1000 {
							case 300, 800: // few takes: the lease may end
								<-time.After(3 * term / 2)
							case 600:
								node.wire.mute.Store(faults)
							case 620:
								node.wire.mute.Store(false)
							case 900: // the limit has another window, and the same key
								a, other = other, a
							}
							for range 5 {
								_, _ = storetest.Take(context.Background(), node, []stint.Ask{a})
							}
						}
						_ = node.Close()
						m := meter.Read()[0]
						if m.Denied == 0 || m.Lent == 0 || m.Early != 0 || m.MostOut != 0 {
							t.Errorf("%+v; want denials, none of them early", m)
						}
					})
				})
			}
		}
	}
}

// TestLeaseEarly has one node hold units while another is denied: that is counted, and the units come back. When
// they are used up, denials are not early any more.
func TestLeaseEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory(t, time.Now)
		meters := []*layer.LeaseMeter{layer.NewLeaseMeter(), layer.NewLeaseMeter()}
		var nodes []stint.Store
		for _, m := range meters {
			nodes = append(nodes, newLeasing(t, store, time.Microsecond, layer.LeaseOptions{Meter: m, Replicas: func() int { return 2 }}))
		}
		a := leaseAsk(t, "1000/1h fixed_window", time.Second)
		all := a
		all.Cost = 400
		warm(t, nodes[0], a)
		warm(t, nodes[1], a)
		for range 200 {
			decide(t, nodes[0], a) // its lease grows
		}
		synctest.Wait()
		for decide(t, nodes[1], all).Allowed || all.Cost > 1 {
			all.Cost = max(all.Cost/2, 1)
		}
		for range 10 {
			decide(t, nodes[1], a) // denied, and while the other node has units
		}
		<-time.After(2 * time.Second)
		if m := meters[0].Read()[0]; m.Back == 0 {
			t.Errorf("%+v; want that something comes back", m)
		}
		early := meters[1].Read()[0]
		if early.Early < 11 || early.Early != early.Denied || early.MostOut == 0 {
			t.Errorf("%+v; want that all denials were early", early)
		}
		if !decide(t, nodes[1], a).Allowed {
			t.Error("denied, though units have come back")
		}
		for range 3000 {
			<-time.After(time.Millisecond)
			decide(t, nodes[1], a) // spends what is left, and is denied
		}
		for _, n := range nodes {
			_ = n.Close()
		}
		for _, m := range meters {
			sound(t, m)
		}
		if late := meters[1].Read()[0]; late.Denied < early.Denied+1000 || late.Early != early.Early || late.MostOut != early.MostOut {
			t.Errorf("%+v, and later %+v; want denials that are not early", early, late)
		}
	})
}

// TestLeaseEarlyBoth has two nodes use up a limit, and ask for more. When both have been denied neither holds any
// units, though both have spent what they took ahead: only the first denials may have been early.
func TestLeaseEarlyBoth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory(t, nil)
		meters := []*layer.LeaseMeter{layer.NewLeaseMeter(), layer.NewLeaseMeter()}
		var nodes []stint.Store
		for _, m := range meters {
			nodes = append(nodes, newLeasing(t, store, time.Millisecond, layer.LeaseOptions{Meter: m, Replicas: func() int { return 2 }}))
		}
		const term, each = 100, 2 // milliseconds, and takes in each
		a := leaseAsk(t, "4000/1h fixed_window", term*time.Millisecond)
		for range 4000 {
			<-time.After(time.Millisecond)
			for _, n := range nodes {
				for range each {
					decide(t, n, a)
				}
			}
		}
		for i, n := range nodes {
			_ = n.Close()
			sound(t, meters[i])
			if m := meters[i].Read()[0]; m.Denied < 4000 || m.Early > 2*term*each {
				t.Errorf("%+v; want many denials, of which those of two terms may be early", m)
			}
		}
	})
}
