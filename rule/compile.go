package rule

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// Set is rules that are ready to be matched. It never changes and may be used by
// many goroutines at once.
type Set struct {
	rules []*Compiled // by priority and name
	tiers map[string]Values
	plans map[stint.Limit]*stint.Plan // of the limits of rules and tiers
	paths *tree                       // enabled rules with paths
	// folded returns the tree for requests whose case does not matter. Unless the case of
	// all requests is ignored, the first such request builds it.
	folded   func() *tree
	pathCase Case
	other    bucket // enabled rules without paths
	// styled finds rules that name clients by path alone. They are nil if there are none.
	styled, styledFolded func() *tree

	methods  map[string]string // the methods that are told apart
	partial  bool              // a rule is in force for a part of clients
	ofModels bool              // a rule has a meter that reads answers of language models
}

// Compiled is a rule as a [Set] holds it, with its defaults filled in. It is shared and
// read-only.
type Compiled struct {
	Name     string
	Enabled  bool
	Action   Action
	MaxDelay time.Duration
	Priority int
	Group    string
	Replaces string // the rule that this one may take the place of
	// ReplacedBy is the rule that may take the place of this one.
	ReplacedBy string
	Penalty    *stint.Penalty // nil: none
	OnFailure  OnFailure
	Status     int
	Message    string
	RetryAfter time.Duration // 0: as computed
	Style      Style

	*conditions
	policy  *stint.Policy // of the penalty
	match   Match         // as written
	entries []*entry      // one for each path, the most specific first, or one if there are no paths
	limits  []limit
	cost    Cost
	regions Regions
	share   *share // nil: the rule is in force, or tried out, for all clients
}

// entry is a rule with one of its paths, or without a path.
type entry struct {
	*conditions
	rule *Compiled
	path pattern
	hit  Hit
	// trial is hit.group for clients on whom the rule is tried out.
	trial int32

	// subject and names are the parts of keys that are the same for every request. The
	// subject is empty if it depends on the request. There is a name for each limit, and
	// one for the penalty; unless they are whole, the values of all dims except the first
	// follow.
	subject string
	names   []string
	whole   bool
}

type limit struct {
	name    string
	counter string // the name, with the number of the counter
	value   stint.Limit
	plan    *stint.Plan   // nil: unlimited
	policy  *stint.Policy // whatever the value is
	// candidate is what may take its place; nil: nothing.
	candidate *limit
}

// Compile checks the file and makes a set of it. The error is [Problems].
func Compile(f File) (*Set, error) {
	checked := f.check(true)
	if len(checked.Problems) > 0 {
		return nil, checked.Problems
	}
	s := &Set{tiers: make(map[string]Values, len(f.Tiers)), plans: map[stint.Limit]*stint.Plan{}}
	for i, t := range f.Tiers {
		s.tiers[t.Name] = checked.values[i]
		for _, l := range checked.values[i] {
			s.plan(l)
		}
	}
	shared := map[string]*conditions{}
	treated := policies{}
	compiled := make([]Compiled, len(f.Rules))
	s.rules = make([]*Compiled, len(f.Rules))
	for i := range compiled {
		compile(&compiled[i], &checked.rules[i], shared)
		s.rules[i] = &compiled[i]
		policy := stint.Policy{OnFailure: failModes[compiled[i].OnFailure]}
		if f.Rules[i].Regions == RegionsCentral {
			policy.Regions = stint.RegionsCentral // a penalty is where the limits are that it answers for
		}
		compiled[i].policy = treated.shared(policy)
		f.Rules[i].share(&policy)
		for j := range compiled[i].limits {
			l, written := &compiled[i].limits[j], &f.Rules[i].Limits[j]
			l.plan = s.plan(l.value)
			policy.Lease, policy.Split = time.Duration(written.Lease), written.Split
			l.policy = treated.shared(policy)
			if l.candidate != nil {
				l.candidate.plan, l.candidate.policy = s.plan(l.candidate.value), l.policy
			}
		}
	}
	for _, r := range s.rules {
		if r.Enabled && r.Replaces != "" {
			s.rules[slices.IndexFunc(s.rules, func(o *Compiled) bool { return o.Name == r.Replaces })].ReplacedBy = r.Name
		}
	}
	slices.SortFunc(s.rules, func(a, b *Compiled) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
	})
	s.methods = make(map[string]string, len(methods))
	for _, m := range methods {
		s.methods[m] = m
	}
	groups := map[rivals]int32{}
	entries := make([]*entry, 0, len(s.rules))
	for i, r := range s.rules {
		rank := int32(i)
		groupOf := func(of rivals) int32 {
			if r.Group == "" {
				return rank
			}
			if _, ok := groups[of]; !ok {
				groups[of] = int32(len(s.rules) + len(groups)) // none of the ranks
			}
			return groups[of]
		}
		group, trial := groupOf(rivals{r.Group, r.trial()}), rank
		if r.share != nil {
			trial = groupOf(rivals{r.Group, true})
			s.partial = s.partial || r.Enabled
		}
		for _, m := range r.methods {
			s.methods[m] = m
		}
		s.ofModels = s.ofModels || r.Enabled && r.cost.Meter.OfModels()
		for _, e := range r.entries {
			e.trial = trial
			e.hit = Hit{Rule: r, Endpoint: e.path.text, entry: e, rank: rank, group: group, Shadow: r.shadow()}
		}
		entries = append(entries, r.entries...)
	}
	slices.SortFunc(entries, compareEntries)
	paths, styled := make([]*entry, 0, len(entries)), []*entry(nil)
	for i, e := range entries {
		e.hit.place = int32(i)
		switch {
		case !e.rule.Enabled:
			continue
		case len(e.rule.match.Paths) > 0:
			paths = append(paths, e)
		default:
			s.other.list = append(s.other.list, candidate{e.conditions, e})
		}
		if e.rule.errorStyle() != "" {
			bare := *e
			bare.conditions, bare.path.rest = new(conditions), e.path.rest || len(e.rule.match.Paths) == 0
			styled = append(styled, &bare)
		}
	}
	if len(styled) > 0 {
		s.styled = sync.OnceValue(func() *tree { return newTree(styled, false) })
		s.styledFolded = sync.OnceValue(func() *tree { return newTree(styled, true) })
	}
	s.pathCase = cmp.Or(f.Case, ExactCase)
	s.folded = sync.OnceValue(func() *tree { return newTree(paths, true) })
	if s.pathCase == IgnoreCase {
		s.paths = s.folded()
	} else {
		s.paths = newTree(paths, false)
	}
	s.other.sort()
	return s, nil
}

// plan returns the plan of a limit, which many rules may share. It is nil for the zero
// Limit.
func (s *Set) plan(l stint.Limit) *stint.Plan {
	p, known := s.plans[l]
	if !known && l != (stint.Limit{}) {
		p, _ = l.Compile() // it was checked
		s.plans[l] = p
	}
	return p
}

// rivals are the rules of a group of which only one applies. A rule that is tried out never takes
// the place of a rule that is in force, so these are rivals only among themselves.
type rivals struct {
	group string
	trial bool
}

// trial reports whether the rule is only tried out. Then it takes the place of no rule that is in force.
func (r *Rule) trial() bool     { return r.Action == LogOnly || r.Replaces != "" }
func (r *Compiled) trial() bool { return r.Action == LogOnly || r.Replaces != "" }

// shadow reports whether the rule counts, and decides nothing.
func (r *Compiled) shadow() bool { return r.Action.Passes() || r.Replaces != "" }

// compareEntries orders entries by priority, by how specific they are, and by name; those
// of one rule by their paths.
func compareEntries(a, b *entry) int {
	x, y := a.rule, b.rule
	if c := cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(min(len(y.match.Paths), 1), min(len(x.match.Paths), 1))); c != 0 {
		return c
	}
	if c := a.path.compare(b.path); c != 0 {
		return c
	}
	if c := cmp.Compare(y.match.conditions(), x.match.conditions()); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(a.path.text, b.path.text))
}

func (m *Match) clone() Match {
	return Match{
		Paths:    slices.Clone(m.Paths),
		Methods:  slices.Clone(m.Methods),
		Tiers:    slices.Clone(m.Tiers),
		IPRanges: slices.Clone(m.IPRanges),
		Headers:  maps.Clone(m.Headers),
	}
}

// conditions returns how many conditions there are.
func (m *Match) conditions() int {
	n := 0
	for _, size := range [...]int{len(m.Paths), len(m.Methods), len(m.Tiers), len(m.IPRanges), len(m.Headers)} {
		n += min(size, 1)
	}
	return n
}

// compile compiles a valid rule, in place.
func compile(c *Compiled, r *checked, shared map[string]*conditions) {
	*c = Compiled{
		Name:       r.Name,
		Enabled:    r.enabled(),
		Action:     cmp.Or(r.Action, Reject),
		MaxDelay:   time.Duration(r.MaxDelay),
		Priority:   r.Priority,
		Group:      r.Group,
		Replaces:   r.Replaces,
		OnFailure:  cmp.Or(r.OnStoreFailure, Local),
		Status:     r.status(),
		Message:    r.Response.Message,
		RetryAfter: time.Duration(r.Response.RetryAfter),
		Style:      r.Response.Style,
		match:      r.Match.clone(),
		cost:       r.Cost,
		regions:    r.Regions,
		share:      shareOf(r.Rule),
	}
	key := r.conditionsKey()
	if c.conditions = shared[key]; c.conditions == nil {
		c.conditions = newConditions(c.match, r.CountBy)
		shared[key] = c.conditions
	}
	if p := r.Penalty; p != nil {
		c.Penalty = &stint.Penalty{
			Threshold: p.Threshold, Within: time.Duration(p.Within), Cooldown: time.Duration(p.Cooldown),
			Multipliers: slices.Clone(p.Multipliers),
		}
	}
	c.cost.Units = cmp.Or(c.cost.Units, c.cost.Reserve, 1)
	c.cost.Meter, _ = ParseMeter(string(c.cost.Meter))
	c.cost.Header = textproto.CanonicalMIMEHeaderKey(c.cost.Header)
	c.limits = make([]limit, len(r.Limits))
	for i, l := range r.Limits {
		c.limits[i] = limit{name: l.Name, counter: l.counter(0), value: r.values[i]}
		if l.Candidate != "" {
			c.limits[i].candidate = &limit{name: l.Name, counter: l.counter(1), value: r.candidates[i]}
		}
	}
	patterns := r.patterns
	if len(patterns) == 0 {
		patterns = []pattern{{}}
	}
	for _, p := range patterns {
		c.entries = append(c.entries, c.under(p))
	}
	slices.SortFunc(c.entries, compareEntries)
}

var failModes = map[OnFailure]stint.FailMode{Local: stint.FailLocal, Open: stint.FailOpen, Closed: stint.FailClosed}

// policies are the policies of a set. Limits with equal ones share them.
type policies map[stint.Policy]*stint.Policy

func (all policies) shared(p stint.Policy) *stint.Policy {
	known := all[p]
	if known == nil {
		known = new(p)
		all[p] = known
	}
	return known
}

// Meter returns what the rule's costs are measured in after requests, and the most that one may cost, or 0. It
// is empty if costs are known before.
func (r *Compiled) Meter() (m Meter, most int64) {
	if r.cost.Meter == "" {
		return "", 0
	}
	return r.cost.Meter, r.cost.Max
}

// Refunds reports whether a request that the server fails to answer costs nothing.
func (r *Compiled) Refunds() bool { return r.cost.OnError == OnErrorRefund }

// Cuts reports whether answers that use more than was reserved are cut.
func (r *Compiled) Cuts() bool { return r.cost.OnOverrun == OnOverrunCut }

// longestDelay returns how long the rule may hold a request.
func (r *Compiled) longestDelay() time.Duration { return cmp.Or(r.MaxDelay, MaxDelay) }

// conditionsKey returns the same text for all rules that have the same conditions, except
// for paths, and count by the same.
func (r *Rule) conditionsKey() string {
	m := &r.Match
	if len(m.Methods)+len(m.Tiers)+len(m.IPRanges)+len(m.Headers) == 0 && len(r.CountBy) < 2 {
		if len(r.CountBy) == 0 {
			return ""
		}
		return string(r.CountBy[0]) // the usual case
	}
	var headers, dims []string
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		headers = append(headers, name, m.Headers[name])
	}
	for _, d := range r.CountBy {
		dims = append(dims, string(d))
	}
	b := append(make([]byte, 0, 256), 0) // no dimension begins with 0
	for _, list := range [][]string{m.Methods, m.Tiers, m.IPRanges, headers, dims} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, text := range list {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return string(b)
}

// under returns the rule with one of its paths.
func (r *Compiled) under(p pattern) *entry {
	e := &entry{conditions: r.conditions, rule: r, path: p}
	tail := ""
	switch dims := r.dims[1]; {
	case len(dims) == 0:
		e.subject, e.whole = "global", true
	case dims[0].kind == byEndpoint:
		e.subject, e.whole = dims[0].prefix+p.text, len(dims) == 1
	case len(dims) == 2 && dims[0].kind != byHeader && dims[1].kind == byEndpoint:
		tail, e.whole = string(appendPart(nil, []byte(p.text))), true
	}
	e.names = make([]string, 0, len(r.limits)+1)
	for _, l := range r.limits {
		e.names = append(e.names, r.Name+":"+l.counter+tail)
	}
	if r.Penalty != nil {
		e.names = append(e.names, r.Name+":penalty!"+tail)
	}
	return e
}

// Rules returns every rule, including disabled ones, by priority and name.
func (s *Set) Rules() []*Compiled { return slices.Clone(s.rules) }

// Len returns how many rules there are, including disabled ones.
func (s *Set) Len() int { return len(s.rules) }

// OfModels reports whether a rule that is enabled has a meter that reads answers of language models.
func (s *Set) OfModels() bool { return s.ofModels }

// StyleOf returns whose clients understand errors of requests to a path, whoever sends them: what the first rule for the path
// says that is about language models, or has a style. It is empty if there is none.
func (s *Set) StyleOf(path string, ignoreCase bool) Style {
	if s.styled == nil {
		return ""
	}
	a := Attrs{IgnoreCase: ignoreCase}
	path, _ = cleanPath(path)
	find := s.styled
	if s.ignoresCase(&a) {
		path, find = FoldCase(path), s.styledFolded
	}
	hits := find().collect(nil, 0, strings.TrimSuffix(path, "/"), &a)
	if len(hits) == 0 {
		return ""
	}
	return slices.MinFunc(hits, func(x, y Hit) int { return cmp.Compare(x.rank, y.rank) }).Rule.errorStyle()
}

// errorStyle returns the rule's style, or that of clients of language models if it is about these.
func (r *Compiled) errorStyle() Style {
	if r.Style == "" && r.cost.Meter.OfModels() {
		return StyleAuto
	}
	return r.Style
}

// Case says whether the case of paths matters: what [File.Case] was.
func (s *Set) Case() Case { return s.pathCase }

// Tiers returns the names of all tiers.
func (s *Set) Tiers() []string { return slices.Sorted(maps.Keys(s.tiers)) }

// Tier reports whether there is a tier with this name.
func (s *Set) Tier(name string) bool {
	_, ok := s.tiers[name]
	return ok
}
