package daemon_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
)

func settings(c *daemon.Config) map[string]daemon.Setting {
	out := map[string]daemon.Setting{}
	for _, s := range c.Settings() {
		out[s.Name] = s
	}
	return out
}

func TestSettings(t *testing.T) {
	t.Parallel()
	path := write(t, "stint.toml", `server.replicas = 1
[identity]
pepper = "`+pepper+`"
trusted_proxies = [
  "10.0.0.0/8",
]
jwt = { secret = "`+secret+`", audience = ["a", "b"] }
[envoy.xds]
headers = ["x-token=hunter2"]
`)
	c, err := loadFile(path, []string{
		"STINT_SERVER_COUNTERS=redis://me:hunter2@redis.example:6379/1?timeout=50ms",
		"STINT_SERVER_RELOAD_INTERVAL=0s", "STINT_IDENTITY_API_KEY_BEARER=true",
		"STINT_IDENTITY_JWT_AUDIENCE=c, d,", "STINT_IDENTITY_JWT_ISSUER=me",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := settings(c)
	for name, want := range map[string]struct{ value, origin string }{
		"server.counters":          {"redis://[redacted]@redis.example:6379/1?[redacted]", "STINT_SERVER_COUNTERS"},
		"server.replicas":          {"1", path + ":1"},
		"server.max_keys":          {"1048576", "default"},
		"server.reload_interval":   {"0", "STINT_SERVER_RELOAD_INTERVAL"},
		"identity.pepper":          {"[redacted]", path + ":3"},
		"identity.pepper_file":     {"", "default"},
		"identity.trusted_proxies": {"10.0.0.0/8", path + ":4"},
		"identity.api_key_bearer":  {"true", "STINT_IDENTITY_API_KEY_BEARER"},
		"identity.require":         {"false", "default"},
		"identity.jwt.secret":      {"[redacted]", path + ":7"},
		"identity.jwt.audience":    {"c,d", "STINT_IDENTITY_JWT_AUDIENCE"},
		"identity.jwt.issuer":      {"me", "STINT_IDENTITY_JWT_ISSUER"},
		"identity.jwt.leeway":      {"30s", "default"},
		"envoy.xds.headers":        {"x-token=[redacted]", path + ":9"},
	} {
		if s := got[name]; s.Value != want.value || s.Origin != want.origin {
			t.Errorf("%s: %q of %s, want %q of %s", name, s.Value, s.Origin, want.value, want.origin)
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "config", c)
	for _, shown := range []string{fmt.Sprintf("%+v %#v", c, c.Server), string(text), log.String()} {
		for _, hidden := range []string{"hunter2", pepper, secret} {
			if strings.Contains(shown, hidden) {
				t.Errorf("%s shows %s", shown, hidden)
			}
		}
	}
}

// TestFlags checks that flags override variables, and variables the file.
func TestFlags(t *testing.T) {
	t.Parallel()
	path := write(t, "stint.toml", "[server]\nreplicas = 2\nmax_keys = 20\nmax_waiting = 200\n")
	source := daemon.Source{Path: path, Environ: []string{"STINT_SERVER_REPLICAS=3", "STINT_SERVER_MAX_KEYS=30"}, Flags: []daemon.Flag{
		{Name: "--replicas", Setting: "server.replicas", Value: "4"}, set("server.headers", "x"),
	}}
	c, err := source.Load()
	do(t, err)
	got := settings(c)
	for name, want := range map[string][2]string{
		"server.replicas":    {"4", "--replicas"},
		"server.max_keys":    {"30", "STINT_SERVER_MAX_KEYS"},
		"server.max_waiting": {"200", path + ":4"},
		"server.headers":     {"x", "--set server.headers"},
		"server.max_body":    {"0", "default"},
	} {
		if s := got[name]; s.Value != want[0] || s.Origin != want[1] {
			t.Errorf("%s: %q of %s, want %q of %s", name, s.Value, s.Origin, want[0], want[1])
		}
	}
	for _, source.Path = range []string{path, ""} {
		source.Flags = []daemon.Flag{
			set("server.replica", "1"), set("server.replicas", "-1"), set("server.max_keys", "many"), set("identity.jwt.secret", "hunter2"),
		}
		_, err = source.Load()
		const want = `--set server.replica: unknown setting; did you mean "server.replicas"?
--set server.max_keys: "many": want an integer
--set server.replicas: -1: want 0 or more
--set identity.jwt.secret: "[redacted]": want at least 32 bytes`
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v", source.Path, err)
		}
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[daemon.URL]string{
		"memory:":                         "memory:",
		"redis://localhost":               "redis://localhost",
		"redis://a:1,b:2/main":            "redis://a:1,b:2/main",
		"rediss://me:hunter2@a,b/0":       "rediss://[redacted]@a,b/0",
		"redis://a?password=hunter2":      "redis://a?[redacted]",
		"redis://me:hunter2?x@a":          "redis://[redacted]",
		"redis://a?password=x@hunter2":    "redis://[redacted]",
		"redis://me:hun@ter2/hunter2@a/0": "redis://[redacted]@a/0",
	} {
		if got := url.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()
	c, err := loadFile("", []string{
		"STINT_IDENTITY_PEPPER_FILE=" + write(t, "pepper", pepper+"\n"),
		"STINT_IDENTITY_JWT_SECRET_FILE=" + write(t, "secret", secret+"\r\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := resolverOf(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, environ := range map[string]string{
		"STINT_IDENTITY_PEPPER_FILE: ":          "STINT_IDENTITY_PEPPER_FILE=" + write(t, "empty", "\n"),
		"STINT_IDENTITY_JWT_SECRET_FILE: ":      "STINT_IDENTITY_JWT_SECRET_FILE=" + write(t, "short", "hunter2"),
		"STINT_IDENTITY_JWT_PUBLIC_KEY_FILES: ": "STINT_IDENTITY_JWT_PUBLIC_KEY_FILES=" + write(t, "pem", "hunter2"),
	} {
		if _, err := loadFile("", []string{environ}); err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %s", err, name)
		}
	}
}

var update = flag.Bool("update", false, "write the tables of settings and metrics into the documents")

// TestDocument checks that docs/configuration.md has the table of all settings.
func TestDocument(t *testing.T) {
	t.Parallel()
	const path = "../../docs/configuration.md"
	c, err := loadFile("", nil)
	if err != nil {
		t.Fatal(err)
	}
	table := "\n| setting | variable | default | meaning |\n|---|---|---|---|\n"
	for _, s := range c.Settings() {
		def := ""
		if s.Value != "" {
			def = "`" + s.Value + "`"
		}
		table += "| `" + s.Name + "` | `" + s.Env + "` | " + def + " | " + s.Doc + " |\n"
	}
	keepTable(t, path, "settings", table)
}

// TestExample checks that stint.example.toml is valid, and has every table and every
// setting, set or commented out.
func TestExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../stint.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadFile("../../stint.example.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rules) == 0 || len(c.Tiers) == 0 || len(c.Tenants) == 0 || len(c.Users) == 0 || len(c.APIKeys) == 0 || len(c.Exemptions) == 0 || len(c.Bans) == 0 || len(c.Upstreams) == 0 {
		t.Error("a table is missing")
	}
	table, has := "", map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimPrefix(line, "#") // settings that are not set stand right behind it
		if strings.HasPrefix(line, "[") {
			table = strings.Trim(strings.TrimSpace(line), "[]")
		}
		if name, _, ok := strings.Cut(line, " = "); ok {
			has[strings.TrimPrefix(table+"."+strings.TrimSpace(name), ".")] = true
		}
	}
	for _, s := range c.Settings() {
		if !has[s.Name] {
			t.Errorf("%s is missing", s.Name)
		}
	}
}
