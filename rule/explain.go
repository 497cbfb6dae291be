package rule

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint"
)

// Explained reports whether a rule applies to a request, and why.
type Explained struct {
	Rule string `json:"rule"`
	// Matched says that all conditions hold. The rule applies if no other rule of its
	// group beats it.
	Matched bool `json:"matched"`
	// Reason is the first condition that does not hold. Values of headers that may hold
	// credentials are left out.
	Reason string `json:"reason,omitempty"`
	// BeatenBy is the rule of its group that applies instead.
	BeatenBy string `json:"beaten_by,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	// Shadow says that the rule is only tried out on the request.
	Shadow bool             `json:"shadow,omitempty"`
	Limits []ExplainedLimit `json:"limits,omitempty"` // if it matched
}

// ExplainedLimit is a limit as it applies to a request.
type ExplainedLimit struct {
	Name   string `json:"name"`
	Limit  string `json:"limit"`         // or "unlimited"
	Source string `json:"source"`        // api_key, user, tier NAME, or rule
	Key    string `json:"key,omitempty"` // as stint.Key.String writes it; none if unlimited
	// Lease, Split and Regions are those of the rule; zero if unlimited.
	Lease   Duration `json:"lease,omitzero"`
	Split   int      `json:"split,omitempty"`
	Regions Regions  `json:"regions,omitempty"`
}

// Explain says of every rule, including disabled ones, by priority and name, why it
// applies to the request or why not. If a path has several readings, the one that
// matches a rule best counts. Explain walks all rules: it is for people, not for
// requests.
func (s *Set) Explain(a *Attrs) []Explained {
	paths := readings(a.Path)
	ignoreCase := s.ignoresCase(a)
	for i := range paths {
		if ignoreCase {
			paths[i] = FoldCase(paths[i])
		}
	}
	applies := map[*Compiled]*entry{}
	for _, h := range s.matchAny(nil, paths, a) {
		applies[h.Rule] = h.entry
	}
	best := make([]map[int32]*Compiled, len(paths)) // by group
	for i, path := range paths {
		best[i] = map[int32]*Compiled{}
		for _, h := range s.match(nil, path, a) {
			best[i][h.group] = h.Rule
		}
	}
	out := make([]Explained, len(s.rules))
	for i, r := range s.rules {
		x := &out[i]
		x.Rule = r.Name
		e, reading, reason := r.explain(a, paths, ignoreCase)
		switch applied := applies[r]; {
		case e == nil:
			x.Reason = reason
			continue
		case applied != nil:
			e = applied
		case best[reading][e.groupFor(a)] == r:
			x.Reason = "path " + printable(paths[0]) + " can also be read as another path, which the rule does not match"
			continue
		default:
			x.BeatenBy = best[reading][e.groupFor(a)].Name
		}
		x.Shadow = len(r.limits) > 0 && r.triedOut(a)
		x.Matched, x.Endpoint, x.Limits = true, e.path.text, s.explainLimits(e, a)
	}
	return out
}

// explain returns the best entry that matches, and which of the paths it matches, or why no
// entry matches. The paths are folded if case is ignored.
func (r *Compiled) explain(a *Attrs, paths []string, ignoreCase bool) (found *entry, reading int, reason string) {
	if !r.Enabled {
		return nil, 0, "disabled"
	}
	if len(r.match.Paths) == 0 {
		found = r.entries[0]
	}
	for i := 0; found == nil; i++ {
		if i == len(r.entries) {
			return nil, 0, differs("path", paths[0], "", r.match.Paths)
		}
		path := r.entries[i].path
		if ignoreCase {
			path = path.folded()
		}
		if reading = slices.IndexFunc(paths, path.matches); reading >= 0 {
			found = r.entries[i]
		}
	}
	if reason = r.lacks(a); reason != "" {
		return nil, 0, reason
	}
	return found, reading, ""
}

// lacks says which condition, other than the path, the request does not meet.
func (r *Compiled) lacks(a *Attrs) string {
	switch {
	case !r.takesMethod(a):
		return differs("method", a.Method, "", r.methods)
	case !r.takesTier(a):
		return differs("tier", a.Tier, "", r.tiers)
	case !r.takesAddress(a):
		address := ""
		if a.IP.IsValid() {
			address = a.IP.String()
		}
		return differs("address", address, "in ", r.match.IPRanges)
	}
	if w := r.lacksHeader(a); w != nil {
		what, value, want := "header "+w.name, strings.Join(a.lines(w.name), ", "), w.value
		switch {
		case want == "*":
			want = "any value"
		case value != "" && isSecret(w.name):
			return what + " has another value than the rule"
		case isSecret(w.name):
			want = "the value of the rule"
		}
		return differs(what, value, "", []string{want})
	}
	if d := r.lacksDim(a); d != nil {
		return "no " + strings.TrimSpace(kinds[d.kind]+" "+d.name) + " to count by"
	}
	return ""
}

// isSecret reports whether a header, by its name, may hold a credential.
func isSecret(header string) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc([]string{"auth", "cookie", "key", "token", "secret", "password"}, func(word string) bool {
		return strings.Contains(header, word)
	})
}

// differs says how a value differs from what the rule wants. In is "in " for networks.
func differs(what, value, in string, want []string) string {
	const maxShown = 8
	list := strings.Join(want[:min(len(want), maxShown)], ", ")
	if n := len(want) - maxShown; n > 0 {
		list += " and " + strconv.Itoa(n) + " more"
	}
	switch {
	case value == "":
		return "no " + what + ": want " + in + list
	case len(want) == 1:
		return what + " " + printable(value) + " is not " + in + list
	default:
		return what + " " + printable(value) + " is " + in + "none of " + list
	}
}

// printable returns a client's text in a form that is safe to show.
func printable(value string) string {
	const maxShown = 128
	if len(value) > maxShown {
		value = value[:maxShown] + "..."
	}
	if q := strconv.Quote(value); q[1:len(q)-1] != value {
		return q
	}
	return value
}

func (s *Set) explainLimits(e *entry, a *Attrs) []ExplainedLimit {
	asks, _ := s.Asks(nil, []Hit{e.hit}, a, nil)
	var out []ExplainedLimit
	for i := range e.rule.limits {
		l := &e.rule.limits[i]
		v, from := e.rule.valueOf(l, a, s.tiers[a.Tier])
		x := ExplainedLimit{Name: l.name, Limit: "unlimited", Source: from}
		if v != (stint.Limit{}) {
			x.Limit, x.Key = v.String(), asks[0].Key.String()
			x.Lease, x.Split = Duration(asks[0].Policy.Lease), asks[0].Policy.Split
			x.Regions = e.rule.regions
			asks = asks[1:]
		}
		if x.Source == fromTier {
			x.Source += " " + a.Tier
		}
		out = append(out, x)
	}
	return out
}
