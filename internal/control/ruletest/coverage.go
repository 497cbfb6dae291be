package ruletest

import "github.com/stintdev/stint/engine"

// Coverage says which parts of the rules tests have touched. Disabled rules are no part of them.
type Coverage struct {
	Rules    Covered `json:"rules"`    // that have decided or counted a request
	Limits   Covered `json:"limits"`   // that have counted a request
	Denials  Covered `json:"denials"`  // limits that have denied a request, those in the shadow too
	Bans     Covered `json:"bans"`     // penalties that have banned someone
	Tiers    Covered `json:"tiers"`    // that a client had
	Branches Covered `json:"branches"` // of groups: each of their rules has been the one that applies
}

// Covered is how many parts of a kind there are, and which no test has touched.
type Covered struct {
	All     int      `json:"all"`
	Missing []string `json:"missing"`
}

// Kinds returns the parts with their names, in the order in which people read them.
func (c *Coverage) Kinds() []CoveredKind {
	return []CoveredKind{
		{"rules", c.Rules}, {"limits", c.Limits}, {"denials by limits", c.Denials}, {"bans by penalties", c.Bans}, {"tiers", c.Tiers}, {"branches of groups", c.Branches},
	}
}

// CoveredKind is a kind of parts.
type CoveredKind struct {
	Name string
	Covered
}

// tracker notes what was touched.
type tracker struct {
	rules          map[string]bool
	limits, denies map[part]bool
	bans, tiers    map[string]bool
}

// part is a limit of a rule.
type part struct{ rule, limit string }

func newTracker() tracker {
	return tracker{map[string]bool{}, map[part]bool{}, map[part]bool{}, map[string]bool{}, map[string]bool{}}
}

// note notes what a verdict has touched.
func (t *tracker) note(v *engine.Verdict) {
	t.tiers[v.Subject.Tier] = true
	if v.Rule != nil {
		t.rules[v.Rule.Name] = true
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		t.rules[l.Rule.Name] = true
		of := part{l.Rule.Name, l.Name}
		switch t.limits[of] = true; {
		case l.Decision.Allowed:
		case l.Penalty != nil:
			t.bans[l.Rule.Name] = true
		default:
			t.denies[of] = true
		}
	}
}

// Coverage returns what all tests so far have touched.
func (r *Runner) Coverage() Coverage {
	t, empty := &r.coverage, Covered{Missing: []string{}} // not null in JSON
	c := Coverage{empty, empty, empty, empty, empty, empty}
	for i := range r.options.Rules.Rules {
		x := &r.options.Rules.Rules[i]
		if x.Enabled != nil && !*x.Enabled {
			continue
		}
		c.Rules.add(x.Name, t.rules[x.Name])
		for _, l := range x.Limits {
			of := part{x.Name, l.Name}
			c.Limits.add(x.Name+"/"+l.Name, t.limits[of])
			c.Denials.add(x.Name+"/"+l.Name, t.denies[of])
		}
		if x.Penalty != nil {
			c.Bans.add(x.Name, t.bans[x.Name])
		}
		if x.Group != "" {
			c.Branches.add(x.Group+": "+x.Name, t.rules[x.Name])
		}
	}
	for i := range r.options.Rules.Tiers {
		name := r.options.Rules.Tiers[i].Name
		c.Tiers.add(name, t.tiers[name])
	}
	return c
}

func (c *Covered) add(name string, touched bool) {
	c.All++
	if !touched {
		c.Missing = append(c.Missing, name)
	}
}
