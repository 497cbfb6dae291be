package main_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// world returns a demo, and a directory, as the commands of a document need them: with files,
// servers and events of their own.
func (d *demo) world(t *testing.T, file string) (w *demo, dir string) {
	t.Helper()
	dir, w = d.begin(t), new(*d)
	w.substitute = strings.NewReplacer("/run/secrets/jwt", dir+"/jwt", "/var/lib/stint", dir, "sqlite:stint.db", "sqlite:"+dir+"/stint.db").Replace
	files := map[string]string{"jwt": strings.Repeat("secret", 6)}
	serverOf := func(redis bool) (url string) { // a PostgreSQL, in place of the one that documents name
		url = testpostgres.Shared(t).Database(t)
		pairs := []string{"postgres://stint@db/stint?sslmode=verify-full", url, "file:///var/lib/stint", "file://" + dir}
		if redis {
			pairs = append(pairs, "redis://redis", testredis.Start(t).URL())
		}
		w.substitute = strings.NewReplacer(pairs...).Replace
		return url
	}
	switch file {
	case "docs/configuration.md":
		files["broken.toml"] = "[server]\nreplcas = 3\n\n[[tiers]]\nname = \"premium\"\n\n[[users]]\nid   = \"alice\"\ntier = \"premum\"\n"
	case "docs/cli.md":
		files["broken.toml"] = "[server]\nreplcas = 3\n"
		files["start.toml"] = cliStart
		files["rules.toml"] = "[[rules]]\nname = \"exports\"\nlimits = [ { name = \"exports\", limit = \"10/1h\" } ]\n\n[[users]]\nid = \"alice\"\ntenant = \"acme\"\ntier = \"premium\"\n"
		files["stint.toml"] = cliConfig
		files["node.toml"] = fmt.Sprintf("[server]\ndatabase = %q\ncounters = %q\n", serverOf(false), testredis.Start(t).URL())
		w.substitute = strings.NewReplacer("RUNTIME_ROOT=/data", "RUNTIME_ROOT="+dir+"/ratelimit").Replace
		defer func() {
			d.must(t, "apply", "-f", filepath.Join(dir, "start.toml"), "--prune", "--yes")
			d.must(t, "check", "/orders", "--user", "alice", "--cost", "512", "--take", "--http", d.api)
		}()
	case "docs/rule-tests.md":
		files["broken.ruletest"] = "test free users search five times a minute\n# since the rule was made\nat 1s GET /search user=alice x10 -> allow 5 deny 5 retry=59s\n"
	case "docs/rules.md":
		files["broken.toml"], files["unreachable.toml"] = brokenRules, unreachableRules
	case "docs/getting-started.md":
		pairs := []string{"redis://localhost:6379", testredis.Start(t).URL(), "sqlite:stint.db", "sqlite:" + dir + "/stint.db"}
		w.substitute = strings.NewReplacer(pairs...).Replace
	case "docs/control-plane.md":
		serverOf(true)
		rule := "[[rules]]\nname = %q\nlimits = [ { name = %q, limit = \"5/1m\" } ]\n[[tiers]]\nname = \"premium\"\nlimits = { lookup = %q }\n"
		files["rules.toml"] = fmt.Sprintf(rule, "lookup", "lookup", "100/1h")
		files["new.toml"] = fmt.Sprintf(rule, "search", "search", "500/1h")
	case "docs/record.md", "docs/archive.md":
		url := serverOf(false)
		at := time.Now().Add(-time.Minute)
		if file == "docs/archive.md" {
			at = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
		}
		if err := recordIn(t, url, time.Now).Write(t.Context(), []record.Event{denial(1, at, "alice")}); err != nil {
			t.Fatal(err)
		}
		w.environ = []string{"STINT_SERVER_DATABASE=" + url}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w, dir
}

// cliStart is in the database before the commands of cli.md, and cliConfig is their config file.
const (
	cliStart = `
[[rules]]
name     = "login"
match    = { paths = ["/login"], methods = ["POST"] }
count_by = ["ip"]
limits   = [ { name = "requests", limit = "5/1m" } ]

[[rules]]
name     = "per-user"
count_by = ["user"]
limits   = [ { name = "requests", limit = "1000/1h" } ]

[[tiers]]
name = "free"

[[tiers]]
name   = "premium"
limits = { requests = "20000/1h" }

[[tenants]]
id = "acme"

[[users]]
id     = "alice"
tenant = "acme"
tier   = "free"
`
	cliConfig = `
[[rules]]
name   = "internal"
match  = { paths = ["/internal/**"] }
action = "block"

[[rules]]
name     = "search"
match    = { paths = ["/search"], headers = { X-App = "mobile" } }
count_by = ["user"]
limits   = [ { name = "search", limit = "100/1m" } ]

[[rules]]
name     = "per-user"
count_by = ["user"]
limits   = [ { name = "requests", limit = "1000/1h" }, { name = "burst", limit = "10/1s burst=20 token_bucket" } ]

[[tiers]]
name   = "premium"
limits = { requests = "20000/1h" }

[[users]]
id   = "alice"
tier = "premium"
`
)

// brokenRules and unreachableRules have the problems that rules.md shows.
const (
	brokenRules = `[[rules]]
name  = "search"
limits = [ { name = "search", limit = "5/1m" } ]
match = { methods = ["get"] }
actoin = "reject"

[[rules]]
name   = "export"
limits = [ { name = "export", limit = "100/1min" } ]
`
	unreachableRules = `[[rules]]
name   = "a"
group  = "g"
limits = [ { name = "a", limit = "100/1m" } ]

[[rules]]
name   = "b"
group  = "g"
match  = { paths = ["/b"] }
limits = [ { name = "b", limit = "5/1m" } ]
priority = 1
`
)

// names are what differs in the names of files from archive to archive.
var names = regexp.MustCompile(`[0-9a-f]{16}|\d{4,}`)

// listing returns the files below a directory, one in a line, without what differs.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out.WriteString(name + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}
