package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

const tryRedis = "server.counters with the URL of Redis, or no "

// rules checks rules, and whether they fit the regions. Those that do not are in use.
func (d *doctor) rules(f *rule.File, w rule.World) {
	for _, p := range f.CheckIn(w) {
		d.note("rules.regions", findFail, p.String(), "correct [region] or the rule; until then, the rule does not hold as it reads")
	}
	problems := f.Check()
	for _, p := range problems {
		d.note("rules", findFail, p.String(), "correct the rule; until then, the previous rules stay in use")
	}
	logOnly, disabled := 0, 0
	for i := range f.Rules {
		switch r := &f.Rules[i]; {
		case r.Enabled != nil && !*r.Enabled:
			disabled++
		case r.Action == rule.LogOnly:
			logOnly++
		}
	}
	switch {
	case len(problems) > 0:
	case len(f.Rules) == disabled:
		d.note("rules", findWarn, fmt.Sprintf("none of %d rules is enabled: every request passes", len(f.Rules)), "stint rules create, or [[rules]] in the config file")
	case len(f.Rules) == disabled+logOnly:
		d.note("rules", findWarn, "all rules are log_only: every request passes", "another action, once the record shows what they would deny")
	default:
		d.note("rules", findOK, fmt.Sprintf("rules: %d, of which log_only: %d, disabled: %d; tiers: %d", len(f.Rules), logOnly, disabled, len(f.Tiers)), "")
	}
}

// spread checks for how long units of limits are taken ahead, and among how many counters
// limits are divided: some of it cannot help.
func (d *doctor) spread(c *daemon.Config) {
	leases, splits, before := 0, 0, len(d.all)
	for i := range d.file.Rules {
		r := &d.file.Rules[i]
		if r.Enabled != nil && !*r.Enabled {
			continue
		}
		for _, l := range r.Limits {
			if l.Lease != 0 {
				leases++
				d.lease(c, r, &l)
			}
			if l.Split != 0 {
				splits++
				d.split(c, r, &l)
			}
		}
	}
	if leases+splits > 0 && len(d.all) == before {
		d.note("rules.lease", findOK, fmt.Sprintf("limits with a lease: %d, with a split: %d", leases, splits), "")
	}
}

// lease checks whether a lease can save calls of Redis.
func (d *doctor) lease(c *daemon.Config, r *rule.Rule, l *rule.Limit) {
	const check, perNode = "rules.lease", 8 // requests in a term, from which on a lease saves most calls
	name, nodes := r.Name+"/"+l.Name, cmp.Or(c.Server.Replicas, d.alive, 1)
	most, ok := d.inTerm(r, l)
	switch {
	case c.Server.Counters == inMemory && r.OnStoreFailure == rule.Closed:
		d.note(check, findFail, name+": the counters are in memory, which is never away: there is nothing to take units from, and nothing to close", tryRedis+"lease")
	case c.Server.Counters == inMemory:
		d.note(check, findWarn, name+": the counters are in memory, so the lease has no use", tryRedis+"lease")
	case r.Penalty != nil:
		d.note(check, findWarn, name+": each request asks Redis whether the client is banned, so no units are taken ahead", "no lease in rules with a penalty")
	case ok && most < float64(perNode*nodes):
		d.note(check, findWarn, fmt.Sprintf("%s: at most about %.2g requests pass within %v, and a lease saves calls from about %d on: %d for each node", name, most, l.Lease, perNode*nodes, perNode),
			"a longer lease, or none")
	}
}

// inTerm returns how many requests pass within the lease of a limit, at the rate of its value or of
// the highest one of a tier.
func (d *doctor) inTerm(r *rule.Rule, l *rule.Limit) (most float64, ok bool) {
	values := d.values(r, l)
	for _, v := range values {
		from, to := v.Window.Bounds(now())
		most = max(most, float64(v.Max)*float64(l.Lease)/float64(to.Sub(from)))
	}
	return most / float64(max(r.Cost.Units, 1)), len(values) > 0
}

// value is a value of a limit.
type value struct {
	stint.Limit
	name string // of the rule, the limit, and the tier if it is that of one
}

// values returns the values that a limit of a rule has: its own, unless it never applies, and those of tiers. What is
// unlimited, or was reported, is left out.
func (d *doctor) values(r *rule.Rule, l *rule.Limit) (all []value) {
	name, own := r.Name+"/"+l.Name, len(r.Match.Tiers) == 0
	for _, t := range d.file.Tiers {
		if len(r.Match.Tiers) > 0 && !slices.Contains(r.Match.Tiers, t.Name) {
			continue
		}
		text, replaced := t.Limits[l.Name]
		if own = own || !replaced; !replaced {
			continue
		}
		if v, err := rule.ParseValue(text); err == nil && v != (stint.Limit{}) {
			all = append(all, value{v, name + " of the tier " + t.Name})
		}
	}
	if v, err := l.Value(); own && err == nil && v != (stint.Limit{}) {
		all = slices.Insert(all, 0, value{v, name})
	}
	return all
}

// split checks whether there are several servers for the counters of a limit, and whether one can hold what a request may
// cost.
func (d *doctor) split(c *daemon.Config, r *rule.Rule, l *rule.Limit) {
	const check = "rules.split"
	name := r.Name + "/" + l.Name
	switch scheme, _, _ := strings.Cut(string(c.Server.Counters), "://"); {
	case c.Server.Counters == inMemory:
		d.note(check, findWarn, name+": the counters are in memory, so the split has no use", tryRedis+"split")
	case slices.Contains([]string{"redis", "rediss", "redis+sentinel", "rediss+sentinel"}, scheme):
		d.note(check, findWarn, name+": one Redis server has all counters, so the split has no use", "a Redis Cluster, or no split")
	}
	for _, v := range d.values(r, l) {
		if can, most := rule.MostCost(v.Limit, l.Split), max(r.Cost.Units, r.Cost.Reserve, r.Cost.Max); most > can {
			d.note(check, findWarn, fmt.Sprintf("%s: a request may cost %d units, and more than %d can never pass, since one of %d counters has to hold them", v.name, most, can, l.Split),
				"a smaller split, or a smaller cost.max")
		}
	}
}
