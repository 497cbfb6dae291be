package httplimit

import (
	"cmp"
	"crypto/tls"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/rule"
)

// Route says where requests go. A request goes to the routes with the most specific
// host, and among these to the one with the longest prefix.
type Route struct {
	// Host is the host of the requests, without a port: api.example.com, or *.example.com
	// for all names below example.com. Empty: hosts that no other route names.
	Host string
	// Prefix is the start of the path: /api matches /api and /api/x, but not /apis. It is
	// compared as rules compare paths. Default /.
	Prefix string
	// Targets are the servers that requests go to in turn, at most 64: URLs with http,
	// https or h2c, which is HTTP/2 without TLS. Their path is put before that of the
	// request.
	Targets []string
	// StripPrefix removes the prefix from the path that the target gets.
	StripPrefix bool
	// PreserveHost sends the target the host of the client's request, in place of the
	// target's own.
	PreserveHost bool
	// IgnoreCase says that the targets ignore the case of paths: /API/x is below the prefix
	// /api, and rules for /api/x apply to it, whatever their own setting is.
	IgnoreCase bool
	// LenientPaths lets paths through that contain an escaped NUL (%00) or are escaped twice
	// (%2561). Targets that decode them once more, or end at a NUL, then serve another path
	// than the one that rules see.
	LenientPaths bool
	// OverrideHeaders lets X-HTTP-Method-Override, X-HTTP-Method, X-Method-Override, X-Original-URL and X-Rewrite-URL
	// through. Targets that read them serve another method or path than the one that rules see.
	OverrideHeaders bool
	// Cost, if it is not 0, is what a request costs, in place of what rules say.
	Cost int64
	// DialTimeout is the time limit for a connection, and again for its TLS handshake.
	// Default 5 s; negative: no limit.
	DialTimeout time.Duration
	// ResponseTimeout is the time limit from the end of the request to the start of the
	// response. Default 60 s; negative: no limit.
	ResponseTimeout time.Duration
	// Timeout is the time limit for the whole request, up to the last byte of the response
	// or of an upgraded connection. Zero: no limit.
	Timeout time.Duration
	// TLS is the configuration for https. Default: the system's root certificates.
	TLS *tls.Config
	// Check says how targets are checked between Start and Stop. Nil: they are not.
	Check *Check
}

// Check is a health check: a GET request to each target. It passes if the status is below
// 400. A target that fails two checks in a row is down until it passes one.
type Check struct {
	Path     string        // default /
	Interval time.Duration // default 10 s
	Timeout  time.Duration // default 2 s
}

// route is a Route that is ready to serve.
type route struct {
	Route
	name     string
	prefix   string // as it is compared
	upstream upstream
	proxy    httputil.ReverseProxy
}

// check sets defaults and checks the route.
func (r *route) check() error {
	r.Prefix = cmp.Or(r.Prefix, "/")
	r.DialTimeout = cmp.Or(r.DialTimeout, 5*time.Second)
	r.ResponseTimeout = cmp.Or(r.ResponseTimeout, time.Minute)
	host := strings.TrimPrefix(r.Host, "*.")
	switch {
	case r.Host != "" && (host != hostname(host) || host == "" || len(r.Host) > maxHost || strings.ContainsAny(host, "*/ ")) || strings.HasPrefix(host, "."):
		return invalid("Host", r.Host, "a name in lower case without a port, *.name for all names below it, or none for any host")
	case rule.CleanPath(r.Prefix) != r.Prefix || strings.ContainsAny(r.Prefix, "%*{}"):
		return invalid("Prefix", r.Prefix, "a path such as /api, without escapes, wildcards and a trailing slash")
	case len(r.Targets) == 0 || len(r.Targets) > maxTargets:
		return invalid("Targets", strconv.Itoa(len(r.Targets)), "1 to "+strconv.Itoa(maxTargets)+" of them")
	case r.Cost < 0:
		return invalid("Cost", strconv.FormatInt(r.Cost, 10), "1 or more, or 0 for what rules say")
	case r.Timeout < 0:
		return invalid("Timeout", r.Timeout.String(), "a positive duration, or 0 for no limit")
	case r.Check == nil:
		return nil
	}
	c := *r.Check
	c.Path = cmp.Or(c.Path, "/")
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	r.Check = &c
	switch {
	case !strings.HasPrefix(c.Path, "/") || strings.ContainsAny(c.Path, "?#%"):
		return invalid("Check.Path", c.Path, "a path such as /healthz")
	case c.Interval < 0:
		return invalid("Check.Interval", c.Interval.String(), "a positive duration")
	case c.Timeout < 0:
		return invalid("Check.Timeout", c.Timeout.String(), "a positive duration")
	}
	return nil
}

// maxHost is the length of the longest host name, in bytes.
const maxHost = 253

// hostname returns the host in lower case, without a port and a trailing dot. A host that
// is too long to be one is "", which bounds the lookups in find.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) > maxHost {
		return ""
	}
	return strings.ToLower(host)
}

// find returns the route for a host and a clean path, or nil if there is none.
func (g *Gateway) find(host, path string) *route {
	host = hostname(host)
	routes, ok := g.hosts[host]
	for !ok && host != "" {
		if i := strings.IndexByte(host[1:], '.'); i >= 0 {
			host = host[1+i:]
		} else {
			host = ""
		}
		routes, ok = g.hosts[host]
	}
	for _, r := range routes {
		p := path
		if r.IgnoreCase {
			p = rule.FoldCase(path)
		}
		if below(p, r.prefix) {
			return r
		}
	}
	return nil
}

// clashes reports whether some paths are below the prefix of both routes, which are equal.
func (r *route) clashes(other *route) bool {
	if r.IgnoreCase || other.IgnoreCase {
		return rule.FoldCase(r.Prefix) == rule.FoldCase(other.Prefix)
	}
	return r.Prefix == other.Prefix
}

// below reports whether the path is the prefix or below it.
func below(path, prefix string) bool {
	return prefix == "/" || (strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/'))
}

// isObscure reports whether a decoded path contains a NUL, or escapes, which were escaped
// themselves. No honest client sends these, and some servers read another path there.
func isObscure(path string) bool {
	for i := range len(path) {
		if path[i] == 0 || path[i] == '%' && len(path) > i+2 && isHex(path[i+1]) && isHex(path[i+2]) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// hasDots reports whether a decoded path has . or .. segments, also after an escaped slash
// or before a semicolon. Servers resolve these in different ways, so a request might be
// counted under one path and served under another.
func hasDots(path string) bool {
	for {
		i := strings.Index(path, "/.")
		if i < 0 {
			return false
		}
		path = path[i+2:]
		if rest := strings.TrimPrefix(path, "."); rest == "" || rest[0] == '/' || rest[0] == ';' {
			return true
		}
	}
}
