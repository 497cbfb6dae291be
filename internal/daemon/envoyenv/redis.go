package envoyenv

import (
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
	u := redisURL{query: map[string]string{}, user: r.credential("REDIS_AUTH")}
	if r.get("REDIS_TLS") == "true" {
		u.scheme = "s"
	}
	r.redisHosts(&u)
	if prefix := r.get("CACHE_KEY_PREFIX"); prefix != "" {
		u.query["prefix"] = prefix
		if len(prefix) > 32 || !consistsOf(prefix, "._-:") {
			r.problem("CACHE_KEY_PREFIX", strict.Quote(prefix)+": want at most 32 letters, digits and . _ - :")
		}
	}
	if timeout := r.get("REDIS_TIMEOUT"); timeout != "" {
		if d, err := time.ParseDuration(timeout); err != nil || d < time.Millisecond || d > time.Minute {
			r.problem("REDIS_TIMEOUT", strict.Quote(timeout)+": want from 1ms to 1m")
		}
		u.query["timeout"], u.query["dial_timeout"] = timeout, timeout
	}
	if auth := r.credential("REDIS_SENTINEL_AUTH"); auth != nil {
		if name := auth.Username(); name != "" {
			u.query["sentinel_user"] = name
		}
		u.query["sentinel_password"], _ = auth.Password()
	}
	for parameter, name := range map[string]string{"tls_ca": "REDIS_TLS_CACERT", "tls_cert": "REDIS_TLS_CLIENT_CERT", "tls_key": "REDIS_TLS_CLIENT_KEY"} {
		if path := r.get(name); path != "" {
			u.query[parameter] = path
		}
	}
	if r.get("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") == "true" {
		r.problem("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", `"true": want false: names are always verified; for a different name, set STINT_SERVER_COUNTERS to a URL with tls_server_name`)
	}
	return u.String(), len(r.problems) == before
}

// credential returns the user and password of a variable, or nil if it is not set. Its
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
		r.problem(name, "want a password, or user:password")
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
	const example = "host:port, such as redis:6379"
	want := example
	switch r.get("REDIS_TYPE") {
	case "SENTINEL":
		u.scheme += "+sentinel"
		u.path, hosts = hosts[0], hosts[1:]
		if want = "the name of the primary, followed by the sentinels as host:port, separated by commas"; len(hosts) == 0 || !consistsOf(u.path, "._-") {
			refuse(want)
			return
		}
	case "CLUSTER":
		u.scheme += "+cluster"
		want = "host:port of some of the servers, separated by commas"
	default:
		hosts = []string{text}
		if !strings.HasPrefix(text, "redis://") {
			break
		}
		p, err := url.Parse(text)
		if err != nil || p.RawQuery != "" || p.Fragment != "" {
			refuse("redis://user:password@host:port/db, or " + example)
			return
		}
		hosts, u.path = []string{p.Host}, strings.Trim(p.Path, "/")
		if p.User != nil {
			if password, _ := p.User.Password(); password == "" || u.user != nil {
				refuse("the user and the password in REDIS_AUTH, as user:password")
				return
			}
			u.user = p.User
		}
	}
	for _, host := range hosts {
		if !isAddress(host) {
			if strings.HasPrefix(text, "/") {
				want += "; unix sockets are not supported"
			}
			refuse(want)
			return
		}
	}
	u.hosts = strings.Join(hosts, ",")
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
	scheme string // after redis
	user   *url.Userinfo
	hosts  string
	path   string
	query  map[string]string
}

func (u *redisURL) String() string {
	// Unlike in package url, a space is %20 and a comma %2C.
	escape := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	out := "redis" + u.scheme + "://"
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
