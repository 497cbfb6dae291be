package sim

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

// answer says whether the rule matches a request, or why that is unclear.
type answer int

const (
	no answer = iota
	yes
	unclearHeaders
	unclearPath
	unclearOverlap
	unclearEndpoint
	unclearAddress
	answers
)

// whys are the reasons why requests are unclear.
var whys = [answers]string{
	unclearHeaders:  "headers and claims are not recorded",
	unclearPath:     "no path is recorded if the rule that decided had none",
	unclearOverlap:  "the recorded pattern only overlaps with the paths of the rule",
	unclearEndpoint: "the recorded pattern matches several paths of the rule, which are counted separately",
	unclearAddress:  "too little of the address is recorded to tell whether it is in a network of the rule",
}

// match reports whether the rule matches a request and, if so, for which subject.
func (r *replay) match(q *Request) (subject string, a answer) {
	method := r.set.Method(q.Method)
	if len(r.methods) > 0 && !r.methods[method] || len(r.tiers) > 0 && !r.tiers[q.Tier] {
		return "", no
	}
	path, address := r.pathOf(q.Endpoint), r.inNetworks(q.IP)
	if path.answer == no || address == no {
		return "", no
	}
	var parts []string
	headers := len(r.candidate.Match.Headers) > 0
	for _, d := range r.by {
		var value string
		word := string(d)
		switch d {
		case "global":
			return "global", first(headers, path.answer, address)
		case "user":
			value = q.User
		case "tenant":
			value = q.Tenant
		case "api_key":
			value, word = q.Key, "key"
		case "method":
			value = method
		case "ip":
			value = counted(q.IP)
		case "endpoint":
			if path.answer == yes && path.endpoint == "" {
				path.answer = unclearEndpoint
			}
			value = path.endpoint
			parts = append(parts, word+":"+shown(value))
			continue
		default:
			headers = true
			continue
		}
		if value == "" {
			return "", no // a rule only matches requests that it can count
		}
		parts = append(parts, word+":"+shown(value))
	}
	return strings.Join(parts, " "), first(headers, path.answer, address)
}

// first returns the first answer that is unclear, or yes. None of them is no.
func first(headers bool, path, address answer) answer {
	switch {
	case headers:
		return unclearHeaders
	case path != yes:
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

// network parses a recorded address or network.
func network(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil
}

// counted returns what an address is counted by: for IPv6 its /64 network, which is the
// default of servers.
func counted(text string) string {
	const bits = 64
	p, ok := network(text)
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
		all[i], _ = network(text) // the rule is valid
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
func (r *replay) inNetworks(text string) answer {
	switch {
	case len(r.networks) == 0:
		return yes
	case text == "":
		return no
	}
	p, ok := network(text)
	if !ok {
		return unclearAddress
	}
	// Networks before next start at the address, or before it.
	next, _ := slices.BinarySearchFunc(r.networks, p.Addr(), func(n netip.Prefix, a netip.Addr) int {
		return cmp.Or(n.Addr().Compare(a), -1)
	})
	switch {
	case next > 0 && r.networks[next-1].Contains(p.Addr()) && r.networks[next-1].Bits() <= p.Bits():
		return yes
	case next > 0 && p.Contains(r.networks[next-1].Addr()), next < len(r.networks) && p.Contains(r.networks[next].Addr()):
		return unclearAddress
	default:
		return no
	}
}

// path says whether a recorded endpoint matches the rule.
type path struct {
	answer
	endpoint string // of the rule; empty if it is unclear, or if the rule has none
}

// pathOf reports whether a recorded endpoint matches a path of the rule.
func (r *replay) pathOf(endpoint string) path {
	switch {
	case r.paths == nil:
		return path{answer: yes}
	case endpoint == "":
		return path{answer: unclearPath}
	}
	if found, ok := r.known[endpoint]; ok {
		return found
	}
	const maxKnown = 10_000
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
	found := r.look(endpoint)
	r.known[endpoint] = found
	return found
}

func (r *replay) look(endpoint string) path {
	p := r.parse(endpoint)
	if !p.wild {
		hits := r.paths.Match(nil, &rule.Attrs{Path: endpoint})
		if len(hits) == 0 {
			return path{}
		}
		return path{yes, hits[0].Endpoint}
	}
	r.steps -= len(r.patterns) / 16
	var out path
	fits := 0
	for i, of := range r.patterns {
		if !of.overlaps(p) {
			continue
		}
		fits++
		if out.endpoint = ""; fits == 1 {
			out.endpoint = strings.TrimSuffix(r.candidate.Match.Paths[i], "/")
		}
		if of.covers(p) {
			out.answer = yes
		}
	}
	if fits > 0 && out.answer == no {
		return path{answer: unclearOverlap}
	}
	return out
}

// parse parses a path of a rule, or one that was recorded.
func (r *replay) parse(text string) pattern {
	p := parse(text)
	for i := range p.segments {
		if r.ignoreCase {
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
