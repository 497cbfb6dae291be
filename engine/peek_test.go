package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
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

// TestPeekSplit looks at a counter that has parts, and resets it: they are found by the policy of the ask.
func TestPeekSplit(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"local", "open", "closed"} {
		store, err := layer.Split(newStore(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, `
[[rules]]
name = "user"
count_by = ["user"]
limits = [{ name = "minute", limit = "10/1m", lease = "100ms", split = 2 }]
on_store_failure = "`+mode+`"
`, engine.Options{Store: store})
		for range 7 { // more than one part has
			decide(t, e, from("alice", "GET", "/"))
		}
		alice := identity.Subject{User: "alice"}
		for _, want := range []int64{3, 10} {
			usage, err := e.Usage(t.Context(), alice)
			if err != nil || len(usage) != 1 || usage[0].Decision.Remaining != want {
				t.Errorf("%s: %+v, %v; want %d left", mode, usage, err, want)
			}
			for cost := int64(1); cost < 7; cost++ { // 5 and 2 were used of 5 each
				r := from("alice", "GET", "/")
				r.Cost = cost
				looked, err := e.Peek(t.Context(), r)
				can := min(want, 5)
				if d := looked.Limits[0].Decision; err != nil || d.Allowed != (cost <= can) || (d.RetryAfter == stint.Never) != (cost > 5) {
					t.Errorf("%s: a cost of %d: %+v, %v; a part has %d of 5", mode, cost, d, err, can)
				}
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
