package rule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

func (c *checker) checkLimits(r *checked) {
	const list = "limits"
	switch n := len(r.Limits); {
	case n > 0 && !r.counts():
		c.Add(list, "the action "+string(r.Action)+" counts nothing: want none", "")
	case n == 0 && r.counts() && r.Action.known():
		c.Add(list, "missing, want at least one limit, unless the action is block or allow", "")
	case n > maxLimits:
		c.Add(list, "has "+strconv.Itoa(n)+" limits, want at most "+strconv.Itoa(maxLimits), "")
		return
	}
	r.values, r.candidates = make([]stint.Limit, len(r.Limits)), make([]stint.Limit, len(r.Limits))
	for i, l := range r.Limits {
		before := len(c.Problems)
		first := slices.IndexFunc(r.Limits, func(o Limit) bool { return o.Name == l.Name })
		if c.checkName("name", l.Name) && first < i {
			c.Add("name", fmt.Sprintf("%q is already the name of limits[%d] of this rule", l.Name, first), "")
		}
		v, ok := c.checkLimit(l)
		if ok {
			r.values[i] = r.held(v)
		}
		c.checkLease(l, v)
		c.checkSplit(l, v)
		r.candidates[i] = c.checkCandidate(r, l)
		for n := before; n < len(c.Problems); n++ {
			c.Problems[n].Path = strict.Item(list, i) + "." + c.Problems[n].Path
		}
	}
}

// checkLimit returns the value of a limit of a rule, or reports a problem with the field that
// is wrong.
func (c *checker) checkLimit(l Limit) (v stint.Limit, ok bool) {
	var algorithm, burst bool // whether they are in the text
	for i, f := range strings.Fields(l.Limit) {
		algorithm = algorithm || (i > 0 && !strings.Contains(f, "="))
		burst = burst || strings.HasPrefix(f, "burst=")
	}
	switch {
	case l.Limit == "":
		c.Add("limit", "missing, want a limit such as 100/1m", "")
		return v, false
	case algorithm && l.Algorithm != "":
		c.Add("algorithm", "the limit "+strict.Quote(l.Limit)+" already names an algorithm: want it once", "")
		return v, false
	case burst && l.Burst != 0:
		c.Add("burst", "the limit "+strict.Quote(l.Limit)+" already has a burst: want it once", "")
		return v, false
	}
	v, err := l.Value()
	if err == nil {
		return v, true
	}
	switch e := invalid(err); {
	case e.Field == "algorithm" && l.Algorithm != "":
		c.refuseAs("algorithm", "algorithm", e, c.algorithmHint(l.Algorithm))
	case e.Field == "burst" && l.Burst != 0:
		c.refuseAs("burst", "burst", e, "")
	default:
		c.refuseAs("limit", "limit", e, c.limitHint(l.Limit, e))
	}
	return v, false
}

func (c *checker) algorithmHint(name string) string {
	var names []string
	for _, a := range stint.Algorithms() {
		names = append(names, a.String())
	}
	return c.Closest(name, append(names, "gcra"))
}

// unitNames are units as people write them.
var unitNames = strings.NewReplacer(
	" per ", "/", " / ", "/", "/ ", "/", " /", "/",
	"milliseconds", "ms", "millisecond", "ms", "seconds", "s", "secs", "s", "sec", "s", "minutes", "m", "minute", "m",
	"mins", "m", "min", "m", "hours", "h", "hrs", "h", "hr", "h", "days", "d", "weeks", "w", "µs", "us",
)

// limitHint suggests the limit that was probably meant, if there is a valid one.
func (c *checker) limitHint(text string, e *stint.InvalidError) string {
	if e.Field == "algorithm" || e.Field == "option" {
		return c.algorithmHint(e.Value)
	}
	const longest = 128
	if len(text) > longest {
		return ""
	}
	lower := strings.ToLower(text)
	for _, meant := range []string{lower, unitNames.Replace(lower)} {
		if _, err := stint.ParseLimit(meant); err == nil && meant != text {
			return strict.DidYouMean(meant)
		}
	}
	return ""
}

func (c *checker) checkCost(r *checked) {
	const path = "cost"
	cost := r.Cost
	if cost.Units < 0 || cost.Units > maxCost {
		c.refuseNumber(path, cost.Units, "from 1 to "+strconv.FormatInt(maxCost, 10)+" units")
		return
	}
	if cost.OnOverrun != "" && !cost.Meter.OfModels() {
		c.Add(path+".on_overrun", "says what happens to an answer of a language model that uses more than was reserved: want a meter such as llm.total_tokens", "")
	}
	switch {
	case cost.Meter != "":
		c.checkMetered(path, r)
	case cost.OnError != "":
		c.Add(path+".on_error", "says what a request costs whose cost is measured after it, and there is no meter: want meter", "")
	case cost.Reserve != 0:
		c.Add(path+".reserve", "is charged until a meter tells the cost, and there is none: want meter", "")
	case cost.Header == "" && cost.Max != 0:
		c.Add(path+".max", "bounds the value of a header or a meter, and there is none: want header or meter", "")
	case cost.Header != "":
		c.checkHeader(path+".header", cost.Header, cost.Header)
		if cost.Max < 1 || cost.Max > maxCost {
			c.refuseNumber(path+".max", cost.Max, "the largest value of the header, from 1 to "+strconv.FormatInt(maxCost, 10))
		}
	}
	for i, v := range r.values {
		l := &r.Limits[i]
		if v.Max == 0 {
			continue
		}
		if v.Algorithm == stint.Concurrency && r.inUnits() {
			c.Add(strict.Item("limits", i)+".limit", onePlace, "")
			continue
		}
		never := func(units int64) string {
			return fmt.Sprintf("%d units can never pass the limit %s (%v)%s", units, strict.Quote(l.Name), v, inParts(v, l.Split))
		}
		if least := cost.least(); tooCostly(least, v, l.Split) && c.holds(r, l.Name) {
			c.Add(path, never(least), "")
		}
		always := func(tier Values) bool { return tooCostly(cost.Max, r.valueFor(l.Name, tier), l.Split) }
		if cost.Meter == "" && always(nil) && c.always(r, always) {
			c.Add(path+".max", never(cost.Max), "")
		}
	}
}

const onePlace = "counts the requests that are served at once, whatever they cost, while this rule has a cost: want a rule of its own for it"

// held returns the value of a limit with the rule's max_delay applied.
func (r *Rule) held(v stint.Limit) stint.Limit {
	return heldWithin(v, cmp.Or(time.Duration(r.MaxDelay), MaxDelay))
}

// valueFor returns the value of a limit of the rule for clients of a tier, or of no tier.
func (r *checked) valueFor(limit string, tier Values) stint.Limit {
	if v, ok := tier[limit]; ok {
		return r.held(v)
	}
	return r.value(limit)
}

// always reports whether something holds for every tier that the rule may apply to.
func (c *checker) always(r *checked, holds func(tier Values) bool) bool {
	tiers := c.values
	if len(r.Match.Tiers) > 0 {
		tiers = nil
		for _, name := range r.Match.Tiers {
			if i, ok := c.tiers[name]; ok {
				tiers = append(tiers, c.values[i])
			}
		}
	}
	const maxTiers = 256 // with more tiers it would take too long, and nothing is claimed
	return len(tiers) <= maxTiers && !slices.ContainsFunc(tiers, func(tier Values) bool { return !holds(tier) })
}

// holds reports whether the rule's own value of the limit can apply to a request: it cannot
// if all tiers that the rule matches override it.
func (c *checker) holds(r *checked, limit string) bool {
	kept := func(tier string) bool {
		i, ok := c.tiers[tier]
		if !ok {
			return true
		}
		_, replaced := c.file.Tiers[i].Limits[limit]
		return !replaced
	}
	return len(r.Match.Tiers) == 0 || slices.ContainsFunc(r.Match.Tiers, kept)
}

// tooCostly reports whether a cost can never pass a limit.
func tooCostly(units int64, l stint.Limit, split int) bool {
	return units > 1 && l.Cap() > 0 && units > MostCost(l, split)
}

// checkTierLimits checks the values of tiers, by themselves and against the costs of the
// rules that they apply to.
func (c *checker) checkTierLimits() {
	if len(c.file.Tiers) == 0 {
		return
	}
	named := map[string][]*checked{} // rules, by the names of their limits
	for i := range c.rules {
		r := &c.rules[i]
		for n, l := range r.Limits[:len(r.values)] {
			if ValidName(l.Name) && !slices.ContainsFunc(r.Limits[:n], func(o Limit) bool { return o.Name == l.Name }) {
				named[l.Name] = append(named[l.Name], r)
			}
		}
	}
	limits := slices.Sorted(maps.Keys(named))
	for i, t := range c.file.Tiers {
		for _, name := range slices.Sorted(maps.Keys(t.Limits)) {
			path := strict.Member(strict.Item("tiers", i)+".limits", name)
			if len(named[name]) == 0 {
				c.Refuse(path, name, "the name of a limit of a rule", c.Closest(name, limits))
			}
			v, err := ParseValue(t.Limits[name])
			if err != nil {
				e, hint := invalid(err), c.Closest(t.Limits[name], []string{"unlimited"})
				if hint == "" {
					hint = c.limitHint(t.Limits[name], e)
				}
				c.refuseAs(path, "limit", e, hint)
				continue
			}
			for _, r := range named[name] {
				if !r.appliesTo(t.Name) {
					continue
				}
				v := r.held(v)
				if least := r.Cost.least(); v.Algorithm == stint.Concurrency && r.inUnits() {
					c.Add(path, "the rule "+strict.Quote(r.Name)+" has a cost: want a value that counts over time, since concurrency counts requests, whatever they cost", "")
				} else if split := r.limit(name).Split; tooCostly(least, v, split) {
					c.Add(path, fmt.Sprintf("the rule %s costs %d units, which can never pass %v%s", strict.Quote(r.Name), least, v, inParts(v, split)), "")
				}
				if r.sound {
					c.checkTierSpread(path, r, r.limit(name), v)
					c.checkTierRegions(path, r, v)
				}
			}
		}
	}
}

// appliesTo reports whether the rule may match requests of a tier.
func (r *Rule) appliesTo(tier string) bool {
	return len(r.Match.Tiers) == 0 || slices.Contains(r.Match.Tiers, tier)
}
