package rule

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/network"
)

// Hit is a rule that applies to a request.
type Hit struct {
	Rule *Compiled
	// Endpoint is the pattern of the rule that the request matches: the most
	// specific one. It is empty if the rule has no paths.
	Endpoint string
	// From and To bound the asks of the rule in what [Set.Asks] returns.
	From, To int
	// Shadow says that the rule decides nothing on this request: it counts, and what it would do is recorded. That is so for
	// log_only and mark rules, for those that may replace another, and for clients who are not among the part for whom the rule
	// is in force.
	Shadow bool
	// Candidate says that this is about the candidate of one limit of the rule: see [Set.Candidates].
	Candidate bool

	entry *entry
	rank  int32  // of the rule among all rules, by priority and name
	group int32  // the same for all rivals; a rule without a group has its own
	place int32  // of the entry among all entries, by priority, specificity and name
	tried uint32 // which of the asks have a candidate
}

// Match appends the rules that apply to the request to dst, by priority and name: all that
// match, except that only the best rule of each group applies, as the package documentation
// says.
//
// Servers disagree on the meaning of an escaped slash, a backslash or a semicolon in a
// path. With such a path, the rules for every reading apply; an allow rule does only if
// every reading is allowed.
func (s *Set) Match(dst []Hit, a *Attrs) []Hit {
	path, marks := cleanPath(a.Path)
	if marks == 0 {
		return s.match(dst, path, a)
	}
	return s.matchAny(dst, otherReadings(a.Path, path, marks), a)
}

// matchAny appends the rules that apply for any of the paths, each once.
func (s *Set) matchAny(dst []Hit, paths []string, a *Attrs) []Hit {
	start, allowed := len(dst), true
	for _, path := range paths {
		from := len(dst)
		dst = s.match(dst, path, a)
		allowed = allowed && allows(dst[from:])
	}
	found := dst[start:]
	slices.SortFunc(found, func(x, y Hit) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.place, y.place))
	})
	found = slices.CompactFunc(found, func(x, y Hit) bool { return x.rank == y.rank })
	if !allowed && len(paths) > 1 {
		found = slices.DeleteFunc(found, func(h Hit) bool { return h.Rule.Action == Allow })
	}
	return dst[:start+len(found)]
}

// allows reports whether hits, which are sorted, let a request pass uncounted: the
// first allow or block rule decides, and block wins a tie of priorities.
func allows(hits []Hit) bool {
	var first *Compiled
	for i := range hits {
		switch r := hits[i].Rule; {
		case r.Action == Allow && first == nil:
			first = r
		case r.Action == Block:
			return first != nil && first.Priority < r.Priority
		}
	}
	return first != nil
}

// match appends the rules that apply if the request has this path, which is clean.
func (s *Set) match(dst []Hit, path string, a *Attrs) []Hit {
	start, paths := len(dst), s.paths
	if s.ignoresCase(a) {
		path = FoldCase(path)
		paths = s.folded()
	}
	dst = paths.collect(dst, 0, strings.TrimSuffix(path, "/"), a)
	dst = s.other.collect(dst, a)
	if s.partial {
		tryOut(dst[start:], a)
	}
	if len(dst)-start < 2 {
		return dst
	}
	// The entries of a rule are alternatives, like the rules of a group.
	found := dst[start:]
	slices.SortFunc(found, func(x, y Hit) int {
		return cmp.Or(cmp.Compare(x.group, y.group), cmp.Compare(x.place, y.place))
	})
	found = slices.CompactFunc(found, func(x, y Hit) bool { return x.group == y.group })
	slices.SortFunc(found, func(x, y Hit) int { return cmp.Compare(x.rank, y.rank) })
	return dst[:start+len(found)]
}

// ignoresCase reports whether the case of the request's path does not matter.
func (s *Set) ignoresCase(a *Attrs) bool { return a.IgnoreCase || s.pathCase == IgnoreCase }

// Method returns the form in which a method is matched and counted: upper case, and
// one of those of net/http or one that a rule names. All others are OTHER, because
// clients may invent any number of them. An empty method stays empty.
func (s *Set) Method(m string) string {
	if m == "" {
		return ""
	}
	var buf [maxName]byte // no rule names a longer one
	if len(m) > len(buf) {
		return otherMethod
	}
	upper := buf[:len(m)]
	for i := range upper {
		upper[i] = m[i]
		if 'a' <= m[i] && m[i] <= 'z' {
			upper[i] -= 'a' - 'A'
		}
	}
	if known, ok := s.methods[string(upper)]; ok {
		return known
	}
	return otherMethod
}

const otherMethod = "OTHER"

// Every appends a hit to dst for every counter that rules may keep for a subject.
// Attrs hold what is known of its user, tenant, API key, address and tier. A rule that
// counts by endpoint has a hit for each endpoint. Conditions other than tiers and, if
// the address is known, networks are assumed to hold.
//
// Counters that others share, or that cannot be known, are left out: those of rules
// that count by none of these, or also by a method, a header or a claim.
func (s *Set) Every(dst []Hit, a *Attrs) []Hit {
	for _, r := range s.rules {
		if !r.Enabled || len(r.limits) == 0 || !r.countsSubject(a) || !r.takesTier(a) || (a.IP.IsValid() && !r.takesAddress(a)) {
			continue
		}
		shadow, from := r.triedOut(a), len(dst)
		for _, e := range r.entries {
			dst = append(dst, e.hit)
			dst[len(dst)-1].Shadow = shadow
		}
		if !r.countsEndpoint() {
			dst = dst[:from+1]
			dst[from].Endpoint = "" // any
		}
	}
	return dst
}

// candidate is an entry, with those of its conditions that are still to be checked.
type candidate struct {
	*conditions
	entry *entry
}

// bucket holds the entries of one path, or those without a path.
type bucket struct {
	list []candidate
	more *index // the entries that are not in the list; nil if there are few
}

// index finds entries by one of their conditions.
type index struct {
	networks network.Table[[]candidate]
	tiers    map[string][]candidate
	headers  []*header
}

type header struct {
	name    string
	present []candidate // any value will do
	values  map[string][]candidate
}

// sort moves entries to an index if there are many.
func (b *bucket) sort() {
	const maxList = 8
	if len(b.list) <= maxList {
		return
	}
	entries := b.list
	b.list = nil
	b.more = &index{tiers: map[string][]candidate{}}
	inside := map[netip.Prefix][]candidate{}
	shared := map[string]*conditions{}
	for _, e := range entries {
		// A request that finds an entry in the index meets the condition that it is
		// indexed by. The other conditions are often the same for many entries, which
		// then share them in memory.
		rest := *e.conditions
		switch {
		case len(e.ranges) > 0:
			rest.ranges, rest.networks = nil, nil
			for _, p := range e.ranges {
				inside[p] = append(inside[p], candidate{rest.in(shared), e.entry})
			}
		case len(e.tiers) > 0:
			rest.tiers = nil
			for _, t := range e.tiers {
				b.more.tiers[t] = append(b.more.tiers[t], candidate{rest.in(shared), e.entry})
			}
		case len(e.headers) > 0:
			if e.headers[0].value != "*" {
				rest.headers = rest.headers[1:]
			}
			b.more.addHeader(e.headers[0], candidate{rest.in(shared), e.entry})
		default:
			b.list = append(b.list, e)
		}
	}
	b.more.networks = network.NewTable(inside)
}

// in returns the conditions in shared that equal these, and adds these if there are none.
func (c *conditions) in(shared map[string]*conditions) *conditions {
	same := fmt.Sprintf("%q %v", []any{c.methods, c.tiers, c.ranges, c.headers}, c.dims)
	if shared[same] == nil {
		shared[same] = c
	}
	return shared[same]
}

func (x *index) addHeader(want wanted, e candidate) {
	i := slices.IndexFunc(x.headers, func(h *header) bool { return h.name == want.name })
	if i < 0 {
		i = len(x.headers)
		x.headers = append(x.headers, &header{name: want.name, values: map[string][]candidate{}})
	}
	if h := x.headers[i]; want.value == "*" {
		h.present = append(h.present, e)
	} else {
		h.values[want.value] = append(h.values[want.value], e)
	}
}

func (b *bucket) collect(dst []Hit, a *Attrs) []Hit {
	dst = appendMet(dst, b.list, a)
	if b.more != nil {
		dst = b.more.collect(dst, a)
	}
	return dst
}

func (x *index) collect(dst []Hit, a *Attrs) []Hit {
	for n := x.networks.Smallest(a.IP); n != nil; n = n.Outer {
		dst = appendMet(dst, n.Value, a)
	}
	dst = appendMet(dst, x.tiers[a.Tier], a)
	for _, h := range x.headers {
		lines := a.lines(h.name)
		if len(lines) == 0 {
			continue
		}
		dst = appendMet(dst, h.present, a)
		for i, v := range lines {
			if same := h.values[v]; len(same) > 0 && !slices.Contains(lines[:i], v) {
				dst = appendMet(dst, same, a)
			}
		}
	}
	return dst
}

// appendMet appends the candidates whose conditions the request meets.
func appendMet(dst []Hit, candidates []candidate, a *Attrs) []Hit {
	for i := range candidates {
		if c := &candidates[i]; c.meets(a) {
			dst = append(dst, c.entry.hit)
		}
	}
	return dst
}

// conditions are what a request must meet, except for the path, and what it is counted
// by. Rules with the same conditions share them, so that even the conditions of many rules
// fit into the processor's cache.
type conditions struct {
	methods, tiers []string
	ranges         []netip.Prefix
	networks       network.Table[struct{}] // of the ranges
	headers        []wanted
	// dims are what is counted by, in the order of keys: if headers are not trusted, and
	// if they are.
	dims [2][]dim
}

// wanted is a header that a request must have, with this value, or with any if it is "*".
type wanted struct{ name, value string }

func newConditions(m Match, by []Dimension) *conditions {
	c := &conditions{methods: m.Methods, tiers: m.Tiers, dims: dimsOf(by)}
	ranges := map[netip.Prefix]struct{}{}
	for _, text := range m.IPRanges {
		p, _ := network.Parse(text)
		c.ranges = append(c.ranges, p)
		ranges[p] = struct{}{}
	}
	c.networks = network.NewTable(ranges)
	for name, value := range m.Headers {
		c.headers = append(c.headers, wanted{textproto.CanonicalMIMEHeaderKey(name), value})
	}
	slices.SortFunc(c.headers, func(a, b wanted) int { return strings.Compare(a.name, b.name) })
	return c
}

// meets reports whether the request meets all conditions, except for its path.
func (c *conditions) meets(a *Attrs) bool {
	return c.takesMethod(a) && c.takesTier(a) && c.takesAddress(a) && c.lacksHeader(a) == nil && c.lacksDim(a) == nil
}

func (c *conditions) takesMethod(a *Attrs) bool {
	return len(c.methods) == 0 || slices.Contains(c.methods, a.Method)
}

func (c *conditions) takesTier(a *Attrs) bool {
	return len(c.tiers) == 0 || slices.Contains(c.tiers, a.Tier)
}

func (c *conditions) takesAddress(a *Attrs) bool {
	return len(c.ranges) == 0 || c.networks.Smallest(a.IP) != nil
}

// lacksHeader returns the first header that the request lacks, or nil.
func (c *conditions) lacksHeader(a *Attrs) *wanted {
	for i := range c.headers {
		w := &c.headers[i]
		if !slices.ContainsFunc(a.lines(w.name), w.is) {
			return w
		}
	}
	return nil
}

func (w *wanted) is(value string) bool {
	return value == w.value || (w.value == "*" && value != "")
}

// lacksDim returns the first dimension of which the request has no value, or nil.
func (c *conditions) lacksDim(a *Attrs) *dim {
	dims := c.countedBy(a)
	for i := range dims {
		if !dims[i].in(a) {
			return &dims[i]
		}
	}
	return nil
}

// countsEndpoint reports whether the rule counts by endpoint.
func (c *conditions) countsEndpoint() bool {
	return slices.ContainsFunc(c.dims[1], func(d dim) bool { return d.kind == byEndpoint })
}

// countsSubject reports whether the rule counts by user, API key, address or tenant, all of
// which are known, and by nothing else except endpoints.
func (c *conditions) countsSubject(a *Attrs) bool {
	named := false
	for _, d := range c.dims[1] {
		switch d.kind {
		case byUser, byKey, byIP, byTenant:
			named = true
		case byEndpoint:
		default:
			return false
		}
	}
	return named && c.lacksDim(a) == nil
}
