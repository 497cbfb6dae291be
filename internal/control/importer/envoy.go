package importer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// envoy reads configurations of envoyproxy/ratelimit, and of Envoy itself with its filter local_ratelimit.
func (m *importer) envoy() error {
	var service []descriptor.File
	e := &envoyReader{m: m, lines: map[string]pos{}}
	for _, file := range m.Files {
		data, err := m.load(file)
		if err != nil {
			return err
		}
		docs, err := m.yaml(file, data)
		if err != nil {
			return err
		}
		for _, d := range docs {
			if d.get("domain") != nil && d.get("descriptors") != nil {
				service = append(service, descriptor.File{Name: file, Data: data})
				e.remember(d, d.str("domain"))
				break
			}
			e.walk(d, place{}, "")
		}
	}
	e.filters()
	if len(service) == 0 {
		return nil
	}
	config, err := descriptor.Read(service, descriptor.Options{Merge: true})
	if err != nil {
		return err
	}
	return e.descriptors(config)
}

type envoyReader struct {
	m      *importer
	found  []*localLimit
	places []place        // of routes, whether limited or not
	lines  map[string]pos // of descriptors, by their paths
}

// remember keeps where descriptors are, by their paths as package descriptor writes them.
func (e *envoyReader) remember(t *tree, path string) {
	for _, d := range t.items("descriptors") {
		p := path + "." + d.str("key")
		if v := d.str("value"); v != "" {
			p += "_" + v
		}
		if _, ok := e.lines[p]; !ok {
			e.lines[p] = d.pos
		}
		e.remember(d, p)
	}
}

// localLimit is a filter, or what a route says instead of it.
type localLimit struct {
	*tree
	place
	of string
}

const localType = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

// walk finds filters and routes.
func (e *envoyReader) walk(t *tree, at place, of string) {
	if t == nil {
		return
	}
	if hosts := t.strs("domains"); t.get("routes") != nil && len(hosts) > 0 {
		host := hosts[0]
		if host == "*" {
			host = ""
		}
		if !e.m.serves(host) {
			return
		}
		at.host, of = host, "virtual host "+t.str("name")
		if len(hosts) > 1 && !slices.Contains(hosts, "*") {
			e.m.missing(t.pos, of, "has several domains, and a rule matches one: "+hosts[0], "import with --host")
		}
		e.places = append(e.places, at)
	}
	if match := t.get("match"); match != nil && (t.get("route") != nil || t.get("typed_per_filter_config") != nil || t.get("direct_response") != nil) {
		of = "route " + cmp.Or(t.str("name"), match.str("prefix"), match.str("path"))
		switch {
		case match.get("path") != nil:
			at.pattern = literal(match.str("path"))
		case match.get("prefix") != nil:
			at.pattern = prefix(match.str("prefix"))
			if p := match.str("prefix"); p != "/" && !strings.HasSuffix(p, "/") && t.get("typed_per_filter_config") != nil {
				e.m.note(match.pos, of, "matches all paths that begin so, such as "+p+"x; the rule matches "+p+" and what is below it")
			}
		case match.get("path_separated_prefix") != nil:
			at.pattern = prefix(match.str("path_separated_prefix"))
		default:
			if t.get("typed_per_filter_config") != nil {
				e.m.missing(match.pos, of, "matches in a way that rules cannot", "write a rule for its paths")
			}
			return
		}
		for _, h := range match.items("headers") {
			value := cmp.Or(h.str("exact_match"), h.str("string_match", "exact"))
			switch name := h.str("name"); {
			case name == ":method" && value != "":
				at.match.Methods = []string{value}
			case value != "":
				at.match = merge(at.match, rule.Match{Headers: map[string]string{headerName(strings.ReplaceAll(name, "-", "_")): value}})
			default:
				e.m.missing(h.pos, of+" header "+name, "rules match one value of a header, and a limit of this route is imported without the condition", "write a rule for it")
			}
		}
		e.places = append(e.places, at)
	}
	if kind := t.str("@type"); strings.HasSuffix(kind, localType) {
		e.found = append(e.found, &localLimit{t, at, of})
		return
	} else if strings.HasSuffix(kind, "local_ratelimit.v3.LocalRateLimit") {
		e.m.missing(t.pos, "filter "+kind[strings.LastIndexByte(kind, '/')+1:], "limits connections of TCP, and rules limit requests", "keep it in Envoy")
		return
	} else if strings.Contains(kind, "bandwidth_limit") || strings.Contains(kind, "admission_control") || strings.Contains(kind, "adaptive_concurrency") {
		e.m.missing(t.pos, "filter "+kind[strings.LastIndexByte(kind, '.')+1:], "has no counterpart in rules", "keep it in Envoy")
	} else if strings.HasSuffix(kind, "http.ratelimit.v3.RateLimit") {
		e.m.note(t.pos, "filter RateLimit", "asks a rate limit service, which Stint can be (docs/envoy.md); import its descriptors with this file")
	}
	if v := t.get("circuit_breakers"); v != nil {
		e.m.missing(v.pos, "circuit_breakers", "limits connections and requests to a cluster, and rules limit requests of clients", "keep them in Envoy")
	}
	for _, c := range t.members {
		e.walk(c.tree, at, of)
	}
	for _, c := range t.list {
		e.walk(c, at, of)
	}
}

// filters makes the counters of filters. What a route says replaces what the filter says.
func (e *envoyReader) filters() {
	for _, f := range e.found {
		c := &counter{pos: f.pos, what: strings.TrimSpace("local_ratelimit " + cmp.Or(f.str("stat_prefix"), "") + " " + f.of), name: cmp.Or(f.str("stat_prefix"), "local"), keys: []branch{{by: []rule.Dimension{"global"}}}, places: []place{f.place}}
		if len(e.m.hosts) == 0 {
			e.m.serves("")
		}
		e.m.others(f.tree, "local_ratelimit", "@type", "stat_prefix", "status", "token_bucket", "filter_enabled", "filter_enforced", "response_headers_to_add", "request_headers_to_add_when_not_enforced", "descriptors", "stage", "enable_x_ratelimit_headers", "vh_rate_limits",
			"local_rate_limit_per_downstream_connection", "always_consume_default_token_bucket", "rate_limited_as_resource_exhausted", "local_cluster_rate_limit", "rate_limits")
		scope := perNode
		if f.get("local_cluster_rate_limit") != nil {
			scope = shared
			e.m.note(f.pos, c.what, "divides the limit among the nodes of the local cluster")
		}
		if f.str("local_rate_limit_per_downstream_connection") == "true" {
			e.m.missing(f.pos, c.what, "counts each connection, and rules do not: the rule counts each address", "accept that, or count by user")
			c.keys = []branch{{by: []rule.Dimension{"ip"}}}
		}
		for _, d := range f.items("descriptors") {
			e.m.missing(d.pos, c.what+" descriptor "+entries(d), "what the entries mean is said by actions of routes, which the import does not follow", "write a rule with limit "+bucket(d.get("token_bucket")))
		}
		if f.get("token_bucket") == nil {
			e.m.note(f.pos, c.what, "has no token_bucket, so it limits nothing by itself")
			continue
		}
		text := bucket(f.get("token_bucket"))
		l, err := stint.ParseLimit(text)
		if err != nil {
			e.m.missing(f.get("token_bucket").pos, c.what, "its bucket is not a limit: "+err.Error(), "correct it, and import again")
			continue
		}
		c.limits = []limit{{text: text, before: amount{l.Max, l.Window.String(), l.Burst, scope}}}
		if !e.enabled(f, c) {
			continue
		}
		if code, ok := f.number("status", "code"); ok && code >= 400 {
			c.rule.Response.Status = int(code)
		}
		for _, p := range e.places {
			for _, o := range e.found {
				if o != f && equal(o.match, p.match) && o.host == p.host && o.pattern == p.pattern {
					c.except = append(c.except, p)
				}
			}
		}
		e.m.counters = append(e.m.counters, c)
	}
}

// enabled reports whether a filter is on, for a part of the requests that rules know.
func (e *envoyReader) enabled(f *localLimit, c *counter) bool {
	for _, name := range []string{"filter_enabled", "filter_enforced"} {
		v := f.get(name)
		n, _ := v.number("default_value", "numerator")
		of := map[string]int64{"HUNDRED": 100, "": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}[v.str("default_value", "denominator")]
		switch {
		case n == 0 && name == "filter_enabled":
			e.m.note(f.pos, c.what, "is not enabled, unless Envoy's runtime says otherwise: it is left out")
			return false
		case n == 0:
			e.m.note(f.pos, c.what, "is not enforced, unless Envoy's runtime says otherwise: the rule is log_only")
			c.rule.Action = rule.LogOnly
		case n != of:
			e.m.missing(v.pos, c.what+" "+name, fmt.Sprintf("is for %d of %d requests, and the rule for all", n, of), "begin with action = \"log_only\"")
		}
	}
	return true
}

func entries(d *tree) string {
	var out []string
	for _, one := range d.items("entries") {
		out = append(out, one.str("key")+"="+one.str("value"))
	}
	return strings.Join(out, " ")
}

// bucket returns a token bucket as rules write it.
func bucket(t *tree) string {
	most, fill := t.str("max_tokens"), cmp.Or(t.str("tokens_per_fill"), "1")
	every := t.str("fill_interval")
	if d, err := time.ParseDuration(every); err == nil && d > 0 {
		every = stint.Every(d).String()
	}
	return fmt.Sprintf("%s/%s token_bucket burst=%s", fill, every, most)
}

// descriptors converts those of envoyproxy/ratelimit.
func (e *envoyReader) descriptors(config *descriptor.Config) error {
	text, notes := config.Convert(descriptor.ConvertOptions{})
	at := func(text string) (pos, string) {
		for l := range config.Limits() {
			if rest, ok := strings.CutPrefix(text, l.Path+": "); ok {
				return e.at(l), rest
			}
		}
		return pos{e.m.Files[0], 1}, text
	}
	for _, n := range notes {
		where, why := at(n)
		what, _, _ := strings.Cut(n, ": ")
		if strings.Contains(why, "not converted") || strings.Contains(why, "left out") || strings.Contains(why, "share one counter") {
			e.m.missing(where, what, why, "use these files as they are: stint serve reads them (docs/envoy.md), or stint envoy convert --map")
		} else {
			e.m.note(where, what, why)
		}
	}
	file, err := rule.ParseTOML("converted", []byte(text))
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		return problems
	}
	byName := map[string]*descriptor.Limit{}
	for l := range config.Limits() {
		byName[e.pathOf(text, l.Path)] = l
	}
	for _, r := range file.Rules {
		l := byName[r.Name]
		c := &counter{pos: pos{e.m.Files[0], 1}, what: r.Name}
		if l != nil {
			c.pos, c.what = e.at(l), l.Path
		}
		b := &built{Rule: r, from: c}
		for _, one := range r.Limits {
			v, err := one.Value()
			if err != nil {
				return err
			}
			before := amount{max: v.Max, window: v.Window.String(), scope: shared}
			b.rows = append(b.rows, Limit{File: c.file, Line: c.line, What: clip(c.what), By: byText(r.CountBy), Node: before.of(1), All: before.of(e.m.Nodes), Rule: r.Name, Name: one.Name, After: one.Limit, Scope: shared})
		}
		e.m.names[r.Name] = true
		e.m.ready = append(e.m.ready, b)
	}
	return nil
}

func (e *envoyReader) at(l *descriptor.Limit) pos {
	if at, ok := e.lines[l.Path]; ok {
		return at
	}
	return pos{e.m.Files[0], 1}
}

// pathOf returns the name of the rule that follows the comment with a path.
func (e *envoyReader) pathOf(text, path string) string {
	_, rest, ok := strings.Cut(text, "\n# "+comment(path)+"\n")
	if !ok {
		return ""
	}
	for line := range strings.Lines(rest) {
		if name, ok := strings.CutPrefix(line, "name"); ok {
			return strings.Trim(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), "=")), `"`)
		}
	}
	return ""
}
