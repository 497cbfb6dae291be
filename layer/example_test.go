package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
)

func Example() {
	redis, err := redisstore.Open("redis://localhost:6379?timeout=50ms&dial_timeout=50ms", redisstore.Options{})
	if err != nil {
		panic(err)
	}
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		panic(err)
	}
	replicas := func() int { return 3 } // of this program, as far as it knows
	store, err := layer.New(redis, layer.Options{
		Retry:    layer.RetryOptions{Budget: 50 * time.Millisecond, Dial: 50 * time.Millisecond},
		Fallback: &layer.FallbackOptions{Local: local, Replicas: replicas},
	})
	if err != nil {
		panic(err)
	}
	defer store.Close()
}

// gone is a store out of reach.
type gone struct{ stint.Store }

func (gone) Take(context.Context, []stint.Ask, []stint.Decision) error {
	return stint.ErrUnavailable
}

func (gone) Close() error { return nil }

// Six nodes share a limit of 60 while their Redis is out of reach: each admits a
// sixth of it.
func ExampleFallback() {
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		panic(err)
	}
	store, err := layer.Fallback(gone{}, layer.FallbackOptions{Local: local, Replicas: func() int { return 6 }})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	asks := []stint.Ask{{Key: stint.Key{Subject: "user:42"}, Limit: stint.PerHour(60), Cost: 10}}
	ds := make([]stint.Decision, len(asks))
	for range 2 {
		if err := store.Take(context.Background(), asks, ds); err != nil {
			panic(err)
		}
		fmt.Println(ds[0].Allowed, ds[0].Basis, "of", ds[0].Limit)
	}
	// Output:
	// true local of 10
	// false local of 10
}

// A counter for all users has eight parts, which a Redis Cluster keeps on different servers. A part has to hold a cost as a
// whole.
func ExampleSplit() {
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		panic(err)
	}
	store, err := layer.Split(local)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	asks := []stint.Ask{{
		Key: stint.Key{Subject: "everyone", Name: "api"}, Limit: stint.PerHour(1000), Policy: &stint.Policy{Split: 8},
	}}
	ds := make([]stint.Decision, len(asks))
	for _, cost := range []int64{125, 100, 126} {
		asks[0].Cost = cost
		if err := store.Take(context.Background(), asks, ds); err != nil {
			panic(err)
		}
		fmt.Println(ds[0].Allowed, ds[0].Remaining, "of", ds[0].Limit, ds[0].RetryAfter == stint.Never)
	}
	// Output:
	// true 875 of 1000 false
	// true 775 of 1000 false
	// false 775 of 1000 true
}

// A counter that is asked for often is leased: this process takes units ahead, and spends them in memory.
func ExampleLease() {
	local, err := memstore.New(memstore.Options{}) // or redisstore.Open, and layer.New around it
	if err != nil {
		panic(err)
	}
	store, err := layer.Lease(local, layer.LeaseOptions{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := stint.New(store, stint.Options{
		Limit: stint.PerMinute(6_000_000), Policy: &stint.Policy{Lease: 100 * time.Millisecond},
	})
	if err != nil {
		panic(err)
	}
	for {
		d, err := limiter.Take(context.Background(), "everyone")
		if err != nil {
			panic(err)
		}
		if d.Basis == stint.Leased {
			break
		}
	}
	fmt.Println("leased")
	// Output: leased
}

// capped is a layer of this program's own: a store is asked for no more than so many units
// at once.
type capped struct {
	stint.Store
	units int64
}

// newCapped puts the layer around a store. It belongs outside of a Breaker, and inside of a
// Fallback.
func newCapped(next stint.Store, units int64) (stint.Store, error) {
	const place = layer.PlaceBreaker + 20
	if err := layer.Check(place, next); err != nil {
		return nil, err
	}
	return &capped{next, units}, nil
}

func (*capped) Place() layer.Place { return layer.PlaceBreaker + 20 }

func (c *capped) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	for i := range asks {
		if asks[i].Cost > c.units {
			return fmt.Errorf("%d units at once: want at most %d", asks[i].Cost, c.units)
		}
	}
	return c.Store.Take(ctx, asks, ds)
}

// A layer written elsewhere has its place in the order, too.
func ExampleLayer() {
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		panic(err)
	}
	breaker, err := layer.Breaker(local, layer.BreakerOptions{})
	if err != nil {
		panic(err)
	}
	store, err := newCapped(breaker, 5)
	if err != nil {
		panic(err)
	}
	ask := []stint.Ask{{Key: stint.Key{Subject: "user:42"}, Limit: stint.PerHour(60), Cost: 10}}
	fmt.Println(store.Take(context.Background(), ask, make([]stint.Decision, 1)))
	_, err = layer.Retry(store, layer.RetryOptions{})
	fmt.Println(err)
	// Output:
	// 10 units at once: want at most 5
	// layer: Retry around place 220: only next to the store is it known whether an attempt was applied
}
