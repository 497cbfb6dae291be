package recorded

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/stintdev/stint/rule"
)

// Answer says whether a rule matches a request, or why that is unclear.
type Answer int

// The answers.
const (
	No Answer = iota
	Yes
	UnclearHeaders
	UnclearPath
	UnclearOverlap
	UnclearEndpoint
	UnclearAddress
	UnclearMissing
	// Answers is how many there are.
	Answers
)

// whys are the reasons why requests are unclear.
var whys = [Answers]string{
	UnclearHeaders:  "headers and claims are not recorded",
	UnclearPath:     "they were recorded without a path",
	UnclearOverlap:  "what is recorded of the path only overlaps with the paths of the rule",
	UnclearMissing:  "their events were deleted or archived, and only their number is known",
	UnclearEndpoint: "what is recorded of the path matches several paths of the rule, which are counted separately",
	UnclearAddress:  "too little of the address is recorded to tell whether it is in a network of the rule",
}

// Unclear reports whether it is neither [Yes] nor [No].
func (a Answer) Unclear() bool { return a > Yes }

// Why says why it is unclear.
func (a Answer) Why() string { return whys[a] }

// Matcher tells which requests a rule matches, as far as the record says so. Not for concurrent use.
type Matcher struct {
	// Headers says that the rule has conditions on headers, or counts by a header or a claim.
	Headers    bool
	set        *rule.Set
	by         []rule.Dimension
	texts      []string  // the rule's paths
	paths      *rule.Set // the same; nil if it has none
	patterns   []pattern // the same
	methods    map[string]bool
	tiers      map[string]bool
	networks   []netip.Prefix // in order, and none in another
	known      map[string]path
	ignoreCase bool
	steps      int // patterns that were compared
}

// NewMatcher returns the matcher of a rule of the set, which was compiled from it.
func NewMatcher(r *rule.Rule, set *rule.Set, by []rule.Dimension) (*Matcher, error) {
	m := &Matcher{
		set: set, by: by, texts: r.Match.Paths, methods: setOf(r.Match.Methods), tiers: setOf(r.Match.Tiers), networks: networksOf(r.Match.IPRanges),
		known: map[string]path{}, ignoreCase: set.Case() == rule.IgnoreCase, Headers: len(r.Match.Headers) > 0,
	}
	for _, d := range by {
		word, _, _ := strings.Cut(string(d), ":")
		m.Headers = m.Headers || word == "header" || word == "claim"
	}
	if len(m.texts) > 0 {
		only := rule.Rule{Name: "paths", Match: rule.Match{Paths: m.texts}, Action: rule.Block}
		var err error
		if m.paths, err = rule.Compile(rule.File{Rules: []rule.Rule{only}, Case: set.Case()}); err != nil {
			return nil, err
		}
		for _, text := range m.texts {
			m.patterns = append(m.patterns, m.parse(text))
		}
	}
	return m, nil
}

func setOf(values []string) map[string]bool {
	set := make(map[string]bool, len(values))
	for _, v := range values {
		set[v] = true
	}
	return set
}

// Steps returns how many patterns were compared, for callers that bound their work.
func (m *Matcher) Steps() int { return m.steps }

// Paths reports whether the rule has paths, and Networks whether it has networks.
func (m *Matcher) Paths() bool { return m.paths != nil }

// Networks reports whether the rule has networks.
func (m *Matcher) Networks() bool { return len(m.networks) > 0 }

// Match reports whether the rule matches a request and, if so, for which subject.
func (m *Matcher) Match(q *Request) (subject string, a Answer) {
	method := m.set.Method(q.Method)
	if len(m.methods) > 0 && !m.methods[method] || len(m.tiers) > 0 && !m.tiers[q.Tier] {
		return "", No
	}
	path, address := m.pathOf(cmp.Or(q.Path, q.Endpoint)), m.inNetworks(q.IP)
	if path.Answer == No || address == No {
		return "", No
	}
	var parts []string
	for _, d := range m.by {
		var value string
		word := string(d)
		switch d {
		case "global":
			return "global", first(m.Headers, path.Answer, address)
		case "user":
			value = q.User
		case "tenant":
			value = q.Tenant
		case "api_key":
			value, word = q.Key, "key"
		case "method":
			value = method
		case "ip":
			value = Counted(q.IP)
		case "endpoint":
			if path.Answer == Yes && path.endpoint == "" {
				path.Answer = UnclearEndpoint
			}
			value = path.endpoint
			parts = append(parts, word+":"+shown(value))
			continue
		default:
			continue // a header or a claim
		}
		if value == "" {
			return "", No // a rule only matches requests that it can count
		}
		parts = append(parts, word+":"+shown(value))
	}
	return strings.Join(parts, " "), first(m.Headers, path.Answer, address)
}

// first returns the first answer that is unclear, or yes. None of them is no.
func first(headers bool, path, address Answer) Answer {
	switch {
	case headers:
		return UnclearHeaders
	case path != Yes:
		return path
	default:
		return address
	}
}

// shown returns a value in a short form that stays unique, quoted if necessary.
func shown(value string) string {
	const longest, kept = 128, 64
	if len(value) > longest {
		sum := sha256.Sum256([]byte(value))
		value = value[:kept] + "#" + hex.EncodeToString(sum[:8])
	}
	odd := func(c rune) bool { return c == ' ' || c == '"' || c == unicode.ReplacementChar || !unicode.IsPrint(c) }
	if strings.ContainsFunc(value, odd) {
		return strconv.Quote(value)
	}
	return value
}

// Network parses a recorded address or network.
func Network(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil
}

// Counted returns what an address is counted by: for IPv6 its /64 network, which is the
// default of servers.
func Counted(text string) string {
	const bits = 64
	p, ok := Network(text)
	switch {
	case !ok:
		return text
	case p.IsSingleIP() && p.Addr().Is4():
		return p.Addr().String()
	case p.Bits() > bits:
		p, _ = p.Addr().Prefix(bits)
	}
	return p.String()
}

// networksOf parses the networks of a rule, in order, without those that are in others.
func networksOf(texts []string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i], _ = Network(text) // the rule is valid
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := all[:0]
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// inNetworks reports whether an address is in a network of the rule.
func (m *Matcher) inNetworks(text string) Answer {
	switch {
	case len(m.networks) == 0:
		return Yes
	case text == "":
		return No
	}
	p, ok := Network(text)
	if !ok {
		return UnclearAddress
	}
	// Networks before next start at the address, or before it.
	next, _ := slices.BinarySearchFunc(m.networks, p.Addr(), func(n netip.Prefix, a netip.Addr) int {
		return cmp.Or(n.Addr().Compare(a), -1)
	})
	switch {
	case next > 0 && m.networks[next-1].Contains(p.Addr()) && m.networks[next-1].Bits() <= p.Bits():
		return Yes
	case next > 0 && p.Contains(m.networks[next-1].Addr()), next < len(m.networks) && p.Contains(m.networks[next].Addr()):
		return UnclearAddress
	default:
		return No
	}
}

// path says whether a recorded path or endpoint matches the rule.
type path struct {
	Answer
	endpoint string // of the rule; empty if it is unclear, or if the rule has none
}

// pathOf reports whether a recorded path or endpoint matches a path of the rule.
func (m *Matcher) pathOf(endpoint string) path {
	switch {
	case m.paths == nil:
		return path{Answer: Yes}
	case endpoint == "":
		return path{Answer: UnclearPath}
	}
	if found, ok := m.known[endpoint]; ok {
		return found
	}
	const maxKnown = 10_000
	if len(m.known) >= maxKnown {
		clear(m.known)
	}
	found := m.look(endpoint)
	m.known[endpoint] = found
	return found
}

func (m *Matcher) look(endpoint string) path {
	p := m.parse(endpoint)
	if !p.wild {
		hits := m.paths.Match(nil, &rule.Attrs{Path: endpoint})
		if len(hits) == 0 {
			return path{}
		}
		return path{Yes, hits[0].Endpoint}
	}
	m.steps += len(m.patterns)
	var out path
	fits := 0
	for i, of := range m.patterns {
		if !of.overlaps(p) {
			continue
		}
		fits++
		if out.endpoint = ""; fits == 1 {
			out.endpoint = strings.TrimSuffix(m.texts[i], "/")
		}
		if of.covers(p) {
			out.Answer = Yes
		}
	}
	if fits > 0 && out.Answer == No {
		return path{Answer: UnclearOverlap}
	}
	return out
}

// parse parses a path of a rule, or one that was recorded.
func (m *Matcher) parse(text string) pattern {
	p := parse(text)
	for i := range p.segments {
		if m.ignoreCase {
			p.segments[i] = rule.FoldCase(p.segments[i])
		}
	}
	return p
}

// pattern is a path of a rule, for comparisons.
type pattern struct {
	segments []string // "*" is any
	rest     bool     // ends in **
	wild     bool
}

func parse(text string) pattern {
	var p pattern
	for s := range strings.SplitSeq(strings.Trim(text, "/"), "/") {
		switch {
		case s == "":
			continue // the path /
		case s == "**":
			p.rest, p.wild = true, true
			return p
		case s == "*" || strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}"):
			s, p.wild = "*", true
		default:
			// A literal * is escaped in a pattern, and is not a wildcard.
			s = strings.ReplaceAll(rule.CleanPath("/" + s)[1:], "*", "%2A")
		}
		p.segments = append(p.segments, s)
	}
	return p
}

// overlaps reports whether there are paths that both match.
func (p pattern) overlaps(q pattern) bool {
	n := min(len(p.segments), len(q.segments))
	for i := range n {
		if a, b := p.segments[i], q.segments[i]; a != b && a != "*" && b != "*" {
			return false
		}
	}
	return (len(p.segments) == n || q.rest) && (len(q.segments) == n || p.rest)
}

// covers reports whether p matches every path that q matches.
func (p pattern) covers(q pattern) bool {
	n := len(p.segments)
	if len(q.segments) < n || !p.rest && (q.rest || len(q.segments) > n) {
		return false
	}
	for i, s := range p.segments {
		if s != "*" && s != q.segments[i] {
			return false
		}
	}
	return true
}
