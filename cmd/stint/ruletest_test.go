package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/testdoc"
)

// TestDocumentedRuleTests runs the tests of rules in the documents: each tests the configuration before it.
func TestDocumentedRuleTests(t *testing.T) {
	t.Parallel()
	config := ""
	for _, b := range testdoc.Blocks(t) {
		switch b.Language {
		case "toml":
			config = b.Text
		case "ruletest":
			dir := t.TempDir()
			write(t, filepath.Join(dir, "stint.toml"), config)
			write(t, filepath.Join(dir, "x.ruletest"), b.Text)
			var out bytes.Buffer
			if code := stint.Run(t.Context(), []string{"rules", "test", filepath.Join(dir, "x.ruletest"), "--config", filepath.Join(dir, "stint.toml")}, nil, &out, &out); code != 0 {
				t.Errorf("%s: exit code %d\n%s", b, code, strings.ReplaceAll(out.String(), dir+"/", ""))
			}
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRuleTestsSources tests the rules of a server, as operators and viewers, and those of a database. A file that expects
// nothing yet is updated before, and keeps its mode.
func TestRuleTestsSources(t *testing.T) {
	t.Parallel()
	d := newDemo(t)
	dir := t.TempDir()
	path, database := filepath.Join(dir, "x.ruletest"), "sqlite:"+filepath.Join(dir, "stint.db")
	write(t, path, "test alice pays\nat 0s GET / user=alice x61 every 1s -> # as she does\n")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	run := func(environ []string, args ...string) (code int, out string) {
		var b bytes.Buffer
		code = stint.Run(t.Context(), append([]string{"rules", "test", path}, args...), environ, &b, &b)
		return code, b.String()
	}
	if code, out := run(d.environ); code != 1 || !strings.Contains(out, "want what --update writes\n    got  allow") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run(d.environ, "--update"); code != 0 || !strings.Contains(out, "expectations updated: 1\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 || read(t, path) != "test alice pays\nat 0s GET / user=alice x61 every 1s -> allow # as she does\n" {
		t.Errorf("%v, %v: %s", info.Mode(), err, read(t, path))
	}
	write(t, path, "test alice pays\nat 0s GET / user=alice ip=192.0.2.1 x61 every 500ms -> allow tier=premium\n")
	if code, out := run(d.environ, "--coverage"); code != 0 || !strings.Contains(out, "search, internal") && !strings.Contains(out, "internal, login, search") {
		t.Errorf("exit code %d: %s", code, out)
	}
	viewer := strings.TrimSpace(d.must(t, "tokens", "create", "reader", "--role", "viewer"))
	environ := []string{"STINT_SERVER=" + d.admin, "STINT_TOKEN=" + viewer}
	if code, out := run(environ); code != 1 || !strings.Contains(out, "not for users and keys") || !strings.Contains(out, `tier=""`) {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run(environ, "--server", "http://127.0.0.1:1"); code != 2 || !strings.Contains(out, "cannot reach the server") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run(nil, "--database", database); code != 2 || !strings.Contains(out, "does not exist") {
		t.Errorf("exit code %d: %s", code, out)
	}
	d.must(t, "migrate", "up", "--database", database)
	d.must(t, "apply", "-f", "../../internal/daemon/demo-rules.toml", "--database", database)
	if code, out := run(nil, "--database", database); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
	report := filepath.Join(dir, "report.xml")
	if code, out := run(nil, "--database", database, "--junit", report); code != 0 || !strings.Contains(read(t, report), `<testcase name="alice pays"`) {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run(nil, "--database", database, "--junit", filepath.Join(dir, "none", "x.xml")); code != 2 {
		t.Errorf("exit code %d: %s", code, out)
	}
}
