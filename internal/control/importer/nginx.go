package importer

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/rule"
)

// nginx is a configuration of nginx.
type nginx struct {
	m     *importer
	vars  map[string]*directive // map, geo, set, and others that make variables
	zones map[string]*directive // by kind and name: limit_req_zone and limit_conn_zone
	sites []*site
	uses  map[string]*counter
	order []string // of uses
	tried map[*directive]bool
	ipv6  bool // the note about addresses was made
}

// level is what a block has of limits, of its own or inherited.
type level struct {
	req, conn             []*directive
	reqStatus, connStatus *directive
	reqDry, connDry       bool
	answers               *directive // a return, before which nothing is counted
}

// site is what a server or a location is.
type site struct {
	host    string
	pattern string
	exact   string // why the pattern is not what nginx matches
	regex   bool
	at      *directive
	level   level
}

func (m *importer) nginx() error {
	n := &nginx{m: m, vars: map[string]*directive{}, zones: map[string]*directive{}, uses: map[string]*counter{}, tried: map[*directive]bool{}}
	var all []*directive
	for _, f := range m.Files {
		more, err := m.parseNginx(f, filepath.Dir(f), nil, 0)
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	http := &directive{name: "http", open: true}
	for _, d := range all {
		switch d.name {
		case "http":
			http.pos = d.pos
			http.block = append(http.block, d.block...)
		case "stream":
			n.stream(d)
		default:
			http.block = append(http.block, d) // a file that the http block includes
		}
	}
	n.collect(http)
	l := n.level(http, level{})
	for _, s := range http.all("server") {
		n.server(s, l)
	}
	n.count()
	for _, z := range n.order {
		m.counters = append(m.counters, n.uses[z])
	}
	n.unused()
	return nil
}

// stream reports limits of connections, which are below HTTP.
func (n *nginx) stream(d *directive) {
	for _, c := range d.block {
		if strings.HasPrefix(c.name, "limit_conn") && c.name != "limit_conn_log_level" {
			n.m.missing(c.pos, c.String(), "limits connections of TCP or UDP, and rules limit requests", "keep it in nginx")
		}
		n.stream(c)
	}
}

// collect finds what makes variables, and zones.
func (n *nginx) collect(d *directive) {
	for _, c := range d.block {
		switch c.name {
		case "map", "geo", "split_clients", "keyval", "auth_jwt_claim_set", "js_set", "perl_set", "set_by_lua_block":
			if last := len(c.args) - 1; last >= 0 {
				i := last
				if c.name == "js_set" || c.name == "auth_jwt_claim_set" || c.name == "perl_set" || c.name == "set_by_lua_block" {
					i = 0
				}
				n.vars[strings.Trim(c.args[i], "${}")] = c
			}
		case "set":
			name := strings.TrimPrefix(c.arg(0), "$")
			if old, ok := n.vars[name]; ok && old.arg(1) != c.arg(1) {
				c = &directive{pos: c.pos, name: "several set"}
			}
			n.vars[name] = c
		case "limit_req_zone", "limit_conn_zone":
			name, _, _ := strings.Cut(n.option(c, "zone="), ":")
			n.zones[strings.TrimSuffix(c.name, "_zone")+" "+name] = c
		}
		n.collect(c)
	}
}

// option returns the value of an argument such as zone=one:10m.
func (n *nginx) option(d *directive, name string) string {
	for _, a := range d.args {
		if v, ok := strings.CutPrefix(a, name); ok {
			return v
		}
	}
	return ""
}

// level returns the limits of a block: limit_req and limit_conn are inherited only if it has none of its own.
func (n *nginx) level(d *directive, up level) level {
	l := up
	l.answers = nil
	if own := d.all("limit_req"); len(own) > 0 {
		l.req = own
	}
	if own := d.all("limit_conn"); len(own) > 0 {
		l.conn = own
	}
	for _, c := range d.block {
		switch c.name {
		case "limit_req_status":
			l.reqStatus = c
		case "limit_conn_status":
			l.connStatus = c
		case "limit_req_dry_run":
			l.reqDry = c.arg(0) == "on"
		case "limit_conn_dry_run":
			l.connDry = c.arg(0) == "on"
		case "return":
			l.answers = c
		case "set_real_ip_from":
			if text := c.arg(0); text != "unix:" {
				n.m.identity.TrustedProxies = appendOnce(n.m.identity.TrustedProxies, text)
			}
		case "real_ip_header":
			if h := c.arg(0); h == "proxy_protocol" {
				n.m.note(c.pos, c.String(), "Stint must read the PROXY protocol, too, if it is connected to directly")
			} else {
				n.m.identity.ForwardedHeader = h
			}
		case "limit_req", "limit_conn", "limit_req_zone", "limit_conn_zone", "map", "geo", "set", "server", "location", "if", "include":
		case "upstream":
			n.upstream(c)
		default:
			n.other(c)
		}
	}
	return l
}

func appendOnce(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// other reports a directive that is not used, unless it has nothing to do with limits.
func (n *nginx) other(c *directive) {
	switch {
	case slices.Contains(bandwidth, c.name):
		if c.arg(0) != "0" {
			n.m.missing(c.pos, c.String(), "limits how fast bytes are sent, and rules limit requests", "keep it in nginx; a rule with cost = { meter = \"response_bytes\" } limits how many bytes a client gets")
		}
	case strings.Contains(c.name, "_by_lua") || strings.Contains(c.name, "_by_njs"):
		if code := c.text + c.String(); strings.Contains(code, "limit") {
			n.m.missing(c.pos, c.name, "is a program that seems to limit requests", "write what it does as rules")
		}
	case !isIrrelevant(c.name):
		n.m.missing(c.pos, c.String(), "is not a directive that the import knows, so it may limit requests", "write what it does as rules, if it does")
	}
}

func (n *nginx) upstream(d *directive) {
	for _, c := range d.block {
		switch {
		case c.name == "server":
			if v := n.option(c, "max_conns="); v != "" && v != "0" {
				n.m.missing(c.pos, c.String(), "max_conns limits connections to a server, and rules limit requests of clients", "keep it in nginx, or write a rule with a limit of "+v+"/30s concurrency")
			}
		case !isIrrelevant(c.name):
			n.other(c)
		}
	}
}

// server reads a server and its locations.
func (n *nginx) server(d *directive, up level) {
	l := n.level(d, up)
	if l.answers != nil && len(d.all("location")) == 0 {
		if len(d.all("limit_req"))+len(d.all("limit_conn")) > 0 {
			n.m.note(l.answers.pos, l.answers.String(), "answers before anything is counted, so the limits of this server have no effect")
		}
		return // it only redirects
	}
	var names []string
	for _, s := range d.all("server_name") {
		names = append(names, s.args...)
	}
	if len(names) == 0 {
		names = []string{""}
	}
	if !n.m.serves(names...) {
		return
	}
	n.ifs(d)
	for _, host := range names {
		host = strings.ToLower(host)
		sites := []*site{{host: host, at: d, level: l}}
		if l.answers == nil {
			sites = n.locations(d, host, l, sites)
		}
		n.overlaps(sites)
		n.sites = append(n.sites, sites...)
	}
}

// ifs reports what blocks of if have of limits.
func (n *nginx) ifs(d *directive) {
	for _, c := range d.all("if") {
		for _, s := range c.block {
			switch {
			case s.name == "set" && strings.TrimPrefix(s.arg(0), "$") == "limit_rate" || slices.Contains(bandwidth, s.name):
				n.m.missing(s.pos, s.String(), "limits how fast bytes are sent, and rules limit requests", "keep it in nginx")
			case s.name == "set" || s.name == "return":
			default:
				n.other(s)
			}
		}
	}
}

// locations adds the locations of a block.
func (n *nginx) locations(d *directive, host string, up level, sites []*site) []*site {
	for _, c := range d.all("location") {
		l := n.level(c, up)
		n.ifs(c)
		s := &site{host: host, at: c, level: l}
		kind, text := "", c.arg(0)
		if len(c.args) > 1 {
			kind, text = c.args[0], c.args[1]
		} else if len(text) > 1 && strings.HasPrefix(text, "=/") {
			kind, text = "=", text[1:]
		}
		switch {
		case strings.HasPrefix(text, "@"):
			if len(c.all("limit_req"))+len(c.all("limit_conn")) > 0 {
				n.m.missing(c.pos, c.String(), "is reached from other locations only, and rules match the path that was requested", "write a rule for these paths")
			}
			continue
		case len(c.all("internal")) > 0:
			continue // no client can ask for it
		case kind == "=":
			s.pattern = literal(text)
		case kind == "~" || kind == "~*":
			s.regex = true
			patterns, ok := fromRegexp(text)
			if kind == "~*" && ok && l.limited() {
				n.m.note(c.pos, c.String(), "ignores case: set server.case = \"ignore\", or rules match only this spelling")
			}
			if !ok {
				s.exact = "rules match paths by segments, and not by " + text
			}
			for _, p := range patterns[:max(len(patterns)-1, 0)] {
				one := *s
				one.pattern = p
				sites = append(sites, &one)
			}
			if ok {
				s.pattern = patterns[len(patterns)-1]
			}
		default:
			s.pattern = prefix(text)
			if text != "/" && !strings.HasSuffix(text, "/") && l.limited() {
				n.m.note(c.pos, c.String(), "matches all paths that begin so, such as "+text+"x; the rule matches "+text+" and what is below it")
			}
		}
		if s.pattern == "" && s.exact == "" {
			sites = slices.DeleteFunc(sites, func(o *site) bool { return o.host == host && o.pattern == "" && o.exact == "" }) // every request is in it
		}
		sites = append(sites, s)
		sites = n.locations(c, host, l, sites)
	}
	return sites
}

func (l *level) limited() bool { return len(l.req)+len(l.conn) > 0 }

// limits returns what counts in a place.
func (s *site) limits() []*directive {
	if s.level.answers != nil {
		return nil
	}
	return slices.Concat(s.level.req, s.level.conn)
}

// overlaps reports locations whose order rules cannot follow.
func (n *nginx) overlaps(sites []*site) {
	for _, s := range sites {
		if s.exact != "" {
			around := sites[0].limits()
			for _, o := range sites {
				if o.pattern == "" && o.exact == "" {
					around = o.limits()
				}
			}
			switch own := s.limits(); {
			case slices.Equal(own, around):
				continue // what holds everywhere holds there
			case len(own) == 0:
				n.m.missing(s.at.pos, s.at.String(), "was not limited, and is now, like what is around it: "+s.exact, "write an allow rule for its paths")
			default:
				n.m.missing(s.at.pos, s.at.String(), "its limits are not imported: "+s.exact, "write a rule for its paths")
			}
			continue
		}
		for _, o := range sites {
			if s.regex && !o.regex && o.exact == "" && o.pattern != "" && o.pattern != s.pattern && covers(s.pattern, o.pattern) &&
				o.at.arg(0) != "=" && o.at.arg(0) != "^~" && !slices.Equal(s.limits(), o.limits()) {
				n.m.missing(o.at.pos, o.at.String(), "in nginx the regular expression "+s.at.String()+" comes first for its paths, and in rules the longer path", "check which limit is meant")
			}
		}
	}
}

// count makes a counter for each zone and its parameters, and its places.
func (n *nginx) count() {
	for _, s := range n.sites {
		if s.exact != "" {
			continue
		}
		for _, d := range s.limits() {
			c := n.use(d, s.level)
			if c != nil {
				c.places = append(c.places, place{host: s.host, pattern: s.pattern})
			}
		}
	}
	for _, key := range n.order {
		c := n.uses[key]
		for _, s := range n.sites {
			p := place{host: s.host, pattern: s.pattern}
			if s.exact == "" && !slices.ContainsFunc(c.places, func(o place) bool { return o.host == p.host && o.pattern == p.pattern }) {
				c.except = append(c.except, p)
			}
		}
	}
}

// use returns the counter of a limit_req or a limit_conn.
func (n *nginx) use(d *directive, l level) *counter {
	zone := d.arg(0)
	if d.name == "limit_req" {
		zone = n.option(d, "zone=")
	}
	status, dry := l.reqStatus, l.reqDry
	if d.name == "limit_conn" {
		status, dry = l.connStatus, l.connDry
	}
	args := slices.Sorted(slices.Values(d.args))
	key := fmt.Sprint(d.name, args, status.code(), dry)
	if c, ok := n.uses[key]; ok {
		return c
	}
	z, ok := n.zones[d.name+" "+zone]
	if !ok {
		if !slices.ContainsFunc(n.m.report.Missing, func(f Finding) bool { return f.File == d.file && f.Line == d.line }) {
			n.m.missing(d.pos, d.String(), "the zone "+quote(zone)+" is not in these files", "import the file with its "+d.name+"_zone as well")
		}
		return nil
	}
	n.tried[z] = true
	c := &counter{pos: d.pos, what: d.String(), of: z, name: zone}
	if d.name == "limit_conn" {
		c.name += "-at-once"
	}
	var why string
	if c.keys, c.apart, why = n.key(z, strings.Join(keyWords(z), "")); why == "" {
		why = n.amounts(c, d, z)
	}
	if why != "" {
		if !slices.ContainsFunc(n.m.report.Missing, func(f Finding) bool { return f.File == d.file && f.Line == d.line }) {
			n.m.missing(d.pos, c.what, why, "write a rule that counts by what the client cannot choose, such as ip or user")
		}
		return nil
	}
	if dry {
		c.rule.Action, c.rule.MaxDelay = rule.LogOnly, 0
	}
	if code := status.code(); code != "" {
		c.rule.Response.Status, _ = strconv.Atoi(code)
	} else if !dry {
		n.m.note(d.pos, d.String(), "is answered with 503 by nginx unless "+d.name+"_status says otherwise, and with 429 by the rule")
	}
	for _, k := range n.order {
		if o := n.uses[k]; o.of == z {
			n.m.missing(d.pos, d.String(), "counts in the zone "+quote(zone)+" together with that of line "+strconv.Itoa(o.line)+", whose parameters differ; the rules count apart",
				"use one burst for the zone, or accept that a client may use both up")
			break
		}
	}
	n.uses[key], n.order = c, append(n.order, key)
	return c
}

// keyWords are the arguments of a zone that are its key.
func keyWords(z *directive) (out []string) {
	for _, a := range z.args {
		if !strings.HasPrefix(a, "zone=") && !strings.HasPrefix(a, "rate=") && a != "sync" {
			out = append(out, a)
		}
	}
	return out
}

func (d *directive) code() string {
	if d == nil {
		return ""
	}
	return d.arg(0)
}

// unused reports zones that no server uses.
func (n *nginx) unused() {
	for _, key := range slices.Sorted(maps.Keys(n.zones)) {
		z := n.zones[key]
		kind, zone, _ := strings.Cut(key, " ")
		used := n.tried[z]
		for _, c := range n.uses {
			used = used || c.of == z
		}
		if !used {
			n.m.note(z.pos, z.String(), "no "+kind+" that is imported uses the zone "+quote(zone)+", so it limits nothing")
		}
	}
}
