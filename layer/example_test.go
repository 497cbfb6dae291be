package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
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
	for range 2 {
		d, err := storetest.Take(context.Background(), store, asks)
		if err != nil {
			panic(err)
		}
		fmt.Println(d[0].Allowed, d[0].Basis, "of", d[0].Limit)
	}
	// Output:
	// true local of 10
	// false local of 10
}
