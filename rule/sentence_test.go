package rule_test

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/rule"
)

var update = flag.Bool("update", false, "write the readings of rules into testdata")

// TestSentence reads rules and their readings from a file. Those who have changed what
// is said run it with -update, and read what changed.
func TestSentence(t *testing.T) {
	t.Parallel()
	const name = "testdata/sentences.txt"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	rules := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "{") {
			if !strings.HasPrefix(line, "    ") {
				out.WriteString(line)
			}
			continue
		}
		var r rule.Rule
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rules++
		got := "    " + r.Sentence() + "\n"
		if !*update && !strings.Contains(string(text), line+got) {
			t.Errorf("%sgot: %s", line, got)
		}
		out.WriteString(line + got)
	}
	if rules < 50 {
		t.Errorf("read only %d rules", rules)
	}
	if *update {
		if err := os.WriteFile(name, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzSentence has whatever JSON says read out: it is short, and one line of text.
func FuzzSentence(f *testing.F) {
	text, err := os.ReadFile("testdata/sentences.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "{") {
			f.Add([]byte(line))
		}
	}
	f.Add([]byte(`{"match": {"methods": ["ä\u2028", "\ud800"]}, "limits": [{"limit": "9007199254740991/10000d fixed_window"}]}`))
	f.Add([]byte(`{"count_by": ["header:", "claim:", ":", "ip", "ip"], "penalty": {"threshold": -9223372036854775808, "cooldown": "3660d", "multipliers": [-1, 0, 9223372036854775807]}, "limits": [{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r rule.Rule
		_ = json.Unmarshal(data, &r) // what could be read of it
		got := r.Sentence()
		odd := func(c rune) bool { return !unicode.IsPrint(c) }
		if !utf8.ValidString(got) || strings.ContainsFunc(got, odd) || len(got) > 32<<10 || !strings.HasSuffix(strings.TrimSuffix(got, `"`), ".") {
			t.Errorf("%s:\n%q", data, got)
		}
	})
}
