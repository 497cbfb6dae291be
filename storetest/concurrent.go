package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// goroutines is how many goroutines take at once.
const goroutines = 64

// together runs work on n goroutines that start at the same time, and returns the first error.
func together(n int, work func(worker int) error) error {
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		errs  = make(chan error, n)
	)
	for i := range n {
		wg.Go(func() {
			<-start
			if err := work(i); err != nil {
				errs <- err
			}
		})
	}
	close(start)
	wg.Wait()
	close(errs)
	return <-errs
}

// everyLimit returns a limit of each algorithm, with a capacity of n.
func everyLimit(n int64) []stint.Limit {
	out := make([]stint.Limit, 0, 5)
	for _, a := range stint.Algorithms() {
		l := stint.Limit{Algorithm: a, Max: n, Window: stint.Every(time.Hour)}
		if a == stint.LeakyBucket {
			l.Burst = n - 1
		}
		out = append(out, l)
	}
	return out
}

// checkOneKey takes from one counter on many goroutines at one instant. The store must admit exactly the
// limit, and return a different Remaining to each caller.
func checkOneKey(t rapid.TB, store stint.Store, _ *Clock) {
	const capacity, each = 100, 5
	for _, limit := range everyLimit(capacity) {
		ask := stint.Ask{Key: stint.Key{Subject: "alice", Name: "one"}, Limit: limit, Cost: 1}
		var mu sync.Mutex
		var remaining []int64
		err := together(goroutines, func(int) error {
			for range each {
				out, err := Take(context.Background(), store, []stint.Ask{ask})
				if err != nil {
					return err
				}
				if out[0].Allowed {
					mu.Lock()
					remaining = append(remaining, out[0].Remaining)
					mu.Unlock()
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(remaining)
		want := make([]int64, capacity)
		for i := range want {
			want[i] = int64(i)
		}
		if !slices.Equal(remaining, want) {
			t.Fatalf("%v: of %d takes %d were allowed, with Remaining %v", limit, goroutines*each, len(remaining), remaining)
		}
	}
}

// checkPenalty exceeds a limit on many goroutines at one instant. Once the units are used, the limit denies
// exactly as many takes as lead to a ban, each with a different number of remaining violations. All
// others are banned.
func checkPenalty(t rapid.TB, store stint.Store, _ *Clock) {
	const capacity, threshold, each = 20, 50, 5
	for _, limit := range everyLimit(capacity) {
		asks := []stint.Ask{
			{Key: stint.Key{Subject: "mallory", Name: "one"}, Limit: limit, Cost: 1},
			{
				Key: stint.Key{Subject: "mallory", Name: "ban-" + limit.Algorithm.String()}, Cost: 1,
				Penalty: &stint.Penalty{Threshold: threshold, Within: time.Hour, Cooldown: time.Hour},
			},
		}
		var mu sync.Mutex
		var passed int
		violations := map[int64]int{}
		err := together(goroutines, func(int) error {
			for range each {
				out, err := Take(context.Background(), store, asks)
				if err != nil {
					return err
				}
				mu.Lock()
				switch {
				case out[0].Allowed && out[1].Allowed:
					passed++
				case !out[0].Allowed && out[1].Allowed:
					violations[out[1].Remaining]++
				}
				mu.Unlock()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(threshold) {
			if want := min(n, 1); violations[n] != int(want) { // at 0 the subject is banned
				t.Fatalf("%v: %d callers have %d remaining violations, want %d callers", limit, violations[n], n, want)
			}
		}
		if passed != capacity {
			t.Fatalf("%v: %d passed, want %d", limit, passed, capacity)
		}
	}
}

// checkHierarchies takes from overlapping hierarchies on many goroutines: user, tenant and everyone, in
// random order and with random costs. What remains of each counter must be its limit minus what was
// admitted: no limit is exceeded, and a denied take charges nothing.
func checkHierarchies(t rapid.TB, store stint.Store, _ *Clock) {
	limits := everyLimit(60)
	var mu sync.Mutex
	admitted := map[stint.Key]int64{}
	limitOf := map[stint.Key]stint.Limit{}
	err := together(goroutines, func(worker int) error {
		r := rand.New(rand.NewPCG(uint64(worker), 1))
		for range 20 {
			user, tenant := r.IntN(12), r.IntN(4)
			cost := 1 + r.Int64N(3)
			asks := []stint.Ask{
				{Key: stint.Key{Subject: fmt.Sprint("user:", user), Name: "h"}, Limit: limits[user%5], Cost: cost},
				{Key: stint.Key{Subject: fmt.Sprint("tenant:", tenant), Name: "h"}, Limit: limits[tenant], Cost: cost},
				{Key: stint.Key{Subject: "everyone", Name: "h"}, Limit: limits[4], Cost: cost},
			}
			r.Shuffle(len(asks), func(i, j int) { asks[i], asks[j] = asks[j], asks[i] })
			out, err := Take(context.Background(), store, asks)
			if err != nil {
				return err
			}
			passed := !slices.ContainsFunc(out, func(d stint.Decision) bool { return !d.Allowed })
			mu.Lock()
			for _, a := range asks {
				limitOf[a.Key] = a.Limit
				if passed {
					admitted[a.Key] += a.Cost
				}
			}
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, limit := range limitOf {
		out, err := Take(context.Background(), store, []stint.Ask{{Key: key, Limit: limit}})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := out[0].Remaining, out[0].Limit-admitted[key]; got != want {
			t.Fatalf("%v of %v: %d units admitted, so %d should remain, not %d", key, limit, admitted[key], want, got)
		}
	}
}

// checkLinearizable records histories of concurrent takes, adjustments and resets, each on one subject, and
// checks that they are linearizable.
func checkLinearizable(t rapid.TB, store stint.Store, clock *Clock) {
	linearizable(t, store, clock, []string{"alice"})
}

// checkSettlements settles tickets of several subjects, each by several callers at once who say that different amounts
// were used, or the same. One of them decides for all counters, and only its changes are not repeated.
func checkSettlements(t rapid.TB, store stint.Store, _ *Clock) {
	const tickets, callers, reserved = 20, 4, 5
	for _, limit := range everyLimit(1000) {
		if limit.Algorithm == stint.Concurrency {
			continue // places are released, and not settled
		}
		for ticket := range tickets {
			asks := make([]stint.Ask, 3)
			for i, who := range []string{"user", "tenant", "everyone"} {
				asks[i] = stint.Ask{Key: stint.Key{Subject: fmt.Sprint(who, "-", ticket), Name: "settled"}, Limit: limit, Cost: reserved}
			}
			ds, err := Take(context.Background(), store, asks)
			if err != nil {
				t.Fatal(err)
			}
			var decided atomic.Int64
			err = together(callers, func(caller int) error {
				changes, charges := slices.Clone(asks), make([]stint.Charge, len(asks))
				for i := range changes {
					charges[i] = ds[i].Charge()
					charges[i].ID, charges[i].Together = "ticket.0", true
					changes[i].Charge, changes[i].Cost = &charges[i], int64(-caller*(ticket%2))
				}
				out, err := Adjust(context.Background(), store, changes)
				for i := range out {
					if out[i].Repeated != out[0].Repeated {
						return fmt.Errorf("some changes of a settlement are repeated: %+v", out)
					}
				}
				if err == nil && !out[0].Repeated {
					decided.Add(1)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range asks {
				asks[i].Cost = 0
			}
			after, err := Take(context.Background(), store, asks)
			if err != nil {
				t.Fatal(err)
			}
			for i := range after {
				if left := after[i].Remaining; left != after[0].Remaining || ticket%2 == 0 && left != after[i].Limit-reserved {
					t.Fatalf("%v: ticket %d was settled by %d callers at once: %+v", limit, ticket, callers, after)
				}
			}
			if n := decided.Load(); n != 1 {
				t.Fatalf("%v: ticket %d was settled by %d callers at once, and %d of them were told that it was not repeated", limit, ticket, callers, n)
			}
		}
	}
}

// AcrossSubjects checks that takes with several subjects are linearizable too. A distributed store may not
// guarantee that; call it for those that do.
func AcrossSubjects(t *testing.T, open Open) {
	t.Helper()
	clock := NewClock()
	linearizable(t, open(t, clock.Now), clock, []string{"alice", "bob"})
}

// call is one operation of a history.
type call struct {
	verb string
	asks []stint.Ask
}

func linearizable(t rapid.TB, store stint.Store, clock *Clock, subjects []string) {
	const histories, workers, calls = 40, 6, 5
	now := clock.Now()
	model := porcupine.Model{
		Init: func() any { return counters{} },
		Step: func(state, input, output any) (bool, any) {
			next, want := apply(state.(counters), input.(call), now)
			return Agree(output.([]stint.Decision), want), next
		},
		Equal: func(a, b any) bool {
			return maps.EqualFunc(a.(counters), b.(counters), func(x, y stint.State) bool {
				return x.Counter == y.Counter && slices.Equal(x.Log, y.Log)
			})
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
	}
	for h := range histories {
		var (
			mu      sync.Mutex
			history []porcupine.Operation
			instant atomic.Int64
		)
		err := together(workers, func(worker int) error {
			r := rand.New(rand.NewPCG(uint64(h), uint64(worker)))
			for range calls {
				c := drawCall(r, h, subjects)
				op := porcupine.Operation{ClientId: worker, Input: c, Call: instant.Add(1)}
				out, err := do(store, c)
				if err != nil {
					return err
				}
				op.Output, op.Return = out, instant.Add(1)
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !porcupine.CheckOperations(model, history) {
			for _, op := range history {
				t.Logf("%d: %d to %d: %v -> %v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
			t.Fatal("these calls are not linearizable")
		}
	}
}

// drawCall draws a call on small limits, so that results depend on the order. In a history, each name has
// one algorithm.
func drawCall(r *rand.Rand, history int, subjects []string) call {
	limits := everyLimit(4)
	c := call{verb: "take"}
	switch r.IntN(8) {
	case 0:
		c.verb = "reset"
	case 1:
		c.verb = "adjust"
	}
	for i := range 1 + r.IntN(2) {
		a := stint.Ask{
			Key: stint.Key{
				Subject: fmt.Sprint(subjects[r.IntN(len(subjects))], "-", history),
				Name:    fmt.Sprint("linear-", i),
			},
			Limit: limits[(history+i)%len(limits)],
			Cost:  1 + r.Int64N(2),
		}
		if c.verb == "adjust" && r.IntN(2) == 0 {
			a.Cost = -a.Cost
		}
		c.asks = append(c.asks, a)
	}
	if c.verb == "reset" {
		c.asks = c.asks[:1] // a reset of several keys is not atomic
	}
	if c.verb == "take" && r.IntN(2) == 0 {
		last := c.asks[len(c.asks)-1].Key.Subject
		c.asks = append(c.asks, stint.Ask{Key: stint.Key{Subject: last, Name: "linear-ban"}, Cost: 1, Penalty: ladder})
	}
	return c
}

var ladder = &stint.Penalty{Threshold: 3, Within: time.Hour, Cooldown: time.Minute}

func do(store stint.Store, c call) ([]stint.Decision, error) {
	switch c.verb {
	case "reset":
		return nil, store.Reset(context.Background(), c.asks[:1])
	case "adjust":
		return Adjust(context.Background(), store, c.asks)
	default:
		return Take(context.Background(), store, c.asks)
	}
}

func apply(cs counters, c call, now time.Time) (counters, []stint.Decision) {
	switch c.verb {
	case "reset":
		return cs.reset(c.asks[:1], now), nil
	case "adjust":
		return cs.adjust(c.asks, now)
	default:
		return cs.take(c.asks, now)
	}
}
