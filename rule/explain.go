package rule

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint"
)

// Explained says what a rule makes of a request, and why.
type Explained struct {
	Rule string `json:"rule"`
	// Matched says that all conditions are met. The rule applies if it is not
	// beaten, too.
	Matched bool `json:"matched"`
	// Reason is the first condition that is not met.
	Reason string `json:"reason,omitempty"`
	// BeatenBy is the rule of its group that applies instead.
	BeatenBy string           `json:"beaten_by,omitempty"`
	Endpoint string           `json:"endpoint,omitempty"`
	Limits   []ExplainedLimit `json:"limits,omitempty"` // if it matched
}

// ExplainedLimit is a limit as it is for a request.
type ExplainedLimit struct {
	Name   string `json:"name"`
	Limit  string `json:"limit"`         // or "unlimited"
	Source string `json:"source"`        // api_key, user, tier NAME, or rule
	Key    string `json:"key,omitempty"` // as stint.Key.String writes it; none if unlimited
}

// Explain says of every rule, those that are not enabled too, by priority and name,
// why it applies to the request or why it does not. It looks at each: it is for
// people, not for every request.
func (s *Set) Explain(a *Attrs) []Explained {
	path := CleanPath(a.Path)
	matched := make([]*entry, len(s.rules))
	best := map[int32]*entry{} // by group
	out := make([]Explained, len(s.rules))
	for i, r := range s.rules {
		e, reason := r.explain(a, path)
		out[i] = Explained{Rule: r.Name, Matched: e != nil, Reason: reason}
		if e == nil {
			continue
		}
		matched[i] = e
		out[i].Endpoint = e.path.text
		out[i].Limits = s.explainLimits(e, a)
		if b := best[e.hit.group]; b == nil || e.hit.place < b.hit.place {
			best[e.hit.group] = e
		}
	}
	for i, e := range matched {
		if e != nil && best[e.hit.group] != e {
			out[i].BeatenBy = best[e.hit.group].rule.Name
		}
	}
	return out
}

// explain returns the entry that matches, or why none does.
func (r *Compiled) explain(a *Attrs, path string) (*entry, string) {
	if !r.Enabled {
		return nil, "disabled"
	}
	i := slices.IndexFunc(r.entries, func(e *entry) bool { return len(r.match.Paths) == 0 || e.path.matches(path) })
	switch {
	case i < 0:
		return nil, differs("path", path, "", r.match.Paths)
	case !r.takesMethod(a):
		return nil, differs("method", a.Method, "", r.methods)
	case !r.takesTier(a):
		return nil, differs("tier", a.Tier, "", r.tiers)
	case !r.takesAddress(a):
		address := ""
		if a.IP.IsValid() {
			address = a.IP.String()
		}
		return nil, differs("address", address, "in ", r.match.IPRanges)
	}
	if w := r.lacksHeader(a); w != nil {
		want := w.value
		if want == "*" {
			want = "any value"
		}
		return nil, differs("header "+w.name, strings.Join(a.Headers[w.name], ", "), "", []string{want})
	}
	if d := r.lacksDim(a); d != nil {
		return nil, "no " + strings.TrimSpace(kinds[d.kind]+" "+d.name) + " to count by"
	}
	return r.entries[i], ""
}

// differs says what a value is, and what is wanted. In is "in " for networks.
func differs(what, value, in string, want []string) string {
	const most = 8
	list := strings.Join(want[:min(len(want), most)], ", ")
	if n := len(want) - most; n > 0 {
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

// printable returns what a client sent so that it can be shown.
func printable(value string) string {
	const most = 128
	if len(value) > most {
		value = value[:most] + "..."
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
		v, from := l.valueFor(a, s.tiers[a.Tier])
		x := ExplainedLimit{Name: l.name, Limit: "unlimited", Source: from}
		if v != (stint.Limit{}) {
			x.Limit, x.Key = v.String(), asks[0].Key.String()
			asks = asks[1:]
		}
		if x.Source == fromTier {
			x.Source += " " + a.Tier
		}
		out = append(out, x)
	}
	return out
}
