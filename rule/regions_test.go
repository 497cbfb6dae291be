package rule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// TestRegionPolicies checks that every limit of a rule is shared among regions as the rule says,
// whatever its value is from, and that bans are not.
func TestRegionPolicies(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "l", Limit: "100/1m"}, {Name: "m", Limit: "10/1s", Split: 2}}
	s := compile(t, rule.File{
		Rules: []rule.Rule{
			{Name: "own", Limits: limits},
			{
				Name: "central", CountBy: []rule.Dimension{"user"}, Limits: limits, Regions: rule.RegionsCentral, OnStoreFailure: rule.Closed,
				Penalty: &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute)},
			},
			{Name: "fixed", Limits: limits, Regions: rule.RegionsQuota, Weights: rule.WeightsFixed},
			{Name: "follow", Limits: limits, Regions: rule.RegionsQuota, Weights: rule.WeightsFollow},
			{Name: "gossip", Limits: limits, Regions: rule.RegionsGossip, OnCredit: rule.CreditShare},
			{
				Name: "deny", CountBy: []rule.Dimension{"user"}, Limits: limits, Regions: rule.RegionsGossip, Credit: 5, OnCredit: rule.CreditDeny,
				Penalty: &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute)},
			},
		},
		Tiers: []rule.Tier{{Name: "pro", Limits: map[string]string{"l": "5000/1m"}}},
	})
	want := map[string]stint.Policy{
		"own":     {},
		"central": {Regions: stint.RegionsCentral, OnFailure: stint.FailClosed},
		"fixed":   {Regions: stint.RegionsQuota},
		"follow":  {Regions: stint.RegionsQuota, Follow: true, Rule: "follow"},
		"gossip":  {Regions: stint.RegionsGossip},
		"deny":    {Regions: stint.RegionsGossip, Credit: 5, OnCredit: stint.CreditDeny},
	}
	for _, a := range []rule.Attrs{{User: "1"}, {User: "1", Tier: "pro"}, {User: "1", UserLimits: rule.Values{"l": {Max: 7, Window: stint.Every(time.Hour)}}}} {
		asks, _ := s.Asks(nil, s.Match(nil, &a), &a, nil)
		if len(asks) != 2*len(want)+2 {
			t.Fatalf("%d asks", len(asks))
		}
		for _, ask := range asks {
			name, limit, _ := strings.Cut(ask.Key.Name, ":")
			policy := want[name]
			switch limit {
			case "m":
				policy.Split = 2
			case "penalty!":
				if name != "central" { // where it is with the limits that it answers for
					policy = stint.Policy{}
				}
			}
			if *ask.Policy != policy {
				t.Errorf("%+v: %s: %+v, want %+v", a, ask.Key.Name, *ask.Policy, policy)
			}
		}
	}
	for _, x := range s.Explain(&rule.Attrs{User: "1"}) {
		if mode := map[string]rule.Regions{"own": "", "central": "central", "fixed": "quota", "follow": "quota", "gossip": "gossip", "deny": "gossip"}[x.Rule]; x.Limits[1].Regions != mode {
			t.Errorf("%s: %+v, want %s", x.Rule, x.Limits, mode)
		}
	}
}

// TestCheckIn checks rules against the regions that there are.
func TestCheckIn(t *testing.T) {
	t.Parallel()
	const none, noCentral = ": this is no region: add [region] with a name and peers, or remove regions", ": no region has the counters: set region.central to the name of one"
	limit := func(text string) []rule.Limit {
		return []rule.Limit{{Name: "k", Limit: "100/1s"}, {Name: "l", Limit: text}}
	}
	divided := rule.World{Regions: 3, Central: true, Least: func(l stint.Limit) (string, stint.Limit) {
		l.Max, l.Burst = l.Max/3, l.Burst/3
		return "us", l
	}}
	for name, c := range map[string]struct {
		world rule.World
		rule  rule.Rule
		tiers map[string]string // values of l
		want  string
	}{
		"own":               {rule: rule.Rule{Limits: limit("1/1s")}},
		"no region":         {rule: rule.Rule{Limits: limit("10/1s"), Regions: rule.RegionsGossip}, want: `rules[0].regions: "gossip"` + none},
		"no central region": {rule: rule.Rule{Limits: limit("10/1s"), Regions: rule.RegionsCentral}, want: `rules[0].regions: "central"` + none},
		"no quota":          {rule: rule.Rule{Limits: limit("1/1s"), Regions: rule.RegionsQuota}, tiers: map[string]string{"t": "1/1s"}, want: `rules[0].regions: "quota"` + none},
		"blocked":           {rule: rule.Rule{Action: rule.Block, Regions: rule.RegionsQuota}},
		"unknown":           {rule: rule.Rule{Limits: limit("10/1s"), Regions: "gosip"}},
		"gossip":            {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("1/1s"), Regions: rule.RegionsGossip}},
		"central":           {world: rule.World{Regions: 3, Central: true}, rule: rule.Rule{Limits: limit("1/1s"), Regions: rule.RegionsCentral}},
		"central nowhere":   {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("1/1s"), Regions: rule.RegionsCentral}, want: `rules[0].regions: "central"` + noCentral},
		"quota":             {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("3/1s"), Regions: rule.RegionsQuota}, tiers: map[string]string{"a": "3/1s", "b": "unlimited", "c": "x"}},
		"follow":            {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("3/1s"), Regions: rule.RegionsQuota, Weights: rule.WeightsFollow}},
		"no database":       {world: rule.World{Regions: 3, Fixed: true}, rule: rule.Rule{Limits: limit("3/1s"), Regions: rule.RegionsQuota, Weights: rule.WeightsFollow}, want: `rules[0].weights: "follow": want fixed, or server.database`},
		"small quota":       {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("2/1s"), Regions: rule.RegionsQuota}, want: `rules[0].limits[1].limit: "2/1s": want at least 3, one unit for each region: the rule gives each a part (quota)`},
		"small burst":       {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("9/1s burst=2 token_bucket"), Regions: rule.RegionsQuota}, want: `rules[0].limits[1].limit: "9/1s burst=2 token_bucket": want at least 3, one unit`},
		"none waiting":      {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("9/1s leaky_bucket"), Regions: rule.RegionsQuota}},
		"no limit":          {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("many"), Regions: rule.RegionsQuota}},
		"costly": {
			world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota},
			want: `rules[0].cost: 4 units can never pass the limit "l" in the region "us", whose part of 9/1s (quota) is 3/1s`,
		},
		"as costly as the part":  {world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 3}, Regions: rule.RegionsQuota}},
		"too costly anywhere":    {world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 10}, Regions: rule.RegionsQuota}}, // which Check reports
		"costly, where it grows": {world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota, Weights: rule.WeightsFollow}},
		"costly, and central":    {world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsCentral}},
		"parts not known":        {world: rule.World{Regions: 3}, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota}},
		"costly burst": {
			world: divided, rule: rule.Rule{Limits: limit("30/1s burst=9 token_bucket"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota},
			want: `rules[0].cost: 4 units can never pass the limit "l" in the region "us", whose part of 30/1s burst=9 token_bucket (quota) is 10/1s burst=3 token_bucket`,
		},
		"costly header": {
			world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Header: "X-Cost", Max: 4}, Regions: rule.RegionsQuota},
			tiers: map[string]string{"few": "6/1s", "a": "3/1s"}, // of which the last passes it nowhere
			want:  `rules[0].cost.max: 4 units can never pass the limit "l" in the region "us", whose part of 9/1s (quota) is 3/1s`,
		},
		"costly header of some": {
			world: divided, rule: rule.Rule{Limits: limit("9/1s"), Cost: rule.Cost{Header: "X-Cost", Max: 4}, Regions: rule.RegionsQuota},
			tiers: map[string]string{"few": "6/1s", "many": "unlimited"},
		},
		"costly in a tier": {
			world: divided, rule: rule.Rule{Limits: limit("90/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota},
			tiers: map[string]string{"few": "9/1s", "many": "12/1s", "a": "unlimited"},
			want:  `tiers[0].limits.l: the rule "a" costs 4 units, which can never pass in the region "us", whose part of 9/1s (quota) is 3/1s`,
		},
		"costly for no one": {
			world: divided, rule: rule.Rule{Match: rule.Match{Tiers: []string{"many"}}, Limits: limit("9/1s"), Cost: rule.Cost{Units: 4}, Regions: rule.RegionsQuota},
			tiers: map[string]string{"few": "9/1s", "many": "12/1s"},
		},
		"tiers": {
			world: rule.World{Regions: 3}, rule: rule.Rule{Match: rule.Match{Tiers: []string{"few", "many"}}, Limits: limit("3/1s"), Regions: rule.RegionsQuota},
			tiers: map[string]string{"few": "2/1s", "many": "9/1s", "others": "1/1s"},
			want:  `tiers[0].limits.l: the rule "a" gives each region a part (quota): want at least 3, one unit for each`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.rule.Name = "a"
			f := rule.File{Rules: []rule.Rule{c.rule}}
			for _, tier := range []string{"few", "many", "others", "a", "b", "c", "t"} {
				if v, ok := c.tiers[tier]; ok {
					f.Tiers = append(f.Tiers, rule.Tier{Name: tier, Limits: map[string]string{"l": v}})
				}
			}
			var got string
			if err := f.CheckIn(c.world).Err(); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
				t.Errorf("got:  %s\nwant: %s", got, c.want)
			}
		})
	}
}
