package region_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region"
	"github.com/stintdev/stint/layer"
)

// ocean is a store in another region: messages take a while, and do not arrive while it is cut off.
type ocean struct {
	stint.Store
	delay time.Duration
	cut   *atomic.Bool
}

var errSea = fmt.Errorf("%w: cut off", stint.ErrUnavailable)

// cross carries a call there and the answer back. What is lost on the way back has been applied.
func (o *ocean) cross(ctx context.Context, call func() error) error {
	one := func() error {
		select {
		case <-time.After(o.delay + rand.N(o.delay)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", stint.ErrUnavailable, ctx.Err())
		}
		if o.cut.Load() {
			return errSea
		}
		return nil
	}
	if err := one(); err != nil {
		return fmt.Errorf("%w: %w", stint.ErrNotApplied, err)
	}
	if err := call(); err != nil {
		return err
	}
	return one()
}

func (o *ocean) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return o.cross(ctx, func() error { return o.Store.Take(ctx, asks, ds) })
}

func (o *ocean) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return o.cross(ctx, func() error { return o.Store.Adjust(ctx, asks, ds) })
}

func (o *ocean) Close() error { return nil }

// TestCentralNeverBeyond has regions ask a central one, over links of up to 300 ms that are cut now and then, with
// leases and without: no window ever has more than the limit, if what cannot be counted is denied; and otherwise
// at most the shares of those that were cut off in addition.
func TestCentralNeverBeyond(t *testing.T) {
	t.Parallel()
	centralSimulation(t, 20_000)
}

func centralSimulation(t *testing.T, requests int) {
	t.Helper()
	for _, mode := range []stint.FailMode{stint.FailClosed, stint.FailLocal} {
		for _, lease := range []time.Duration{0, 200 * time.Millisecond} {
			t.Run(fmt.Sprint("closed ", mode == stint.FailClosed, ", lease ", lease), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { simulateCentral(t, mode, lease, requests) })
			})
		}
	}
}

func simulateCentral(t *testing.T, mode stint.FailMode, lease time.Duration, requests int) {
	t.Helper()
	const regions, limit, window = 3, 300, 10 * time.Second
	home := memory(t, time.Now)
	cuts := [regions]atomic.Bool{}
	stores := []stint.Store{home}
	for r := 1; r < regions; r++ {
		far := &ocean{Store: home, delay: time.Duration(r) * 50 * time.Millisecond, cut: &cuts[r]}
		s, err := region.Central(far, region.CentralOptions{
			Local: memory(t, time.Now), Weight: 1, Weights: regions, Nodes: func() int { return 1 },
			OnChange: func(bool, string) {}, OnReturn: func(layer.Return) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stores = append(stores, s)
	}
	ask := stint.Ask{
		Key: stint.Key{Subject: "alice", Name: "api:limit"}, Cost: 1,
		Limit:  stint.Limit{Algorithm: stint.FixedWindow, Max: limit, Window: stint.Every(window)},
		Policy: &stint.Policy{OnFailure: mode, Lease: lease, Regions: stint.RegionsCentral},
	}
	var admitted sync.Map // by window: *atomic.Int64
	var wg sync.WaitGroup
	for r, s := range stores {
		for range 8 {
			wg.Go(func() {
				for range requests / 8 / regions {
					<-time.After(rand.N(200 * time.Millisecond)) // 240 a second: eight times the limit
					var ds [1]stint.Decision
					if err := s.Take(context.Background(), []stint.Ask{ask}, ds[:]); err != nil {
						t.Error(err)
						return
					}
					if d := &ds[0]; d.Allowed {
						n, _ := admitted.LoadOrStore(d.At/window.Microseconds(), new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
					}
				}
			})
		}
		if r > 0 {
			wg.Go(func() {
				for range requests / 2400 {
					<-time.After(rand.N(20 * time.Second))
					cuts[r].Store(true)
					<-time.After(rand.N(8 * time.Second))
					cuts[r].Store(false)
				}
			})
		}
	}
	wg.Wait()
	bound, most := int64(limit), int64(0)
	if mode == stint.FailLocal {
		bound += 2 * limit / regions
	}
	for w, n := range admitted.Range {
		n := n.(*atomic.Int64).Load()
		if most = max(most, n); n > bound {
			t.Errorf("%d admitted in window %v; want at most %d", n, w, bound)
		}
	}
	t.Logf("%d requests: at most %d in a window of %d", requests, most, limit)
}
