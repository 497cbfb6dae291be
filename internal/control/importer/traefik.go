package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// traefik is a configuration of Traefik: files, or resources of Kubernetes.
type traefik struct {
	m           *importer
	middlewares map[string]*tree // by name; of Kubernetes, namespace-name
	routers     []*router
	always      []string // middlewares of entry points
}

type router struct {
	pos
	name, text  string
	middlewares []string
	places      []place
}

func (m *importer) traefik() error {
	docs, err := m.documents()
	if err != nil {
		return err
	}
	t := &traefik{m: m, middlewares: map[string]*tree{}}
	for _, d := range lists(docs) {
		if d.str("kind") != "" {
			t.resource(d)
		} else {
			t.file(d)
		}
	}
	var limited []*counter
	var in []*router
	for _, r := range t.routers {
		for _, name := range t.chain(slices.Concat(t.always, r.middlewares), r, 0) {
			if c := t.counter(r, name); c != nil {
				limited, in = append(limited, c), append(in, r)
			}
		}
	}
	for i, c := range limited {
		for _, r := range t.routers {
			if r != in[i] {
				c.except = append(c.except, r.places...)
			}
		}
	}
	m.counters = limited
	t.unused()
	return nil
}

// file reads a file of the file provider, or the static configuration.
func (t *traefik) file(d *tree) {
	if v := d.get("http", "middlewares"); v != nil {
		for _, c := range v.members {
			t.middlewares[c.name] = c.tree
		}
	}
	if v := d.get("http", "routers"); v != nil {
		for _, c := range v.members {
			t.router(c.name, c.at, c.tree.str("rule"), c.strs("middlewares"))
		}
	}
	if v := d.get("tcp", "middlewares"); v != nil {
		for _, c := range v.members {
			if l := c.get("inFlightConn"); l != nil {
				t.m.missing(c.at, "tcp.middlewares."+c.name+".inFlightConn", "limits connections of TCP, and rules limit requests", "keep it in Traefik")
			}
		}
	}
	if v := d.get("entryPoints"); v != nil {
		for _, c := range v.members {
			t.always = append(t.always, c.strs("http", "middlewares")...)
		}
	}
	for _, c := range d.members {
		if !slices.Contains([]string{"http", "tcp", "udp", "tls", "entryPoints", "providers", "api", "log", "accessLog", "metrics", "tracing", "certificatesResolvers", "global", "serversTransport", "ping", "pilot", "hub", "experimental", "core", "hostResolver", "spiffe", "ocsp", "tcpServersTransport"}, c.name) {
			t.m.missing(c.at, c.name, "is not a section that the import knows", "check what it does")
		}
	}
}

// resource reads a resource of Kubernetes.
func (t *traefik) resource(d *tree) {
	space := cmp.Or(d.str("metadata", "namespace"), "default")
	name := d.str("metadata", "name")
	switch d.str("kind") {
	case "Middleware":
		t.middlewares[space+"-"+name] = d.get("spec")
	case "IngressRoute":
		for i, r := range d.items("spec", "routes") {
			var use []string
			for _, w := range r.items("middlewares") {
				use = append(use, cmp.Or(w.str("namespace"), space)+"-"+w.str("name"))
			}
			id := name
			if i > 0 {
				id += "-" + strconv.Itoa(i+1)
			}
			t.router(id, r.pos, r.str("match"), use)
		}
	case "MiddlewareTCP":
		if v := d.get("spec", "inFlightConn"); v != nil {
			t.m.missing(v.pos, "MiddlewareTCP "+name+" inFlightConn", "limits connections of TCP, and rules limit requests", "keep it in Traefik")
		}
	case "Ingress":
		var use []string
		const annotation = "traefik.ingress.kubernetes.io/router.middlewares"
		for one := range strings.SplitSeq(d.get("metadata", "annotations").str(annotation), ",") {
			if one = strings.TrimSpace(one); one != "" {
				use = append(use, one)
			}
		}
		i := &ingressReader{m: t.m}
		i.collect(d)
		r := &router{pos: d.pos, name: name, text: "Ingress " + space + "/" + name, middlewares: use}
		for _, p := range i.places {
			r.places = append(r.places, p.place)
		}
		t.routers = append(t.routers, r)
	}
}

func (t *traefik) router(name string, at pos, text string, use []string) {
	r := &router{pos: at, name: name, text: clip(text), middlewares: use}
	limited := len(use)+len(t.always) > 0
	places, loose, err := parseMatcher(text)
	if err != nil {
		if limited {
			t.m.missing(at, "router "+name+": "+r.text, "its limits, if it has some, are not imported: the rule "+err.Error(), "write a rule for its paths")
		} else {
			t.m.note(at, "router "+name+": "+r.text, "is not understood: the rule "+err.Error()+"; limits of other routers may hold for its requests")
		}
		t.m.serves("")
		return
	}
	for _, l := range loose {
		if limited {
			t.m.note(at, "router "+name, "PathPrefix(`"+l+"`) matches all paths that begin so, such as "+l+"x; the rule matches "+l+" and what is below it")
		}
	}
	for _, p := range places {
		if t.m.serves(p.host) {
			r.places = append(r.places, p)
		}
	}
	t.routers = append(t.routers, r)
}

// chain returns the names of middlewares, those of chains in their place.
func (t *traefik) chain(names []string, r *router, depth int) (out []string) {
	for _, text := range names {
		name := text
		if i := strings.IndexByte(text, '@'); i >= 0 {
			name = text[:i]
		}
		w := t.middlewares[name]
		switch inside := w.get("chain", "middlewares"); {
		case w == nil:
			t.m.missing(r.pos, "router "+r.name+" middleware "+text, "is not in these files, and may limit", "import the file with it as well")
		case inside != nil && depth < maxDepth:
			var more []string
			for _, one := range inside.list {
				if n := one.str("name"); n != "" {
					space, _, _ := strings.Cut(name, "-")
					more = append(more, cmp.Or(one.str("namespace"), space)+"-"+n)
				} else {
					more = append(more, one.text)
				}
			}
			out = append(out, t.chain(more, r, depth+1)...)
		default:
			out = append(out, name)
		}
		if len(out) > 1024 {
			return out
		}
	}
	return out
}

// counter makes the counter of a middleware in a router: each router has its own.
func (t *traefik) counter(r *router, name string) *counter {
	w := t.middlewares[name]
	if len(r.places) == 0 {
		return nil
	}
	for _, kind := range []string{"rateLimit", "inFlightReq"} {
		v := w.get(kind)
		if v == nil {
			continue
		}
		c := &counter{pos: v.pos, what: kind + " " + name + " of router " + r.name, name: r.name + "-" + name, places: slices.Clone(r.places)}
		if kind == "rateLimit" {
			t.rate(c, v)
		} else {
			t.flight(c, v)
		}
		if len(c.limits) == 0 {
			return nil
		}
		t.source(c, v, kind)
		return c
	}
	return nil
}

func (t *traefik) rate(c *counter, v *tree) {
	t.m.others(v, "rateLimit", "average", "period", "burst", "sourceCriterion", "redis")
	average, _ := v.number("average")
	if average == 0 {
		t.m.note(v.pos, c.what, "has no average, so it limits nothing")
		return
	}
	burst, ok := v.number("burst")
	if !ok || burst < 1 {
		burst = 1
	}
	window, period := "1s", time.Second
	if text := v.str("period"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			text = strconv.FormatInt(n, 10) + "s"
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.m.missing(v.pos, c.what, "period "+text+" is not a duration", "correct it, and import again")
			return
		}
		window, period = stint.Every(d).String(), d
	}
	scope := perNode
	if v.get("redis") != nil {
		scope = shared
	}
	c.limits = []limit{{text: fmt.Sprintf("%d/%s token_bucket burst=%d", average, window, burst), before: amount{max: average, window: window, burst: burst, scope: scope}}}
	perSecond := float64(average) / period.Seconds()
	delay := 500 * time.Millisecond
	if perSecond >= 1 {
		delay = time.Second / time.Duration(int64(perSecond)*2)
	}
	if delay = delay.Truncate(time.Millisecond); delay > 0 { // Traefik holds a request until its unit is there
		c.rule.Action, c.rule.MaxDelay = rule.Throttle, rule.Duration(delay)
	}
}

func (t *traefik) flight(c *counter, v *tree) {
	t.m.others(v, "inFlightReq", "amount", "sourceCriterion")
	n, _ := v.number("amount")
	if n < 1 {
		t.m.note(v.pos, c.what, "has no amount, so it limits nothing")
		return
	}
	c.limits = []limit{{text: fmt.Sprintf("%d/30s concurrency", n), before: amount{max: n, scope: perNode}}}
	t.m.note(v.pos, c.what, "counts requests that are served at once, which the gateway and middlewares of Stint know; no one tells forward-auth when a request ends (docs/concurrency.md)")
}

// source reads what a middleware counts by.
func (t *traefik) source(c *counter, v *tree, kind string) {
	s := v.get("sourceCriterion")
	t.m.others(s, kind+".sourceCriterion", "ipStrategy", "requestHeaderName", "requestHost")
	ip, header, host := s.get("ipStrategy"), s.str("requestHeaderName"), s.str("requestHost") == "true"
	switch {
	case header != "":
		h := headerName(strings.ReplaceAll(header, "-", "_"))
		t.m.note(v.pos, c.what, "a value of "+h+" that no trusted proxy has passed on is counted for each address apart (docs/rules.md)")
		c.keys = []branch{{by: []rule.Dimension{rule.Dimension("header:" + h)}}}
	case host, ip == nil && kind == "inFlightReq":
		t.m.note(v.pos, c.what, "counts by host: the proxy in front of Stint must set "+hostHeader+", whatever the client sent")
		c.keys = []branch{{by: []rule.Dimension{rule.Dimension("header:" + hostHeader)}}}
	default:
		c.keys = []branch{{by: []rule.Dimension{"ip"}}}
		t.m.others(ip, "ipStrategy", "depth", "excludedIPs", "ipv6Subnet")
		if depth, _ := ip.number("depth"); depth > 0 {
			t.m.note(ip.pos, c.what, fmt.Sprintf("the client is %d from the right in X-Forwarded-For: set identity.trusted_proxy_depth = %d if only such proxies can connect to Stint, or identity.trusted_proxies to their networks", depth, depth))
		}
		for _, p := range ip.strs("excludedIPs") {
			t.m.identity.TrustedProxies = appendOnce(t.m.identity.TrustedProxies, p)
		}
		if n := ip.str("ipv6Subnet"); n != "" {
			t.m.note(ip.pos, c.what, "set identity.ipv6_prefix = "+n)
		}
	}
}

// unused reports middlewares with limits that no router uses, and what else seems to limit.
func (t *traefik) unused() {
	for name, w := range t.middlewares {
		if w == nil {
			continue
		}
		for _, c := range w.members {
			if c.name == "plugin" {
				t.m.missing(c.at, "middleware "+name, "is a plugin, and may limit", "write a rule if it does")
				continue
			}
			limits := c.name == "rateLimit" || c.name == "inFlightReq"
			used := slices.ContainsFunc(t.m.counters, func(o *counter) bool { return o.pos == c.pos })
			if told := slices.ContainsFunc(t.m.report.Notes, func(f Finding) bool { return f.File == c.file && f.Line == c.line }); limits && !used && !told {
				t.m.note(c.at, c.name+" "+name, "no router that is imported uses it, so it limits nothing")
			}
		}
	}
}
