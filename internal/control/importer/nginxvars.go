package importer

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/stintdev/stint/rule"
)

// value is what a variable may be: its conditions, and what it then stands for.
type value struct {
	match  rule.Match
	by     []rule.Dimension // what it depends on; none: it is text
	text   string
	server bool   // it differs by server
	why    string // rules cannot tell it
}

const maxValues = 64 // that a key may have

// key returns the ways in which a key counts, or why rules cannot count by it.
func (n *nginx) key(at *directive, text string) (keys []branch, server bool, why string) {
	values := n.template(at, text, 0)
	if len(values) > maxValues {
		return nil, false, "it has too many values"
	}
	for _, v := range values {
		if v.why != "" {
			return nil, false, v.why
		}
		server = server || v.server
		keys = append(keys, branch{match: v.match, by: v.by, none: len(v.by) == 0 && v.text == "" && !v.server})
	}
	return n.fallbacks(keys), server, ""
}

// fallbacks adds a way to count for requests that lack one of several values: the key of nginx is then the others.
func (n *nginx) fallbacks(keys []branch) (out []branch) {
	for _, k := range keys {
		out = append(out, k)
		optional := func(d rule.Dimension) bool { return d != "ip" && d != "method" }
		if i := slices.IndexFunc(k.by, optional); i >= 0 && len(k.by) > 1 {
			rest := k
			rest.by = slices.DeleteFunc(slices.Clone(k.by), optional)
			if len(rest.by) > 0 {
				out = append(out, rest)
			}
		}
	}
	return out
}

var variable = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// template returns the values of a text with variables.
func (n *nginx) template(at *directive, text string, depth int) []value {
	out := []value{{}}
	last := 0
	join := func(more []value) {
		var all []value
		for _, a := range out {
			for _, b := range more {
				if clash(a.match, b.match) {
					continue
				}
				v := value{match: merge(a.match, b.match), by: slices.Clone(a.by), text: a.text + b.text, server: a.server || b.server, why: cmp.Or(a.why, b.why)}
				for _, d := range b.by {
					if !slices.Contains(v.by, d) {
						v.by = append(v.by, d)
					}
				}
				if all = append(all, v); len(all) > maxValues {
					out = all
					return
				}
			}
		}
		out = all
	}
	for _, i := range variable.FindAllStringSubmatchIndex(text, -1) {
		join([]value{{text: text[last:i[0]]}})
		var name string
		if i[2] >= 0 {
			name = text[i[2]:i[3]]
		} else {
			name = text[i[4]:i[5]]
		}
		join(n.variable(at, name, depth+1))
		last = i[1]
		if len(out) > maxValues {
			return out
		}
	}
	join([]value{{text: text[last:]}})
	return out
}

// clash reports whether two conditions can never hold together.
func clash(a, b rule.Match) bool {
	for name, v := range a.Headers {
		if w, ok := b.Headers[name]; ok && v != w && v != "*" && w != "*" {
			return true
		}
	}
	return a.IPRanges != nil && b.IPRanges != nil && !slices.Equal(a.IPRanges, b.IPRanges) || a.Methods != nil && b.Methods != nil && !slices.Equal(a.Methods, b.Methods)
}

// addressHeaders are headers in which proxies name the client.
var addressHeaders = []string{"X-Forwarded-For", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Client-Ip"}

// variable returns the values of a variable.
func (n *nginx) variable(at *directive, name string, depth int) []value {
	if depth > 8 {
		return []value{{why: "$" + name + " depends on too many others"}}
	}
	by := func(d rule.Dimension) []value { return []value{{by: []rule.Dimension{d}}} }
	if d, ok := n.vars[name]; ok {
		switch d.name {
		case "map":
			return n.mapped(d, depth)
		case "geo":
			return n.located(d)
		case "set":
			return n.template(at, d.arg(1), depth)
		}
		return []value{{why: "$" + name + " is from " + d.name + ", which rules cannot tell"}}
	}
	header, isHeader := strings.CutPrefix(name, "http_")
	claim, isClaim := strings.CutPrefix(name, "jwt_claim_")
	switch {
	case slices.Contains([]string{"binary_remote_addr", "remote_addr", "realip_remote_addr", "proxy_protocol_addr"}, name):
		if name == "proxy_protocol_addr" {
			n.m.note(at.pos, at.String(), "$proxy_protocol_addr is the client's address: Stint must read the PROXY protocol, or trust the proxy that names it (identity.trusted_proxies)")
		}
		return by("ip")
	case name == "host" || name == "http_host":
		n.m.note(at.pos, at.String(), "counts by host: the proxy in front of Stint must set "+hostHeader+", whatever the client sent")
		return by("header:" + hostHeader)
	case isHeader:
		h := headerName(header)
		if slices.Contains(addressHeaders, h) {
			n.m.note(at.pos, at.String(), "$"+name+" is whatever the client sent; Stint counts by the address that trusted proxies name: set identity.trusted_proxies, and forwarded_header = "+quote(h)+" unless it is that")
			return by("ip")
		}
		n.m.note(at.pos, at.String(), "a value of "+h+" that no trusted proxy has passed on is counted for each address apart (docs/rules.md)")
		return by(rule.Dimension("header:" + h))
	case isClaim:
		n.m.note(at.pos, at.String(), "counts by a claim: set identity.jwt, so that Stint verifies tokens")
		return by(rule.Dimension("claim:" + claim))
	case name == "request_method":
		return by("method")
	case name == "remote_user":
		n.m.note(at.pos, at.String(), "counts by user: have nginx pass $remote_user in a header, and name it in identity.user_header")
		return by("user")
	case name == "server_name":
		return []value{{server: true}}
	}
	what := "which rules do not count by"
	switch {
	case strings.HasPrefix(name, "cookie_"):
		what = "a cookie, and rules do not count by cookies: have a trusted proxy copy it to a header, and count by that"
	case strings.HasPrefix(name, "arg_"):
		what = "a parameter of the query, and rules do not count by those: have a trusted proxy copy it to a header, and count by that"
	case name == "uri" || name == "request_uri" || name == "document_uri":
		what = "each path, and rules count by patterns of paths: write the paths, and count_by endpoint"
	}
	return []value{{why: "$" + name + " is " + what}}
}

func headerName(text string) string {
	parts := strings.Split(strings.ToLower(text), "_")
	for i, p := range parts {
		if p != "" {
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "-")
}

// located returns the values of a variable of geo: those of the smallest networks first.
func (n *nginx) located(d *directive) []value {
	if len(d.args) > 1 && !slices.Contains([]string{"$remote_addr", "$binary_remote_addr"}, d.args[0]) {
		n.m.note(d.pos, d.String(), "finds the network of "+d.args[0]+"; rules find that of the client's address")
	}
	type network struct {
		prefix netip.Prefix
		value  string
	}
	var all []network
	fallback := ""
	for _, e := range d.block {
		switch text := strings.TrimSuffix(e.name, "/"); e.name {
		case "default":
			fallback = e.arg(0)
		case "proxy", "proxy_recursive":
			if e.name == "proxy" {
				n.m.identity.TrustedProxies = append(n.m.identity.TrustedProxies, e.arg(0))
			}
		case "delete":
			n.m.missing(e.pos, e.String(), "rules have no exceptions from networks", "list the networks without it")
		case "ranges":
			n.m.missing(e.pos, e.String(), "rules know networks, and no ranges of addresses", "write them as networks")
			return []value{{text: fallback}}
		default:
			p, err := netip.ParsePrefix(text)
			if err != nil {
				a, failed := netip.ParseAddr(text)
				if failed != nil {
					n.m.missing(e.pos, e.String(), "is not a network", "correct it, and import again")
					continue
				}
				p = netip.PrefixFrom(a, a.BitLen())
			}
			all = append(all, network{p.Masked(), e.arg(0)})
		}
	}
	slices.SortStableFunc(all, func(a, b network) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	var out []value
	for _, w := range all {
		text := w.prefix.String()
		if w.prefix.IsSingleIP() {
			text = w.prefix.Addr().String()
		}
		nested := slices.ContainsFunc(all, func(o network) bool { return o != w && o.prefix.Contains(w.prefix.Addr()) && o.value != w.value })
		i := slices.IndexFunc(out, func(v value) bool { return v.text == w.value })
		if i >= 0 && !nested {
			out[i].match.IPRanges = append(out[i].match.IPRanges, text)
			continue
		}
		out = append(out, value{match: rule.Match{IPRanges: []string{text}}, text: w.value})
	}
	out = slices.DeleteFunc(out, func(v value) bool { return v.text == fallback && !nests(out) })
	return append(out, value{text: fallback})
}

// nests reports whether some networks are inside others.
func nests(values []value) bool {
	var all []netip.Prefix
	for _, v := range values {
		for _, text := range v.match.IPRanges {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p)
			} else if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for i, p := range all {
		for _, q := range all[i+1:] {
			if p.Overlaps(q) {
				return true
			}
		}
	}
	return false
}

// mapped returns the values of a variable of map.
func (n *nginx) mapped(d *directive, depth int) (out []value) {
	names := variable.FindAllString(d.arg(0), -1)
	if len(names) != 1 || names[0] != d.arg(0) {
		return []value{{why: "map " + d.arg(0) + " has more than one variable, and rules compare one value"}}
	}
	name := strings.Trim(names[0], "${}")
	fallback := ""
	var entries []*directive
	for _, e := range d.block {
		switch e.name {
		case "default":
			fallback = e.arg(0)
		case "volatile":
		case "hostnames":
			n.m.missing(e.pos, e.String(), "rules have no patterns for hosts", "write the hosts in full")
		default:
			entries = append(entries, e)
		}
	}
	for _, v := range n.variable(d, name, depth+1) {
		switch {
		case v.why != "":
			return []value{v}
		case len(v.by) == 0:
			for _, w := range n.template(d, chosen(entries, v.text, fallback), depth) {
				w.match = merge(v.match, w.match)
				out = append(out, w)
			}
		case len(v.by) == 1:
			out = append(out, n.compared(d, v, entries, fallback, depth)...)
		}
	}
	return out
}

// chosen returns what a map makes of a text.
func chosen(entries []*directive, text, fallback string) string {
	for _, e := range entries {
		if strings.EqualFold(strings.TrimPrefix(e.name, `\`), text) {
			return e.arg(0)
		}
	}
	for _, e := range entries {
		pattern, ok := strings.CutPrefix(e.name, "~")
		if rest, insensitive := strings.CutPrefix(pattern, "*"); insensitive {
			pattern = "(?i)" + rest
		}
		if re, err := regexp.Compile(pattern); ok && err == nil && re.MatchString(text) {
			return e.arg(0)
		}
	}
	return fallback
}

// compared returns the values of a map whose variable is known only with the request.
func (n *nginx) compared(d *directive, v value, entries []*directive, fallback string, depth int) (out []value) {
	kind, header, _ := strings.Cut(string(v.by[0]), ":")
	absent := -1
	add := func(match rule.Match, text string) {
		for _, w := range n.template(d, text, depth) {
			w.match = merge(merge(v.match, match), w.match)
			out = append(out, w)
		}
	}
	for i, e := range entries {
		switch {
		case strings.HasPrefix(e.name, "~"):
			n.m.missing(e.pos, e.String(), "rules have no patterns for values, so this entry is left out", "have a proxy set a header with a fixed value, and match that")
		case e.name == "" && kind == "header":
			absent = i
		case kind == "header":
			add(rule.Match{Headers: map[string]string{header: e.name}}, e.arg(0))
		case kind == "ip":
			add(rule.Match{IPRanges: []string{e.name}}, e.arg(0))
		case kind == "method":
			add(rule.Match{Methods: []string{strings.ToUpper(e.name)}}, e.arg(0))
		default:
			return []value{{why: "rules cannot match a single " + kind}}
		}
	}
	if absent < 0 {
		add(rule.Match{}, fallback)
		return out
	}
	add(rule.Match{Headers: map[string]string{header: "*"}}, fallback)
	add(rule.Match{}, entries[absent].arg(0))
	return out
}

func quote(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` }
