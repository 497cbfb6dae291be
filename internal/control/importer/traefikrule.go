package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint/rule"
)

// matcher parses rules of routers: Host(`a`) && (PathPrefix(`/x`) || Path(`/y`)).
type matcher struct {
	text  string
	at    int
	depth int
	loose []string // notes
}

// parseMatcher returns the places of a rule: it holds if one of them does.
func parseMatcher(text string) (places []place, loose []string, err error) {
	p := &matcher{text: text}
	places, err = p.any()
	if p.space(); err == nil && p.at < len(p.text) {
		err = fmt.Errorf("%q is not understood", clip(p.text[p.at:]))
	}
	return places, p.loose, err
}

func (p *matcher) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *matcher) take(word string) bool {
	if p.space(); strings.HasPrefix(p.text[p.at:], word) {
		p.at += len(word)
		return true
	}
	return false
}

func (p *matcher) any() (out []place, err error) {
	if p.depth++; p.depth > maxDepth {
		return nil, errors.New("has too many parentheses")
	}
	defer func() { p.depth-- }()
	for {
		more, err := p.all()
		if err != nil {
			return nil, err
		}
		if out = append(out, more...); len(out) > 1024 {
			return nil, errors.New("has too many alternatives")
		}
		if !p.take("||") {
			return out, nil
		}
	}
}

func (p *matcher) all() (out []place, err error) {
	out = []place{{}}
	for {
		more, err := p.one()
		if err != nil {
			return nil, err
		}
		var both []place
		for _, a := range out {
			for _, b := range more {
				c, err := a.and(b)
				if err != nil {
					return nil, err
				}
				if both = append(both, c); len(both) > 1024 {
					return nil, errors.New("has too many alternatives")
				}
			}
		}
		out = both
		if !p.take("&&") {
			return out, nil
		}
	}
}

// and returns a place that is both.
func (a place) and(b place) (place, error) {
	switch {
	case a.host != "" && b.host != "" && a.host != b.host, a.match.Methods != nil && b.match.Methods != nil, a.match.IPRanges != nil && b.match.IPRanges != nil, clash(a.match, b.match):
		return place{}, errors.New("has two conditions of one kind, and rules match if one of their values does")
	case a.pattern != "" && b.pattern != "" && covers(a.pattern, b.pattern):
		a.pattern = b.pattern
	case a.pattern != "" && b.pattern != "" && !covers(b.pattern, a.pattern):
		return place{}, errors.New("has two paths that do not fit together")
	case a.pattern == "":
		a.pattern = b.pattern
	}
	if a.host == "" {
		a.host = b.host
	}
	a.match = merge(a.match, b.match)
	return a, nil
}

func (p *matcher) one() (out []place, err error) {
	if p.take("!") {
		return nil, errors.New("has !, and rules have no such conditions")
	}
	if p.take("(") {
		if out, err = p.any(); err == nil && !p.take(")") {
			err = errors.New("has ( without )")
		}
		return out, err
	}
	p.space()
	start := p.at
	for p.at < len(p.text) && (p.text[p.at] >= 'a' && p.text[p.at] <= 'z' || p.text[p.at] >= 'A' && p.text[p.at] <= 'Z') {
		p.at++
	}
	name := p.text[start:p.at]
	if !p.take("(") {
		return nil, fmt.Errorf("%q is not understood", clip(p.text[start:]))
	}
	var args []string
	for !p.take(")") {
		arg, ok := p.quoted()
		if !ok {
			return nil, fmt.Errorf("%q is not understood", clip(p.text[start:]))
		}
		args = append(args, arg)
		p.take(",")
	}
	return p.condition(name, args)
}

func (p *matcher) quoted() (string, bool) {
	p.space()
	if p.at >= len(p.text) || strings.IndexByte("`\"'", p.text[p.at]) < 0 {
		return "", false
	}
	end := strings.IndexByte(p.text[p.at+1:], p.text[p.at])
	if end < 0 {
		return "", false
	}
	arg := p.text[p.at+1 : p.at+1+end]
	p.at += end + 2
	return arg, true
}

// condition returns the places of one condition.
func (p *matcher) condition(name string, args []string) (out []place, err error) {
	if len(args) == 0 {
		return nil, errors.New(name + " has no values")
	}
	switch name {
	case "Host", "HostHeader", "HostSNI":
		for _, a := range args {
			out = append(out, place{host: strings.ToLower(a)})
		}
	case "PathPrefix":
		for _, a := range args {
			if strings.ContainsAny(a, "{}") {
				return nil, errors.New("PathPrefix(" + a + ") has a variable")
			}
			if a != "/" && !strings.HasSuffix(a, "/") {
				p.loose = append(p.loose, a)
			}
			out = append(out, place{pattern: prefix(a)})
		}
	case "Path":
		for _, a := range args {
			out = append(out, place{pattern: literal(a)})
		}
	case "PathRegexp":
		patterns, ok := fromRegexp(args[0])
		if !ok {
			return nil, errors.New("PathRegexp(" + args[0] + "): rules match paths by segments")
		}
		for _, a := range patterns {
			out = append(out, place{pattern: a})
		}
	case "Method":
		out = []place{{match: rule.Match{Methods: args}}}
	case "Header", "Headers":
		if len(args) != 2 {
			return nil, errors.New(name + " wants a name and a value")
		}
		out = []place{{match: rule.Match{Headers: map[string]string{headerName(strings.ReplaceAll(args[0], "-", "_")): args[1]}}}}
	case "ClientIP":
		out = []place{{match: rule.Match{IPRanges: slices.Clone(args)}}}
	default:
		return nil, errors.New(name + " has no counterpart in rules")
	}
	return out, nil
}
