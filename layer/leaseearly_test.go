package layer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// TestLeaseAlone has one node that is asked for more than the limit: none of its denials is early.
func TestLeaseAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		node := newLeasing(t, memory(t, nil), 4*time.Millisecond, layer.LeaseOptions{Meter: meter})
		a := leaseAsk(t, "500/1s fixed_window", 100*time.Millisecond)
		for range 2000 {
			<-time.After(time.Millisecond)
			decide(t, node, a)
		}
		_ = node.Close()
		if m := meter.Read()[0]; m.Denied == 0 || m.Lent == 0 || m.Early != 0 || m.MostOut != 0 {
			t.Errorf("%+v; want denials, none of them early", m)
		}
	})
}

// holding is a node, and an account of what it holds: what it was given of the store, less what it has spent or given back.
type holding struct {
	stint.Store // the node
	meter       *layer.LeaseMeter
	account     *account
	early, most int64
}

// account is the store of a holding.
type account struct {
	stint.Store
	counted, back atomic.Int64
}

func (s *account) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := s.Store.Take(ctx, asks, ds)
	s.counted.Add(ds[0].Cost)
	return err
}

func (s *account) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := s.Store.Adjust(ctx, asks, ds)
	for i := range asks {
		s.back.Add(-asks[i].Cost)
	}
	return err
}

// TestLeaseEarly has nodes that hold units while others are denied. An account of what each has been given, has spent and has
// given back says how many units others had at a denial: no more than the meter shows, and no denial
// is early that it does not count.
func TestLeaseEarly(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1000/1h fixed_window", "400/1s fixed_window", "400/1s sliding_window", "400/1s token_bucket", "200/1s sliding_log"} {
		for nodes := 2; nodes <= 4; nodes++ {
			t.Run(fmt.Sprint(text, nodes), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := memory(t, time.Now)
					var all []*holding
					for range nodes {
						h := &holding{meter: layer.NewLeaseMeter(), account: &account{Store: store}}
						h.Store = must(t)(layer.Lease(h.account, layer.LeaseOptions{Meter: h.meter, Replicas: func() int { return nodes }}))
						all = append(all, h)
					}
					a := leaseAsk(t, text, 100*time.Millisecond)
					random, spent := rand.New(rand.NewPCG(1, uint64(nodes))), make([]int64, nodes) //nolint:gosec // the same each time
					for n := range 4000 {
						<-time.After(time.Millisecond)
						i := random.IntN(nodes)
						if n/200%2 == 0 { // one is busier
							i = n / 400 % nodes
						}
						cost := a
						if cost.Cost = 1; n%20 == 0 { // few of these pass when there is little left
							cost.Cost = 1 + random.Int64N(100)
						}
						ds, err := storetest.Take(t.Context(), all[i], []stint.Ask{cost})
						if err != nil {
							t.Fatal(err)
						}
						synctest.Wait()
						if spent[i] += ds[0].Cost; ds[0].Allowed {
							continue
						}
						out := int64(0)
						for j, h := range all {
							if j != i {
								out += h.account.counted.Load() - h.account.back.Load() - spent[j]
							}
						}
						if all[i].most = max(all[i].most, out); out > 0 {
							all[i].early++
						}
					}
					denials := int64(0)
					for _, h := range all {
						_ = h.Close()
						sound(t, h.meter)
						m := h.meter.Read()[0]
						if denials += h.early; m.Early < h.early || m.MostOut < h.most || m.MostOut >= a.Limit.Max/2 || m.Early > m.Denied {
							t.Errorf("%+v; %d denials were early, while others had at most %d units", m, h.early, h.most)
						}
					}
					t.Log(denials, "early denials")
				})
			})
		}
	}
}
