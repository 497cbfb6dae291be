package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
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

// TestGettingStarted checks that the files of docs/getting-started.md can be used.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) < 3 {
		t.Errorf("it has only %d examples", len(examples))
	}
	for _, example := range examples {
		path := filepath.Join(t.TempDir(), "stint.toml")
		if err := os.WriteFile(path, example[1], 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if code := stint.Run(t.Context(), []string{"rules", "check", path}, nil, &out, &out); code != 0 {
			t.Errorf("%s\n%s", out.String(), example[1])
		}
	}
}
