package redisstore //nolint:testpackage // Nothing of a URL is exported: Open alone takes one, and connects.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
)

// secret is in every password of these tests, and nowhere else.
const secret = "Tr0ub4dor"

// with returns the default config, changed.
func with(change func(*config)) config {
	c := config{
		topology: single, addrs: []string{"h:6379"}, prefix: "rl",
		dialTimeout: 500 * time.Millisecond, timeout: 500 * time.Millisecond, multiplex: -1, buffer: 64 << 10,
	}
	change(&c)
	return c
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]config{
		"redis://h":         with(func(*config) {}),
		"REDIS://h/":        with(func(*config) {}),
		"redis://h?":        with(func(*config) {}),
		"redis://h:7000":    with(func(c *config) { c.addrs = []string{"h:7000"} }),
		"redis://my_h-1.x":  with(func(c *config) { c.addrs = []string{"my_h-1.x:6379"} }),
		"redis://10.0.0.1":  with(func(c *config) { c.addrs = []string{"10.0.0.1:6379"} }),
		"redis://[::1]":     with(func(c *config) { c.addrs = []string{"[::1]:6379"} }),
		"redis://[::1]:1":   with(func(c *config) { c.addrs = []string{"[::1]:1"} }),
		"redis://h:06379/3": with(func(c *config) { c.db = 3 }),
		"redis://h?db=3":    with(func(c *config) { c.db = 3 }),
		"redis://h/1000000": with(func(c *config) { c.db = 1_000_000 }),

		"redis://u:p@h":                   with(func(c *config) { c.user, c.password = "u", "p" }),
		"redis://:p@h":                    with(func(c *config) { c.password = "p" }),
		"redis://u%40x:a%2Fb%25:+;=@h":    with(func(c *config) { c.user, c.password = "u@x", "a/b%:+;=" }),
		"redis://h?password=a%26b%2B?/=;": with(func(c *config) { c.password = "a&b+?/=;" }),
		"redis://h?password=p&user=u":     with(func(c *config) { c.user, c.password = "u", "p" }),

		"redis://h?prefix=a.B_9-:&client_name=api-1": with(func(c *config) { c.prefix, c.clientName = "a.B_9-:", "api-1" }),
		"redis://h?dial_timeout=1ms&timeout=1m":      with(func(c *config) { c.dialTimeout, c.timeout = time.Millisecond, time.Minute }),
		"redis://h?conns=1":                          with(func(*config) {}),
		"redis://h?conns=2":                          with(func(c *config) { c.multiplex = 1 }),
		"redis://h?conns=16&flush_delay=20us":        with(func(c *config) { c.multiplex, c.flushDelay = 4, 20*time.Microsecond }),
		"redis://h?buffer=4KiB":                      with(func(c *config) { c.buffer = 4 << 10 }),
		"redis://h?buffer=16MiB":                     with(func(c *config) { c.buffer = 16 << 20 }),

		"rediss://h": with(func(c *config) { c.tls = &tls.Config{MinVersion: tls.VersionTLS12} }),
		"rediss://h?tls_server_name=x.org": with(func(c *config) {
			c.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "x.org"}
		}),

		"redis+sentinel://a,[::1]:5,c:7/main": with(func(c *config) {
			c.topology, c.addrs, c.primary = sentinel, []string{"a:26379", "[::1]:5", "c:7"}, "main"
		}),
		"redis+sentinel://u:p@a/main.1/2?sentinel_password=q&sentinel_user=s": with(func(c *config) {
			c.topology, c.addrs, c.primary, c.db = sentinel, []string{"a:26379"}, "main.1", 2
			c.user, c.password, c.sentinelUser, c.sentinelPassword = "u", "p", "s", "q"
		}),
		"rediss+sentinel://a/main/?sentinel_password=q": with(func(c *config) {
			c.topology, c.addrs, c.primary = sentinel, []string{"a:26379"}, "main"
			c.sentinelPassword, c.tls = "q", &tls.Config{MinVersion: tls.VersionTLS12}
		}),
		"redis+cluster://a,b:7/": with(func(c *config) { c.topology, c.addrs = cluster, []string{"a:6379", "b:7"} }),
		"rediss+cluster://a?db=0": with(func(c *config) {
			c.topology, c.addrs, c.tls = cluster, []string{"a:6379"}, &tls.Config{MinVersion: tls.VersionTLS12}
		}),

		"redis+ring://a,B:7/2": with(func(c *config) {
			c.topology, c.addrs, c.db, c.virtualNodes = ring, []string{"a:6379", "B:7"}, 2, 2048
			c.nodes = []node{{"a:6379", 1}, {"b:7", 1}}
		}),
		"rediss+ring://:p@a,[::1]?weights=1,100&virtual_nodes=100": with(func(c *config) {
			c.topology, c.addrs, c.password, c.virtualNodes = ring, []string{"a:6379", "[::1]:6379"}, "p", 100
			c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
			c.weights, c.nodes = []int{1, 100}, []node{{"a:6379", 1}, {"[::1]:6379", 100}}
		}),
		"redis+ring://a,b,c?was=A,b:6379,d&weights=3,2,1": with(func(c *config) {
			c.topology, c.addrs, c.virtualNodes = ring, []string{"a:6379", "b:6379", "c:6379"}, 2048
			c.weights, c.nodes = []int{3, 2, 1}, []node{{"a:6379", 3}, {"b:6379", 2}, {"c:6379", 1}}
			c.wasHosts, c.was = "A,b:6379,d", []node{{"a:6379", 3}, {"b:6379", 2}, {"d:6379", 1}}
		}),
		"redis+ring://a?was=a,b&was_weights=1,2": with(func(c *config) {
			c.topology, c.addrs, c.virtualNodes, c.nodes = ring, []string{"a:6379"}, 2048, []node{{"a:6379", 1}}
			c.wasHosts, c.wasWeights, c.was = "a,b", []int{1, 2}, []node{{"a:6379", 1}, {"b:6379", 2}}
		}),
	} {
		got, err := parseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", raw, got, want)
		}
	}
}

// Each row of TestParseURLRefuses has a URL and a part of the error. S stands for the secret.
func TestParseURLRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, says string }{
		// The scheme.
		{"", `scheme "xxxxx": want one of redis, rediss, redis+sentinel,`},
		{"S", `scheme "xxxxx"`},
		{"h:6379", `scheme "xxxxx"`},
		{"u:S@h", `scheme "xxxxx"`},
		{"://S@h", `scheme "xxxxx"`},
		{"S://h", `scheme "xxxxx"`},
		{"mysql://u:S@h", `scheme "xxxxx"`},
		{"reddis://:S@h", `scheme "reddis": want redis://`},
		{"redis+centinel://:S@h", `scheme "redis+centinel": want redis+sentinel://`},
		{"redis-sentinel://:S@h", `scheme "redis-sentinel": want redis+sentinel://`},
		{"redis-ring://:S@h", `scheme "redis-ring": want redis+ring://`},
		{"redis+rings://:S@h", `scheme "redis+rings": want redis+ring://`},
		{"http://:S@h", `scheme "http": want redis://`},
		{"valkey://:S@h", `scheme "valkey": want redis://, also for Valkey`},
		{"valkeys://:S@h", `scheme "valkeys": want rediss://`},
		{"unix:///run/redis.sock", `redis://localhost?socket=/run/redis.sock`},
		{"unix:/run/redis.sock", `redis://localhost?socket=/run/redis.sock`},
		{"redis://h?socket=", `redis url socket "": want a path`},
		{"redis+cluster://h?socket=/s", `no socket with redis+cluster://`},
		{"redis://h?tls_any_name=true", `no tls_any_name without TLS`},
		{"rediss://h?tls_any_name=yes", `redis url tls_any_name "yes": want true or false`},
		{"redis:S@h", `after the scheme "xxxxx": want //`},

		// A password that is not escaped, or not where it belongs.
		{"redis://S@h", `before the @ "xxxxx": want user:password, or :password`},
		{"redis://S:@h", `before the @`},
		{"redis://@h", `before the @`},
		{"redis://u:S%zz@h", `before the @ "xxxxx": want @ / ? # , and % in a user or password written as %40`},
		{"redis://u:S%@h", `before the @`},
		{"redis://u%zz:S@h", `before the @`},
		{"redis://u:S@S@h", `one @ at most`},
		{"redis://u:S/S@h", `one @ at most`},
		{"redis://u:1/S@h", `one @ at most`},
		{"redis://u:S?S@h", `one @ at most`},
		{"redis://u:1?timeout=S@h", `one @ at most`},
		{"redis://h?password=S@S", `one @ at most`},
		{"redis://u:S#S@h", `after the # "xxxxx": want no fragment`},
		{"redis://h#S", `after the #`},
		{"redis://u:S S@h", `no spaces`},
		{"redis://u:S@h\n", `line ends`},
		{"redis://u:S\x00@h", `control characters`},
		{"redis://u:S,S@h", `before the first host`},
		{"redis+cluster://h1,u:S@h2", `before the first host`},
		{"redis+cluster://h1:7000,u:S@h2", `before the first host`},
		{"redis+cluster://u:S@h1,u:S@h2", `one @ at most`},
		{"redis://u:S", `host port "xxxxx": want a number from 1 to 65535`},
		{"redis://u:123456", `host port "xxxxx"`},
		{"redis://u:S/0", `host port "xxxxx"`},
		{"redis://u:12/S", `db "xxxxx"`},

		// Hosts and ports.
		{"redis://", `host "xxxxx": want a host name or address, IPv6 in brackets`},
		{"redis:///0", `host "xxxxx"`},
		{"redis://:S@", `host "xxxxx"`},
		{"redis://:6379", `host "xxxxx"`},
		{"redis://h:", `host port ""`},
		{"redis://h:0", `host port "0"`},
		{"redis://h:70000", `host port "70000"`},
		{"redis://h:+1", `host port "xxxxx"`},
		{"redis://::1", `IPv6 in brackets`},
		{"redis://[::1", `an IPv6 address`},
		{"redis://[::1]x", `an IPv6 address`},
		{"redis://[h]", `an IPv6 address`},
		{"redis://[10.0.0.1]", `an IPv6 address`},
		{"redis://[fe80::1%25eth0]", `without a zone`},
		{"redis://h%20", `host "xxxxx"`},
		{"redis://a,b", `one host, or redis+sentinel://, redis+cluster:// or redis+ring://`},
		{"redis+cluster://a,,b", `host 2 "xxxxx"`},
		{"redis+cluster://a,b,", `host 3 "xxxxx"`},
		{"redis+cluster://a,b:0", `host 2 port "0"`},

		// The path.
		{"redis://h/x", `db "xxxxx": want a number from 0 to 1000000`},
		{"redis://h/0/1", `and nothing after it`},
		{"redis://h/-1", `db "xxxxx"`},
		{"redis://h/1000001", `db "1000001"`},
		{"redis+cluster://h/1", `db "1": want a number from 0 to 1000000; in a cluster 0`},
		{"redis+cluster://h?db=1", `db "1"`},
		{"redis+sentinel://h", `primary "xxxxx": want the primary's name after the hosts`},
		{"redis+sentinel://h/", `primary`},
		{"redis+sentinel://h//0", `primary`},
		{"redis+sentinel://h/a%20b", `primary`},
		{"redis+sentinel://h/main/x", `db "xxxxx"`},
		{"redis+sentinel://h/main/0/1", `db "xxxxx"`},

		// Parameters.
		{"redis://h?timout=1s", `parameter "timout": want timeout`},
		{"redis://h?Password=S", `parameter "Password": want password`},
		{"redis://h?passwd=S", `parameter "passwd": want password`},
		{"redis://h?db=1&pool=S", `parameter 2 "xxxxx": want one of user, password,`},
		{"redis://h?db=1&", `parameter 2 "xxxxx"`},
		{"redis://h?S", `parameter 1 "xxxxx"`},
		{"redis://h?S=1", `parameter 1 "xxxxx"`},
		{"redis://h?password=x&S", `& in a value written as %26`},
		{"redis://h?tls=true", `parameter "tls": want a scheme that begins with rediss`},
		{"redis://h?db=1&db=2", `db "2": want it once`},
		{"redis://h/1?db=1", `db "1": want it once`},
		{"redis://h?password=S&password=S", `password "xxxxx": want it once`},
		{"redis://u:S@h?password=S", `password "xxxxx": want it once`},
		{"redis://:S@h?user=u", `either before the @ or in the query`},
		{"redis://h?user=S", `user "xxxxx": want also password`},
		{"redis://h?user=&password=S", `user "": want a name`},
		{"redis://h?password=", `password "xxxxx": want a password`},
		{"redis://h?password=S+S", `password "xxxxx": want % written as %25, + as %2B`},
		{"redis://h?password=S%zz", `password "xxxxx": want % written as %25`},
		{"redis+sentinel://h/m?sentinel_user=S", `sentinel_user "xxxxx": want also sentinel_password`},
		{"redis+sentinel://h/m?sentinel_password=", `sentinel_password "xxxxx": want a password`},
		{"redis://h?sentinel_password=S", `sentinel_password "xxxxx": want no sentinel_password with redis://`},
		{"redis+cluster://h?sentinel_user=u", `want no sentinel_user with redis+cluster://`},
		{"redis://h?db", `db "": want a number`},
		{"redis://h?prefix={a}", `prefix "{a}": want 1 to 32 letters`},
		{"redis://h?prefix=", `prefix ""`},
		{"redis://h?prefix=" + strings.Repeat("a", 33), `prefix "aaa`},
		{"redis://h?client_name=a%20b", `client_name "a b": want 1 to 64 letters`},
		{"redis://h?timeout=5", `timeout "5": want a duration from 1ms to 1m`},
		{"redis://h?timeout=61s", `timeout "61s"`},
		{"redis://h?timeout=-1s", `timeout "-1s"`},
		{"redis://h?dial_timeout=999us", `dial_timeout "999us"`},
		{"redis://h?flush_delay=-1us", `flush_delay "-1us": want a duration from 0 to 10ms`},
		{"redis://h?flush_delay=11ms", `flush_delay "11ms"`},
		{"redis://h?conns=3", `conns "3": want 1, 2, 4, 8 or 16`},
		{"redis://h?conns=0", `conns "0"`},
		{"redis://h?buffer=65536", `buffer "65536": want a size from 4KiB to 16MiB`},
		{"redis://h?buffer=3KiB", `buffer "3KiB"`},
		{"redis://h?buffer=17MiB", `buffer "17MiB"`},
		{"redis://h?buffer=KiB", `buffer "KiB"`},
		{"redis://h?tls_ca=ca.pem", `tls_ca "ca.pem": want no tls_ca without TLS, which is rediss://`},
		{"redis+cluster://h?tls_server_name=x", `which is rediss+cluster://`},
		{"rediss://h?tls_cert=c.pem", `want also tls_key`},
		{"rediss://h?tls_key=k.pem", `want also tls_cert`},
		{"rediss://h?tls_server_name=", `tls_server_name ""`},
		{"rediss://h?tls_ca=", `tls_ca "": want a PEM file`},

		// Rings.
		{"redis+ring://:S@a", `host "one server": want two or more; redis:// is for one`},
		{"redis+ring://a,b:6379,A:6379", `host 3 "xxxxx": want a server that is not in the list before, as number 1`},
		{"redis+ring+cluster://:S@a,b", `scheme "redis+ring+cluster": want redis+cluster://, or redis+ring:// for servers that are not a Cluster`},
		{"redis+ring://:S@a,redis+cluster://b", `host "xxxxx": want hosts without schemes`},
		{"redis+ring://a,b:x", `host 2 port "xxxxx": want a number from 1 to 65535`},
		{"redis+ring://" + strings.Repeat("h,", 64) + "h", `host "65 servers": want at most 64`},
		{"redis+ring://a,b/main", `db "xxxxx": want a number`},
		{"redis+ring://a,b?sentinel_user=x&sentinel_password=S", `want no sentinel_user with redis+ring://`},
		{"redis+cluster://a,b?weights=1,1", `weights "1,1": want no weights with redis+cluster://`},
		{"redis+sentinel://a,b/m?virtual_nodes=200", `want no virtual_nodes with redis+sentinel://`},
		{"redis://a?was=b", `want no was with redis://`},
		{"redis+ring://a,b?weight=1,1", `parameter "weight": want weights`},
		{"redis+ring://a,b?virtualnodes=200", `parameter "virtualnodes": want virtual_nodes`},
		{"redis+ring://a,b?weights=1,1,1", `weights "3 numbers": want 2 numbers, one for each server`},
		{"redis+ring://a,b?weights=1", `weights "1 numbers": want 2 numbers`},
		{"redis+ring://a,b?weights=1,0", `weights "1,0": want whole numbers from 1 to 100, one for each server`},
		{"redis+ring://a,b?weights=1,101", `weights "1,101"`},
		{"redis+ring://a,b?weights=1,0.5", `weights "1,0.5"`},
		{"redis+ring://a,b?weights=1,", `weights "1,"`},
		{"redis+ring://a,b?virtual_nodes=99", `virtual_nodes "99": want a number from 100 to 16384`},
		{"redis+ring://a,b?virtual_nodes=16385", `virtual_nodes "16385"`},
		{"redis+ring://a,b,c?weights=100,100,100&virtual_nodes=16384", `virtual_nodes "16384": want at most 3495, or smaller weights: they add up to 300`},
		{"redis+ring://a,b?was=", `was "": want hosts`},
		{"redis+ring://a,b?was=a,S:S", `was 2 port "xxxxx": want a number`},
		{"redis+ring://a,b?was=a,,c", `was 2 "xxxxx": want a host name`},
		{"redis+ring://a,b?was=c,d,c", `was 3 "xxxxx": want a server that is not in the list before, as number 1`},
		{"redis+ring://a,b?was=u:S@c", `one @ at most`},
		{"redis+ring://a,b?was_weights=1,1", `was_weights "xxxxx": want also was`},
		{"redis+ring://a,b?was=a,c&was_weights=1", `was_weights "1 numbers": want 2 numbers`},
	} {
		raw := strings.ReplaceAll(c.raw, "S", secret)
		got, err := parseURL(raw)
		var invalid *stint.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: got %v, want an InvalidError that says %q", c.raw, err, c.says)
		}
		if !reflect.DeepEqual(got, config{}) {
			t.Errorf("%q: refused, and got %+v", c.raw, got)
		}
		if err != nil && strings.Contains(strings.ToLower(err.Error()), strings.ToLower(secret)) {
			t.Errorf("%q: the secret is in %v", c.raw, err)
		}
	}
}

// pemFiles writes a certificate, its key and an unrelated key to a directory.
func pemFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"other.pem", "key.pem"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		write(name, "PRIVATE KEY", der, err)
		about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<33, 0)}
		der, err = x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
		write("cert.pem", "CERTIFICATE", der, err) // the last key's
		write("ca.pem", "CERTIFICATE", der, err)
	}
	return dir
}

// Each row of TestTLSFiles has a query and a part of the error. D stands for the directory of the files.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	dir := pemFiles(t)
	for query, want := range map[string]struct{ field, value, want string }{
		"tls_ca=D/ca.pem":                         {},
		"tls_cert=D/cert.pem&tls_key=D/key.pem":   {},
		"tls_ca=D/none.pem":                       {"tls_ca", "D/none.pem", "a readable file: no such file"},
		"tls_ca=D":                                {"tls_ca", "D", "a readable file: is a directory"},
		"tls_ca=D/key.pem":                        {"tls_ca", "D/key.pem", "a PEM file with a certificate"},
		"tls_cert=D/none.pem&tls_key=D/key.pem":   {"tls_cert", "D/none.pem", "a readable file"},
		"tls_cert=D/key.pem&tls_key=D/cert.pem":   {"tls_cert", "D/key.pem", "a PEM file with a certificate"},
		"tls_cert=D/cert.pem&tls_key=D/none.pem":  {"tls_key", "D/none.pem", "a readable file"},
		"tls_cert=D/cert.pem&tls_key=D/other.pem": {"tls_key", "D/other.pem", "the private key of tls_cert"},
		"tls_cert=D/cert.pem&tls_key=D/ca.pem":    {"tls_key", "D/ca.pem", "the private key of tls_cert"},
		"tls_key=D/key.pem&tls_cert=%00":          {"tls_cert", "\x00", "a readable file: invalid argument"},
	} {
		fill := func(s string) string { return strings.ReplaceAll(s, "D", dir) }
		c, err := parseURL("rediss://h?" + fill(query))
		if want.field == "" {
			if err != nil || (c.tls.RootCAs == nil) != (c.caFile == "") || (c.tls.Certificates == nil) != (c.certFile == "") {
				t.Errorf("%s: got %+v, %v", query, c.tls, err)
			}
			continue
		}
		var invalid *stint.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "redis url "+want.field || invalid.Value != fill(want.value) || !strings.HasPrefix(invalid.Want, want.want) {
			t.Errorf("%s: got %v, want %v", query, err, want)
		}
	}
}

// TestURLDocument checks that the table in docs/redis-url.md matches the code, and that its examples are
// valid.
func TestURLDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/redis-url.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)

	var rows []string
	for _, p := range params {
		if p.def != "" && !p.set(&config{}, p.def) {
			t.Errorf("%s does not take its default %q", p.name, p.def)
		}
		def := ""
		if p.def != "" {
			def = "`" + p.def + "`"
		}
		where := map[topology]string{single: "one server", sentinel: "sentinel", ring: "ring"}[p.only]
		if p.tls {
			where = "TLS"
		}
		rows = append(rows, "| `"+p.name+"` | "+p.takes+" | "+def+" | "+p.means+" | "+where+" |")
	}
	if _, table, _ := strings.Cut(doc, "|---|---|---|---|---|\n"); !strings.HasPrefix(table, strings.Join(rows, "\n")+"\n\n") {
		t.Errorf("docs/redis-url.md has another table of parameters than:\n%s", strings.Join(rows, "\n"))
	}

	dir := pemFiles(t)
	examples := regexp.MustCompile("\\b[a-z+]+://[^\\s`|]+").FindAllString(doc, -1)
	of := map[topology]int{}
	for _, raw := range examples {
		c, err := parseURL(strings.ReplaceAll(raw, "/etc/stint", dir))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		of[c.topology]++
	}
	if of[single] < 3 || of[sentinel] < 2 || of[cluster] < 2 || of[ring] < 3 {
		t.Errorf("too few examples: %q", examples)
	}
}

// FuzzParseURL checks that no error contains a password, wherever it is in the URL.
func FuzzParseURL(f *testing.F) {
	shapes := []string{
		"redis://u:P@h", "redis://:P@h:1/2?timeout=1s", "rediss://u:P@h/x?y", "http://u:P@h", "u:P@h", "valkey:P", "redis://h#P",
		"redis+sentinel://u:P@a,b:1/main/1", "redis+cluster://a,u:P@b", "redis+cluster://u:P@a,u:P@b",
		"redis://h?password=P", "redis://h?user=u&password=P&db=x", "redis+sentinel://h/m?sentinel_password=P", "redis://h?passwort=P",
		"redis+ring://u:P@a,b?weights=1,2&was=a", "redis+ring://a,u:P@b", "redis+ring://a,b?was=u:P@c",
	}
	for i := range shapes {
		for _, text := range []string{"", "@", "/", "?", "#", "%", "%zz", "%20", ":", ",", "&", "=", "+", "[", "]", " ", "\n", "://", "@h/"} {
			f.Add(uint(i), "", text)
			f.Add(uint(i), text, "")
		}
	}
	f.Fuzz(func(t *testing.T, shape uint, before, after string) {
		// Any text at all: no panic.
		_, _ = parseURL(before + after)

		if strings.Contains(before, "&") {
			return // it could make the secret the value of a parameter that is shown
		}
		raw := strings.ReplaceAll(shapes[shape%uint(len(shapes))], "P", before+secret+after)
		if _, err := parseURL(raw); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the secret is in the error: %v", raw, err)
		}
	})
}
