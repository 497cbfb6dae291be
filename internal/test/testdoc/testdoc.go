// Package testdoc reads the fenced blocks of the documents, for the tests that run them, and
// compares what a command prints with what a document says.
//
// A block for the shell has the language sh; with a prompt and the output of its commands,
// console. TestDocumentedBlocks of cmd/stint lists which test runs which blocks.
package testdoc

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Root returns the root of the repository.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "docs/README.md")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no directory above has docs/README.md")
		}
		dir = filepath.Dir(dir)
	}
}

// Documents returns the text of all documents by their path from the root.
func Documents(t testing.TB) map[string]string {
	t.Helper()
	root, out := Root(t), map[string]string{}
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/*.md", "bench/README.md", "clients/*/README.md", "deploy/*/README.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.TrimPrefix(path, root+"/")] = string(text)
		}
	}
	return out
}

// Block is a block of a document.
type Block struct {
	File     string // its path from the root
	Line     int    // the line of its fence
	Language string // empty for a block without one, or one that is indented and has no fence
	Fragment bool   // <!-- fragment --> is before it: it is part of a larger file
	Text     string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

var fence = regexp.MustCompile("^( *)```(.*)$")

// Blocks returns the blocks of all documents, in their order.
func Blocks(t testing.TB) []Block {
	t.Helper()
	documents := Documents(t)
	var out []Block
	for _, file := range slices.Sorted(maps.Keys(documents)) {
		out = append(out, parse(file, documents[file])...)
	}
	return out
}

// In returns the blocks of a document that are in one of these languages. There has to be one.
func In(t testing.TB, file string, languages ...string) []Block {
	t.Helper()
	var out []Block
	for _, b := range Blocks(t) {
		if b.File == file && slices.Contains(languages, b.Language) {
			out = append(out, b)
		}
	}
	if out == nil {
		t.Fatalf("%s has no block in %q", file, languages)
	}
	return out
}

func parse(file, text string) (out []Block) {
	var open *Block
	indent, before := "", ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == nil && m != nil:
			indent = m[1]
			open = &Block{File: file, Line: i + 1, Language: m[2], Fragment: before == "<!-- fragment -->"}
		case m != nil:
			out, open = append(out, *open), nil
		case open != nil:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		case before == "" && strings.HasPrefix(line, "    "):
			out = append(out, Block{File: file, Line: i + 1, Text: line})
		}
		before = line
	}
	return out
}

// Command is a command of a block, and the output that the block shows for it.
type Command struct {
	Text, Output string
}

var comment = regexp.MustCompile(`(^|\s+)# .*$`)

// Commands returns the commands of a block in sh or console, without comments. One goes on
// in the next line after a backslash, after a pipe and within quotes.
func (b Block) Commands() (out []Command) {
	open := ""
	for line := range strings.Lines(b.Text) {
		if open == "" && b.Language == "console" {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				if len(out) > 0 {
					out[len(out)-1].Output += line
				}
				continue
			}
			line = command
		}
		open += comment.ReplaceAllString(strings.TrimRight(line, "\n"), "")
		if cut, ok := strings.CutSuffix(open, `\`); ok {
			open = cut
			continue
		}
		if strings.HasSuffix(open, "|") || strings.Count(open, "'")%2 == 1 || strings.Count(open, `"`)%2 == 1 {
			open += "\n"
			continue
		}
		if open != "" {
			out = append(out, Command{Text: open})
		}
		open = ""
	}
	return out
}

// varying are values that differ from run to run: in a document and in an output they are
// the same whatever they are.
var varying = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`, \d+ requests so far, the last at TIME`), ""}, // of a user, known only after some seconds
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`(https?://)?(127\.0\.0\.1|localhost):\d+`), "ADDRESS"},
	{regexp.MustCompile(`(?m) (\d+(\.\d+)?(µs|ms|s|m|h))+( |$)`), " DURATION$4"}, // a column
	{regexp.MustCompile(` in \d+ (s|min|h)\b`), " in DURATION"},
	{regexp.MustCompile(`\b(version|revision) \d+`), "$1 N"},
	{regexp.MustCompile(`(?m)^\d+ `), "N "}, // the first column
	{regexp.MustCompile(`(?mi)^(retry-after|x-ratelimit-reset): \d+`), "$1: SECONDS"},
	{regexp.MustCompile(`;([rt])=\d+`), ";$1=N"}, // of the header RateLimit
	{regexp.MustCompile(` +`), " "},              // columns are as wide as their values
	{regexp.MustCompile(`(?m)\s+$`), ""},
}

// Steady replaces what varies from run to run.
func Steady(text string) string {
	text = strings.ReplaceAll(text, "\r", "")
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.replacement)
	}
	return strings.TrimSpace(text)
}

// Same reports whether an output is what a document shows. There, ... at the end of a line
// is anything, and a line that is only ... is any number of lines.
func Same(output, document string) bool {
	var pattern strings.Builder
	for line := range strings.Lines(Steady(document) + "\n") {
		switch cut, more := strings.CutSuffix(strings.TrimSuffix(line, "\n"), "..."); {
		case cut == "" && more:
			pattern.WriteString(`(?:.*\n)*?`)
		case more:
			pattern.WriteString(regexp.QuoteMeta(cut) + `.*\n`)
		default:
			pattern.WriteString(regexp.QuoteMeta(line))
		}
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(Steady(output) + "\n")
}

// SameJSON reports whether an output is the JSON that a document shows. Strings are compared
// as Same does; of the fields that vary, only the types are.
func SameJSON(output, document string, vary ...string) error {
	var got, want any
	if err := json.Unmarshal([]byte(output), &got); err != nil {
		return fmt.Errorf("the output is not JSON: %w: %s", err, output)
	}
	if err := json.Unmarshal([]byte(document), &want); err != nil {
		return fmt.Errorf("the document is not JSON: %w", err)
	}
	return same("", got, want, vary)
}

func same(at string, got, want any, vary []string) error {
	if reflect.TypeOf(got) != reflect.TypeOf(want) {
		return fmt.Errorf("%s: the output has %v, the document %v", at, got, want)
	}
	switch want := want.(type) {
	case map[string]any:
		got := got.(map[string]any)
		if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
			return fmt.Errorf("%s: the output has the fields %q, the document %q", at, g, w)
		}
		for name := range want {
			if !slices.Contains(vary, name) || reflect.TypeOf(got[name]) != reflect.TypeOf(want[name]) {
				if err := same(at+"."+name, got[name], want[name], vary); err != nil {
					return err
				}
			}
		}
		return nil
	case []any:
		got := got.([]any)
		if len(got) != len(want) {
			return fmt.Errorf("%s: the output has %d elements, the document %d", at, len(got), len(want))
		}
		for i := range want {
			if err := same(fmt.Sprintf("%s[%d]", at, i), got[i], want[i], vary); err != nil {
				return err
			}
		}
		return nil
	case string:
		if Same(got.(string), want) {
			return nil
		}
	default:
		if got == want {
			return nil
		}
	}
	return fmt.Errorf("%s: the output has %v, the document %v", at, got, want)
}
