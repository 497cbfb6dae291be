package record

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
)

// Part is what one node has decided in the last seconds, in numbers that can be added to those of other nodes. Nodes of
// different versions exchange it as JSON.
type Part struct {
	Node     string           `json:"node"`
	At       time.Time        `json:"at"`
	Seconds  float64          `json:"seconds"` // of all counts but those of clients
	Outcomes map[string]int64 `json:"outcomes"`
	Shadow   int64            `json:"shadow"`
	Latency  []byte           `json:"latency"` // a Sketch
	Rules    []partRule       `json:"rules"`
	Units    []partUnits      `json:"units,omitempty"`
	Leases   []Leased         `json:"leases,omitempty"`

	Talked    float64     `json:"talked"` // seconds in which clients were counted
	Users     partTalkers `json:"users"`
	Tenants   partTalkers `json:"tenants"`
	Keys      partTalkers `json:"keys"`
	Addresses partTalkers `json:"addresses"`
}

// partRule is what a rule has decided.
type partRule struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
}

// partUnits is what requests have used under a rule with a meter.
type partUnits struct {
	Rule  string `json:"rule"`
	Meter string `json:"meter"`
	Used  int64  `json:"used"`
}

// partTalkers are the first clients of a node by requests, and the first by refused requests.
type partTalkers struct {
	Heard []Talker `json:"heard"`
	// Lost is by how much counts may be too low, and Left the count of the first client that is left out, by requests and by
	// refused requests.
	Lost [2]int64 `json:"lost"`
	Left [2]int64 `json:"left"`
}

// kinds returns the clients by kind.
func (p *Part) kinds() [liveKinds]*partTalkers {
	return [...]*partTalkers{liveUser: &p.Users, liveTenant: &p.Tenants, liveKey: &p.Keys, liveAddress: &p.Addresses}
}

// Merge returns what several nodes have decided together, with top clients of each kind. Rates are the sums of theirs, and
// latency is that of all their decisions.
func Merge(parts []Part, top int) Snapshot {
	s := Snapshot{Outcomes: map[string]float64{}, Nodes: make([]NodeRate, 0, len(parts))}
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		s.Outcomes[o.String()] = 0
	}
	var latency Sketch
	rules, units, leases := map[string]RuleRate{}, map[metered]float64{}, map[string]Leased{}
	for i := range parts {
		p := &parts[i]
		if s.At.Before(p.At) {
			s.At = p.At
		}
		seconds := max(p.Seconds, 1)
		s.Seconds, s.Shadow = max(s.Seconds, seconds), s.Shadow+float64(p.Shadow)/seconds
		node := NodeRate{Name: p.Node}
		for name, n := range p.Outcomes {
			o, known := ParseOutcome(name)
			if !known {
				continue // of a later version
			}
			rate := float64(n) / seconds
			s.Outcomes[name] += rate
			node.Requests += rate
			if !o.Passed() {
				node.Refused += rate
			}
		}
		s.Requests, s.Refused, s.Nodes = s.Requests+node.Requests, s.Refused+node.Refused, append(s.Nodes, node)
		_ = latency.MergeBinary(p.Latency) // of a later version, or as much of it as is readable
		for _, r := range p.Rules {
			sum := rules[r.Name]
			rules[r.Name] = RuleRate{r.Name, sum.Requests + float64(r.Requests)/seconds, sum.Refused + float64(r.Refused)/seconds}
		}
		for _, u := range p.Units {
			units[metered{u.Rule, u.Meter}] += float64(u.Used) / seconds
		}
		for _, l := range p.Leases {
			leases[l.Limit] = l.add(leases[l.Limit])
		}
	}
	slices.SortFunc(s.Nodes, func(a, b NodeRate) int { return strings.Compare(a.Name, b.Name) })
	if len(parts) == 1 {
		s.Node = parts[0].Node
	}
	micros := func(q float64) int64 { return latency.Quantile(q).Microseconds() }
	s.Latency = LiveLatency{P50: micros(0.5), P95: micros(0.95), P99: micros(0.99)}
	s.Rules = first(slices.AppendSeq([]RuleRate{}, maps.Values(rules)), liveRulesShown, func(a, b RuleRate) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name))
	})
	for of, n := range units {
		s.Units = append(s.Units, UnitRate{of.rule, of.meter, n})
	}
	s.Units = first(s.Units, liveRulesShown, func(a, b UnitRate) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), strings.Compare(a.Rule, b.Rule), strings.Compare(a.Meter, b.Meter))
	})
	s.Leases = mostLent(slices.Collect(maps.Values(leases)))
	s.Talkers = mergeTalkers(parts, top)
	return s
}

// first sorts, and returns at most n.
func first[T any](all []T, n int, order func(a, b T) int) []T {
	slices.SortFunc(all, order)
	return all[:min(len(all), n)]
}

func mergeTalkers(parts []Part, top int) (out LiveTalkers) {
	for i := range parts {
		out.Seconds = max(out.Seconds, parts[i].Talked)
	}
	for kind, to := range [...]*Talkers{liveUser: &out.Users, liveTenant: &out.Tenants, liveKey: &out.Keys, liveAddress: &out.Addresses} {
		sums := map[string]Talker{}
		for i := range parts {
			p := parts[i].kinds()[kind]
			for _, t := range p.Heard {
				sum := sums[t.Name]
				sums[t.Name] = Talker{t.Name, sum.Requests + t.Requests, sum.Refused + t.Refused}
			}
			to.RequestsOff += p.Lost[byRequests]
			to.RefusedOff += p.Lost[byRefused]
			if len(parts) > 1 { // a client that one node has left out may be among the first of another
				to.RequestsOff += p.Left[byRequests]
				to.RefusedOff += p.Left[byRefused]
			}
		}
		all := slices.Collect(maps.Values(sums))
		to.ByRequests, to.ByRefused = loudest(all, byRequests, top), loudest(all, byRefused, top)
	}
	return out
}

// loudest returns the first clients by requests or by refused requests, without those that have none.
func loudest(all []Talker, by, most int) []Talker {
	slices.SortFunc(all, func(a, b Talker) int {
		return cmp.Or(cmp.Compare(b.count(by), a.count(by)), cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name))
	})
	out := []Talker{} // not null
	for _, t := range all[:min(most, len(all))] {
		if t.count(by) > 0 {
			out = append(out, t)
		}
	}
	return out
}

func (t *Talker) count(by int) int64 {
	if by == byRefused {
		return t.Refused
	}
	return t.Requests
}
