package stint_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
)

func Example() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := stint.New(store, stint.Options{Limit: stint.PerMinute(2)})
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := limiter.Take(context.Background(), "user:42")
		if err != nil {
			panic(err) // the store is unreachable; a denial is not an error
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

func Example_redis() {
	store, err := redisstore.Open("redis://localhost:6379", redisstore.Options{})
	if err != nil {
		panic(err) // the URL is wrong; a Redis that is not there yet is no error
	}
	defer store.Close()
	limiter, err := stint.New(store, stint.Options{Limit: stint.PerMinute(100)})
	if err != nil {
		panic(err)
	}
	d, err := limiter.Take(context.Background(), "user:42")
	switch {
	case errors.Is(err, stint.ErrUnavailable):
		fmt.Println("let it pass, or not: Redis is out of reach")
	case err != nil:
		panic(err)
	case !d.Allowed:
		fmt.Println("come back in", d.RetryAfter)
	}
}

func ExampleParseLimit() {
	for _, text := range []string{
		"100/1m",
		"10/1s burst=20 token_bucket",
		"1000/month tz=Europe/Berlin anchor=15",
		"10/1s burst=20",
	} {
		l, err := stint.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(l.Algorithm, l.Max, l.Window, l.Burst)
	}
	// Output:
	// sliding_window 100 1m 0
	// token_bucket 10 1s 20
	// fixed_window 1000 month tz=Europe/Berlin anchor=15 0
	// limit "10/1s burst=20": stint: burst "20": want none: sliding_window has no burst; token_bucket and leaky_bucket have
}

// The pure function at the bottom: states and times go in, states and decisions
// come out.
func ExampleLimit_Take() {
	limit, _ := stint.ParseLimit("10/1s token_bucket")
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	state, d := limit.Take(stint.State{}, noon, 10)
	fmt.Println(d.Allowed, d.Remaining)
	_, d = limit.Take(state, noon.Add(50*time.Millisecond), 1)
	fmt.Println(d.Allowed, d.RetryAfter)
	_, d = limit.Take(state, noon.Add(100*time.Millisecond), 1)
	fmt.Println(d.Allowed)
	// Output:
	// true 0
	// false 50ms
	// true
}

func ExampleLimiter_TakeN() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(100)})
	ctx := context.Background()
	d, _ := limiter.TakeN(ctx, "user:42", 70)
	fmt.Println(d.Allowed, d.Remaining)
	d, _ = limiter.TakeN(ctx, "user:42", 40) // all or nothing
	fmt.Println(d.Allowed, d.Remaining)
	d, _ = limiter.TakeN(ctx, "user:42", 500)
	fmt.Println(d.RetryAfter == stint.Never)
	// Output:
	// true 30
	// false 30
	// true
}

func ExampleLimiter_Wait() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(1)})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, "job"))
	// The next one would have to wait longer than ctx lasts: Wait says so at once.
	err := limiter.Wait(ctx, "job")
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// <nil>
	// true
}

func ExampleLimiter_Peek() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(10)})
	d, _ := limiter.Peek(context.Background(), "user:42")
	fmt.Println(d.Remaining, "of", d.Limit)
	// Output: 10 of 10
}

func ExampleLimiter_Usage() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(10)})
	ctx := context.Background()
	_, _ = limiter.TakeN(ctx, "user:42", 3)
	used, _ := limiter.Usage(ctx, "user:42")
	fmt.Println(used)
	// Output: 3
}

// Give back what a request was charged that was never served.
func ExampleLimiter_Refund() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(1000)})
	ctx := context.Background()
	d, _ := limiter.TakeN(ctx, "user:42", 500)
	d, _ = limiter.Refund(ctx, "user:42", d)
	fmt.Println(d.Remaining)
	// Output: 1000
}

// Charge what a request may cost at most, and afterwards what it did cost.
func ExampleLimiter_Amend() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(1000)})
	ctx := context.Background()
	d, _ := limiter.TakeN(ctx, "user:42", 500)
	d, _ = limiter.Amend(ctx, "user:42", d.Charge(), 120-500)
	fmt.Println(d.Remaining)
	// Output: 880
}

// A job is charged when it is queued, and its worker, in another process, corrects the charge.
func ExampleParseCharge() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(1000)})
	ctx := context.Background()
	d, _ := limiter.TakeN(ctx, "user:42", 500)
	charge := d.Charge()
	charge.ID = "job-7"       // the change is made once, even if it is sent again
	queued := charge.String() // goes with the job

	// In the worker.
	charge, _ = stint.ParseCharge(queued)
	for range 2 {
		d, _ = limiter.Amend(ctx, "user:42", charge, 120-charge.Cost)
	}
	fmt.Println(d.Remaining)
	// Output: 880
}

// Two at once, whatever their number over time.
func ExampleLimiter_Hold() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limit, _ := stint.ParseLimit("2/30s concurrency")
	limiter, _ := stint.New(store, stint.Options{Limit: limit})
	ctx := context.Background()
	release, _, _ := limiter.Hold(ctx, "user:42")
	_, d, _ := limiter.Hold(ctx, "user:42")
	fmt.Println(d.Allowed, d.Remaining)
	_, d, _ = limiter.Hold(ctx, "user:42")
	fmt.Println(d.Allowed)
	release()
	_, d, _ = limiter.Hold(ctx, "user:42")
	fmt.Println(d.Allowed)
	// Output:
	// true 0
	// false
	// true
}

func ExampleLimiter_Reset() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	limiter, _ := stint.New(store, stint.Options{Limit: stint.PerHour(1)})
	ctx := context.Background()
	_, _ = limiter.Take(ctx, "user:42")
	_ = limiter.Reset(ctx, "user:42")
	d, _ := limiter.Take(ctx, "user:42")
	fmt.Println(d.Allowed)
	// Output: true
}

// Several limits at once, on several subjects: all are charged, or none.
func ExampleStore() {
	store, _ := memstore.New(memstore.Options{})
	defer store.Close()
	asks := []stint.Ask{
		{Key: stint.Key{Subject: "user:42", Name: "second"}, Limit: stint.PerSecond(100), Cost: 1},
		{Key: stint.Key{Subject: "user:42", Name: "hour"}, Limit: stint.PerHour(1), Cost: 1},
		{Key: stint.Key{Subject: "tenant:acme", Name: "month"}, Limit: stint.PerMonth(1_000_000), Cost: 1},
	}
	decisions := make([]stint.Decision, len(asks)) // one for each ask, used again and again
	for range 2 {
		if err := store.Take(context.Background(), asks, decisions); err != nil {
			panic(err)
		}
		for i, d := range decisions {
			fmt.Println(asks[i].Limit, d.Allowed, d.Remaining)
		}
	}
	// Output:
	// 100/1s true 99
	// 1/1h true 0
	// 1000000/month true 999999
	// 100/1s true 99
	// 1/1h false 0
	// 1000000/month true 999999
}
