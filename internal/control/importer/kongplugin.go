package importer

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

var kongPeriods = []struct{ name, window string }{{"second", "1s"}, {"minute", "1m"}, {"hour", "1h"}, {"day", "day"}, {"month", "month"}, {"year", "year"}}

// Fields of plugins that do not change a limit, or that settings and keys read.
var kongConfig = []string{
	"limit_by", "identifier", "header_name", "path", "policy", "strategy", "fault_tolerant", "hide_client_headers", "error_code", "error_message", "sync_rate", "namespace", "dictionary_name", "lock_dictionary_name",
	"retry_after_jitter_max", "disable_penalty", "limit", "window_size", "window_type", "second", "minute", "hour", "day", "month", "year", "consumer_groups", "enforce_consumer_groups",
}

// limits returns the limits of a plugin.
func (k *kong) limits(p *kongPlugin) (out []limit) {
	c := p.get("config")
	scope := perNode
	switch s := cmp.Or(c.str("policy"), c.str("strategy")); {
	case s == "cluster" || s == "redis":
		scope = shared
	case s == "" && p.name == "rate-limiting-advanced" && c.str("sync_rate") != "-1":
		scope = shared
	}
	if p.name == "rate-limiting" {
		for _, w := range kongPeriods {
			if n, ok := c.number(w.name); ok && n > 0 {
				out = append(out, limit{w.name, fmt.Sprintf("%d/%s fixed_window", n, w.window), amount{max: n, window: w.window, scope: scope}})
			} else if v := c.get(w.name); v != nil && v.text != "" {
				k.m.missing(v.pos, p.what()+" "+w.name+": "+v.text, "is not a number from 1", "correct it, and import again")
			}
		}
		if len(out) == 0 {
			k.m.missing(p.pos, p.what(), "has no limit", "correct it, and import again")
		}
		return out
	}
	algorithm := "sliding_window"
	if c.str("window_type") == "fixed" {
		algorithm = "fixed_window"
	}
	most, size := c.strs("limit"), c.strs("window_size")
	if len(most) == 0 || len(most) != len(size) {
		k.m.missing(p.pos, p.what(), "wants as many limits as window sizes", "correct it, and import again")
		return nil
	}
	for i := range most {
		n, err := strconv.ParseInt(most[i], 10, 64)
		seconds, failed := strconv.ParseInt(size[i], 10, 64)
		if err != nil || failed != nil || n < 1 || seconds < 1 {
			k.m.missing(p.pos, p.what(), "the limit "+most[i]+" in "+size[i]+" s has no counterpart", "write a whole number of units and seconds")
			continue
		}
		window := seconds2window(seconds)
		out = append(out, limit{window, fmt.Sprintf("%d/%s %s", n, window, algorithm), amount{max: n, window: window, scope: scope}})
	}
	return out
}

func seconds2window(s int64) string { return rule.Duration(s * 1e9).String() }

// settings reads what happens to requests over the limit, and when Redis is away.
func (k *kong) settings(c *counter, p *kongPlugin) {
	config := p.get("config")
	for _, f := range config.members {
		if !slices.Contains(kongConfig, f.name) && !strings.HasPrefix(f.name, "redis") {
			k.m.missing(f.at, p.what()+" "+f.name, "is not a field that the import knows, so it may change the limit", "check what it does")
		}
	}
	if len(c.limits) == 1 {
		c.limits[0].name = "" // that of the rule
	}
	if n, ok := config.number("error_code"); ok && n != 429 {
		c.rule.Response.Status = int(n)
	}
	c.rule.Response.Message = config.str("error_message")
	switch config.str("fault_tolerant") {
	case "false":
		c.rule.OnStoreFailure = rule.Closed
	case "true":
		c.rule.OnStoreFailure = rule.Open
	}
	if config.str("hide_client_headers") == "true" {
		k.m.note(p.pos, p.what(), "hides headers about limits from clients: set headers = [\"none\"] of the server")
	}
	if p.name == "rate-limiting-advanced" && config.str("disable_penalty") != "true" && config.str("window_type") != "fixed" {
		k.m.note(p.pos, p.what(), "counts requests that it denies, too, unless disable_penalty is set; Stint never does")
	}
	if n := config.str("namespace"); n != "" && slices.ContainsFunc(k.plugins, func(o *kongPlugin) bool { return o != p && o.group == "" && o.str("config", "namespace") == n }) {
		k.m.missing(p.pos, p.what(), "shares the counters of the namespace "+n+" with another plugin, and rules count apart", "one rule with the paths of both")
	}
}

// keys reads what a plugin counts by. Kong counts by address where a request lacks it.
func (k *kong) keys(c *counter, p *kongPlugin) {
	config := p.get("config")
	by := cmp.Or(config.str("limit_by"), config.str("identifier"), "consumer")
	address := branch{by: []rule.Dimension{"ip"}}
	switch by {
	case "consumer":
		k.m.note(p.pos, p.what(), "counts by consumer: behind Kong, set identity.user_header = \"X-Consumer-Username\" and identity.trusted_proxies to where Kong connects from; in place of Kong, clients need tokens or keys of Stint")
		c.keys = []branch{{by: []rule.Dimension{"user"}}, address}
	case "credential":
		c.keys = []branch{{by: []rule.Dimension{"api_key"}}, address}
	case "ip":
		c.keys = []branch{address}
	case "service":
		c.keys = []branch{{by: []rule.Dimension{"global"}}}
		if p.service == "" && p.route == "" && len(k.routes) > 1 {
			k.m.missing(p.pos, p.what(), "counts for each service, and the rule for all of them together", "write a rule for the paths of each service")
		}
	case "header":
		name := config.str("header_name")
		k.m.note(p.pos, p.what(), "a value of "+name+" that no trusted proxy has passed on is counted for each address apart (docs/rules.md)")
		c.keys = []branch{{by: []rule.Dimension{rule.Dimension("header:" + headerName(strings.ReplaceAll(name, "-", "_")))}}, address}
	case "consumer-group":
		k.m.missing(p.pos, p.what(), "counts all consumers of a group together, and rules count each of a tier", "make the groups tenants, and count_by tenant")
	case "path":
		c.keys = []branch{address}
		k.m.missing(p.pos, p.what(), "counts the path "+config.str("path")+" for all clients together; the rule counts each address", "a rule with match.paths and count_by global")
	default:
		k.m.missing(p.pos, p.what(), "limit_by "+by+" is not known", "correct it, and import again")
	}
}

// people makes users, tiers and keys.
func (k *kong) people(d *tree) {
	k.m.extra.at = map[string]pos{}
	groups := map[string]pos{}
	for _, g := range d.items("consumer_groups") {
		groups[cmp.Or(g.str("name"), g.str("id"))] = g.pos
	}
	var users []catalog.User
	for _, c := range d.items("consumers") {
		k.m.others(c, "consumer", kongUser...)
		u := catalog.User{ID: cmp.Or(c.str("username"), c.str("custom_id"), c.str("id"))}
		var tiers []string
		for _, list := range []string{"acls", "groups"} {
			for _, g := range c.items(list) {
				name := cmp.Or(g.str("group"), g.str("name"), g.str("id"), g.text)
				tiers = appendOnce(tiers, name)
				if _, ok := groups[name]; !ok {
					groups[name] = g.pos
				}
			}
		}
		if len(tiers) > 1 {
			k.m.missing(c.pos, "consumer "+u.ID, "is in the groups "+strings.Join(tiers, ", ")+", and a user has one tier: it is "+tiers[0], "choose the tier")
		}
		if len(tiers) > 0 {
			u.Tier = tierName(tiers[0])
		}
		u.Limits = k.overrides(func(p *kongPlugin) bool { return p.consumer == u.ID })
		k.m.extra.at["user "+u.ID] = c.pos
		k.credentials(c, u.ID)
		users = append(users, u)
	}
	for _, list := range []string{"acls", "keyauth_credentials", "basicauth_credentials", "jwt_secrets"} {
		if v := d.get(list); v != nil {
			k.m.missing(v.pos, list, "the import reads those that are inside of consumers", "nest them, as decK does")
		}
	}
	for name, at := range groups {
		t := rule.Tier{Name: tierName(name)}
		for limit, o := range k.overrides(func(p *kongPlugin) bool { return p.group == name }) {
			if t.Limits == nil {
				t.Limits = map[string]string{}
			}
			t.Limits[limit] = o.Limit
		}
		k.m.extra.at["tier "+t.Name] = at
		k.m.extra.doc.Tiers = append(k.m.extra.doc.Tiers, t)
	}
	slices.SortFunc(k.m.extra.doc.Tiers, func(a, b rule.Tier) int { return cmp.Compare(a.Name, b.Name) })
	k.m.extra.doc.Users = append(k.m.extra.doc.Users, users...)
}

var notName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

func tierName(text string) string { return strings.Trim(notName.ReplaceAllString(text, "-"), "._-") }

// overrides returns the limits of plugins for some consumers, under the names of those that they replace.
func (k *kong) overrides(of func(*kongPlugin) bool) map[string]catalog.Override {
	out := map[string]catalog.Override{}
	for _, p := range k.plugins {
		if (p.consumer == "" && p.group == "") || !of(p) {
			continue
		}
		p.used = true
		limits := k.limits(p)
		replaced := false
		for _, c := range k.m.counters {
			base := c.name
			other := strings.HasSuffix(base, "-advanced") != (p.name == "rate-limiting-advanced")
			named := p.service == "" && p.route == "" || base == k.ruleName(&kongPlugin{name: p.name, service: p.service, route: p.route})
			if other || !named || len(c.keys) == 0 || c.keys[0].by[0] != "user" {
				continue
			}
			replaced = true
			for i, l := range c.limits {
				name := k.m.limitName(tierName(base), l.name)
				j := slices.IndexFunc(limits, func(o limit) bool { return o.before.window == l.before.window })
				if j < 0 {
					out[name] = catalog.Override{Limit: "unlimited"}
					continue
				}
				out[name] = catalog.Override{Limit: limits[j].text}
				_ = i
			}
			for _, l := range limits {
				if !slices.ContainsFunc(c.limits, func(o limit) bool { return o.before.window == l.before.window }) {
					k.m.missing(p.pos, p.what(), "has a limit for "+l.before.window+", and the rule "+base+" has none that it could replace", "add one to the rule")
				}
			}
		}
		if !replaced {
			p.used = false
		}
	}
	return out
}

var stintKey = regexp.MustCompile(`^([a-z0-9_]{1,32})_([A-Za-z0-9]{8,64})_([A-Za-z0-9]{27,128})$`)

// credentials imports the hashes of keys that have the form of Stint's, and reports all others, without them.
func (k *kong) credentials(c *tree, user string) {
	for _, list := range []string{"keyauth_credentials", "key-auth"} {
		for _, cred := range c.items(list) {
			s := stintKey.FindStringSubmatch(cred.str("key"))
			if s == nil || k.m.identity.APIKeyPrefix != "" && k.m.identity.APIKeyPrefix != s[1] {
				k.m.missing(cred.pos, "key of consumer "+user, "keys of Stint are PREFIX_ID_SECRET with 8 or more and 27 or more letters and digits, with one prefix",
					"stint keys create --user "+user+", or leave keys to Kong, which passes X-Consumer-Username")
				continue
			}
			sum := sha256.Sum256([]byte(s[3]))
			k.m.identity.APIKeyPrefix = s[1]
			k.m.extra.doc.APIKeys = append(k.m.extra.doc.APIKeys, catalog.APIKey{ID: s[2], Hash: "sha256:" + hex.EncodeToString(sum[:]), User: user})
			k.m.extra.at["key "+s[2]] = cred.pos
		}
	}
	for _, list := range []string{"basicauth_credentials", "basic_auth", "jwt_secrets", "hmacauth_credentials", "oauth2_credentials", "mtls_auth_credentials"} {
		if v := c.get(list); v != nil {
			instead := "leave them to Kong, which passes X-Consumer-Username"
			if list == "jwt_secrets" {
				instead = "set identity.jwt, or " + instead
			}
			k.m.missing(v.pos, list+" of consumer "+user, "Stint knows API keys and tokens", instead)
		}
	}
}
