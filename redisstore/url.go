package redisstore

import (
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// topology is the kind of deployment that a URL names.
type topology uint8

const (
	single topology = iota + 1
	sentinel
	cluster
	ring
)

const (
	upToMinute = "a duration from 1ms to 1m, such as 250ms"
	numberOfDB = "a number from 0 to 1000000; in a cluster 0"
	aSocket    = "redis://localhost?socket=/run/redis.sock"
	notMixed   = "redis+cluster://, or redis+ring:// for servers that are not a Cluster: a Cluster places keys by itself"
)

// schemes are the supported URL schemes.
var schemes = []struct {
	name     string
	topology topology
	tls      bool
}{
	{"redis", single, false},
	{"rediss", single, true},
	{"redis+sentinel", sentinel, false},
	{"rediss+sentinel", sentinel, true},
	{"redis+cluster", cluster, false},
	{"rediss+cluster", cluster, true},
	{"redis+ring", ring, false},
	{"rediss+ring", ring, true},
}

// otherSchemes are common mistakes, and what to write instead.
var otherSchemes = map[string]string{
	"http":                "redis://",
	"https":               "rediss://",
	"redis+ssl":           "rediss://",
	"redis+tls":           "rediss://",
	"redis-cluster":       "redis+cluster://",
	"rediss-cluster":      "rediss+cluster://",
	"redis-sentinel":      "redis+sentinel://",
	"rediss-sentinel":     "rediss+sentinel://",
	"redis+ring+cluster":  notMixed,
	"rediss+ring+cluster": notMixed,
	"redis+cluster+ring":  notMixed,
	"rediss+cluster+ring": notMixed,
	"redis-ring":          "redis+ring://",
	"rediss-ring":         "rediss+ring://",
	"sentinel":            "redis+sentinel://",
	"valkey":              "redis://, also for Valkey",
	"valkeys":             "rediss://, also for Valkey",
	"unix":                aSocket,
	"redis+unix":          aSocket,
	"redis+socket":        aSocket,
	"redis-socket":        aSocket,
}

// param is a query parameter. A test compares these with the table in docs/redis-url.md.
type param struct {
	name  string
	takes string
	def   string // parsed like a value in the URL; "": not set
	means string
	only  topology // 0: all

	tls    bool                       // only with rediss
	secret bool                       // never shown in errors
	needs  string                     // another parameter that it requires
	set    func(*config, string) bool // reports whether the value is valid
}

var params = slices.Concat([]param{
	{
		name: "user", takes: "a name", means: "the ACL user", needs: "password",
		set: func(c *config, v string) bool { c.user = v; return v != "" },
	},
	{
		name: "password", takes: "a password", means: "the password of `user`, or of the default user", secret: true,
		set: func(c *config, v string) bool { c.password = v; return v != "" },
	},
	{
		name: "sentinel_user", takes: "a name", means: "the ACL user on the sentinels", only: sentinel, needs: "sentinel_password",
		set: func(c *config, v string) bool { c.sentinelUser = v; return v != "" },
	},
	{
		name: "sentinel_password", takes: "a password", means: "the password on the sentinels; they are not sent `password`", only: sentinel, secret: true,
		set: func(c *config, v string) bool { c.sentinelPassword = v; return v != "" },
	},
	{
		name: "db", takes: numberOfDB, def: "0", means: "the database, if it is not in the path",
		set: (*config).setDB,
	},
	{
		name: "prefix", takes: "1 to 32 letters, digits, `.`, `_`, `-`, `:`", def: "rl", means: "what every key begins with; stores with one prefix share their counters",
		set: func(c *config, v string) bool { c.prefix = v; return len(v) <= 32 && consistsOf(v, "._-:") },
	},
	{
		name: "dial_timeout", takes: upToMinute, def: "500ms", means: "how long connecting may take",
		set: func(c *config, v string) bool { return durationIn(v, time.Millisecond, time.Minute, &c.dialTimeout) },
	},
	{
		name: "timeout", takes: upToMinute, def: "500ms", means: "how long a reply may take",
		set: func(c *config, v string) bool { return durationIn(v, time.Millisecond, time.Minute, &c.timeout) },
	},
	{
		name: "conns", takes: "1, 2, 4, 8 or 16", def: "1", means: "connections to each server; all requests share them",
		set: func(c *config, v string) (ok bool) { c.multiplex, ok = multiplexes[v]; return ok },
	},
	{
		name: "flush_delay", takes: "a duration from 0 to 10ms, such as 20us", def: "0", means: "how long a connection may wait for more commands before it sends: fewer system calls, later replies",
		set: func(c *config, v string) bool { return durationIn(v, 0, 10*time.Millisecond, &c.flushDelay) },
	},
	{
		name: "buffer", takes: "a size from 4KiB to 16MiB, in KiB or MiB", def: "64KiB", means: "the size of each connection's two buffers",
		set: (*config).setBuffer,
	},
	{
		name: "client_name", takes: "1 to 64 letters, digits, `.`, `_`, `-`, `:`", means: "the name in Redis' `CLIENT LIST`",
		set: func(c *config, v string) bool { c.clientName = v; return len(v) <= 64 && consistsOf(v, "._-:") },
	},
	{
		name: "socket", takes: "a path", means: "the unix socket to connect to, instead of the host", only: single,
		set: func(c *config, v string) bool { c.socket = v; return v != "" },
	},
	{
		name: "tls_ca", takes: "a PEM file", means: "the authorities to trust, instead of the system's", tls: true,
		set: func(c *config, v string) bool { c.caFile = v; return v != "" },
	},
	{
		name: "tls_cert", takes: "a PEM file", means: "the client certificate", tls: true, needs: "tls_key",
		set: func(c *config, v string) bool { c.certFile = v; return v != "" },
	},
	{
		name: "tls_key", takes: "a PEM file", means: "the key of `tls_cert`", tls: true, needs: "tls_cert",
		set: func(c *config, v string) bool { c.keyFile = v; return v != "" },
	},
	{
		name: "tls_server_name", takes: "a host name", means: "the name that the certificates of all servers must bear, instead of each server's host", tls: true,
		set: func(c *config, v string) bool { c.tls.ServerName = v; return consistsOf(v, "._-:") },
	},
	{
		name: "tls_any_name", takes: "true or false", def: "false", means: "accept certificates of the authorities whatever names they bear", tls: true,
		set: func(c *config, v string) bool { c.anyName = v == "true"; return v == "true" || v == "false" },
	},
}, ringParams)

// multiplexes maps a number of connections to rueidis' PipelineMultiplex, an exponent of two. One
// connection is -1, since 0 means a default that depends on the number of CPUs.
var multiplexes = map[string]int{"1": -1, "2": 1, "4": 2, "8": 3, "16": 4}

// config is a parsed URL.
type config struct {
	topology topology
	addrs    []string // host:port, IPv6 in brackets; of the server, the sentinels, the cluster's seeds or the ring
	socket   string   // connected to instead
	primary  string   // the primary's name, for sentinel
	db       int
	ringConfig

	user, password                 string // never sent to sentinels
	sentinelUser, sentinelPassword string

	tls                       *tls.Config // for sentinels too; nil: none
	caFile, certFile, keyFile string      // already read into tls
	anyName                   bool

	prefix               string
	clientName           string
	dialTimeout, timeout time.Duration
	flushDelay           time.Duration // rueidis' MaxFlushDelay
	multiplex            int           // rueidis' PipelineMultiplex

	own    redis.UniversalClient // of the program; nil: connections of the store's own
	buffer int                   // bytes, of the read and of the write buffer
}

// CheckURL returns what is wrong with a Redis URL, as a [*stint.InvalidError] that shows no password, wherever it is in
// the URL. It reads no files: those that the URL names may not be here.
func CheckURL(url string) error {
	_, err := readURL(url)
	return err
}

// parseURL parses a URL, and reads the files that it names. Every error is a *stint.InvalidError, and none contains a
// password.
func parseURL(raw string) (config, error) {
	c, err := readURL(raw)
	if err != nil {
		return config{}, err
	}
	if err := c.readFiles(); err != nil {
		return config{}, err
	}
	return c, nil
}

// readURL is parseURL without the files.
func readURL(raw string) (config, error) {
	u, err := splitURL(raw)
	if err != nil {
		return config{}, err
	}
	c := u.config
	for _, a := range u.args {
		if !a.set(&c, a.value) {
			return config{}, a.wrong(a.takes)
		}
	}
	if err := c.setRing(); err != nil {
		return config{}, err
	}
	return c, nil
}

// hidden replaces text that may be a password.
const hidden = "xxxxx"

const howToEscape = "@ / ? # , and % in a user or password written as %40 %2F %3F %23 %2C %25"

// badURL returns an error about a part of a URL.
func badURL(part, value, want string) error {
	return &stint.InvalidError{Field: "redis url " + part, Value: value, Want: want}
}

// urlParts is a URL that is well formed. The values of args are not parsed yet.
type urlParts struct {
	config
	scheme string
	args   []arg
}

// arg is a parameter with its value.
type arg struct {
	*param
	value string
}

func (a arg) wrong(want string) error {
	if a.secret {
		a.value = hidden
	}
	return badURL(a.name, a.value, want)
}

// splitURL splits a URL into its parts. net/url cannot do it: it does not support lists of hosts,
// and its errors quote the whole URL. A password that is not escaped, or in the wrong place, can
// end up in any part. So errors quote only numbers and names that are close to a known one.
func splitURL(raw string) (urlParts, error) {
	var u urlParts
	scheme, rest, _ := strings.Cut(raw, ":")
	if err := u.setScheme(strings.ToLower(scheme)); err != nil {
		return u, err
	}
	rest, slashes := strings.CutPrefix(rest, "//")
	if !slashes {
		return u, badURL("after the scheme", hidden, "//, as in redis://host")
	}
	if strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return u, badURL("as a whole", hidden, "no spaces, line ends or control characters")
	}
	if strings.Contains(rest, "#") {
		return u, badURL("after the #", hidden, "no fragment, and "+howToEscape)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, _, _ := strings.Cut(rest, "/")
	userinfo, _, at := strings.Cut(authority, "@")
	if n := strings.Count(raw, "@"); n > 1 || n == 1 && !at {
		return u, badURL("as a whole", hidden, "one @ at most, between the password and the first host, and "+howToEscape)
	}

	seen := map[string]bool{}
	if at {
		if err := u.setUser(userinfo); err != nil {
			return u, err
		}
		seen["user"], seen["password"] = true, true
		rest = rest[len(userinfo)+1:]
	}
	if strings.Contains(rest, "://") {
		return u, badURL("host", hidden, "hosts without schemes: all of them are of one kind, such as the servers of a ring or the nodes of a Cluster")
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if err := u.setHosts(hosts); err != nil {
		return u, err
	}
	db, err := u.setPath(path)
	if err != nil {
		return u, err
	}
	seen["db"] = db
	err = u.setQuery(query, seen)
	return u, err
}

func (u *urlParts) setScheme(name string) error {
	var names []string
	for _, s := range schemes {
		if s.name == name {
			u.scheme, u.topology = name, s.topology
			if s.tls {
				u.tls = &tls.Config{MinVersion: tls.VersionTLS12}
			}
			for _, p := range params {
				// A test checks that the defaults are valid.
				if p.def != "" && (p.only == 0 || p.only == s.topology) {
					p.set(&u.config, p.def)
				}
			}
			return nil
		}
		names = append(names, s.name)
	}
	if want := otherSchemes[name]; want != "" {
		return badURL("scheme", name, want)
	}
	if near, ok := strict.Closest(name, names); ok {
		return badURL("scheme", name, near+"://")
	}
	return badURL("scheme", hidden, "one of "+strings.Join(names, ", "))
}

func (u *urlParts) setUser(userinfo string) error {
	user, password, colon := strings.Cut(userinfo, ":")
	if !colon || password == "" {
		return badURL("before the @", hidden, "user:password, or :password for the default user")
	}
	// RFC 3986 allows commas, but then in host1,user:password@host2 the user would be
	// "host1,user".
	if strings.Contains(userinfo, ",") {
		return badURL("before the @", hidden, "the user and password before the first host, and "+howToEscape)
	}
	var errs [2]error
	u.user, errs[0] = url.PathUnescape(user)
	u.password, errs[1] = url.PathUnescape(password)
	if errs != [2]error{} {
		return badURL("before the @", hidden, howToEscape)
	}
	return nil
}

func (u *urlParts) setHosts(list string) (err error) {
	port := "6379"
	if u.topology == sentinel {
		port = "26379"
	}
	if strings.Contains(list, ",") && u.topology == single {
		return badURL("host", hidden, "one host, or redis+sentinel://, redis+cluster:// or redis+ring://")
	}
	u.addrs, err = parseHosts("host", list, port)
	return err
}

// parseHosts parses the list of hosts in a part of the URL, with a default port.
func parseHosts(part, list, port string) (addrs []string, err error) {
	hosts := strings.Split(list, ",")
	for i, h := range hosts {
		which := part
		if len(hosts) > 1 {
			which += " " + strconv.Itoa(i+1)
		}
		host, p := h, port
		if colon := strings.LastIndexByte(h, ':'); colon > strings.LastIndexByte(h, ']') {
			host, p = h[:colon], h[colon+1:]
		}
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, badURL(which+" port", showNumber(p, 5), "a number from 1 to 65535")
		}
		if v6, ok := strings.CutPrefix(host, "["); ok {
			v6, ok = strings.CutSuffix(v6, "]")
			if ip, err := netip.ParseAddr(v6); !ok || err != nil || !ip.Is6() || ip.Zone() != "" {
				return nil, badURL(which, hidden, "an IPv6 address without a zone between [ and ]")
			}
			host = v6
		} else if !consistsOf(host, "._-") {
			return nil, badURL(which, hidden, "a host name or address, IPv6 in brackets")
		}
		addrs = append(addrs, net.JoinHostPort(host, strconv.FormatUint(n, 10)))
	}
	return addrs, nil
}

// setPath parses the path, and reports whether it has a database.
func (u *urlParts) setPath(path string) (db bool, err error) {
	if u.topology == sentinel {
		u.primary, path, _ = strings.Cut(path, "/")
		// The characters that Sentinel allows in a name.
		if !consistsOf(u.primary, "._-") {
			return false, badURL("primary", hidden, "the primary's name after the hosts, as in redis+sentinel://host/name")
		}
	}
	if path == "" {
		return false, nil
	}
	if !u.setDB(path) {
		return false, badURL("db", showNumber(path, 7), numberOfDB+", and nothing after it")
	}
	return true, nil
}

// setQuery splits the query. seen has the parameters that were set before it.
func (u *urlParts) setQuery(query string, seen map[string]bool) error {
	if query == "" {
		return nil
	}
	for i, s := range strings.Split(query, "&") {
		name, raw, _ := strings.Cut(s, "=")
		p, err := lookUp(name, i+1)
		if err != nil {
			return err
		}
		value, err := url.PathUnescape(raw)
		a := arg{p, value}
		switch {
		// Some parsers read + as a space, and a password may contain either.
		case err != nil || strings.Contains(raw, "+"):
			return badURL(name, hidden, "% written as %25, + as %2B and a space as %20")
		case p.only != 0 && p.only != u.topology:
			return a.wrong("no " + name + " with " + u.scheme + "://")
		case p.tls && u.tls == nil:
			return a.wrong("no " + name + " without TLS, which is rediss" + strings.TrimPrefix(u.scheme, "redis") + "://")
		case seen[name]:
			return a.wrong("it once; user and password are either before the @ or in the query")
		}
		seen[name] = true
		u.args = append(u.args, a)
	}
	for _, a := range u.args {
		if a.needs != "" && !seen[a.needs] {
			// A lone user may be a password.
			return badURL(a.name, hidden, "also "+a.needs)
		}
	}
	return nil
}

func lookUp(name string, position int) (*param, error) {
	var names []string
	for i := range params {
		if params[i].name == name {
			return &params[i], nil
		}
		names = append(names, params[i].name)
	}
	if name == "tls" || name == "ssl" {
		return nil, badURL("parameter", name, "a scheme that begins with rediss, which turns TLS on")
	}
	if near, ok := strict.Closest(name, names); ok {
		return nil, badURL("parameter", name, near)
	}
	return nil, badURL("parameter "+strconv.Itoa(position), hidden, "one of "+strings.Join(names, ", ")+"; & in a value written as %26")
}

func (c *config) setDB(v string) bool {
	highest := uint64(1_000_000)
	if c.topology == cluster {
		highest = 0
	}
	n, err := strconv.ParseUint(v, 10, 32)
	c.db = int(n)
	return err == nil && n <= highest
}

func (c *config) setBuffer(v string) bool {
	shift := 10
	digits, unit := strings.CutSuffix(v, "KiB")
	if !unit {
		shift = 20
		digits, unit = strings.CutSuffix(v, "MiB")
	}
	n, err := strconv.ParseUint(digits, 10, 16) // at most 2^36 with its unit
	c.buffer = int(n << shift)
	return unit && err == nil && c.buffer >= 4<<10 && c.buffer <= 16<<20
}

// durationIn parses a duration into d, and reports whether it is in the range.
func durationIn(v string, lowest, highest time.Duration, d *time.Duration) bool {
	var err error
	*d, err = time.ParseDuration(v)
	return err == nil && *d >= lowest && *d <= highest
}

// consistsOf reports whether s is not empty and has only letters, digits and others.
func consistsOf(s, others string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// showNumber returns s for an error message if it is a number of at most maxDigits digits. Anything
// else may be a password.
func showNumber(s string, maxDigits int) string {
	if len(s) > maxDigits || strings.Trim(s, "0123456789") != "" {
		return hidden
	}
	return s
}
