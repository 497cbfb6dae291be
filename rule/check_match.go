package rule

import (
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/kit/network"
	"github.com/stintdev/stint/internal/kit/strict"
)

func (c *checker) checkMatch(r *checked) {
	c.checkList("match.paths", r.Match.Paths, func(i int, text string) string {
		p, want := parsePattern(text)
		if want != "" {
			c.Refuse(strict.Item("match.paths", i), text, want, "")
			return ""
		}
		if c.file.Case == IgnoreCase {
			p = p.folded()
		}
		r.patterns = append(r.patterns, p)
		if len(r.Match.Paths) == 1 {
			return "" // there is no other that could equal it
		}
		return p.shape()
	})
	c.checkList("match.methods", r.Match.Methods, func(i int, m string) string {
		switch upper := strings.ToUpper(m); {
		case !IsToken(m) || len(m) > maxName:
			c.Refuse(strict.Item("match.methods", i), m, "a method such as GET, at most "+strconv.Itoa(maxName)+" bytes", "")
		case m != upper:
			if w, ok := strict.Closest(m, methods); ok {
				upper = w
			}
			c.Refuse(strict.Item("match.methods", i), m, "upper case", strict.DidYouMean(upper))
		}
		return m
	})
	c.checkList("match.tiers", r.Match.Tiers, func(i int, tier string) string {
		if _, ok := c.tiers[tier]; !ok {
			c.Refuse(strict.Item("match.tiers", i), tier, "the name of a tier in this file", c.Closest(tier, c.tierNames))
		}
		return tier
	})
	c.checkList("match.ip_ranges", r.Match.IPRanges, func(i int, text string) string {
		p, want := network.Parse(text)
		if want != "" {
			c.Refuse(strict.Item("match.ip_ranges", i), text, want, "")
			return ""
		}
		r.networks = append(r.networks, p)
		return p.String()
	})
	const path = "match.headers"
	switch n := len(r.Match.Headers); {
	case n == 0:
		return
	case n > maxValues:
		c.Add(path, "has "+strconv.Itoa(n)+" headers, want at most "+strconv.Itoa(maxValues), "")
		return
	}
	r.headers = make(map[string]string, len(r.Match.Headers))
	for _, name := range slices.Sorted(maps.Keys(r.Match.Headers)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if _, twice := r.headers[canonical]; twice {
			c.Add(strict.Member(path, name), "the header "+canonical+" is listed twice: case does not matter", "")
		}
		value := r.Match.Headers[name]
		if len(value) > maxValue {
			c.Add(strict.Member(path, name), "has "+strconv.Itoa(len(value))+" bytes, want at most "+strconv.Itoa(maxValue), "")
		}
		r.headers[canonical] = value
		c.checkHeader(strict.Member(path, name), name, name)
	}
}

// checkList checks each value of a condition, and that none is listed twice: check
// returns one form for all spellings of a value, or "" if it is invalid.
func (c *checker) checkList(path string, values []string, check func(i int, value string) string) {
	if len(values) > maxValues {
		c.Add(path, "has "+strconv.Itoa(len(values))+" values, want at most "+strconv.Itoa(maxValues), "")
		return
	}
	var seen map[string]int
	for i, v := range values {
		form := check(i, v)
		if form == "" || len(values) == 1 {
			continue
		}
		if first, twice := seen[form]; twice {
			c.Add(strict.Item(path, i), strict.Quote(v)+" is listed already, as "+strict.Quote(values[first]), "")
			continue
		}
		if seen == nil {
			seen = make(map[string]int, len(values))
		}
		seen[form] = i
	}
}

// shape returns the same text for all patterns that match the same paths.
func (p pattern) shape() string {
	var b strings.Builder
	for _, s := range p.segments {
		if b.WriteByte('/'); s.wild {
			b.WriteByte('*')
		} else {
			// A literal * is escaped in a pattern.
			b.WriteString(strings.ReplaceAll(s.text, "*", "%2A"))
		}
	}
	if p.rest || b.Len() == 0 {
		b.WriteByte('/')
	}
	if p.rest {
		b.WriteString("**")
	}
	return b.String()
}

// checkHeader checks the name of a header, which is part of a value.
func (c *checker) checkHeader(path, value, name string) {
	if !IsToken(name) || len(name) > maxFieldName {
		c.Refuse(path, value, "the name of a header, such as X-App, at most "+strconv.Itoa(maxFieldName)+" bytes", "")
	}
}

// IsToken reports whether the text can be a method or the name of a header.
func IsToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0:
			return false
		}
	}
	return s != ""
}

func (c *checker) checkCountBy(r *checked) {
	const list = "count_by"
	if len(r.CountBy) > maxDimensions {
		c.Add(list, "has "+strconv.Itoa(len(r.CountBy))+" values, want at most "+strconv.Itoa(maxDimensions), "")
		return
	}
	seen := make([]Dimension, 0, maxDimensions)
	for i, d := range r.CountBy {
		kind, name, named := strings.Cut(string(d), ":")
		switch {
		case named && kind == "header":
			c.checkHeader(strict.Item(list, i), string(d), name)
			d = Dimension("header:" + textproto.CanonicalMIMEHeaderKey(name))
		case named && kind == "claim":
			if name == "" || len(name) > maxFieldName || hasControls(name) {
				c.Refuse(strict.Item(list, i), string(d), "the name of a claim after claim:, at most "+strconv.Itoa(maxFieldName)+" bytes", "")
			}
		case named || kind == "header" || kind == "claim" || !slices.Contains(dimensions, kind):
			c.refuseOf(strict.Item(list, i), string(d), dimensions)
			continue
		case d == "global" && len(r.CountBy) > 1:
			c.Add(strict.Item(list, i), "global is one counter for all requests, and cannot be combined", "")
		case d == "endpoint" && len(r.Match.Paths) == 0:
			c.Add(strict.Item(list, i), "endpoint counts by the pattern that matched, and the rule has none: want match.paths", "")
		}
		if slices.Contains(seen, d) {
			c.Add(strict.Item(list, i), strict.Quote(string(d))+" is listed twice", "")
		}
		if seen = append(seen, d); d != "global" && d != "endpoint" {
			r.countBy = append(r.countBy, d)
		}
	}
}

// hasControls reports whether the text has control characters, or is not UTF-8.
func hasControls(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
}
