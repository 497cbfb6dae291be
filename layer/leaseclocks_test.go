package layer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// servers is a store of several servers, each with a clock of its own. It takes from one after the other.
type servers struct {
	all []stint.Store
	of  map[string]int // by the subject of the counter
}

// each calls f for the asks of each server.
func (s servers) each(asks []stint.Ask, f func(server stint.Store, a []stint.Ask, at []int) error) error {
	for n, server := range s.all {
		var mine []stint.Ask
		var at []int
		for i := range asks {
			if s.of[asks[i].Key.Subject] == n {
				mine, at = append(mine, asks[i]), append(at, i)
			}
		}
		if len(mine) > 0 {
			if err := f(server, mine, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s servers) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := s.each(asks, func(server stint.Store, mine []stint.Ask, at []int) error {
		out, err := storetest.Take(ctx, server, mine)
		for j := range out {
			ds[at[j]] = out[j]
		}
		return err
	})
	if err != nil || !anyDenied(ds) {
		return err
	}
	for i := range ds {
		if back := stint.Refund(asks[i:i+1], ds[i:i+1]); len(back) > 0 {
			if err := s.Adjust(ctx, back, make([]stint.Decision, 1)); err != nil {
				return err
			}
			ds[i].Cost = 0
		}
	}
	return nil
}

func anyDenied(ds []stint.Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return true
		}
	}
	return false
}

func (s servers) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.each(asks, func(server stint.Store, mine []stint.Ask, at []int) error {
		out, err := storetest.Adjust(ctx, server, mine)
		for j := range out {
			ds[at[j]] = out[j]
		}
		return err
	})
}

func (s servers) Reset(ctx context.Context, asks []stint.Ask) error {
	return s.each(asks, func(server stint.Store, mine []stint.Ask, _ []int) error { return server.Reset(ctx, mine) })
}

func (servers) Close() error { return nil }

// TestLeaseClocks leases a counter whose parts are on two servers, of which one is a little ahead: its window has
// turned while that of the other has not. What was charged in a window is not spent in the next.
func TestLeaseClocks(t *testing.T) {
	t.Parallel()
	const ahead = 30 * time.Millisecond
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		for _, n := range []int{2, 16} { // with so many, a lease has more than a part
			t.Run(fmt.Sprint(algorithm, " in ", n), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := leaseAsk(t, "2000/1s "+algorithm, 100*time.Millisecond)
					a.Policy.Split = n
					store := servers{
						all: []stint.Store{memory(t, time.Now), memory(t, func() time.Time { return time.Now().Add(ahead) })},
						of:  map[string]int{},
					}
					parts := partsOf(t, a.Limit, n)
					for i := range parts {
						store.of[parts[i].Key.Subject] = i % 2
					}
					a.Key = parts[0].Key
					for range 12 { // which begin at any part
						node := must(t)(layer.Lease(must(t)(layer.DenyCache(must(t)(layer.Split(store)), layer.DenyCacheOptions{})), layer.LeaseOptions{}))
						if err := node.Reset(t.Context(), []stint.Ask{a}); err != nil {
							t.Fatal(err)
						}
						<-time.After(time.Until(time.Now().Truncate(time.Second).Add(2 * time.Second)))
						calm := 850*time.Millisecond + rand.N(50*time.Millisecond) // so that something is left when the window turns
						for range 2 {
							admitted := int64(0)
							for begin := time.Now(); time.Since(begin) < time.Second; <-time.After(time.Millisecond) {
								if time.Since(begin) < calm {
									continue
								}
								turning := time.Since(begin) >= time.Second-ahead
								if turning {
									take(t, store, parts[1]) // as another node does, in the next window
									peek := a
									peek.Cost = 0
									decide(t, node, peek) // and this one hears of it
								}
								for range 4 {
									if d := decide(t, node, a); d.Allowed && !turning {
										admitted++
									}
								}
							}
							if admitted > a.Limit.Max {
								t.Errorf("%d admitted in a window, want at most %d", admitted, a.Limit.Max)
							}
							calm = 0
						}
						if err := node.Close(); err != nil {
							t.Fatal(err)
						}
					}
				})
			})
		}
	}
}

// TestSplitClocks charges what another store has charged, to parts on two servers, of which one is behind: the instant is
// in the future of none.
func TestSplitClocks(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_767_225_600, 0)
	store := servers{
		all: []stint.Store{memory(t, func() time.Time { return now }), memory(t, func() time.Time { return now.Add(time.Minute) })},
		of:  map[string]int{partsOf(t, parse(t, "100/1h fixed_window"), 2)[1].Key.Subject: 1},
	}
	a := splitAsk(parse(t, "100/1h fixed_window"), 2, 80)
	a.Charge = &stint.Charge{At: now.Add(time.Minute).UnixMicro(), Cost: 80}
	ds := make([]stint.Decision, 1)
	if err := must(t)(layer.Split(store)).Adjust(t.Context(), []stint.Ask{a}, ds); err != nil || ds[0].Remaining != 20 {
		t.Errorf("%+v, %v; want 20 that remain", ds, err)
	}
}
