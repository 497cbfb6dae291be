package main_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// documented are all commands, in the order of the document.
var documented = []string{
	"serve", "config", "doctor",
	"rules list", "rules show", "rules create", "rules set", "rules edit", "rules enable", "rules disable", "rules delete", "rules history", "rules validate", "rules preview", "rules order", "rules check",
	"tiers list", "tiers create", "users list", "users create", "tenants list", "tenants create", "keys list", "keys create", "keys revoke", "exempt list", "exempt add", "exempt remove", "ban add",
	"apply", "export", "changes list", "changes show", "changes revert",
	"usage", "reset", "explain", "check",
	"status", "nodes", "top", "events list", "events follow", "events export", "events top", "events series", "events violations", "events clients",
	"tokens list", "tokens create", "tokens revoke", "migrate status", "migrate up", "migrate down", "archive run", "archive list", "archive verify", "archive restore", "archive expire", "envoy check", "envoy convert", "version",
}

// TestCommandsDocumented checks that docs/cli.md has the help of every command.
func TestCommandsDocumented(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	for _, command := range documented {
		var out bytes.Buffer
		if code := stint.Run(t.Context(), append(strings.Fields(command), "--help"), nil, &out, &out); code != 0 {
			t.Fatal(command, code)
		}
		begin, end := "<!-- help "+command+" -->\n", "<!-- end of help "+command+" -->\n"
		before, rest, ok := strings.Cut(got, begin)
		_, after, found := strings.Cut(rest, end)
		if !ok || !found {
			t.Fatalf("%s has no place for the help of %s", path, command)
		}
		got = before + begin + "\n```text\n" + out.String() + "```\n\n" + end + after
	}
	if got != string(text) {
		compare(t, path, got)
	}
}

// TestDocumentedTOML checks every block of TOML in the documents: each is a config file that
// can be used. One that is part of a larger file has <!-- fragment --> before it, which no one
// sees: its fields must be known.
func TestDocumentedTOML(t *testing.T) {
	t.Parallel()
	for _, b := range testdoc.Blocks(t) {
		if b.Language != "toml" {
			continue
		}
		if b.Fragment {
			if _, _, err := daemon.ReadDocument(b.String(), []byte(b.Text)); err != nil {
				t.Errorf("%v\n%s", err, b.Text)
			}
			continue
		}
		path := filepath.Join(t.TempDir(), "stint.toml")
		if err := os.WriteFile(path, []byte(b.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if code := stint.Run(t.Context(), []string{"rules", "check", path}, nil, &out, &out); code != 0 {
			t.Errorf("%s: %s\n%s", b, out.String(), b.Text)
		}
	}
}

// runBy says which test runs the blocks of a language, in one document or in all. A block that
// is not here is run by no test.
var runBy = map[string]string{
	"toml":    "cmd/stint TestDocumentedTOML",
	"go":      ". TestDocumentedCode",
	"sh":      "cmd/stint TestDocumentedCommands",
	"console": "cmd/stint TestDocumentedCommands",

	"docs/admin-api.md sh":           "internal/e2e TestDocumentedAdmin",
	"docs/admin-api.md json":         "internal/e2e TestDocumentedAdmin",
	"docs/archive.md text":           "cmd/stint TestDocumentedCommands",
	"docs/archive.md sql":            "internal/record/archive TestParquetQuery",
	"docs/behaviour-scripts.md text": "storetest TestDocument",
	"docs/caddy.md caddyfile":        "internal/e2e TestCaddy",
	"docs/cli.md text":               "cmd/stint TestCommandsDocumented",
	"docs/disaster-recovery.md sh":   "internal/e2e TestRecoveryDocument",
	"docs/envoy.md json":             "internal/e2e TestEnvoyDocument",
	"docs/envoy.md sh":               "internal/e2e TestEnvoyDocument",
	"docs/envoy.md yaml":             "internal/e2e TestEnvoyDocument",
	"docs/getting-started.md ini":    "cmd/stint TestDocumentedUnit",
	"docs/grpc.md text":              "grpclimit TestDocument",
	"docs/http.md json":              "internal/e2e TestDocumentedCurl",
	"docs/http.md sh":                "internal/e2e TestDocumentedCurl",
	"docs/http.md text":              "internal/e2e TestDocumentedCurl",
	"docs/limits.md text":            ". TestDocumentedLimits",
	"docs/metrics.md json":           "internal/e2e TestRecoveryRedis",
	"docs/metrics.md yaml":           "internal/daemon TestDocumentedAlerts",
	"docs/nginx.md nginx":            "internal/e2e TestNginx",
	"docs/redis-url.md text":         "redisstore TestURLDocument",
	"docs/redis.md text":             "redisstore TestACL",
	"docs/rules.md text":             "rule TestDocumentedPatterns",
	"docs/traefik.md yaml":           "internal/e2e TestTraefik",
	"deploy/backup/README.md sh":     "internal/e2e TestRecoveryDocument",
	"deploy/backup/README.md sql":    "internal/e2e TestRecoveryPostgres",
	"deploy/backup/README.md text":   "internal/e2e TestRecoveryDocument",
	"ARCHITECTURE.md text":           ". TestPathsExist",
	"README.md text":                 "", // a drawing
}

// TestDocumentedBlocks checks that every block of the documents is run by a test.
func TestDocumentedBlocks(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, b := range testdoc.Blocks(t) {
		key := b.File + " " + b.Language
		if _, ok := runBy[key]; !ok {
			key = b.Language
		}
		if _, ok := runBy[key]; !ok {
			t.Errorf("%s: no test runs a block in %q: use a fence and a language of runBy, or write a test and add it there", b, b.Language)
		}
		used[key] = true
	}
	for key, by := range runBy {
		if !used[key] {
			t.Errorf("no document has a block for %s", key)
		}
		if dir, name, _ := strings.Cut(by, " "); by != "" && !slices.Contains(testsIn(t, dir), name) {
			t.Errorf("%s: package %s has no %s", key, dir, name)
		}
	}
}

// testsIn returns the names of the tests and benchmarks of a package, as go test -list does,
// without compiling it.
func testsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(testdoc.Root(t), dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", dir, err)
	}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w*)\(`).FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocumentedCommands runs the commands that the documents show, in their order, and
// compares what they print with what the documents say they do.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	d := newDemo(t)
	var dir, file string
	var w *demo
	for _, b := range testdoc.Blocks(t) {
		name := regexp.MustCompile(`^# ([a-z]+\.toml)\n`).FindStringSubmatch(b.Text)
		by, own := runBy[b.File+" "+b.Language]
		if !own {
			by = runBy[b.Language]
		}
		if !strings.HasSuffix(by, t.Name()) && (b.Language != "toml" || name == nil) {
			continue
		}
		if b.File != file {
			w, dir = d.world(t, b.File)
			file = b.File
		}
		switch b.Language {
		case "toml":
			if err := os.WriteFile(filepath.Join(dir, name[1]), []byte(w.substitute(b.Text)), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case "text":
			if got := listing(t, filepath.Join(dir, "archive")); names.ReplaceAllString(got, "N") != names.ReplaceAllString(b.Text, "N") {
				t.Errorf("%s: the archive has\n%s", b, got)
			}
			continue
		}
		for _, c := range b.Commands() {
			var out string
			switch text := strings.TrimPrefix(c.Text, "./"); {
			case text == "export STINT_TOKEN=...": // it is in the environment
			case strings.HasPrefix(text, "stint "):
				out = w.run(t, dir, w.substitute(text))
			case regexp.MustCompile(`^[A-Z_]+=.* stint `).MatchString(text):
				out = w.run(t, dir, w.substitute(text))
			case strings.HasPrefix(text, "STINT_"):
				out = w.run(t, dir, w.substitute(text)+" stint config")
			case regexp.MustCompile(`^(curl|for i in) `).MatchString(text):
				out = w.curl(t, text, c.Output == "")
			case toolLine.MatchString(text):
				checkTool(t, b.String(), path.Dir(b.File), text)
			default:
				t.Errorf("%s: no test runs %s", b, c.Text)
			}
			if c.Output == "" || testdoc.Same(out, c.Output) {
				continue
			}
			if *update && !strings.Contains(c.Output, "...\n") {
				path := filepath.Join(testdoc.Root(t), b.File)
				compare(t, path, strings.Replace(read(t, path), c.Output, strings.TrimSpace(out)+"\n", 1))
			} else {
				t.Errorf("%s: %s prints\n%s\nand the document says\n%s", b, c.Text, out, c.Output)
			}
		}
	}
}

// curl runs a command for curl in the shell. If it must pass, a status of 400 or more fails.
func (d *demo) curl(t *testing.T, text string, pass bool) string {
	t.Helper()
	flags := "-sS"
	if pass {
		flags = "-fsS"
	}
	script := strings.NewReplacer("localhost:8000", d.gateway, "localhost:8080", d.api, "localhost:9090", d.admin, "curl ", "curl "+flags+" ").Replace(text)
	c := exec.CommandContext(t.Context(), "sh", "-c", script)
	c.Env = d.environ
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v, %s", script, err, out)
	}
	return string(out)
}

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

// toolLine is a command of a tool that builds or tests Stint, or of Redis.
var toolLine = regexp.MustCompile(`^(cd \w+ && )?(\w+=\S+ )*(make|go|npm) `)

// checkTool checks a command that would take too long to run: what it names exists.
func checkTool(t *testing.T, where, dir, line string) {
	t.Helper()
	if dir == "docs" {
		dir = "." // guides are for people in the root
	}
	if to, rest, ok := strings.Cut(line, " && "); ok {
		dir, line = path.Join(dir, strings.TrimPrefix(to, "cd ")), rest
	}
	dir = filepath.Join(testdoc.Root(t), dir)
	line = regexp.MustCompile(`^(\w+=\S+ )+`).ReplaceAllString(line, "")
	args := words(line)
	switch args[0] {
	case "make":
		c := exec.CommandContext(t.Context(), "make", append([]string{"-n"}, args[1:]...)...)
		c.Dir = testdoc.Root(t)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %s: %v, %s", where, line, err, out)
		}
	case "npm":
		if !strings.Contains(read(t, filepath.Join(testdoc.Root(t), "web/package.json")), fmt.Sprintf("\n    %q: ", args[2])) {
			t.Errorf("%s: %s: web/package.json has no such script", where, line)
		}
	case "go":
		checkGo(t, where+": "+line, dir, args[1:])
	}
}

// checkGo checks that a command of go names packages, tests and tools that exist.
func checkGo(t *testing.T, where, dir string, args []string) {
	t.Helper()
	flags, packages := map[string]string{}, []string{}
	for i := 1; i < len(args); i++ {
		switch name := strings.TrimLeft(args[i], "-"); {
		case strings.HasPrefix(args[i], "./") || args[i] == ".":
			packages = append(packages, args[i])
		case slices.Contains([]string{"run", "bench", "benchtime", "count", "only", "rounds", "keys"}, name):
			i++
			flags[name] = args[i]
		case !slices.Contains([]string{"v", "h", "update", "modfile=tools/go.mod", "benchstat"}, name):
			t.Errorf("%s: add %s to this test", where, args[i])
		}
	}
	switch args[0] {
	case "test":
		names := testsIn(t, mustRel(t, filepath.Join(dir, packages[0])))
		for _, flag := range []string{"run", "bench"} {
			pattern, _, _ := strings.Cut(flags[flag], "/") // the rest is for subtests
			if pattern == "xxx" {
				continue // no test, so that there are benchmarks only
			}
			if !slices.ContainsFunc(names, func(name string) bool {
				return strings.HasPrefix(name, map[string]string{"run": "Test", "bench": "Benchmark"}[flag]) && regexp.MustCompile(pattern).MatchString(name)
			}) && flags[flag] != "" {
				t.Errorf("%s: %s has no such test", where, packages[0])
			}
		}
	case "run":
		var source strings.Builder
		files, err := filepath.Glob(filepath.Join(dir, packages[0], "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: there is no such program: %v", where, err)
		}
		for _, file := range files {
			source.WriteString(read(t, file))
		}
		for name, value := range flags {
			if !strings.Contains(source.String(), `, "`+name+`", `) && !strings.Contains(source.String(), `("`+name+`", `) {
				t.Errorf("%s: there is no flag %s", where, name)
			}
			if name == "only" && !regexp.MustCompile(`"[^"\n]*(`+value+`)`).MatchString(source.String()) {
				t.Errorf("%s: it measures no %s", where, value)
			}
		}
	case "tool":
		if !strings.Contains(read(t, filepath.Join(testdoc.Root(t), "tools/go.mod")), "/"+args[len(args)-1]) {
			t.Errorf("%s: tools/go.mod has no such tool", where)
		}
	}
}

func mustRel(t *testing.T, dir string) string {
	t.Helper()
	rel, err := filepath.Rel(testdoc.Root(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

// TestDocumentedSpans checks the commands within the text: what they name exists, and
// commands of stint take their flags.
func TestDocumentedSpans(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for file, text := range testdoc.Documents(t) {
		text = regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(text, "")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
			line := strings.TrimPrefix(strings.Join(strings.Fields(m[1]), " "), "./")
			if seen[line] {
				continue
			}
			seen[line] = true
			switch {
			case toolLine.MatchString(line):
				checkTool(t, file, path.Dir(file), line)
			case regexp.MustCompile(`^stint [a-z]`).MatchString(line):
				line, _, _ = strings.Cut(line, " | ")
				var out bytes.Buffer
				args := append(words(strings.TrimPrefix(line, "stint ")), "--help")
				if code := stint.Run(t.Context(), args, nil, &out, &out); code != 0 || !strings.Contains(out.String(), "\n  stint "+args[0]) {
					t.Errorf("%s: %s: %s", file, line, out.String())
				}
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("the documents have only %d spans of code", len(seen))
	}
}

// TestDocumentedUnit checks the unit for systemd: its command is one of stint, and it waits
// longer than Stint takes to stop.
func TestDocumentedUnit(t *testing.T) {
	t.Parallel()
	units := testdoc.In(t, "docs/getting-started.md", "ini")
	settings := map[string]string{}
	for line := range strings.Lines(units[0].Text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		settings[name] = value
	}
	var out bytes.Buffer
	args := append(strings.Fields(strings.TrimPrefix(settings["ExecStart"], "/usr/local/bin/stint ")), "--help")
	if code := stint.Run(t.Context(), args, nil, &out, &out); code != 0 || len(units) != 1 || settings["Type"] != "notify" || settings["ExecReload"] != "/bin/kill -HUP $MAINPID" {
		t.Errorf("%d units, %v: %s", len(units), settings, out.String())
	}
	out.Reset()
	if code := stint.Run(t.Context(), []string{"config", "-o", "json"}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	drain := time.Duration(0)
	for _, m := range regexp.MustCompile(`"server\.drain(?:_delay)?"[^}]*?"value": "(\w+)"`).FindAllStringSubmatch(out.String(), -1) {
		d, err := time.ParseDuration(m[1])
		if err != nil {
			t.Fatal(err)
		}
		drain += d
	}
	if stop, err := time.ParseDuration(settings["TimeoutStopSec"] + "s"); err != nil || drain == 0 || stop <= drain {
		t.Errorf("TimeoutStopSec is %v, %v, and Stint takes %v to stop", stop, err, drain)
	}
}
