package region_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

func memory(t testing.TB, now func() time.Time) stint.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var centralPolicy = &stint.Policy{Regions: stint.RegionsCentral}

// TestConformance has counters in two stores do what those of one do: half of all clients, by their names, have
// central ones.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return storetest.Rewrite(region.NewStore(memory(t, now), memory(t, now)), func(a *stint.Ask) {
			if name := a.Key.Subject; name[len(name)-1]%2 == 0 {
				a.Policy = centralPolicy
			}
		})
	})
}

// TestBoth takes from a central counter and one at home: both are charged, or none.
func TestBoth(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		clock := storetest.NewClock()
		home, central := memory(t, clock.Now), memory(t, clock.Now)
		s := region.NewStore(home, central)
		defer s.Close()
		limits := [2]int64{rapid.Int64Range(1, 20).Draw(rt, "at home"), rapid.Int64Range(1, 20).Draw(rt, "central")}
		used := [2]int64{}
		for range 40 {
			var asks []stint.Ask
			for i := range limits {
				a := stint.Ask{
					Key: stint.Key{Subject: "alice", Name: "n"}, Cost: rapid.Int64Range(0, 3).Draw(rt, "cost"),
					Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: limits[i], Window: stint.Every(time.Hour)},
				}
				if i == 1 {
					a.Policy = centralPolicy
				}
				asks = append(asks, a)
			}
			if rapid.Bool().Draw(rt, "turned") {
				asks[0], asks[1] = asks[1], asks[0]
			}
			var ds [2]stint.Decision
			if err := s.Take(context.Background(), asks, ds[:]); err != nil {
				rt.Fatal(err)
			}
			of := func(i int) int {
				if asks[i].Policy != nil {
					return 1
				}
				return 0
			}
			all := true
			for i := range asks {
				fits := used[of(i)]+asks[i].Cost <= limits[of(i)]
				if ds[i].Allowed != fits {
					rt.Fatalf("ask %d: %+v; want allowed %v", i, ds[i], fits)
				}
				all = all && fits
			}
			for i := range asks {
				if all {
					used[of(i)] += asks[i].Cost
				}
				if ds[i].Remaining != limits[of(i)]-used[of(i)] {
					rt.Fatalf("ask %d: %+v; want %d of %d used", i, ds[i], used[of(i)], limits[of(i)])
				}
			}
		}
	})
}

// away is a store that cannot be reached.
type away struct{ stint.Store }

func (away) Take(context.Context, []stint.Ask, []stint.Decision) error { return stint.ErrUnavailable }

// TestBothFails has the store at home fail after the central counter was charged: that is given back.
func TestBothFails(t *testing.T) {
	t.Parallel()
	central := memory(t, nil)
	s := region.NewStore(away{memory(t, nil)}, central)
	l := stint.Limit{Algorithm: stint.FixedWindow, Max: 10, Window: stint.Every(time.Hour)}
	asks := []stint.Ask{
		{Key: stint.Key{Subject: "alice", Name: "far"}, Limit: l, Cost: 3, Policy: centralPolicy},
		{Key: stint.Key{Subject: "alice", Name: "near"}, Limit: l, Cost: 3},
	}
	if err := s.Take(t.Context(), asks, make([]stint.Decision, 2)); !errors.Is(err, stint.ErrUnavailable) {
		t.Fatal(err)
	}
	peek := asks[0]
	peek.Cost = 0
	var ds [1]stint.Decision
	if err := central.Take(t.Context(), []stint.Ask{peek}, ds[:]); err != nil || ds[0].Remaining != 10 {
		t.Errorf("%v, %+v; want that nothing is charged", err, ds[0])
	}
}
