package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// drawnRule is a random rule of any kind that both an engine and a replay support: limits
// of every algorithm, held requests, penalties, and values of tiers.
func drawnRule(r *rand.Rand) (rule.Rule, []rule.Tier) {
	limits := []string{
		"3/2s", "3/2s fixed_window", "3/2s sliding_log", "3/2s token_bucket", "2/1s burst=4 token_bucket", "4/3s", "1/700ms", "5/1h",
	}
	c := rule.Rule{
		Name: "candidate", CountBy: []rule.Dimension{"user"},
		Limits: []rule.Limit{{Name: "first", Limit: limits[r.IntN(len(limits))]}},
	}
	if r.IntN(2) == 0 {
		c.Limits = append(c.Limits, rule.Limit{Name: "second", Limit: limits[r.IntN(len(limits))]})
	}
	if r.IntN(2) == 0 {
		c.Action, c.MaxDelay = rule.Throttle, rule.Duration(time.Duration(1+r.IntN(3000))*time.Millisecond)
	}
	if r.IntN(2) == 0 {
		c.Penalty = &rule.Penalty{
			Threshold: 1 + r.Int64N(4), Within: rule.Duration(10 * time.Second), Cooldown: rule.Duration(time.Second), Multipliers: []int64{1, 2, 5},
		}
	}
	return c, []rule.Tier{{Name: "gold", Limits: map[string]string{"first": "8/2s token_bucket"}}, {Name: "free"}}
}

// TestEngine sends random traffic through an engine, and replays its decisions: all
// verdicts must be the same.
func TestEngine(t *testing.T) {
	t.Parallel()
	const users, each = 6, 40
	runs := torture.Rounds(15)
	outcomes := map[engine.Outcome]int{}
	for seed := range uint64(runs) {
		candidate, tiers := drawnRule(rand.New(rand.NewPCG(seed, 1)))
		set, err := rule.Compile(rule.File{Rules: []rule.Rule{candidate}, Tiers: tiers})
		if err != nil {
			continue // of two limits, one hides the other
		}
		type decided struct {
			sim.Request
			outcome engine.Outcome
		}
		var all []decided
		var from, to time.Time
		synctest.Test(t, func(t *testing.T) {
			store, err := memstore.New(memstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			who, err := identity.New(identity.Options{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.New(engine.Options{Store: store, Rules: set, Identity: who})
			if err != nil {
				t.Fatal(err)
			}
			from = time.Now()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for u := range users {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(2+u)))
					tier := []string{"gold", "free", ""}[u%3]
					// A user asks again when the last answer has come, and some time later.
					for range each {
						<-time.After(time.Duration(1+r.IntN(1_500_000)) * time.Microsecond)
						q := sim.Request{At: time.Now(), Method: "GET", User: fmt.Sprint("user-", u), Tier: tier, Cost: 1}
						v, err := e.Decide(context.Background(), engine.Request{
							Method: "GET", Path: "/", Cost: q.Cost, Subject: &identity.Subject{User: q.User, Tier: tier},
						})
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						all = append(all, decided{q, v.Outcome})
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			to = time.Now()
		})
		slices.SortStableFunc(all, func(a, b decided) int { return a.At.Compare(b.At) })
		requests := make([]sim.Request, len(all))
		for i, d := range all {
			requests[i] = d.Request
			outcomes[d.outcome]++
		}
		refused := make([]bool, len(all))
		told := make([]int, len(all))
		p, err := sim.RunTelling(t.Context(), sim.Options{Rule: candidate, Tiers: tiers, From: from, To: to.Add(time.Second)}, those(requests...), func(event int64, no bool) {
			refused[event-1] = no
			told[event-1]++
		})
		if err != nil || p.Matched != int64(len(all)) {
			t.Fatalf("seed %d: %+v, %v", seed, p, err)
		}
		for i, d := range all {
			if told[i] != 1 || refused[i] == d.outcome.Passed() {
				t.Fatalf("seed %d, %+v\nrequest %d at %v of %s was %s, and is replayed %d times, the last refused: %v\n%s",
					seed, candidate, i, d.At.Sub(from), d.User, d.outcome, told[i], refused[i], strings.Join(p.Notes, "\n"))
			}
		}
	}
	for _, o := range []engine.Outcome{engine.Allowed, engine.Throttled, engine.Denied, engine.Banned} {
		if outcomes[o] < runs {
			t.Errorf("%d requests were %s: too few to compare", outcomes[o], o)
		}
	}
	t.Log(outcomes)
}
