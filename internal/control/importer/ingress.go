package importer

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Annotations of ingress-nginx that are about limits; all others are about something else, except those of snippets.
const ingressPrefix = "nginx.ingress.kubernetes.io/"

type ingressPlace struct {
	owner string // namespace and name
	place
	exact string
	at    pos
}

type ingressReader struct {
	m      *importer
	status map[string]*tree // of the config map
	places []ingressPlace
}

func (m *importer) ingress() error {
	docs, err := m.documents()
	if err != nil {
		return err
	}
	r := &ingressReader{m: m, status: map[string]*tree{}}
	docs = lists(docs)
	for _, d := range docs {
		switch d.str("kind") {
		case "ConfigMap":
			r.config(d.get("data"))
		case "Ingress":
			r.collect(d)
		}
	}
	for _, d := range docs {
		if d.str("kind") == "Ingress" {
			r.limits(d)
		}
	}
	return nil
}

// lists returns the documents, with those of lists in their place.
func lists(docs []*tree) (out []*tree) {
	for _, d := range docs {
		if strings.HasSuffix(d.str("kind"), "List") && d.get("items") != nil {
			out = append(out, d.items("items")...)
			continue
		}
		out = append(out, d)
	}
	return out
}

// config reads the settings of the controller.
func (r *ingressReader) config(data *tree) {
	if data == nil {
		return
	}
	for _, c := range data.members {
		switch {
		case c.name == "limit-req-status-code" || c.name == "limit-conn-status-code":
			r.status[c.name] = c.tree
		case c.name == "use-forwarded-headers" && c.text == "true" || c.name == "use-proxy-protocol" && c.text == "true":
			r.m.note(c.at, c.name, "the client's address is that which proxies name: set identity.trusted_proxies")
		case c.name == "forwarded-for-header":
			r.m.identity.ForwardedHeader = c.text
		case c.name == "proxy-real-ip-cidr":
			for _, p := range strings.Split(c.text, ",") {
				r.m.identity.TrustedProxies = appendOnce(r.m.identity.TrustedProxies, strings.TrimSpace(p))
			}
		case strings.HasPrefix(c.name, "limit-rate") && c.text != "0":
			r.m.missing(c.at, c.name+": "+c.text, "limits how fast bytes are sent, and rules limit requests", "keep it in the proxy")
		case strings.HasSuffix(c.name, "-snippet") && strings.Contains(c.text, "limit_"):
			r.m.missing(c.at, c.name, "is a piece of nginx with limits", "import it with: stint import nginx")
		case strings.HasPrefix(c.name, "global-rate-limit"):
			r.m.note(c.at, c.name, "says where ingress-nginx counts; Stint has its own counters")
		}
	}
}

// collect remembers where an Ingress has its paths.
func (r *ingressReader) collect(d *tree) {
	owner := d.str("metadata", "namespace") + "/" + d.str("metadata", "name")
	regex := false
	if a := d.get("metadata", "annotations"); a != nil {
		regex = a.str(ingressPrefix+"use-regex") == "true" || a.str(ingressPrefix+"rewrite-target") != ""
	}
	if d.get("spec", "defaultBackend") != nil {
		if r.m.serves("") {
			r.places = append(r.places, ingressPlace{owner, place{}, "", d.pos})
		}
	}
	for _, rule := range d.items("spec", "rules") {
		host := strings.ToLower(rule.str("host"))
		if !r.m.serves(host) {
			continue
		}
		if rule.get("http") == nil {
			r.places = append(r.places, ingressPlace{owner, place{host: host}, "", rule.pos})
		}
		for _, p := range rule.items("http", "paths") {
			r.path(owner, host, p, regex)
		}
	}
}

func (r *ingressReader) path(owner, host string, p *tree, regex bool) {
	text := p.str("path")
	at := ingressPlace{owner, place{host: host}, "", p.pos}
	switch kind := p.str("pathType"); {
	case text == "" || text == "/":
		if kind == "Exact" {
			at.pattern = "/"
		}
	case kind == "Exact":
		at.pattern = literal(text)
	case regex && strings.ContainsAny(text, `^$()[]*+?|\`):
		patterns, ok := fromRegexp("^" + strings.TrimPrefix(text, "^"))
		if !ok {
			at.exact = "rules match paths by segments, and not by " + text
		}
		for _, pattern := range patterns {
			one := at
			one.pattern = pattern
			r.places = append(r.places, one)
		}
		if ok {
			return
		}
	default:
		at.pattern = prefix(text)
	}
	r.places = append(r.places, at)
}

// limits makes the counters of an Ingress.
func (r *ingressReader) limits(d *tree) {
	owner := d.str("metadata", "namespace") + "/" + d.str("metadata", "name")
	if !slices.ContainsFunc(r.places, func(p ingressPlace) bool { return p.owner == owner }) {
		return
	}
	a := d.get("metadata", "annotations")
	if a == nil {
		return
	}
	multiplier := int64(5)
	var trusted []string
	named := map[string]member{}
	for _, c := range a.members {
		name, ours := strings.CutPrefix(c.name, ingressPrefix)
		switch {
		case !ours:
			if strings.HasPrefix(c.name, "nginx.org/limit-") || strings.HasPrefix(c.name, "nginx.org/rate-limit") || strings.Contains(name, "nginx") && strings.Contains(name, "/limit-") {
				r.m.missing(c.at, c.name+": "+c.text, "is an annotation of another controller", "write it as a rule")
			}
		case name == "limit-burst-multiplier":
			if n, err := strconv.ParseInt(c.text, 10, 32); err == nil && n > 0 {
				multiplier = n
			}
		case name == "limit-whitelist" || name == "limit-allowlist":
			trusted = networks(c.text)
		case name == "limit-rate" || name == "limit-rate-after":
			if c.text != "0" {
				r.m.missing(c.at, name+": "+c.text, "limits how fast bytes are sent, and rules limit requests", "keep it in the proxy; a rule with cost = { meter = \"response_bytes\" } limits how many bytes a client gets")
			}
		case strings.HasSuffix(name, "-snippet"):
			if strings.Contains(c.text, "limit_") {
				r.m.missing(c.at, name, "is a piece of nginx with limits", "import it with: stint import nginx")
			}
		case strings.HasPrefix(name, "limit-") || strings.HasPrefix(name, "global-rate-limit"):
			named[name] = c
		}
	}
	for _, name := range []string{"limit-rps", "limit-rpm", "limit-connections", "global-rate-limit"} {
		if c, ok := named[name]; ok {
			r.counter(d, owner, name, c, multiplier, trusted, named)
		}
		delete(named, name)
	}
	for name, c := range named {
		if !strings.HasPrefix(name, "global-rate-limit-") {
			r.m.missing(c.at, name+": "+c.text, "is not an annotation that the import knows", "check what it does")
		}
	}
}

func networks(text string) (out []string) {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			out = appendOnce(out, one)
		}
	}
	return out
}

func (r *ingressReader) counter(d *tree, owner, name string, a member, multiplier int64, trusted []string, others map[string]member) {
	most, err := strconv.ParseInt(a.text, 10, 64)
	what := name + ": " + a.text
	if err != nil || most < 1 {
		if a.text != "0" {
			r.m.missing(a.at, what, "is not a number from 1", "correct it, and import again")
		}
		return
	}
	c := &counter{pos: a.at, what: what + " of " + owner, name: d.str("metadata", "name") + "-" + strings.TrimPrefix(name, "limit-"), keys: []branch{{by: []rule.Dimension{"ip"}}}}
	status := "limit-req-status-code"
	before := amount{max: most, scope: perNode}
	switch name {
	case "limit-rps", "limit-rpm":
		before.window, before.burst = map[string]string{"limit-rps": "1s", "limit-rpm": "1m"}[name], most*multiplier+1
		c.limits = []limit{{text: fmt.Sprintf("%d/%s token_bucket burst=%d", most, before.window, before.burst), before: before}}
		r.m.note(a.at, what, fmt.Sprintf("lets %d pass at once: limit-burst-multiplier times the limit, and one", before.burst))
	case "limit-connections":
		status = "limit-conn-status-code"
		c.limits = []limit{{text: fmt.Sprintf("%d/30s concurrency", most), before: before}}
		r.m.note(a.at, what, "counts requests that are served at once, which the gateway and middlewares of Stint know; no one tells forward-auth when a request ends (docs/concurrency.md)")
	default:
		why := r.global(c, most, others)
		if why != "" {
			r.m.missing(a.at, what, why, "write a rule that counts by what the client cannot choose")
			return
		}
		status, trusted = "", networks(others["global-rate-limit-ignored-cidrs"].str())
	}
	if code := r.status[status]; code != nil {
		c.rule.Response.Status, _ = strconv.Atoi(code.text)
	} else if status != "" {
		r.m.note(a.at, what, "is answered with 503 unless "+status+" says otherwise, and with 429 by the rule")
	}
	if len(trusted) > 0 {
		c.keys = append(c.keys, branch{match: rule.Match{IPRanges: valid(trusted)}, none: true})
	}
	for _, p := range r.places {
		switch {
		case p.owner != owner:
			c.except = append(c.except, p.place)
		case p.exact != "":
			r.m.missing(p.at, what, "is not imported for this path: "+p.exact, "write a rule for its paths")
		default:
			c.places = append(c.places, p.place)
		}
	}
	r.m.counters = append(r.m.counters, c)
}

func (m member) str() string {
	if m.tree == nil {
		return ""
	}
	return m.text
}

// valid returns those texts that are networks.
func valid(all []string) (out []string) {
	for _, text := range all {
		_, err := netip.ParsePrefix(text)
		if _, one := netip.ParseAddr(text); err == nil || one == nil {
			out = append(out, text)
		}
	}
	return out
}

// global reads global-rate-limit, which is counted for all replicas.
func (r *ingressReader) global(c *counter, most int64, others map[string]member) (why string) {
	window := others["global-rate-limit-window"].str()
	if w, err := stint.ParseWindow(window); err != nil || w.Length() == 0 {
		return "wants a global-rate-limit-window such as 1m"
	}
	c.limits = []limit{{text: fmt.Sprintf("%d/%s sliding_window", most, window), before: amount{max: most, window: window, scope: shared}}}
	if key := others["global-rate-limit-key"].str(); key != "" {
		n := &nginx{m: r.m, vars: map[string]*directive{}}
		c.keys, _, why = n.key(&directive{pos: others["global-rate-limit-key"].at, name: "global-rate-limit-key", args: []string{key}}, key)
	}
	return why
}
