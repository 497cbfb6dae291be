package main

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/go-chi/httprate"
	juju "github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/memory"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
)

// decide asks for one unit of the i-th key and reports whether it was admitted.
type decide func(i int) bool

// contestant is a limiter with a counter for each key. It is called in the cheapest way to
// decide about a key and charge it, whether or not that also returns what remains and when to
// retry.
type contestant struct {
	name   string
	module string // whose version is printed, if any
	open   func(keys) decide
}

// The contestants that the others are compared with.
const (
	reference = "stint sliding_window"
	rival     = "go-limiter"
)

// Every contestant allows this many units for each key, which is never reached. The window is
// longer than every cell, so all decisions are about live counters, which were made before.
const (
	most   = 1e9
	window = time.Hour
)

var ctx = context.Background()

func contestants() []contestant {
	return []contestant{
		{reference, "", func(k keys) decide { return openStint(k, stint.Limit{Algorithm: stint.SlidingWindow}) }},
		{"stint fixed_window", "", func(k keys) decide { return openStint(k, stint.Limit{Algorithm: stint.FixedWindow}) }},
		{"stint fixed_window of a month", "", func(k keys) decide {
			return openStint(k, stint.Limit{Algorithm: stint.FixedWindow, Window: stint.PerMonth(1).Window})
		}},
		{"stint token_bucket", "", func(k keys) decide { return openStint(k, stint.Limit{Algorithm: stint.TokenBucket}) }},
		{"stint leaky_bucket", "", func(k keys) decide { return openStint(k, stint.Limit{Algorithm: stint.LeakyBucket, Burst: most}) }},
		{"stint.Limiter sliding_window", "", openLimiter},
		{"stint.Store sliding_window", "", func(k keys) decide { return openStore(k, newStore(memstore.Options{})) }},
		{"stint layers, their store away", "", openAway},
		{rival, "github.com/sethvargo/go-limiter", openGoLimiter},
		{"x/time/rate in sync.Map", "golang.org/x/time", openXTime},
		{"ulule/limiter", "github.com/ulule/limiter/v3", openUlule},
		{"throttled", "github.com/throttled/throttled/v2", openThrottled},
		{"tollbooth", "github.com/didip/tollbooth/v8", openTollbooth},
		{"httprate", "github.com/go-chi/httprate", openHTTPRate},
		{"uber/ratelimit in sync.Map", "go.uber.org/ratelimit", openUber},
		{"juju/ratelimit in sync.Map", "github.com/juju/ratelimit", openJuju},
		{"the clock, no limiter", "", openClock},
	}
}

func newStore(o memstore.Options) *memstore.Store {
	o.MaxKeys = 2 * maxKeys
	return must(memstore.New(o))
}

// openStint makes an ask for each decision, like a caller that has a key. The store does not
// keep it, and is called by its type, so both ask and decision stay on the stack.
func openStint(k keys, l stint.Limit) decide {
	l.Max = most
	if l.Window == (stint.Window{}) {
		l.Window = stint.Every(window)
	}
	s, plan := newStore(memstore.Options{}), must(l.Compile())
	return func(i int) bool {
		asks := [1]stint.Ask{{Key: stint.Key{Subject: k.at(i), Name: "api"}, Limit: l, Plan: plan, Cost: 1}}
		var ds [1]stint.Decision
		return s.Take(ctx, asks[:], ds[:]) == nil && ds[0].Allowed
	}
}

// openLimiter is for programs without rules: the subject is checked, and the store is called
// through an interface.
func openLimiter(k keys) decide {
	l := must(stint.New(newStore(memstore.Options{}), stint.Options{Limit: stint.Limit{Max: most, Window: stint.Every(window)}}))
	return func(i int) bool {
		d, err := l.Take(ctx, k.at(i))
		return err == nil && d.Allowed
	}
}

// openAway shows what a decision costs while Redis cannot be reached: the breaker is open, and
// the node decides by itself.
func openAway(k keys) decide {
	return openStore(k, must(layer.New(away{}, layer.Options{
		Breaker:  layer.BreakerOptions{Probe: window},
		Fallback: &layer.FallbackOptions{Local: newStore(memstore.Options{}), Replicas: func() int { return 1 }, MaxDebts: maxKeys},
	})))
}

// openStore calls a store through the interface.
func openStore(k keys, s stint.Store) decide {
	l := stint.Limit{Max: most, Window: stint.Every(window)}
	plan := must(l.Compile())
	return func(i int) bool {
		asks := []stint.Ask{{Key: stint.Key{Subject: k.at(i), Name: "api"}, Limit: l, Plan: plan, Cost: 1}}
		ds := make([]stint.Decision, 1)
		return s.Take(ctx, asks, ds) == nil && ds[0].Allowed
	}
}

// away is a store that cannot be reached.
type away struct{ stint.Store }

func (away) Take(context.Context, []stint.Ask, []stint.Decision) error {
	return stint.ErrUnavailable
}

// openGoLimiter turns off the purge, which would first run after six hours, and keep the store
// alive until then.
func openGoLimiter(k keys) decide {
	s := must(memorystore.New(&memorystore.Config{Tokens: most, Interval: window, DisablePurge: true}))
	return func(i int) bool {
		_, _, _, ok, err := s.Take(ctx, k.at(i))
		return err == nil && ok
	}
}

func openXTime(k keys) decide {
	var m sync.Map
	fresh := func() any { return rate.NewLimiter(most/rate.Limit(window.Seconds()), most) }
	return func(i int) bool { return load(&m, k.at(i), fresh).(*rate.Limiter).Allow() }
}

// openUlule calls the store, as its Limiter does. Without the clean-up, which would first run
// after 30 seconds, it starts no goroutine.
func openUlule(k keys) decide {
	s := ululestore.NewStoreWithOptions(ulule.StoreOptions{Prefix: ulule.DefaultPrefix})
	r := ulule.Rate{Period: window, Limit: most}
	return func(i int) bool {
		c, err := s.Get(ctx, k.at(i), r)
		return err == nil && !c.Reached
	}
}

// openThrottled uses the unbounded store: a bound would add a list of recently used keys.
func openThrottled(k keys) decide {
	s := must(throttledstore.NewCtx(0))
	l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(most, window),
		MaxBurst: most - 1,
	}))
	return func(i int) bool {
		limited, _, err := l.RateLimitCtx(ctx, k.at(i), 1)
		return err == nil && !limited
	}
}

// openTollbooth calls the limiter itself: LimitByKeys also looks up what remains.
func openTollbooth(k keys) decide {
	l := tollbooth.NewLimiter(most/window.Seconds(), nil).SetBurst(most)
	return func(i int) bool { return !l.LimitReached(k.at(i)) }
}

// openHTTPRate calls OnLimit, its only way to check and count in one step. Without headers to set
// it uses only the request's empty context.
func openHTTPRate(k keys) decide {
	l := httprate.NewRateLimiter(most, window, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	var r http.Request
	return func(i int) bool { return !l.OnLimit(nil, &r, k.at(i)) }
}

// openUber blocks instead of denying, so its rate is one that cannot be exceeded: a billion per
// second.
func openUber(k keys) decide {
	var m sync.Map
	fresh := func() any { return uber.New(int(time.Second)) }
	return func(i int) bool { return !load(&m, k.at(i), fresh).(uber.Limiter).Take().IsZero() }
}

func openJuju(k keys) decide {
	var m sync.Map
	fresh := func() any { return juju.NewBucketWithQuantum(window, most, most) }
	return func(i int) bool { return load(&m, k.at(i), fresh).(*juju.Bucket).TakeAvailable(1) == 1 }
}

// openClock measures what all contestants need: the loop, the key, and the time, read in the
// cheapest way.
func openClock(k keys) decide {
	start := time.Now()
	return func(i int) bool { return k.at(i) != "" && time.Since(start) > 0 }
}

// load returns the limiter of a key, for limiters without keys.
func load(m *sync.Map, key string, fresh func() any) any {
	if v, ok := m.Load(key); ok {
		return v
	}
	v, _ := m.LoadOrStore(key, fresh())
	return v
}

// must is for constructors whose arguments are written above.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// kind is a way to count, for the measurements of Stint alone.
type kind struct {
	name  string
	admit stint.Limit // never reached
	deny  stint.Limit // reached after one unit; zero if there is no such cell
}

func kinds() []kind {
	hour := stint.Every(window)
	// So long that no window ends in a cell, which would admit another unit.
	long := stint.Every(30 * 24 * time.Hour)
	list := []kind{
		{reference, stint.Limit{Max: most, Window: hour}, stint.Limit{Max: 1, Window: long}},
		// Windows so short that the previous one is hardly ever empty, so that its share is
		// computed nearly every time.
		{reference + " of 1ms", stint.Limit{Max: most, Window: stint.Every(time.Millisecond)}, stint.Limit{}},
	}
	for _, a := range []stint.Algorithm{stint.FixedWindow, stint.TokenBucket, stint.LeakyBucket} {
		admit := stint.Limit{Algorithm: a, Max: most, Window: hour}
		if a == stint.LeakyBucket {
			admit.Burst = most
		}
		list = append(list, kind{"stint " + a.String(), admit, stint.Limit{Algorithm: a, Max: 1, Window: long}})
	}
	return list
}
