package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// TestDatabase runs commands on a database, step by step, and compares their output. It is
// the same for SQLite and PostgreSQL.
func TestDatabase(t *testing.T) {
	t.Parallel()
	const first, next = "testdata/catalog.toml", "testdata/catalog-next.toml"
	for name, url := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "stint.db"),
		"postgres": testpostgres.Shared(t).Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exported := filepath.Join(t.TempDir(), "exported.toml")
			var got strings.Builder
			for _, line := range []string{
				"migrate up --to 1",
				"migrate status",
				"apply -f " + first,
				"migrate status -o csv",
				"migrate up --to 99",
				"migrate up",
				"migrate up -o json",
				"export",
				"export -o json",
				"apply -f " + first + " --dry-run",
				"apply -f " + first,
				"apply -f " + first + " --prune",
				"apply -f " + next + " --dry-run --prune -o json",
				"apply -f " + next,
				"apply -f " + next + " --prune",
				"apply -f " + next + " --prune --yes -o csv",
				"apply -f testdata/catalog-bad.toml",
				"apply -f testdata/catalog-bad.toml --dry-run",
				"apply -f testdata/bad.toml",
				"apply -f " + os.DevNull + " --prune",
				"export",
				"export -o json --without-users",
				"export -f " + exported,
				"apply -f " + exported + " --prune",
				"apply -f " + exported + " --prune --actor " + strings.Repeat("x", 256),
				"migrate down",
				"migrate down --yes --to -1",
				"migrate down --yes -o csv",
				"migrate down --yes --to 0 -o json",
				"migrate down --yes",
				"migrate status -o json",
				"apply -f " + first,
			} {
				got.WriteString(transcript(t, line, strings.Fields(line), []string{"STINT_SERVER_DATABASE=" + url}))
			}
			text := strings.ReplaceAll(got.String(), exported, "EXPORTED")
			text = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\b`).ReplaceAllStringFunc(text, func(when string) string {
				if strings.HasPrefix(when, "2030-") {
					return when // from the file
				}
				return "TIME"
			})
			if *update && name != "sqlite" {
				return // sqlite writes the file
			}
			compare(t, "testdata/database.txt", text)
			if info, err := os.Stat(exported); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("got %v, %v", info, err)
			}
		})
	}
}

// TestExportApply copies a database to another one through a pipe.
func TestExportApply(t *testing.T) {
	t.Parallel()
	from, to := "sqlite:"+filepath.Join(t.TempDir(), "from.db"), testpostgres.Shared(t).Database(t)
	command := func(stdin []byte, args ...string) []byte {
		t.Helper()
		c := exec.CommandContext(t.Context(), os.Args[0], args...)
		c.Env = append(os.Environ(), asStint+"=1")
		c.Stdin = bytes.NewReader(stdin)
		var errs bytes.Buffer
		c.Stderr = &errs
		out, err := c.Output()
		if err != nil {
			t.Fatalf("stint %v: %v, %s", args, err, errs.Bytes())
		}
		return out
	}
	for _, url := range []string{from, to} {
		command(nil, "migrate", "up", "--database", url)
	}
	command(nil, "apply", "-f", "testdata/catalog.toml", "--database", from)
	const created = "+ tier premium\n+ rule per-user\n+ user alice\n+ user bob\n+ ban ip:198.51.100.0/24\nrevision 1: 5 created, 0 updated, 0 deleted\n"
	for _, format := range []string{"toml", "json"} {
		out := command(nil, "export", "-o", format, "--database", from)
		for url, want := range map[string]string{from: "nothing to change: the database is at revision 1\n", to: created} {
			if format == "json" {
				want = "nothing to change: the database is at revision 1\n"
			}
			if got := command(out, "apply", "-f", "-", "--prune", "--database", url); string(got) != want {
				t.Errorf("%s: got %s, want %s", format, got, want)
			}
		}
	}
}

// TestApplyItself applies the config file that names the database. A server rejects such a
// file while it contains rules.
func TestApplyItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "stint.toml")
	text, err := os.ReadFile("testdata/catalog.toml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("[server]\n"), []byte("[server]\ndatabase = \"sqlite:"+filepath.Join(dir, "stint.db")+"\"\n"), 1)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ line, want string }{
		{"migrate up -c " + path, "applied: 1 catalog\n"},
		{"apply -c " + path + " -f " + path, "+ tier premium\n"},
		{"rules check " + path, path + ":"},
	} {
		var out bytes.Buffer
		stint.Run(t.Context(), strings.Fields(step.line), nil, &out, &out)
		if !strings.HasPrefix(out.String(), step.want) {
			t.Errorf("stint %s: got %s, want %s", step.line, out.String(), step.want)
		}
	}
}
