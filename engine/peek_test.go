package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/storetest"
)

// TestPeekRetry compares what a look says with what the request is told that follows it: when it would
// pass, of every algorithm, also for large costs and with several limits of several subjects.
func TestPeekRetry(t *testing.T) {
	t.Parallel()
	for _, a := range stint.Algorithms()[:stint.LeakyBucket+1] {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			clock := storetest.NewClock()
			e := start(t, fmt.Sprintf(`
[[rules]]
name = "user"
count_by = ["user"]
limits = [{ name = "minute", limit = "10/1m %[1]s" }, { name = "hour", limit = "20/1h %[1]s" }]
[[rules]]
name = "all"
count_by = ["global"]
limits = [{ name = "second", limit = "15/1s %[1]s" }]
`, a), engine.Options{Now: clock.Now})
			denied := 0
			for i := range 200 {
				q := from("alice", "GET", "/")
				q.Cost = int64(1 + i%4)
				looked, err := e.Peek(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				v, err := e.Decide(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if looked.Outcome != v.Outcome && v.Outcome != engine.Throttled || looked.RetryAfter != v.RetryAfter {
					t.Fatalf("step %d, cost %d: looked at, it is %v with retry %v; asked, it is %v with retry %v",
						i, q.Cost, looked.Outcome, looked.RetryAfter, v.Outcome, v.RetryAfter)
				}
				if v.Outcome == engine.Denied {
					denied++
				}
				clock.Add(time.Duration(i%7) * 700 * time.Millisecond)
			}
			if denied < 20 {
				t.Errorf("only %d requests were denied", denied)
			}
		})
	}
}

// apart is a store that keeps the counters of limits with a split elsewhere.
type apart struct{ stint.Store }

func (s apart) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.Store.Take(ctx, s.elsewhere(asks), ds)
}

func (s apart) Reset(ctx context.Context, asks []stint.Ask) error {
	return s.Store.Reset(ctx, s.elsewhere(asks))
}

func (s apart) elsewhere(asks []stint.Ask) []stint.Ask {
	asks = slices.Clone(asks)
	for i := range asks {
		if p := asks[i].Policy; p != nil && p.Split > 0 {
			asks[i].Key.Name += "#1"
		}
	}
	return asks
}

// TestPeekSplit looks at a counter, and resets it, where it is: a layer that divides limits finds it by
// the policy of the ask.
func TestPeekSplit(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"local", "open", "closed"} {
		e := start(t, `
[[rules]]
name = "user"
count_by = ["user"]
limits = [{ name = "minute", limit = "10/1m", lease = "100ms", split = 2 }]
on_store_failure = "`+mode+`"
`, engine.Options{Store: apart{newStore(t, nil)}})
		for range 3 {
			decide(t, e, from("alice", "GET", "/"))
		}
		alice := identity.Subject{User: "alice"}
		for _, want := range []int64{7, 10} {
			usage, err := e.Usage(t.Context(), alice)
			if err != nil || len(usage) != 1 || usage[0].Decision.Remaining != want {
				t.Errorf("%s: %+v, %v; want %d left", mode, usage, err, want)
			}
			looked, err := e.Peek(t.Context(), from("alice", "GET", "/"))
			if err != nil || looked.Limits[0].Decision.Remaining != want {
				t.Errorf("%s: %+v, %v; want %d left", mode, looked.Limits, err, want)
			}
			if err := e.Reset(t.Context(), alice, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}
