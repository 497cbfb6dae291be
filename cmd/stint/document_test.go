package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/rule"
)

// documented are all commands, in the order of the document.
var documented = []string{
	"serve", "config", "doctor",
	"rules list", "rules show", "rules create", "rules set", "rules edit", "rules enable", "rules disable", "rules delete", "rules history", "rules validate", "rules preview", "rules candidates", "rules promote", "rules rollout", "rules order", "rules check", "rules test",
	"tiers list", "tiers create", "users list", "users create", "tenants list", "tenants create", "keys list", "keys create", "keys revoke", "keys rotate", "exempt list", "exempt add", "exempt remove", "ban add",
	"apply", "export", "changes list", "changes revisions", "changes show", "changes revert",
	"usage", "reset", "explain", "check", "replay", "try",
	"me show", "me usage", "me keys", "me rotate",
	"find", "status", "health", "nodes", "regions", "top", "events list", "events follow", "events export", "events top", "events series", "events violations", "events clients", "consumption",
	"tokens list", "tokens create", "tokens revoke", "migrate status", "migrate up", "migrate down", "archive run", "archive list", "archive verify", "archive restore", "archive expire", "envoy check", "envoy convert", "envoy compare", "import nginx", "import ingress-nginx", "import kong", "import traefik", "import envoy", "man", "version",
}

// asOthers are the nouns whose verbs need no help of their own where another noun has the same verb: all objects of the catalog have
// the same commands, as the document says.
var asOthers = map[string]string{
	"tiers": "rules", "users": "rules", "tenants": "rules", "keys": "rules",
	"ban": "exempt",
}

// TestCommandsDocumented checks that docs/cli.md has the help of every command.
func TestCommandsDocumented(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range stint.Commands() {
		noun, verb, _ := strings.Cut(command, " ")
		if !slices.Contains(documented, command) && (asOthers[noun] == "" || !slices.Contains(documented, asOthers[noun]+" "+verb)) {
			t.Errorf("%s has no help of %s: add it, and the command to documented", path, command)
		}
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
// can be used. A part of a larger file has the invisible comment <!-- fragment --> before it:
// only its fields are checked.
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
	"toml":     "cmd/stint TestDocumentedTOML",
	"go":       ". TestDocumentedCode",
	"sh":       "cmd/stint TestDocumentedCommands",
	"console":  "cmd/stint TestDocumentedCommands",
	"ruletest": "cmd/stint TestDocumentedRuleTests",

	"docs/admin-api.md sh":           "internal/e2e TestDocumentedAdmin",
	"docs/admin-api.md json":         "internal/e2e TestDocumentedAdmin",
	"docs/archive.md text":           "cmd/stint TestDocumentedCommands",
	"docs/archive.md sql":            "internal/record/archive TestParquetQuery",
	"docs/behaviour-scripts.md text": "storetest TestDocument",
	"docs/caddy.md caddyfile":        "internal/e2e TestCaddy",
	"docs/cli.md text":               "cmd/stint TestCommandsDocumented",
	"docs/clients.md js":             "internal/e2e TestClientsDocument",
	"docs/clients.md python":         "internal/e2e TestClientsDocument",
	"docs/disaster-recovery.md sh":   "internal/e2e TestRecoveryDocument",
	"docs/envoy.md json":             "internal/e2e TestEnvoyDocument",
	"docs/envoy.md sh":               "internal/e2e TestEnvoyDocument",
	"docs/envoy.md yaml":             "internal/e2e TestEnvoyDocument",
	"docs/grpc.md text":              "grpclimit TestDocument",
	"docs/http.md json":              "internal/e2e TestDocumentedCurl",
	"docs/http.md sh":                "internal/e2e TestDocumentedCurl",
	"docs/http.md text":              "internal/e2e TestDocumentedCurl",
	"docs/import.md nginx":           "cmd/stint TestDocumentedCommands",
	"docs/install.md sh":             "tools/release TestInstallDocument",
	"docs/compose.md sh":             "tools/deploy TestDocument",
	"docs/kubernetes.md sh":          "tools/deploy TestDocument",
	"docs/kubernetes.md yaml":        "tools/deploy TestDocument",
	"docs/limits.md text":            ". TestDocumentedLimits",
	"docs/llm.md js":                 "internal/e2e TestModelDocument",
	"docs/llm.md json":               "internal/e2e TestModelDocument",
	"docs/llm.md python":             "internal/e2e TestModelDocument",
	"docs/llm.md sh":                 "internal/e2e TestModelDocument",
	"docs/llm.md text":               "internal/e2e TestModelDocument",
	"docs/metrics.md json":           "internal/e2e TestRecoveryRedis",
	"docs/metrics.md yaml":           "internal/daemon TestDocumentedAlerts",
	"docs/nginx.md nginx":            "internal/e2e TestNginx",
	"docs/redis-url.md text":         "redisstore TestURLDocument",
	"docs/redis.md text":             "redisstore TestACL",
	"docs/regions.md toml":           "internal/daemon TestThreeRegions",
	"docs/reserve.md json":           "internal/e2e TestReserveDocument",
	"docs/reserve.md sh":             "internal/e2e TestReserveDocument",
	"docs/rules.md text":             "rule TestDocumentedPatterns",
	"docs/traefik.md yaml":           "internal/e2e TestTraefik",
	"deploy/backup/README.md sh":     "internal/e2e TestRecoveryDocument",
	"deploy/backup/README.md sql":    "internal/e2e TestRecoveryPostgres",
	"deploy/backup/README.md text":   "internal/e2e TestRecoveryDocument",
	"ARCHITECTURE.md text":           ". TestPathsExist",
	"README.md text":                 "", // one drawing

	"clients/js/README.md js":         "internal/e2e TestClientsDocument",
	"clients/python/README.md python": "internal/e2e TestClientsDocument",
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
		if by, ok := runBy[key]; !ok || by == "" && used[key] {
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
		name := regexp.MustCompile(`^# ([a-z]+\.(?:toml|ruletest))\n`).FindStringSubmatch(b.Text)
		by, own := runBy[b.File+" "+b.Language]
		if !own {
			by = runBy[b.Language]
		}
		if !strings.HasSuffix(by, t.Name()) && (b.Language != "toml" && b.Language != "ruletest" || name == nil) {
			continue
		}
		if b.File != file {
			w, dir = d.world(t, b.File)
			file = b.File
		}
		switch b.Language {
		case "nginx":
			if err := os.WriteFile(filepath.Join(dir, "shop.conf"), []byte(b.Text), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case "toml", "ruletest":
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
			case regexp.MustCompile(`^([A-Z_]+=\S+ )*stint `).MatchString(text):
				out = w.run(t, dir, w.substitute(text))
			case strings.HasPrefix(text, "STINT_"): // settings
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

// TestDashboardExamples runs the examples that pages of the dashboard show: configurations, a rule in JSON, and commands.
func TestDashboardExamples(t *testing.T) {
	t.Parallel()
	text := read(t, filepath.Join(testdoc.Root(t), "web/src/lib/examples.ts"))
	examples := regexp.MustCompile("(?s)export const (\\w+) = `([^`$]*)`").FindAllStringSubmatch(text, -1)
	if len(examples) < 10 || len(examples) != strings.Count(text, "export const ") {
		t.Fatalf("%d examples are found of %d", len(examples), strings.Count(text, "export const "))
	}
	dir := t.TempDir()
	database := "sqlite:" + filepath.Join(dir, "stint.db")
	// Tiers and users name limits of a rule that is there already.
	rules := strings.Builder{}
	rules.WriteString("[[rules]]\nname = \"all\"\nlimits = [{ name = \"hourly\", limit = \"1/1h\" }, { name = \"monthly\", limit = \"1/month\" }]\n")
	for _, e := range examples {
		name, text := e[1], e[2]
		var err error
		switch {
		case strings.HasPrefix(text, "stint "):
			continue // below, with all that can be in its file
		case strings.HasPrefix(text, "{"):
			_, err = rule.ParseJSON(name, []byte(`{"rules": [`+text+`]}`))
		default:
			if _, _, err = daemon.ReadDocument(name, []byte(text)); strings.HasPrefix(text, "[[") && name != "regions" {
				rules.WriteString(text + "\n")
			}
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.toml"), []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := stint.Run(t.Context(), []string{"migrate", "up", "--database", database}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	for _, e := range examples {
		args, ok := strings.CutPrefix(e[2], "stint ")
		if !ok {
			continue
		}
		out.Reset()
		args = strings.ReplaceAll(args, "rules.toml", filepath.Join(dir, "rules.toml"))
		if code := stint.Run(t.Context(), append(strings.Fields(args), "--database", database), nil, &out, &out); code != 0 {
			t.Errorf("%s: %s: %s", e[1], e[2], out.String())
		}
	}
}
