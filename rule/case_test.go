package rule_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// cased are two rules, one of which counts by endpoint.
func cased(of rule.Case) rule.File {
	limits := []rule.Limit{{Name: "n", Limit: "10/1s"}}
	return rule.File{Case: of, Rules: []rule.Rule{
		{Name: "search", Match: rule.Match{Paths: []string{"/Search", "/files/*/Raw"}}, CountBy: []rule.Dimension{"endpoint"}, Limits: limits},
		{Name: "accents", Match: rule.Match{Paths: []string{"/\u00e9t\u00e9/**"}}, Limits: limits},
	}}
}

// TestCase has spellings of paths that servers which ignore case take for the same.
func TestCase(t *testing.T) {
	t.Parallel()
	exact, ignoring := compile(t, cased(rule.ExactCase)), compile(t, cased(rule.IgnoreCase))
	if exact.Case() != rule.ExactCase || ignoring.Case() != rule.IgnoreCase || compile(t, cased("")).Case() != rule.ExactCase {
		t.Error("a set does not say what it does")
	}
	for path, want := range map[string][2]string{ // with regard to case, and without
		"/Search":          {"search@/Search", "search@/Search"},
		"/search":          {"", "search@/Search"},
		"/SEARCH":          {"", "search@/Search"},
		"/%53earch":        {"search@/Search", "search@/Search"},
		"/%73%45arch":      {"", "search@/Search"},
		"/\u017fearch":     {"", "search@/Search"}, // a long s
		"/searches":        {"", ""},
		"/SEARCH;x":        {"", "search@/Search"},
		"/SEARCH%2f":       {"", "search@/Search"},
		"/X/..%5CSEARCH":   {"", "search@/Search"},
		"/FILES/7/RAW":     {"", "search@/files/*/Raw"},
		"/FILES/7/COOKED":  {"", ""},
		"/%C3%A9t%C3%A9":   {"accents@/\u00e9t\u00e9/**", "accents@/\u00e9t\u00e9/**"},
		"/%C3%89T%C3%89/x": {"", "accents@/\u00e9t\u00e9/**"},
		"/E\u0301t\u00e9":  {"", ""}, // the same to a reader, but not to a server
		"/\xe9t\xe9":       {"", ""}, // not UTF-8
	} {
		a := rule.Attrs{Path: path}
		one := rule.Attrs{Path: path, IgnoreCase: true}
		for _, c := range [][2]string{
			{names(exact.Match(nil, &a)), want[0]},
			{names(exact.Match(nil, &one)), want[1]},
			{names(ignoring.Match(nil, &a)), want[1]},
			{names(ignoring.Match(nil, &one)), want[1]},
			{explained(exact.Explain(&a)), want[0]},
			{explained(exact.Explain(&one)), want[1]},
			{explained(ignoring.Explain(&a)), want[1]},
		} {
			if c[0] != c[1] {
				t.Errorf("%q: %q, want %q", path, c[0], c[1])
			}
		}
	}
	keys := map[stint.Key]bool{}
	for _, path := range []string{"/Search", "/SEARCH", "/search"} {
		a := rule.Attrs{Path: path}
		asks, _ := ignoring.Asks(nil, ignoring.Match(nil, &a), &a, nil)
		keys[asks[0].Key] = true
	}
	if len(keys) != 1 {
		t.Errorf("spellings of a path have %d counters", len(keys))
	}
}

// TestCaseProblems has rules that contradict each other only if case is ignored.
func TestCaseProblems(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "n", Limit: "10/1s"}}
	twice := rule.File{Rules: []rule.Rule{{Name: "r", Match: rule.Match{Paths: []string{"/a/B", "/A/%62"}}, Limits: limits}}}
	hidden := rule.File{Rules: []rule.Rule{
		{Name: "a", Match: rule.Match{Paths: []string{"/A/**"}}, Limits: limits, Group: "g", Priority: 1},
		{Name: "b", Match: rule.Match{Paths: []string{"/a/b"}}, Limits: limits, Group: "g", Priority: 2},
	}}
	for f, want := range map[*rule.File]string{&twice: `"/A/%62" is listed already, as "/a/B"`, &hidden: `the rule "b" can never apply`} {
		if found := f.Check(); len(found) > 0 {
			t.Errorf("with regard to case: %v", found)
		}
		f.Case = rule.IgnoreCase
		if found := f.Check(); len(found) != 1 || !strings.Contains(found.Error(), want) {
			t.Errorf("%v, want %s", found, want)
		}
	}
	if found := (&rule.File{Case: "ingore"}).Check(); len(found) != 1 || !strings.Contains(found.Error(), `did you mean "ignore"`) {
		t.Errorf("%v", found)
	}
}

// FuzzCase compares the rules for a path with those for the same path in upper and in lower
// case, and with a path that only differs in case according to package strings.
func FuzzCase(f *testing.F) {
	f.Add("/a/Search", "/A/%53EARCH")
	f.Add("/\u017f\u212a", "/sk")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		s, err := rule.Compile(rule.File{Case: rule.IgnoreCase, Rules: []rule.Rule{
			{Name: "r", Match: rule.Match{Paths: []string{pattern}}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}},
		}})
		if err != nil {
			return
		}
		match := func(path string) string { return names(s.Match(nil, &rule.Attrs{Path: path})) }
		ascii := func(r rune) rune {
			if r < unicode.MaxASCII {
				return unicode.ToUpper(r)
			}
			return r
		}
		if got, want := match(strings.Map(ascii, path)), match(path); got != want && strings.ToValidUTF8(path, "") == path {
			t.Errorf("%q: %q, in upper case %q", path, want, got)
		}
		if clean := rule.CleanPath(path); strings.EqualFold(clean, rule.CleanPath(pattern)) && strings.ToValidUTF8(clean, "") == clean && match(path) == "" {
			t.Errorf("%q does not match %q", path, pattern)
		}
	})
}
