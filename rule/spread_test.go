package rule_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// spreadRules have limits with and without lease and split.
func spreadRules(t *testing.T) *rule.Set {
	t.Helper()
	ahead := rule.Limit{Name: "ahead", Limit: "1000/1m", Lease: rule.Duration(100 * time.Millisecond), Split: 8}
	plain := rule.Limit{Name: "plain", Limit: "10/1s"}
	return compile(t, rule.File{
		Rules: []rule.Rule{
			{Name: "a", Limits: []rule.Limit{ahead, plain}, OnStoreFailure: rule.Closed},
			{Name: "b", Limits: []rule.Limit{ahead}, OnStoreFailure: rule.Closed},
			{Name: "c", Limits: []rule.Limit{ahead}},
			{
				Name: "d", CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{ahead}, OnStoreFailure: rule.Closed,
				Penalty: &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute)},
			},
		},
		Tiers: []rule.Tier{{Name: "pro", Limits: map[string]string{"ahead": "5000/1m"}}, {Name: "max", Limits: map[string]string{"ahead": "unlimited"}}},
	})
}

// TestPolicies checks that every ask has the policy of its limit, wherever its value is from,
// and that asks with equal policies share one.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s := spreadRules(t)
	closed := stint.Policy{OnFailure: stint.FailClosed}
	closedAhead := stint.Policy{OnFailure: stint.FailClosed, Lease: 100 * time.Millisecond, Split: 8}
	want := map[string]stint.Policy{
		"a:ahead": closedAhead, "b:ahead": closedAhead, "d:ahead": closedAhead, "a:plain": closed, "d:penalty!": closed,
		"c:ahead": {Lease: 100 * time.Millisecond, Split: 8},
	}
	shared := map[stint.Policy]*stint.Policy{}
	override := rule.Values{"ahead": {Max: 7, Window: stint.Every(time.Hour)}}
	for _, a := range []rule.Attrs{{User: "1"}, {User: "1", Tier: "pro"}, {User: "1", UserLimits: override}, {User: "1", Tier: "pro", KeyLimits: override}} {
		asks, _ := s.Asks(nil, s.Match(nil, &a), &a, nil)
		if len(asks) != len(want) {
			t.Fatalf("%d asks, want %d", len(asks), len(want))
		}
		for _, ask := range asks {
			if *ask.Policy != want[ask.Key.Name] {
				t.Errorf("%+v: %s: %+v, want %+v", a, ask.Key.Name, *ask.Policy, want[ask.Key.Name])
			}
			if first := shared[*ask.Policy]; first != nil && first != ask.Policy {
				t.Errorf("%+v: %s has a policy of its own", a, ask.Key.Name)
			}
			shared[*ask.Policy] = ask.Policy
		}
	}
}

// TestQuotaPolicies checks that a look at a counter finds it where it is, whatever happens
// while the store is out of reach, and leaves the asks of requests as they are.
func TestQuotaPolicies(t *testing.T) {
	t.Parallel()
	s := spreadRules(t)
	a := rule.Attrs{User: "1"}
	for _, q := range s.Quotas(&a) {
		want := stint.Policy{}
		if q.Name == "ahead" {
			want = stint.Policy{Lease: 100 * time.Millisecond, Split: 8}
		}
		if q.Ask.Policy == nil || *q.Ask.Policy != want || q.Ask.Cost != 0 {
			t.Errorf("%s:%s: %+v", q.Rule.Name, q.Name, q.Ask)
		}
	}
	if asks, _ := s.Asks(nil, s.Match(nil, &a), &a, nil); asks[0].Policy.OnFailure != stint.FailClosed {
		t.Errorf("%+v", asks[0].Policy)
	}
}

// TestExplainSpread checks that an explanation shows lease and split, unless the client is
// unlimited.
func TestExplainSpread(t *testing.T) {
	t.Parallel()
	s := spreadRules(t)
	for tier, want := range map[string]rule.ExplainedLimit{
		"":    {Name: "ahead", Limit: "1000/1m", Source: "rule", Key: "{global}:b:ahead", Lease: rule.Duration(100 * time.Millisecond), Split: 8},
		"pro": {Name: "ahead", Limit: "5000/1m", Source: "tier pro", Key: "{global}:b:ahead", Lease: rule.Duration(100 * time.Millisecond), Split: 8},
		"max": {Name: "ahead", Limit: "unlimited", Source: "tier max"},
	} {
		for _, x := range s.Explain(&rule.Attrs{Tier: tier}) {
			if x.Rule == "b" && (len(x.Limits) != 1 || x.Limits[0] != want) {
				t.Errorf("%q: %+v, want %+v", tier, x.Limits, want)
			}
		}
	}
}
