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

// chance gives random numbers that follow from a seed, from who asks and from the virtual time. So they do not
// depend on the order in which goroutines run at one instant, which no seed decides.
type chance struct{ seed, who uint64 }

func (c chance) now() *rand.Rand {
	return rand.New(rand.NewPCG(c.seed<<16|c.who, uint64(time.Now().UnixNano())))
}

// below returns a random duration from zero to below d.
func (c chance) below(d time.Duration) time.Duration { return time.Duration(c.now().Int64N(int64(d))) }

// ocean is the way of a node to a store in another region. Messages take a while, overtake each other, and get lost.
type ocean struct {
	stint.Store
	chance
	delay time.Duration
	// there and back are whether messages get lost in one direction, and dead whether the node was killed.
	there, back *atomic.Bool
	dead        atomic.Bool
}

var errSea = fmt.Errorf("%w: cut off", stint.ErrUnavailable)

// cross carries a call there and the answer back. What is lost on the way back has been applied.
func (o *ocean) cross(ctx context.Context, call func() error) error {
	const lost = 500 // one message in so many
	way := func(cut *atomic.Bool) error {
		random := o.now()
		select {
		case <-time.After(o.delay + time.Duration(random.Int64N(int64(o.delay)))):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", stint.ErrUnavailable, ctx.Err())
		}
		if cut.Load() || o.dead.Load() || random.IntN(lost) == 0 {
			return errSea
		}
		return nil
	}
	if err := way(o.there); err != nil {
		return fmt.Errorf("%w: %w", stint.ErrNotApplied, err)
	}
	if err := call(); err != nil {
		return err
	}
	return way(o.back)
}

func (o *ocean) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return o.cross(ctx, func() error { return o.Store.Take(ctx, asks, ds) })
}

func (o *ocean) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return o.cross(ctx, func() error { return o.Store.Adjust(ctx, asks, ds) })
}

func (o *ocean) Close() error { return nil }

// centralWorld is regions whose nodes ask a central one, in virtual time. When clients ask, how long messages take, which
// of them get lost, and when links are cut and nodes killed follows from the seed. Of goroutines that wake up at one
// instant, such as those that wait for a lease, any may be the first.
type centralWorld struct {
	t     *testing.T
	seed  uint64
	mode  stint.FailMode
	lease time.Duration
	kills bool // nodes are killed

	regions, nodes int
	requests       int // of all clients together
}

const (
	centralLimit  = 300
	centralWindow = 10 * time.Second
)

// centralResult is what became of the requests.
type centralResult struct {
	admitted map[int64]int // by window
	alone    int           // admitted by nodes that could not ask
	kills    int
}

// simulate has clients ask for eight times the limit, in all regions at once, over links of up to 300 ms that are cut,
// in one direction or both. Nodes are killed.
func (w *centralWorld) simulate() centralResult {
	w.t.Helper()
	home := memory(w.t, time.Now)
	who := uint64(0)
	another := func() chance { who++; return chance{w.seed, who} }
	ask := stint.Ask{
		Key: stint.Key{Subject: "alice", Name: "api:limit"}, Cost: 1,
		Limit:  stint.Limit{Algorithm: stint.FixedWindow, Max: centralLimit, Window: stint.Every(centralWindow)},
		Policy: &stint.Policy{OnFailure: w.mode, Lease: w.lease, Regions: stint.RegionsCentral},
	}
	r := centralResult{admitted: map[int64]int{}}
	var mu sync.Mutex // r
	var work, outages sync.WaitGroup
	end := make(chan struct{})
	request := func(s stint.Store, far *ocean) {
		var ds [1]stint.Decision
		err := s.Take(context.Background(), []stint.Ask{ask}, ds[:])
		switch {
		case far != nil && far.dead.Load():
			return // nobody gets an answer
		case err != nil:
			w.t.Errorf("seed %d: %v", w.seed, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if d := &ds[0]; d.Allowed {
			r.admitted[d.At/centralWindow.Microseconds()]++
			if d.Basis == stint.Local {
				r.alone++
			}
		}
	}
	// wait waits for a random time. It returns false when the simulation ends.
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-end:
			return false
		}
	}
	for g := range w.regions {
		var there, back atomic.Bool
		delay := time.Millisecond + another().below(74*time.Millisecond)
		for range w.nodes {
			c := another()
			start := func() (stint.Store, *ocean) {
				if g == 0 {
					return home, nil
				}
				far := &ocean{Store: home, chance: c, delay: delay, there: &there, back: &back}
				skew := c.below(time.Second) - time.Second/2
				s, err := region.Central(far, region.CentralOptions{
					Local: memory(w.t, func() time.Time { return time.Now().Add(skew) }), Weight: 1, Weights: w.regions, Nodes: func() int { return w.nodes },
					OnChange: func(bool, string) {}, OnReturn: func(layer.Return) {}, Random: c.below,
				})
				if err != nil {
					w.t.Fatal(err)
				}
				return s, far
			}
			work.Go(func() {
				s, far := start()
				for range w.requests / w.regions / w.nodes {
					// 240 a second in all
					<-time.After(time.Duration(c.now().ExpFloat64() * float64(time.Second) * float64(w.regions*w.nodes) / 240))
					at, over := s, far
					work.Go(func() { request(at, over) })
					if w.kills && far != nil && c.now().IntN(1000) == 0 {
						far.dead.Store(true)
						work.Go(func() { _ = at.Close() })
						s, far = start()
						mu.Lock()
						r.kills++
						mu.Unlock()
					}
				}
				if far != nil {
					outages.Go(func() { <-end; _ = s.Close() })
				}
			})
		}
		if c := another(); g > 0 {
			outages.Go(func() {
				for wait(c.below(20 * time.Second)) {
					what := c.now().IntN(3)
					there.Store(what != 0)
					back.Store(what != 1)
					wait(c.below(8 * time.Second))
					there.Store(false)
					back.Store(false)
				}
			})
		}
	}
	work.Wait()
	close(end)
	outages.Wait()
	return r
}

// check checks how many were admitted in the fullest window, and returns that.
func (w *centralWorld) check(r centralResult) (most int) {
	w.t.Helper()
	bound := centralLimit
	if w.mode == stint.FailLocal {
		bound += (w.regions - 1) * centralLimit / w.regions
	}
	for window, n := range r.admitted {
		if most = max(most, n); n > bound {
			w.t.Errorf("seed %d: %d admitted in window %v; want at most %d", w.seed, n, window, bound)
		}
	}
	return most
}

// TestCentralNeverBeyond has regions ask a central one, with leases and without: no window ever has more than the limit,
// if what cannot be counted is denied; and otherwise at most the shares of those that were cut off in addition.
func TestCentralNeverBeyond(t *testing.T) {
	t.Parallel()
	centralSimulation(t, 1, 10_000)
}

// centralSimulation runs each of eight worlds with so many seeds, and so many requests each.
func centralSimulation(t *testing.T, seeds uint64, requests int) {
	t.Helper()
	for _, mode := range []stint.FailMode{stint.FailClosed, stint.FailLocal} {
		for _, lease := range []time.Duration{0, 200 * time.Millisecond} {
			for _, regions := range []int{3, 5} {
				t.Run(fmt.Sprint("closed ", mode == stint.FailClosed, ", lease ", lease, ", regions ", regions), func(t *testing.T) {
					t.Parallel()
					most, alone, kills := 0, 0, 0
					for seed := range seeds {
						synctest.Test(t, func(t *testing.T) {
							w := &centralWorld{t: t, seed: seed, mode: mode, lease: lease, regions: regions, nodes: 2, requests: requests, kills: mode == stint.FailClosed}
							r := w.simulate()
							most, alone, kills = max(most, w.check(r)), alone+r.alone, kills+r.kills
						})
					}
					t.Logf("%d requests: at most %d in a window of %d; %d admitted by nodes that could not ask, %d nodes killed", int(seeds)*requests, most, centralLimit, alone, kills)
				})
			}
		}
	}
}
