package envoyenv

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
)

// redis returns the URL of Redis.
func (r *reader) redis() (string, bool) {
	before := len(r.problems)
	u := redisURL{query: map[string]string{}, user: r.credential("REDIS_AUTH"), tls: r.get("REDIS_TLS") == "true"}
	r.redisHosts(&u)
	if prefix := r.get("CACHE_KEY_PREFIX"); prefix != "" {
		u.query["prefix"] = r.prefix(prefix)
	}
	if timeout := r.get("REDIS_TIMEOUT"); timeout != "" {
		u.query["timeout"], u.query["dial_timeout"] = timeout, timeout
	}
	if auth := r.credential("REDIS_SENTINEL_AUTH"); auth != nil {
		if name := auth.Username(); name != "" {
			u.query["sentinel_user"] = name
		}
		u.query["sentinel_password"], _ = auth.Password()
	}
	if ca := r.get("REDIS_TLS_CACERT"); ca != "" {
		u.query["tls_ca"] = ca
	}
	if cert, key, ok := r.pair("REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"); ok {
		u.query["tls_cert"], u.query["tls_key"] = cert, key
	}
	if r.get("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") == "true" {
		u.query["tls_any_name"] = "true"
	}
	return u.String(), len(r.problems) == before
}

// budget lets decisions wait for Redis as long as REDIS_TIMEOUT says, if that is longer than
// by default.
func (r *reader) budget() {
	const byDefault = 50 * time.Millisecond
	timeout := r.get("REDIS_TIMEOUT")
	if d, err := time.ParseDuration(timeout); err == nil && d > byDefault {
		r.give("REDIS_TIMEOUT", "server.store_budget", timeout)
	}
}

// prefix returns a valid prefix of keys. It is different for different prefixes.
func (r *reader) prefix(text string) string {
	const longest, others = 32, "._-:"
	if len(text) <= longest && consistsOf(text, others) {
		return text
	}
	valid := strings.Map(func(c rune) rune {
		if consistsOf(string(c), others) {
			return c
		}
		return '-'
	}, text)
	hash := fmt.Sprintf("-%x", sha256.Sum256([]byte(text)))[:11]
	valid = valid[:min(len(valid), longest-len(hash))] + hash
	r.note("CACHE_KEY_PREFIX", "has characters that are not supported, or more than 32: keys begin with "+valid)
	return valid
}

// credential returns the user and password of a variable, or nil if it has no password. Its
// value is user:password, or only a password.
func (r *reader) credential(name string) *url.Userinfo {
	text := r.get(name)
	if text == "" {
		return nil
	}
	user, password, ok := strings.Cut(text, ":")
	if !ok {
		user, password = "", text
	}
	if password == "" {
		r.note(name, "has no password: want a password, or user:password")
		return nil
	}
	return url.UserPassword(user, password)
}

// redisHosts sets the servers.
func (r *reader) redisHosts(u *redisURL) {
	text := r.get("REDIS_URL")
	refuse := func(want string) {
		if strings.ContainsAny(text, ":/,") && !strings.ContainsAny(text, "@?") { // otherwise it may be or contain a password
			want = strict.Quote(text) + ": want " + want
		} else {
			want = "want " + want
		}
		r.problem("REDIS_URL", want)
	}
	hosts := strings.Split(text, ",")
	want := "host:port, such as redis:6379"
	switch r.get("REDIS_TYPE") {
	case "SENTINEL":
		u.topology = "+sentinel"
		u.path, hosts = hosts[0], hosts[1:]
		if want = "the name of the primary, followed by the sentinels as host:port, separated by commas"; len(hosts) == 0 || !consistsOf(u.path, "._-") {
			refuse(want)
			return
		}
	case "CLUSTER":
		u.topology = "+cluster"
		want = "host:port of some of the servers, separated by commas"
	default:
		hosts = []string{text}
		if strings.HasPrefix(text, "/") || r.values["REDIS_SOCKET_TYPE"] == "unix" && !isAddress(text) && !strings.Contains(text, "://") {
			u.hosts, u.query["socket"] = "localhost", text
			return
		}
	}
	for i, host := range hosts {
		if strings.HasPrefix(host, "redis://") || strings.HasPrefix(host, "rediss://") {
			p, err := url.Parse(host)
			if err != nil {
				refuse("redis://user:password@host:port/db, or " + want)
				return
			}
			hosts[i] = p.Host
			u.take(p)
		}
		if !isAddress(hosts[i]) {
			refuse(want)
			return
		}
	}
	u.hosts = strings.Join(hosts, ",")
}

// take takes what a URL has beside the host: TLS, the database, and the user and password
// unless REDIS_AUTH has them.
func (u *redisURL) take(p *url.URL) {
	if p.Scheme == "rediss" {
		u.tls = true
	}
	q := p.Query()
	if db := cmp.Or(strings.Trim(p.Path, "/"), q.Get("db")); u.topology == "" {
		u.path = db
	}
	password, _ := p.User.Password()
	if password = cmp.Or(password, q.Get("password")); password != "" && u.user == nil {
		u.user = url.UserPassword(cmp.Or(p.User.Username(), q.Get("username")), password)
	}
}

// consistsOf reports whether a text is not empty and has only letters, digits and the
// given characters.
func consistsOf(text, others string) bool {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && strings.Trim(text, base62+others) == ""
}

// isAddress reports whether a text is host:port.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && n > 0 && host != "" && !strings.ContainsAny(host, "/@?#,")
}

// redisURL is a URL for package redisstore.
type redisURL struct {
	tls      bool
	topology string // as in the scheme
	user     *url.Userinfo
	hosts    string
	path     string
	query    map[string]string
}

func (u *redisURL) String() string {
	// Unlike in package url, a space is %20 and a comma %2C.
	escape := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	out := "redis" + u.topology + "://"
	if u.tls {
		out = "rediss" + u.topology + "://"
	}
	if u.user != nil {
		password, _ := u.user.Password()
		out += escape(u.user.Username()) + ":" + escape(password) + "@"
	}
	out += u.hosts
	if u.path != "" {
		out += "/" + u.path
	}
	var query []string
	for _, name := range slices.Sorted(maps.Keys(u.query)) {
		query = append(query, name+"="+escape(u.query[name]))
	}
	if len(query) > 0 {
		out += "?" + strings.Join(query, "&")
	}
	return out
}
