package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint/rule"
)

// kong is a declarative configuration of Kong.
type kong struct {
	m       *importer
	plugins []*kongPlugin
	routes  []*kongRoute
}

// kongPlugin is a plugin, and what it is for. The most specific of a name is the one that runs.
type kongPlugin struct {
	*tree
	name, service, route, consumer, group string
	used                                  bool
}

type kongRoute struct {
	name, service string
	places        []place
}

// Fields of entities that have nothing to do with limits.
var (
	kongTop = []string{
		"_format_version", "_transform", "_comment", "_info", "_workspace", "_konnect", "_plugin_configs", "services", "routes", "plugins", "consumers", "consumer_groups",
		"upstreams", "certificates", "ca_certificates", "snis", "targets", "vaults", "keys", "key_sets", "keyauth_credentials", "basicauth_credentials", "jwt_secrets", "hmacauth_credentials", "oauth2_credentials", "acls", "rbac_roles", "_ignore", "tags", "licenses", "partials",
	}
	kongService = []string{"name", "id", "url", "host", "port", "protocol", "path", "retries", "connect_timeout", "write_timeout", "read_timeout", "routes", "plugins", "tags", "enabled", "client_certificate", "tls_verify", "tls_verify_depth", "ca_certificates", "created_at", "updated_at"}
	kongFields  = []string{"name", "id", "service", "paths", "hosts", "methods", "headers", "protocols", "strip_path", "preserve_host", "plugins", "tags", "regex_priority", "path_handling", "https_redirect_status_code", "request_buffering", "response_buffering", "snis", "sources", "destinations", "created_at", "updated_at", "expression", "priority"}
	kongUser    = []string{"username", "id", "custom_id", "tags", "plugins", "keyauth_credentials", "basicauth_credentials", "basic_auth", "jwt_secrets", "hmacauth_credentials", "oauth2_credentials", "acls", "groups", "created_at", "updated_at", "key-auth", "mtls_auth_credentials"}
	kongRate    = []string{"rate-limiting", "rate-limiting-advanced"}
)

func (m *importer) kong() error {
	docs, err := m.documents()
	if err != nil {
		return err
	}
	k := &kong{m: m}
	for _, d := range docs {
		m.others(d, "kong", kongTop...)
		k.top(d)
	}
	for _, p := range k.plugins {
		if p.consumer == "" && p.group == "" {
			k.plugin(p)
		}
	}
	for _, d := range docs {
		k.people(d)
	}
	for _, p := range k.plugins {
		if !p.used {
			k.m.missing(p.pos, p.what(), "there is no plugin for all consumers whose limits this one could replace", "write a rule with match.tiers, or give the tier the limit of another rule")
		}
	}
	return nil
}

func (k *kong) top(d *tree) {
	for _, s := range d.items("services") {
		k.m.others(s, "service", kongService...)
		name := cmp.Or(s.str("name"), s.str("id"))
		k.collect(s, kongPlugin{service: name})
		for _, r := range s.items("routes") {
			k.route(r, name)
		}
	}
	for _, r := range d.items("routes") {
		service := r.get("service")
		k.route(r, cmp.Or(service.str("name"), service.str("id"), service.str()))
	}
	k.collect(d, kongPlugin{})
	for _, c := range d.items("consumers") {
		k.collect(c, kongPlugin{consumer: cmp.Or(c.str("username"), c.str("custom_id"), c.str("id"))})
	}
	for _, g := range d.items("consumer_groups") {
		k.m.others(g, "consumer_group", "name", "id", "tags", "plugins", "consumers", "created_at", "updated_at")
		k.collect(g, kongPlugin{group: cmp.Or(g.str("name"), g.str("id"))})
	}
}

// collect remembers the plugins of an entity that limit, and reports those that seem to.
func (k *kong) collect(t *tree, of kongPlugin) {
	for _, p := range t.items("plugins") {
		one := of
		one.tree, one.name = p, p.str("name")
		ref := func(name string) string {
			v := p.get(name)
			return cmp.Or(v.str("name"), v.str("username"), v.str("id"), v.str())
		}
		one.service, one.route = cmp.Or(ref("service"), of.service), cmp.Or(ref("route"), of.route)
		one.consumer, one.group = cmp.Or(ref("consumer"), of.consumer), cmp.Or(ref("consumer_group"), of.group)
		switch {
		case p.str("enabled") == "false":
			if slices.Contains(kongRate, one.name) {
				k.m.note(p.pos, one.what(), "is not enabled, and is left out")
			}
		case slices.Contains(kongRate, one.name):
			k.m.others(p, "plugin", "name", "id", "instance_name", "enabled", "config", "service", "route", "consumer", "consumer_group", "protocols", "tags", "ordering", "created_at", "updated_at")
			k.plugins = append(k.plugins, &one)
		case strings.Contains(one.name, "limit") || one.name == "proxy-cache-advanced-limit":
			instead := "keep it in Kong"
			switch one.name {
			case "ai-rate-limiting-advanced":
				instead = "a rule with cost = { meter = \"llm.total_tokens\" } (docs/llm.md)"
			case "response-ratelimiting":
				instead = "a rule with cost = { meter = \"header:NAME\" } (docs/rules.md)"
			}
			k.m.missing(p.pos, "plugin "+one.name, "has no counterpart that could be imported", instead)
		case one.name == "acl":
			k.m.note(p.pos, "plugin acl", "says who may come at all, which stays with Kong; the groups of consumers become tiers")
		}
	}
}

// what is the plugin in words.
func (p *kongPlugin) what() string {
	text := "plugin " + p.name
	for _, part := range [][2]string{{"service", p.service}, {"route", p.route}, {"consumer", p.consumer}, {"consumer group", p.group}} {
		if part[1] != "" {
			text += " of " + part[0] + " " + part[1]
		}
	}
	return text
}

// route remembers where a route leads from.
func (k *kong) route(r *tree, service string) {
	k.m.others(r, "route", kongFields...)
	name := cmp.Or(r.str("name"), r.str("id"), fmt.Sprintf("route-%d", len(k.routes)+1))
	k.collect(r, kongPlugin{service: service, route: name})
	hosts := r.strs("hosts")
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	if !k.m.serves(hosts...) {
		return
	}
	one := &kongRoute{name: name, service: service}
	k.routes = append(k.routes, one)
	if e := r.get("expression"); e != nil {
		k.m.missing(e.pos, "route "+name, "is an expression, which the import does not read", "write a rule for its paths")
		return
	}
	match := rule.Match{Methods: r.strs("methods")}
	if h := r.get("headers"); h != nil {
		for _, c := range h.members {
			if values := c.strs(); len(values) == 1 && !strings.HasPrefix(values[0], "~*") {
				match.Headers = merge(match, rule.Match{Headers: map[string]string{headerName(strings.ReplaceAll(c.name, "-", "_")): values[0]}}).Headers
			} else {
				k.m.missing(c.at, "route "+name+" headers."+c.name, "a rule matches one value of a header", "write a rule for each value")
			}
		}
	}
	for _, f := range []string{"snis", "sources", "destinations"} {
		if v := r.get(f); v != nil {
			k.m.missing(v.pos, "route "+name+" "+f, "rules do not match it, so limits of this route hold for requests to the same paths from elsewhere as well", "check the paths")
		}
	}
	paths := r.get("paths")
	for _, host := range hosts {
		if paths == nil || len(paths.list) == 0 {
			one.places = append(one.places, place{host, "", match})
			continue
		}
		for _, p := range paths.list {
			one.places = append(one.places, k.path(p, name, host, match)...)
		}
	}
}

func (k *kong) path(p *tree, route, host string, match rule.Match) (out []place) {
	text, regex := strings.CutPrefix(p.text, "~")
	if !regex {
		if text != "/" && !strings.HasSuffix(text, "/") {
			k.m.note(p.pos, "route "+route+" "+text, "matches all paths that begin so, such as "+text+"x; the rule matches "+text+" and what is below it")
		}
		return []place{{host, prefix(text), match}}
	}
	patterns, ok := fromRegexp("^" + strings.TrimPrefix(text, "^"))
	if !ok {
		k.m.missing(p.pos, "route "+route+" "+p.text, "rules match paths by segments, so limits of this route are not imported for it", "write a rule for its paths")
	}
	for _, pattern := range patterns {
		out = append(out, place{host, pattern, match})
	}
	return out
}

// covering returns which plugin of a name runs for a route, of those that are not for consumers.
func (k *kong) covering(name string, r *kongRoute) (best *kongPlugin) {
	rank := func(p *kongPlugin) int {
		switch {
		case p.name != name || p.consumer != "" || p.group != "" || p.route != "" && p.route != r.name || p.service != "" && p.service != r.service && p.route == "":
			return -1
		case p.route != "":
			return 2
		case p.service != "":
			return 1
		}
		return 0
	}
	most := -1
	for _, p := range k.plugins {
		if n := rank(p); n > most {
			best, most = p, n
		}
	}
	return best
}

// plugin makes the counters of a plugin.
func (k *kong) plugin(p *kongPlugin) {
	p.used = true
	var places, except []place
	for _, r := range k.routes {
		if k.covering(p.name, r) == p {
			places = append(places, r.places...)
		} else {
			except = append(except, r.places...)
		}
	}
	if len(k.routes) == 0 && p.service == "" && p.route == "" && k.m.serves("") {
		places = []place{{}}
	}
	if len(places) == 0 {
		k.m.note(p.pos, p.what(), "runs for no route that is imported")
		return
	}
	limits := k.limits(p)
	if len(limits) == 0 {
		return
	}
	c := &counter{pos: p.pos, what: p.what(), name: k.ruleName(p), limits: limits, places: places, except: except}
	k.settings(c, p)
	k.keys(c, p)
	if len(c.keys) > 0 {
		k.m.counters = append(k.m.counters, c)
	}
}

func (k *kong) ruleName(p *kongPlugin) string {
	name := cmp.Or(p.route, p.service, "global")
	if p.name == "rate-limiting-advanced" {
		name += "-advanced"
	}
	return name
}
