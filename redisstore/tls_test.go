package redisstore_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// allow creates the user of docs/redis.md on every server.
func allow(t testing.TB, user string, servers ...*testredis.Server) {
	t.Helper()
	blocks := testdoc.In(t, "docs/redis.md", "text")
	i := slices.IndexFunc(blocks, func(b testdoc.Block) bool { return strings.HasPrefix(b.Text, "ACL SETUSER "+user+" ") })
	if i < 0 || len(blocks) != 3 {
		t.Fatalf("docs/redis.md has %d blocks, want 3, one of them ACL SETUSER %s", len(blocks), user)
	}
	for _, s := range servers {
		s.Do(t, strings.Fields(strings.ReplaceAll(blocks[i].Text, "\\\n", " "))...)
	}
}

// TestDocumentedScan runs the command of docs/redis.md that lists the counters of a user.
func TestDocumentedScan(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile("`redis-cli (--scan --pattern '[^'`]+')`").FindStringSubmatch(testdoc.Documents(t)["docs/redis.md"])
	if command == nil {
		t.Fatal("docs/redis.md has no redis-cli --scan")
	}
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	for _, subject := range []string{"user:42", "user:421"} {
		if _, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: subject, Name: "api"}, Limit: stint.PerMinute(1), Cost: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("redis-cli -p %d %s", server.Port, command[1])).CombinedOutput()
	if err != nil || string(out) != "rl:{user:42}:api:sw1m\n" {
		t.Errorf("got %s, %v", out, err)
	}
}

// suiteAs runs the suite as that user.
func suiteAs(t *testing.T, user, url string) {
	t.Helper()
	scheme, rest, _ := strings.Cut(url, "://")
	open := func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return openURL(t, fmt.Sprintf("%s://%s:PASSWORD@%s&prefix=rl:%d", scheme, user, rest, stores.Add(1)), redisstore.Options{Now: now})
	}
	// Which commands are sent does not depend on how often, nor by how many callers at once.
	storetest.RunExcept(t, open, "traces", "one key", "hierarchies", "linearizable", "many asks")
}

// TestTLS runs the suite over TLS with a client certificate, as a user with only the documented ACL rules.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := testredis.StartTLS(t, "--tls-auth-clients", "yes")
	allow(t, "limiter", server.Server)
	server.Do(t, "ACL", "SETUSER", "default", "off")
	suiteAs(t, "limiter", server.URL()+"?tls_ca="+server.CAFile+"&tls_cert="+server.CertFile+"&tls_key="+server.KeyFile+
		"&tls_server_name=localhost&client_name=test&conns=4&flush_delay=20us&buffer=16KiB&db=3")
}

// TestRingTLS takes from a ring over TLS, in a database: one server, under two names.
func TestRingTLS(t *testing.T) {
	t.Parallel()
	server := testredis.StartTLS(t)
	_, port, _ := strings.Cut(server.Addr(), ":")
	s := openURL(t, fmt.Sprintf("rediss+ring://localhost:%s,127.0.0.1:%s/3?tls_ca=%s&tls_server_name=localhost", port, port, server.CAFile), redisstore.Options{})
	for i := range 20 {
		if _, err := storetest.Take(t.Context(), s, ask(fmt.Sprint("user:", i), 10)); err != nil {
			t.Fatal(err)
		}
	}
	if keys := server.Do(t, "INFO", "keyspace"); !strings.Contains(fmt.Sprint(keys), "db3:keys=20,") {
		t.Errorf("%v; want 20 keys in database 3", keys)
	}
}

// TestACL runs the suite as that user on deployments of several servers.
func TestACL(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := testredis.SharedCluster(t)
		allow(t, "limiter", c.Nodes()...)
		suiteAs(t, "limiter", c.URL()+"?client_name=test")
	})
	t.Run("ring", func(t *testing.T) {
		t.Parallel()
		r := testredis.SharedRing(t)
		allow(t, "limiter", r.Nodes()...)
		suiteAs(t, "limiter", r.URL()+"?client_name=test&db=2")
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testredis.SharedSentinels(t)
		allow(t, "stint", s.Servers()...)
		allow(t, "stint-sentinel", s.Nodes()...)
		suiteAs(t, "stint", s.URL()+"?client_name=test&db=2&sentinel_user=stint-sentinel&sentinel_password=PASSWORD")
	})
}

// TestSocket takes from a server at a unix socket.
func TestSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	testredis.Start(t, "--unixsocket", socket)
	s := openURL(t, "redis://nowhere.invalid?socket="+socket, redisstore.Options{})
	if d, err := storetest.Take(t.Context(), s, ask("user:1", 10)); err != nil || !d[0].Allowed {
		t.Errorf("%v, %v", d, err)
	}
}

// TestAnyName accepts a certificate with another name, but none of another authority.
func TestAnyName(t *testing.T) {
	t.Parallel()
	server, other := testredis.StartTLS(t), testredis.StartTLS(t)
	for query, want := range map[string]bool{
		"?tls_ca=" + server.CAFile + "&tls_server_name=other.example":                   false,
		"?tls_ca=" + server.CAFile + "&tls_server_name=other.example&tls_any_name=true": true,
		"?tls_ca=" + other.CAFile + "&tls_any_name=true":                                false,
	} {
		s := openURL(t, server.URL()+query, redisstore.Options{})
		if _, err := storetest.Take(t.Context(), s, ask("user:1", 10)); (err == nil) != want {
			t.Errorf("%s: %v", query, err)
		}
	}
}
