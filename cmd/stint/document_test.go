package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/daemon"
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

// documents returns README.md and the files in docs, without cli.md, which has its own test.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(paths) < 20 {
		t.Fatalf("found only %q, %v", paths, err)
	}
	out := map[string]string{}
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(path); name != "cli.md" {
			out[name] = string(text)
		}
	}
	return out
}

// TestDocumentedTOML checks every block of TOML in the documents: each is a config file that
// can be used. A part of a larger file has the invisible comment <!-- fragment --> before it:
// only its fields are checked.
func TestDocumentedTOML(t *testing.T) {
	t.Parallel()
	blocks := 0
	for name, text := range documents(t) {
		for _, m := range regexp.MustCompile("(?ms)^(<!-- fragment -->\n)?```toml\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			blocks++
			if m[1] != "" {
				if _, _, err := daemon.ReadDocument(name, []byte(m[2])); err != nil {
					t.Errorf("%v\n%s", err, m[2])
				}
				continue
			}
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, []byte(m[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if code := stint.Run(t.Context(), []string{"rules", "check", path}, nil, &out, &out); code != 0 {
				t.Errorf("%s\n%s", out.String(), m[2])
			}
		}
	}
	if blocks < 20 {
		t.Errorf("the documents have only %d blocks of TOML", blocks)
	}
}
