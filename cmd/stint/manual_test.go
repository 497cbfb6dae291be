package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
)

// TestManual writes the manual twice: each command has a page, and the pages are the same.
func TestManual(t *testing.T) {
	t.Parallel()
	var pages [2]map[string]string
	for i := range pages {
		dir := filepath.Join(t.TempDir(), "share", "man1")
		var out bytes.Buffer
		if code := stint.Run(t.Context(), []string{"man", dir}, nil, &out, &out); code != 0 || !strings.Contains(out.String(), "man -l "+dir+"/stint.1") {
			t.Fatal(code, out.String())
		}
		pages[i] = map[string]string{}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			pages[i][f.Name()] = string(text)
		}
	}
	for page, has := range map[string]string{"stint.1": `\fBstint-rules(1)\fP`, "stint-events-list.1": "List recorded decisions", "stint-man.1": "Write a manual page"} {
		if !strings.Contains(pages[0][page], has) {
			t.Errorf("%s has no %s: %.500s", page, has, pages[0][page])
		}
	}
	for page, text := range pages[0] {
		if pages[1][page] != text {
			t.Errorf("%s is different the second time", page)
		}
	}
}

// TestSuggestions suggests commands for misspelt ones, at every level.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"rulez":       "rules",
		"rules lst":   "did you mean list",
		"events folo": "did you mean follow?",
		"keys revok":  "did you mean revoke?",
		"rules xyzzy": `unknown command "xyzzy" for "stint rules"` + "\n",
	} {
		var out, errs bytes.Buffer
		if code := stint.Run(t.Context(), strings.Fields(args), nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", args, code, errs.String())
		}
	}
}
