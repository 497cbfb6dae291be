package rule

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// checkUnreachable finds rules that can never have an effect: in their group another rule
// always wins, or an allow or block rule applies to everything that they match. It reports
// only what can be proved from the conditions of two rules.
func (c *checker) checkUnreachable() {
	var rules []*checked
	for i := range c.rules {
		if r := &c.rules[i]; r.sound && r.enabled() {
			rules = append(rules, r)
		}
	}
	slices.SortFunc(rules, func(a, b *checked) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
	})
	h := hiding{rules: map[rivals]int{}, index: map[place][]*checked{}}
	for _, r := range rules {
		if scope, ok := r.hides(); ok {
			h.rules[scope]++
		}
	}
	for _, r := range rules {
		if scope, ok := r.hides(); ok && h.among(scope) {
			for _, key := range r.keys() {
				at := place{scope, key}
				h.index[at] = append(h.index[at], r)
			}
		}
	}
	for _, r := range rules {
		switch w := h.find(r); {
		case w == nil:
		case r.Group != "" && w.Group == r.Group:
			c.Add(r.path(), fmt.Sprintf("the rule %q can never apply: %q of the same group matches everything that it matches, and comes first",
				r.Name, w.Name), "")
		default:
			c.Add(r.path(), fmt.Sprintf("the rule %q can never count: %q, which matches everything that it matches, has the action %s",
				r.Name, w.Name, w.Action), "")
		}
	}
}

// exempt is the scope of rules that can hide all rules that count. No group has this name.
var exempt = rivals{group: "\x00"}

// hides returns the scope in which the rule may hide others: its rivals, or all rules that
// count if it allows or blocks and has no group, in which it could lose.
func (r *checked) hides() (scope rivals, ok bool) {
	if r.Group == "" {
		return exempt, !r.counts()
	}
	return rivals{r.Group, r.trial()}, !r.Partial()
}

// place is a key of the index of rules that may hide others.
type place struct {
	scope rivals
	key   string
}

// hiding finds the rules that may hide others. They are indexed by something that all rules
// they hide must have, because comparing every two rules would take too long.
type hiding struct {
	rules map[rivals]int // how many there are in each scope
	index map[place][]*checked
}

// among reports whether a rule may be hidden in the scope: a group of one hides none.
func (h *hiding) among(scope rivals) bool {
	return h.rules[scope] > 1 || scope == exempt && h.rules[scope] > 0
}

// find returns a rule that hides r, or nil.
func (h *hiding) find(r *checked) *checked {
	scopes := make([]rivals, 0, 2)
	if own := (rivals{r.Group, r.trial()}); h.among(own) {
		scopes = append(scopes, own)
	}
	if r.counts() && h.among(exempt) {
		scopes = append(scopes, exempt)
	}
	if len(scopes) == 0 {
		return nil // the usual case
	}
	// In a group of very many rules with the same conditions, only some are compared.
	left := 256
	for _, key := range r.probes() {
		for _, scope := range scopes {
			for _, w := range h.index[place{scope, key}] {
				if left--; left < 0 {
					return nil
				}
				if w != r && w.covers(r) && (scope == exempt || w.beats(r)) {
					return w
				}
			}
		}
	}
	return nil
}

// keys returns the keys of the rule in the index: the values of one of its conditions.
func (r *checked) keys() []string {
	var out []string
	switch {
	case len(r.patterns) > 0:
		for _, p := range r.patterns {
			out = append(out, "p"+p.fixed())
		}
	case len(r.Match.Tiers) > 0:
		for _, t := range r.Match.Tiers {
			out = append(out, "t"+t)
		}
	case len(r.Match.Methods) > 0:
		for _, m := range r.Match.Methods {
			out = append(out, "m"+m)
		}
	case len(r.headers) > 0:
		// A request must have all headers, so one is enough.
		return []string{"h" + slices.Min(slices.Collect(maps.Keys(r.headers)))}
	case len(r.networks) > 0:
		for _, n := range r.networks {
			out = append(out, "n"+n.String())
		}
	default:
		return []string{""}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// probes returns the keys of all rules that could cover this one. These cover all values of
// a condition, so the first value is enough.
func (r *checked) probes() []string {
	out := []string{""}
	if len(r.patterns) > 0 {
		fixed := r.patterns[0].fixed()
		for ; fixed != ""; fixed = fixed[:strings.LastIndexByte(fixed, '/')] {
			out = append(out, "p"+fixed)
		}
		out = append(out, "p")
	}
	if len(r.Match.Tiers) > 0 {
		out = append(out, "t"+r.Match.Tiers[0])
	}
	if len(r.Match.Methods) > 0 {
		out = append(out, "m"+r.Match.Methods[0])
	}
	for name := range r.headers {
		out = append(out, "h"+name)
	}
	if len(r.networks) > 0 {
		for n := r.networks[0]; ; n = netip.PrefixFrom(n.Addr(), n.Bits()-1).Masked() {
			if out = append(out, "n"+n.String()); n.Bits() == 0 {
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// fixed returns the segments of a pattern before the first wild one.
func (p pattern) fixed() string {
	var b strings.Builder
	for _, s := range p.segments {
		if s.wild {
			break
		}
		b.WriteString("/" + s.text)
	}
	return b.String()
}

// covers reports whether the rule matches everything that the other matches.
func (r *checked) covers(other *checked) bool {
	for name, value := range r.headers {
		wanted, ok := other.headers[name]
		if !ok || (value != wanted && (value != "*" || wanted == "")) {
			return false
		}
	}
	return (len(r.Match.Methods) == 0 || within(other.Match.Methods, r.Match.Methods, equal)) &&
		(len(r.Match.Tiers) == 0 || within(other.Match.Tiers, r.Match.Tiers, equal)) &&
		(len(r.countBy) == 0 || within(r.countBy, other.countBy, equal)) &&
		(len(r.networks) == 0 || within(other.networks, r.networks, contains)) &&
		(len(r.patterns) == 0 || within(other.patterns, r.patterns, pattern.covers))
}

// beats reports whether the rule always comes before another rule of its group that it
// covers. With equal priorities the more specific rule comes first: the rule is not less
// specific if it has the paths of the other and the same conditions.
func (r *checked) beats(other *checked) bool {
	if r.Priority != other.Priority {
		return r.Priority < other.Priority
	}
	same := func(p, q pattern) bool { return p.shape() == q.shape() }
	return r.Name < other.Name && r.Match.conditions() == other.Match.conditions() &&
		(len(r.patterns) == 0 || within(other.patterns, r.patterns, same))
}

// within reports whether the list is not empty, and each element is covered by one of the
// others.
func within[T any](list, others []T, covers func(other, one T) bool) bool {
	for _, one := range list {
		if !slices.ContainsFunc(others, func(other T) bool { return covers(other, one) }) {
			return false
		}
	}
	return len(list) > 0
}

func equal[T comparable](a, b T) bool { return a == b }

func contains(wide, narrow netip.Prefix) bool {
	return wide.Bits() <= narrow.Bits() && wide.Contains(narrow.Addr())
}
