package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

func drawRule(t *rapid.T, name string) rule.Rule {
	r := rule.Rule{
		Name: name,
		Match: rule.Match{
			Paths:   rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"/a", "/a/{x}", "/a/**", "/b/*"}), 0, 2, rapid.ID).Draw(t, "paths"),
			Methods: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"GET", "POST"}), 0, 1, rapid.ID).Draw(t, "methods"),
		},
		CountBy:  [][]rule.Dimension{nil, {"user"}, {"ip"}, {"user", "ip"}, {"method"}}[rapid.IntRange(0, 4).Draw(t, "by")],
		Action:   rapid.SampledFrom([]rule.Action{rule.Reject, rule.Reject, rule.Reject, rule.LogOnly, rule.Block}).Draw(t, "action"),
		Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
	}
	if r.Action != rule.Block {
		r.Limits = []rule.Limit{{
			Name:  "limit",
			Limit: fmt.Sprintf("%d/%s fixed_window", rapid.IntRange(1, 4).Draw(t, "max"), rapid.SampledFrom([]string{"1s", "1m", "1h"}).Draw(t, "window")),
		}}
	}
	if r.Action == rule.Reject && rapid.Bool().Draw(t, "penalty") {
		r.Penalty = &rule.Penalty{Threshold: 2, Within: rule.Duration(time.Minute), Cooldown: rule.Duration(time.Second)}
	}
	return r
}

func drawRequest(t *rapid.T) engine.Request {
	q := from(rapid.SampledFrom([]string{"alice", "bob", ""}).Draw(t, "user"),
		rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
		rapid.SampledFrom([]string{"/a", "/a/1", "/a/1/2", "/b/1", "/c"}).Draw(t, "path"))
	if rapid.Bool().Draw(t, "costly") {
		q.Cost = 2
	}
	return q
}

// TestOneRuleMore adds a rule, which is in no group, to others that have counted for
// a while. What would have been refused without it still is.
func TestOneRuleMore(t *testing.T) {
	t.Parallel()
	who := resolver(t, identity.Options{})
	rapid.Check(t, func(t *rapid.T) {
		var f rule.File
		for i := range rapid.IntRange(0, 4).Draw(t, "rules") {
			f.Rules = append(f.Rules, drawRule(t, fmt.Sprint("rule-", i)))
		}
		more := rule.File{Rules: append(slices.Clone(f.Rules), drawRule(t, "one-more"))}
		fewer, err := rule.Compile(f)
		if err != nil {
			t.Skip(err) // one hides another
		}
		all, err := rule.Compile(more)
		if err != nil {
			t.Skip(err)
		}
		clock := storetest.NewClock()
		var engines [2]*engine.Engine
		for i := range engines {
			store, err := memstore.New(memstore.Options{Now: clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			if engines[i], err = engine.New(engine.Options{Store: store, Rules: fewer, Identity: who, Now: clock.Now}); err != nil {
				t.Fatal(err)
			}
		}
		ask := func(e *engine.Engine, q engine.Request) engine.Verdict {
			v, err := e.Decide(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			checkBinding(t, v)
			return v
		}
		for range rapid.IntRange(0, 20).Draw(t, "requests") {
			clock.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "pause")) * 100 * time.Millisecond)
			q := drawRequest(t)
			if a, b := ask(engines[0], q), ask(engines[1], q); summary(a) != summary(b) {
				t.Fatalf("%s, and %s", summary(a), summary(b))
			}
		}
		if err := engines[1].Use(all, who); err != nil {
			t.Fatal(err)
		}
		q := drawRequest(t)
		if a, b := ask(engines[0], q), ask(engines[1], q); !a.Outcome.Passed() && b.Outcome.Passed() {
			t.Fatalf("%s, and with one rule more %s", summary(a), summary(b))
		}
	})
}

// checkBinding holds a verdict to the limit that it names: no other denies for
// longer, and if none denies, of no other a smaller share is left.
func checkBinding(t *rapid.T, v engine.Verdict) {
	b := v.Binding()
	if b == nil {
		return
	}
	if v.Rule != b.Rule || v.Outcome.Passed() != b.Decision.Allowed {
		t.Fatalf("%s is not what its limit says", summary(v))
	}
	share := func(d stint.Decision) float64 { return float64(d.Remaining) / float64(d.Limit) }
	for _, l := range v.Limits {
		d := l.Decision
		switch {
		case l.Shadow:
		case !d.Allowed && (b.Decision.Allowed || d.RetryAfter > b.Decision.RetryAfter):
			t.Fatalf("%s, though %s denies for %v", summary(v), l.Rule.Name, d.RetryAfter)
		case b.Decision.Allowed && l.Penalty == nil && share(d) < share(b.Decision):
			t.Fatalf("%s, though of %s only %d remain", summary(v), l.Rule.Name, d.Remaining)
		case b.Decision.Allowed && b.Penalty != nil:
			t.Fatalf("%s: a penalty that does not deny binds", summary(v))
		}
	}
}
