package rule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Regions is how the counters of a rule are shared among regions. Empty: every region counts
// by itself, and the limits hold in each. Bans are central with the limits, and else count in their own region.
type Regions string

// The choices.
const (
	RegionsCentral Regions = "central" // one region has the counters, and all others ask it
	RegionsQuota   Regions = "quota"   // each region has a part of each limit
	RegionsGossip  Regions = "gossip"  // each region counts by itself, and tells the others
)

// Credit is how many units of a gossiped counter a region may let pass before the others know
// of them. Zero: a tenth of the limit, at least 1.
type Credit int64

// OnCredit is what happens to a request for which a region has no credit left, if the other
// regions cannot be reached.
type OnCredit string

// The choices.
const (
	CreditShare OnCredit = "share" // the region's share of what remains decides
	CreditDeny  OnCredit = "deny"  // it is denied
)

// Weights is what the parts of a quota depend on.
type Weights string

// The choices.
const (
	WeightsFixed  Weights = "fixed"  // the weights of the regions
	WeightsFollow Weights = "follow" // how much is asked for in each region
)

var (
	regionModes = []string{string(RegionsCentral), string(RegionsQuota), string(RegionsGossip)}
	onCredits   = []string{string(CreditShare), string(CreditDeny)}
	allWeights  = []string{string(WeightsFixed), string(WeightsFollow)}
	sharing     = map[Regions]stint.Regions{RegionsCentral: stint.RegionsCentral, RegionsQuota: stint.RegionsQuota, RegionsGossip: stint.RegionsGossip}
)

// UnmarshalStrict implements [strict.Unmarshaler]. A credit of 0 would read as none at all,
// while one that is left out is a tenth.
func (u *Credit) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	decode((*int64)(u))
	if *u == 0 && found == strict.Integer {
		return errors.New("0 units are no credit, want at least 1, or none for a tenth of each limit; regions that must never be ahead of each other are central")
	}
	return nil
}

// share sets how the counters of a rule are shared among regions.
func (r *Rule) share(p *stint.Policy) {
	p.Regions, p.Credit, p.Follow = sharing[r.Regions], int64(r.Credit), r.Weights == WeightsFollow
	if r.OnCredit == CreditDeny {
		p.OnCredit = stint.CreditDeny
	}
	if p.Follow {
		p.Rule = r.Name // of others not, so that rules share policies
	}
}

// checkRegions checks how the counters of a rule are shared among regions, by itself.
// [File.CheckIn] checks it against the regions that there are.
func (c *checker) checkRegions(r *checked) {
	const path = "regions"
	switch {
	case r.Regions != "" && !slices.Contains(regionModes, string(r.Regions)):
		c.refuseOf(path, string(r.Regions), regionModes)
		return // whether the others fit is not known
	case r.Regions != "" && !r.counts():
		c.Add(path, "the action "+string(r.Action)+" counts nothing: want none", "")
		return
	}
	c.checkCredit(r)
	if r.Regions == RegionsGossip && slices.ContainsFunc(r.Limits[:min(len(r.Limits), maxLimits)], Limit.holds) {
		c.Refuse(path, string(r.Regions), "none, or limits of another algorithm: "+held, "")
	}
	switch {
	case r.OnCredit == "":
	case !slices.Contains(onCredits, string(r.OnCredit)):
		c.refuseOf("on_credit", string(r.OnCredit), onCredits)
	case r.Regions != RegionsGossip:
		c.Refuse("on_credit", string(r.OnCredit), `none, or regions = "gossip": only then regions have a credit`, "")
	}
	switch {
	case r.Weights == "":
	case !slices.Contains(allWeights, string(r.Weights)):
		c.refuseOf("weights", string(r.Weights), allWeights)
	case r.Regions != RegionsQuota:
		c.Refuse("weights", string(r.Weights), `none, or regions = "quota": only then regions have parts of a limit`, "")
	}
}

// holds reports whether the limit is one of concurrency.
func (l Limit) holds() bool {
	v, _ := l.Value() // checkLimit reports what is wrong
	return v.Algorithm == stint.Concurrency
}

func (c *checker) checkCredit(r *checked) {
	const path = "credit"
	switch {
	case r.Credit == 0:
		return
	case r.Credit < 0:
		c.refuseNumber(path, int64(r.Credit), "1 or more units, or none for a tenth of each limit")
		return
	case r.Regions != RegionsGossip:
		c.refuseNumber(path, int64(r.Credit), `none, or regions = "gossip": only then regions have a credit`)
		return
	}
	for i, v := range r.values {
		if v.Max > 0 && int64(r.Credit) > v.Max {
			c.refuseNumber(path, int64(r.Credit), fmt.Sprintf("at most %d, the limit %s (%v): with more, each region could use it up alone", v.Max, strict.Quote(r.Limits[i].Name), v))
		}
	}
}

// checkTierRegions checks a tier's value of a limit whose counters regions share.
func (c *checker) checkTierRegions(path string, r *checked, v stint.Limit) {
	if r.Regions == RegionsGossip && v.Algorithm == stint.Concurrency {
		c.Add(path, "the rule "+strict.Quote(r.Name)+" has its counters told to other regions (gossip): want a value of another algorithm: "+held, "")
		return
	}
	if r.Regions == RegionsGossip && v.Max > 0 && int64(r.Credit) > v.Max {
		c.Add(path, fmt.Sprintf("the rule %s lets a region be ahead of the others by %d units (credit): want at least %[2]d, or a smaller credit", strict.Quote(r.Name), r.Credit), "")
	}
}

// World is the regions in which rules are used.
type World struct {
	Regions int  // how many there are; 0: none is configured
	Central bool // one of them has the counters of central rules
	Fixed   bool // weights cannot follow demand, since there is no database
	// Least returns the smallest part that a region has of a limit by its weight, and the region. Nil: it is not known.
	Least func(stint.Limit) (region string, part stint.Limit)
}

// CheckIn returns the problems that the rules of a file have in these regions, and that
// [File.Check] cannot know of.
func (f *File) CheckIn(w World) Problems {
	c := quotaChecker{checker: checker{file: f, tiers: map[string]int{}}, world: &w, quotas: map[string][]*Rule{}}
	c.checkTierNames()
	c.Problems = nil // those of names are for Check
	for i := range f.Rules {
		r := &f.Rules[i]
		path := strict.Item("rules", i)
		if sharing[r.Regions] == stint.RegionsOwn || !r.counts() {
			continue
		}
		switch {
		case w.Regions == 0:
			c.Add(path+".regions", strict.Quote(string(r.Regions))+": this is no region: add [region] with a name and peers, or remove regions", "")
		case r.Regions == RegionsCentral && !w.Central:
			c.Add(path+".regions", strict.Quote(string(r.Regions))+": no region has the counters: set region.central to the name of one", "")
		case r.Regions == RegionsQuota:
			c.checkQuota(path, r)
		}
	}
	for i, t := range f.Tiers {
		for _, name := range slices.Sorted(maps.Keys(t.Limits)) {
			c.checkTierQuota(strict.Member(strict.Item("tiers", i)+".limits", name), t.Name, name, t.Limits[name])
		}
	}
	return c.Problems
}

// quotaChecker checks rules that give each region a part of their limits.
type quotaChecker struct {
	checker
	world  *World
	quotas map[string][]*Rule // by the names of their limits
}

func (c *quotaChecker) checkQuota(path string, r *Rule) {
	if r.Weights == WeightsFollow && c.world.Fixed {
		c.Refuse(path+".weights", string(r.Weights), "fixed, or server.database, which all regions share: weights that follow demand are kept there", "")
	}
	for j, l := range r.Limits[:min(len(r.Limits), maxLimits)] {
		c.quotas[l.Name] = append(c.quotas[l.Name], r)
		v, err := l.Value()
		if err != nil {
			continue
		}
		own := r.held(v)
		if parts(own) < int64(c.world.Regions) {
			c.Refuse(strict.Item(path+".limits", j)+".limit", l.Limit, "at least "+strconv.Itoa(c.world.Regions)+", one unit for each region: the rule gives each a part (quota)", "")
			continue
		}
		if where := c.bars(r, r.Cost.least(), own, l.Split); where != "" && c.holds(&checked{Rule: r}, l.Name) {
			c.Add(path+".cost", fmt.Sprintf("%d units can never pass the limit %s %s", r.Cost.least(), strict.Quote(l.Name), where), "")
		}
		never := func(tier Values) bool {
			v := own
			if of, ok := tier[l.Name]; ok {
				v = r.held(of)
			}
			return tooCostly(r.Cost.Max, v, l.Split) || c.bars(r, r.Cost.Max, v, l.Split) != ""
		}
		if where := c.bars(r, r.Cost.Max, own, l.Split); r.Cost.Meter == "" && where != "" && c.always(&checked{Rule: r}, never) {
			c.Add(path+".cost.max", fmt.Sprintf("%d units can never pass the limit %s %s", r.Cost.Max, strict.Quote(l.Name), where), "")
		}
	}
}

// checkTierQuota checks a tier's value of a limit of which each region has a part.
func (c *quotaChecker) checkTierQuota(path, tier, limit, text string) {
	v, err := ParseValue(text)
	if err != nil || v.Max == 0 {
		return // Check reports it, or it is unlimited
	}
	for _, r := range c.quotas[limit] {
		if !r.appliesTo(tier) {
			continue
		}
		if v := r.held(v); parts(v) < int64(c.world.Regions) {
			c.Add(path, fmt.Sprintf("the rule %s gives each region a part (quota): want at least %d, one unit for each", strict.Quote(r.Name), c.world.Regions), "")
		} else if where := c.bars(r, r.Cost.least(), v, r.limit(limit).Split); where != "" {
			c.Add(path, fmt.Sprintf("the rule %s costs %d units, which can never pass %s", strict.Quote(r.Name), r.Cost.least(), where), "")
		}
	}
}

// bars says in which region a cost can never pass, though it can pass the whole limit. It is empty if there is none,
// or if parts follow demand: then they may grow.
func (c *quotaChecker) bars(r *Rule, units int64, v stint.Limit, split int) (where string) {
	if units < 2 || c.world.Least == nil || r.Weights == WeightsFollow || tooCostly(units, v, split) {
		return ""
	}
	region, part := c.world.Least(v)
	if !tooCostly(units, part, split) {
		return ""
	}
	return fmt.Sprintf("in the region %s, whose part of %v (quota) is %v%s", strict.Quote(region), v, part, inParts(part, split))
}

// parts returns among how many regions a limit can be divided at most.
func parts(v stint.Limit) int64 {
	if v.Algorithm == stint.LeakyBucket {
		return v.Max // one without a burst spaces the requests of each region
	}
	return divisible(v)
}

// sayRegions says how regions share the counters.
func (r *Rule) sayRegions() string {
	switch r.Regions {
	case "":
		return ""
	case RegionsCentral:
		return "all regions count together, in the central one"
	case RegionsQuota:
		if r.Weights == WeightsFollow {
			return "each region has a part of the limit, which follows its demand"
		}
		return "each region has a part of the limit, by its weight"
	case RegionsGossip:
		ahead, then := "a tenth of the limit", "decides by its share of the rest"
		if r.Credit != 0 {
			ahead = count(int64(r.Credit), "unit")
		}
		if r.OnCredit == CreditDeny {
			then = "denies requests"
		}
		return "each region counts by itself, tells the others, and may be ahead of what they know by " + ahead + "; while they cannot be reached, it then " + then
	default:
		return "how regions share the counters is not clear: there is no " + strict.Quote(string(r.Regions))
	}
}
