//go:build exact

package layer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// TestAllocations counts what the stack adds to its store, for a caller that
// waits.
func TestAllocations(t *testing.T) {
	ctx := context.Background()
	count := func(s stint.Store, asks []stint.Ask) float64 {
		return testing.AllocsPerRun(1000, func() {
			if _, err := storetest.Take(ctx, s, asks); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, asks := range map[string][]stint.Ask{
		"one ask":    ask("alice", 1<<40, 1),
		"three asks": append(append(ask("alice", 1<<40, 1), ask("bob", 1<<40, 1)...), ask("carol", 1<<40, 1)...),
	} {
		bare := count(memory(t, nil), asks)
		stack := must(t)(layer.New(memory(t, nil), layer.Options{
			Fallback: &layer.FallbackOptions{Local: memory(t, nil)}, Observer: new(layer.Meter),
		}))
		if got := count(stack, asks); got > bare {
			t.Errorf("%s: %v allocations, the store alone %v", name, got, bare)
		}
		// Out of reach: the answer comes from the store of this node.
		down := &faulty{Store: memory(t, nil)}
		down.fail(unknown)
		local := must(t)(layer.New(down, layer.Options{
			Fallback: &layer.FallbackOptions{Local: memory(t, nil)},
			Breaker:  layer.BreakerOptions{Probe: time.Hour},
		}))
		if got := count(local, asks); got > bare {
			t.Errorf("%s, out of reach: %v allocations, a store alone %v", name, got, bare)
		}
	}
	exhausted := must(t)(layer.New(memory(t, nil), layer.Options{}))
	if got := count(exhausted, ask("alice", 1, 1)); got > 1 {
		t.Errorf("a remembered denial: %v allocations, want one, for the answer", got)
	}
}

// TestSplitAllocations counts what Split adds to a store: nothing, for asks without parts and for those whose part
// passes.
func TestSplitAllocations(t *testing.T) {
	limit := stint.PerHour(1 << 40)
	plan, err := limit.Compile()
	if err != nil {
		t.Fatal(err)
	}
	ds := make([]stint.Decision, 1)
	for name, parts := range map[string]int{"no parts": 0, "8 parts": 8, "64 parts": 64} {
		s := must(t)(layer.Split(memory(t, nil)))
		asks := []stint.Ask{splitAsk(limit, parts, 1)}
		asks[0].Plan = plan
		got := testing.AllocsPerRun(1000, func() {
			if err := s.Take(context.Background(), asks, ds); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// TestLeaseAllocations counts what a take allocates that is answered by a lease: nothing.
func TestLeaseAllocations(t *testing.T) {
	s := must(t)(layer.Lease(memory(t, nil), layer.LeaseOptions{}))
	asks, ds := []stint.Ask{leaseAsk(t, "1099511627776/1h", 100*time.Millisecond)}, make([]stint.Decision, 1)
	leased := 0
	take := func() {
		if err := s.Take(context.Background(), asks, ds); err != nil {
			t.Fatal(err)
		}
		if ds[0].Basis == stint.Leased {
			leased++
		}
	}
	eventually(t, func() error {
		for range 20 { // at once, since few takes in a term begin no lease
			take()
		}
		if leased == 0 {
			return errors.New("it is not leased")
		}
		return nil
	})
	leased = 0
	const runs = 100_000
	if got := testing.AllocsPerRun(runs, take); got != 0 || leased < runs/2 {
		t.Errorf("%v allocations, and %d of %d takes are leased", got, leased, runs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSplitMemory has more counters with 64 parts and long names than Split remembers.
func TestSplitMemory(t *testing.T) { //nolint:paralleltest // it measures memory
	s := must(t)(layer.Split(memory(t, nil)))
	used := func() int64 {
		runtime.GC()
		runtime.GC() // pools keep what they have through one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	for i := range 5000 {
		a := splitAsk(stint.PerHour(6401), 64, 0)
		a.Key = stint.Key{Subject: fmt.Sprintf("%0128d", i), Name: fmt.Sprintf("%0128d", i)}
		if _, err := storetest.Take(context.Background(), s, []stint.Ask{a}); err != nil {
			t.Fatal(err)
		}
	}
	const most = 18_000_000 // as its documentation says
	if grown := used() - before; grown > most {
		t.Errorf("%d bytes, want at most %d", grown, most)
	} else {
		t.Logf("%d bytes", grown)
	}
	runtime.KeepAlive(s)
}
