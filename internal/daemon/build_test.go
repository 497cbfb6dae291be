package daemon_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/storetest"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func resolverOf(c *daemon.Config) (*identity.Resolver, error) {
	content, err := c.Content()
	if err != nil {
		return nil, err
	}
	return c.Resolver(content, nil)
}

// resolve identifies the sender of headers from 192.0.2.1.
func resolve(t testing.TB, c *daemon.Config, headers map[string][]string) (identity.Subject, error) {
	t.Helper()
	r, err := resolverOf(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var s identity.Subject
	err = r.Resolve(t.Context(), &identity.Request{Peer: netip.MustParseAddr("192.0.2.1"), Headers: headers}, noon, &s)
	return s, err
}

func TestResolver(t *testing.T) {
	t.Parallel()
	const table = "[identity]\npepper = \"" + pepper + "\"\ntrusted_proxies = [\"192.0.2.1\"]\nuser_header = \"X-User\"\n"
	text, key, err := identity.GenerateKey(rand.Reader, "stint", pepper)
	if err != nil {
		t.Fatal(err)
	}
	keys := fmt.Sprintf("[[api_keys]]\nid = %q\nhash = \"hmac-sha256:%s\"\n", key.ID, hex.EncodeToString(key.Hash[:])) +
		"user = \"alice\"\ntenant = \"acme\"\nlimits = { requests = \"5/1s\" }\n"
	users := "[[users]]\nid = \"alice\"\ntier = \"premium\"\nlimits = { requests = \"unlimited\" }\n"
	for name, c := range map[string]struct {
		text    string
		headers map[string][]string
		want    string // or the reason
	}{
		"nothing":      {"", nil, "ip   "},
		"default tier": {"[identity]\ndefault_tier = \"free\"", nil, "ip   free"},
		"key":          {table + keys + users, map[string][]string{"X-Api-Key": {text}}, "key alice acme premium limits=5/1s,0/0s"},
		"revoked":      {table + keys + "revoked = 2026-06-01T11:59:59Z\n", map[string][]string{"X-Api-Key": {text}}, "key_revoked"},
		"not revoked":  {table + keys + "revoked = 2026-06-01T12:00:01Z\n", map[string][]string{"X-Api-Key": {text}}, "key alice acme  limits=5/1s"},
		"expired":      {table + keys + "expires = 2026-06-01T12:00:00Z\n", map[string][]string{"X-Api-Key": {text}}, "key_expired"},
		"disabled":     {table + keys + "disabled = true\n", map[string][]string{"X-Api-Key": {text}}, "key_disabled"},
		"unknown key":  {table + keys, map[string][]string{"X-Api-Key": {"stint_12345678_123456789012345678901234567"}}, "key_invalid"},
		"other header": {table, map[string][]string{"X-Api-Key": {"someone else's"}}, "ip   "},
		"only keys":    {"[identity]\nmethods = [\"key\"]", map[string][]string{"X-Api-Key": {"x"}}, "key_invalid"},
		"header":       {table + users, map[string][]string{"X-User": {"alice"}}, "header alice  premium limits=0/0s"},
		"blocked":      {table + users + "blocked = { reason = \"abuse\" }\n", map[string][]string{"X-User": {"alice"}}, "header alice  premium limits=0/0s banned=abuse"},
		"not blocked":  {table + "[[users]]\nid = \"alice\"\nblocked = { until = 2026-06-01T12:00:00Z }\n", map[string][]string{"X-User": {"alice"}}, "header alice  "},
		"banned":       {"[[bans]]\nip = \"192.0.2.0/24\"\nreason = \"abuse\"\n[[exemptions]]\nip = \"192.0.2.1\"", nil, "ip    banned=abuse"},
		"exempt":       {table + "[[exemptions]]\nuser = \"alice\"\nreason = \"ours\"", map[string][]string{"X-User": {"alice"}}, "header alice   exempt=ours"},
		"require":      {"[identity]\nrequire = true", nil, "no_credentials"},
	} {
		s, err := resolve(t, load(t, someRules+c.text), c.headers)
		got := fmt.Sprint(s.Source, " ", s.User, " ", s.Tenant, " ", s.Tier)
		for i, limits := range []map[string]stint.Limit{s.KeyLimits, s.UserLimits} {
			if l, ok := limits["requests"]; ok {
				got += [...]string{" limits=", ","}[min(i, strings.Count(got, "limits="))] + fmt.Sprintf("%d/%v", l.Max, l.Window.Length())
			}
		}
		if s.Banned != nil {
			got += " banned=" + s.Banned.Reason
		}
		if s.Exempt != nil {
			got += " exempt=" + s.Exempt.Reason
		}
		if refused := new(identity.RefusedError); errors.As(err, &refused) {
			got = refused.Reason.String()
		} else if err != nil {
			t.Error(err)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestDirectoryAllocations(t *testing.T) {
	d := load(t, someRules+"[[users]]\nid = \"alice\"\n[[api_keys]]\nid = \"abcdefgh\"\nhash = \"sha256:"+someSum+"\"").Directory(nil)
	if n := testing.AllocsPerRun(100, func() {
		u, err := d.User(t.Context(), "alice")
		k, err2 := d.Key(t.Context(), "abcdefgh")
		if u == nil || k == nil || err != nil || err2 != nil {
			t.Fatal(u, k, err, err2)
		}
		if u, _ := d.User(t.Context(), "bob"); u != nil {
			t.Fatal(u)
		}
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// alone are the options of a store that knows no other nodes than those configured.
func alone(c *daemon.Config, log io.Writer) daemon.StoreOptions {
	return daemon.StoreOptions{Log: slog.New(slog.NewTextHandler(log, nil)), Replicas: func() int { return max(1, c.Server.Replicas) }}
}

func TestOpenStore(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	for name, c := range map[string]struct {
		environ []string
		basis   stint.Basis
	}{
		"memory": {nil, stint.Counted},
		"redis":  {[]string{"STINT_SERVER_COUNTERS=" + redis.URL() + patient, "STINT_SERVER_STORE_BUDGET=30s"}, stint.Counted},
		"no redis": {
			[]string{"STINT_SERVER_COUNTERS=redis://127.0.0.1:1", "STINT_SERVER_REPLICAS=5"}, stint.Local,
		},
	} {
		config, err := loadFile("", c.environ)
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := config.OpenStore(alone(config, io.Discard))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ds, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "user:1", Name: "n"}, Limit: stint.PerHour(10), Cost: 1}})
		if err != nil || ds[0].Basis != c.basis || !ds[0].Allowed {
			t.Errorf("%s: %+v, %v", name, ds, err)
		}
		if c.basis == stint.Local && ds[0].Remaining != 1 {
			t.Errorf("%s: %d remain of a share of 2, want 1", name, ds[0].Remaining)
		}
	}
	_, err := loadFile("", []string{"STINT_SERVER_COUNTERS=redis://me:hunter2@a?hunter2"})
	if err == nil || !strings.HasPrefix(err.Error(), "STINT_SERVER_COUNTERS: ") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	c, err := loadFile("", []string{"STINT_SERVER_COUNTERS=rediss://me:hunter2@a?tls_ca=/no/such/file"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.OpenStore(alone(c, io.Discard)); err == nil || !strings.HasPrefix(err.Error(), "server.counters: ") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// TestSlowStore has a slow Redis, and a budget that allows for it: the breaker stays
// closed.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	proxy := testredis.StartProxy(t, testredis.Start(t))
	config, err := loadFile("", []string{"STINT_SERVER_COUNTERS=" + proxy.URL() + patient, "STINT_SERVER_STORE_BUDGET=30s"})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s, _, err := config.OpenStore(alone(config, &log))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	proxy.Set(t, testredis.Fault{Latency: 30 * time.Millisecond})
	for range 6 {
		ds, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "user:1", Name: "n"}, Limit: stint.PerHour(10), Cost: 1}})
		if err != nil || ds[0].Basis != stint.Counted {
			t.Errorf("%+v, %v", ds, err)
		}
	}
	if log.Len() > 0 {
		t.Error(log.String())
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"msg":"heard"`, "text": "msg=heard"} {
		c, err := loadFile("", []string{"STINT_SERVER_LOG_FORMAT=" + format, "STINT_SERVER_LOG_LEVEL=warn"})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		log := c.Logger(&b)
		log.Info("unheard")
		log.Warn("heard")
		if got := b.String(); !strings.Contains(got, want) || strings.Contains(got, "unheard") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, `[[rules]]
name = "rule-%d"
match = { paths = ["/api/v1/things-%d/*"], methods = ["GET", "POST"] }
count_by = ["user", "endpoint"]
limits = [{ name = "requests", limit = "100/1m" }, { name = "burst", limit = "10/1s token_bucket burst=20" }]

`, i, i)
	}
	path := write(b, "stint.toml", text.String())
	for b.Loop() {
		c, err := loadFile(path, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Content(); err != nil {
			b.Fatal(err)
		}
	}
}
