package main_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/testdoc"
)

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
		case slices.Contains([]string{"run", "bench", "tags", "benchtime", "count", "only", "rounds", "keys"}, name):
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
				code := stint.Run(t.Context(), args, nil, &out, &out)
				group := strings.Contains(out.String(), "\n  stint "+args[0]+" [command]\n")
				if code != 0 || !strings.Contains(out.String(), "\n  stint "+args[0]) || group && len(args) > 2 {
					t.Errorf("%s: %s: %s", file, line, out.String())
				}
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("the documents have only %d spans of code", len(seen))
	}
}

// TestUnit checks the unit for systemd: its command is one of stint, and it waits longer than
// Stint takes to stop. make test-release installs it, and lets systemd check it.
func TestUnit(t *testing.T) {
	t.Parallel()
	settings := map[string]string{}
	for line := range strings.Lines(read(t, "../../deploy/systemd/stint.service")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		settings[name] = value
	}
	var out bytes.Buffer
	args := append(strings.Fields(strings.TrimPrefix(settings["ExecStart"], "/usr/bin/stint ")), "--help")
	if code := stint.Run(t.Context(), args, nil, &out, &out); code != 0 || settings["Type"] != "notify" || settings["ExecReload"] != "/bin/sh -c 'kill -HUP $MAINPID'" {
		t.Errorf("%v: %s", settings, out.String())
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
