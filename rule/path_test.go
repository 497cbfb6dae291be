package rule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stintdev/stint/rule"
)

func TestCleanPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":                         "/",
		"/":                        "/",
		"//":                       "/",
		"/a":                       "/a",
		"a":                        "/a",
		"a/b":                      "/a/b",
		"/a/":                      "/a",
		"/a//b":                    "/a/b",
		"///a///b///":              "/a/b",
		"/a/./b":                   "/a/b",
		"/./":                      "/",
		"/.":                       "/",
		"/..":                      "/",
		"/a/..":                    "/",
		"/a/../b":                  "/b",
		"/a/b/../../c":             "/c",
		"/../../a":                 "/a",
		"/a/%2e/b":                 "/a/b",
		"/a/%2E%2e/b":              "/b",
		"/a/.%2e/b":                "/b",
		"/...":                     "/...",
		"/.a":                      "/.a",
		"/a.":                      "/a.",
		"/..a/b..":                 "/..a/b..",
		"/%61%62":                  "/ab",
		"/%7E%7e":                  "/~~",
		"/a%2fb":                   "/a%2Fb",
		"/a%2Fb":                   "/a%2Fb",
		"/a%2F..%2Fb":              "/a%2F..%2Fb",
		"/a%3fb%23c":               "/a%3Fb%23c",
		"/%25":                     "/%25",
		"/%2561":                   "/%2561",
		"/%25%36%31":               "/%2561",
		"/%":                       "/%",
		"/%%":                      "/%%",
		"/%6":                      "/%6",
		"/%zz/%6g":                 "/%zz/%6g",
		"/%%361":                   "/%%361", // decoded, it would be another escape
		"/%6%31":                   "/%6%31",
		"/%%67":                    "/%g",
		"/a?b":                     "/a",
		"/a?b/../c":                "/a",
		"?":                        "/",
		"/a#b?c":                   "/a",
		"/a\\b":                    "/a\\b",
		"/a%5Cb":                   "/a\\b",
		"/a%00b":                   "/a\x00b",
		"/a\x00\x1f\n":             "/a\x00\x1f\n",
		"/%C3%A9":                  "/é",
		"/\xff%fe":                 "/\xff\xfe",
		"/a;b=c/d":                 "/a;b=c/d",
		"http://x/a":               "/http:/x/a",
		"*":                        "/*",
		strings.Repeat("/a/..", 9): "/",
	} {
		if got := rule.CleanPath(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

// TestCleanPathLong has a client put much before what a rule is about.
func TestCleanPathLong(t *testing.T) {
	t.Parallel()
	const n = 1 << 18
	for _, path := range []string{
		strings.Repeat("/", n) + "api/search",
		strings.Repeat("/.", n) + "/api/search",
		strings.Repeat("/a/..", n) + "/api/search",
		strings.Repeat("/a", n) + strings.Repeat("/..", n) + "/api/search",
	} {
		if got := rule.CleanPath(path); got != "/api/search" {
			t.Errorf("%.20q...: %.20q", path, got)
		}
	}
}

func TestCleanPathAllocs(t *testing.T) {
	for _, path := range []string{"/", "/api/v1/search", "/.well-known/x", "/a%2Fb", "/a/b?c=d", "/a/", "/a/b/.."} {
		if n := testing.AllocsPerRun(100, func() { rule.CleanPath(path) }); n != 0 {
			t.Errorf("%q: %v allocations", path, n)
		}
	}
}

// TestPatterns has paths that rules cannot have, and what is said of them.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"":                             "a slash first",
		"a":                            "a slash first",
		"*":                            "a slash first",
		"/a//b":                        "no empty segments",
		"//":                           "no empty segments",
		"/a//":                         "no empty segments",
		"/a/./b":                       "no . or .. segments",
		"/..":                          "no . or .. segments",
		"/%2e":                         "no . or .. segments",
		"/a/.%2E/b":                    "no . or .. segments",
		"/a?b":                         "no ? or #",
		"/a#b":                         "no ? or #",
		"/a*":                          "only as whole segments",
		"/***":                         "only as whole segments",
		"/{a}b":                        "only as whole segments",
		"/{}":                          "only as whole segments",
		"/{a{b}":                       "only as whole segments",
		"/}":                           "only as whole segments",
		"/**/a":                        "** only at the end",
		"/**/**":                       "** only at the end",
		"/%":                           "two hexadecimal digits",
		"/%4/a":                        "two hexadecimal digits",
		"/a%zz":                        "two hexadecimal digits",
		"/\xff":                        "valid UTF-8",
		"/" + strings.Repeat("a", 512): "at most 512 bytes",

		"/":                            "",
		"/a/":                          "",
		"/a/*/{id}/**":                 "",
		"/**/":                         "",
		"/%2A%7B%7D%3F%23%25%2F":       "",
		"/...":                         "",
		"/é":                           "",
		"/" + strings.Repeat("a", 511): "",
	} {
		_, err := rule.Compile(rule.File{Rules: []rule.Rule{{
			Name: "r", Match: rule.Match{Paths: []string{pattern}}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}},
		}}})
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", pattern, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %s", pattern, err, want)
		}
		var problems rule.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Errorf("%q: the error is a %T", pattern, err)
		}
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, path := range []string{"", "/a/../b//c/", "%2e%2E/%2f", "/%%361?", "a#b", "/%6%31/..%2e", "/\x00\xff"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		clean := rule.CleanPath(path)
		if again := rule.CleanPath(clean); again != clean {
			t.Errorf("%q: %q, and then %q", path, clean, again)
		}
		if len(clean) > len(path)+1 || clean[0] != '/' || (clean != "/" && strings.HasSuffix(clean, "/")) {
			t.Errorf("%q: %q", path, clean)
		}
		for part := range strings.SplitSeq(clean[1:], "/") {
			if part == "." || part == ".." || strings.ContainsAny(part, "?#") || (part == "" && clean != "/") {
				t.Errorf("%q: %q", path, clean)
			}
		}
		if rule.CleanPath(path+"/") != clean && !strings.ContainsAny(path, "?#") {
			t.Errorf("%q is something else with a slash", path)
		}
	})
}

// FuzzMatchPath compares the tree of paths with the reference, and with what is
// explained.
func FuzzMatchPath(f *testing.F) {
	f.Add("/a/*", "/a/{x}/**", "/a/b")
	f.Add("/", "/**", "//")
	f.Add("/%2A/%61", "/*/a", "/%2a/a/.")
	f.Add("/a%2Fb", "/é", "/a%2fb")
	f.Fuzz(func(t *testing.T, one, two, path string) {
		file := rule.File{Rules: []rule.Rule{
			{Name: "one", Match: rule.Match{Paths: []string{one}}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}},
			{Name: "two", Match: rule.Match{Paths: []string{two}}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}},
			{Name: "both", Match: rule.Match{Paths: []string{one, two}}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}},
		}}
		s, err := rule.Compile(file)
		if err != nil {
			return
		}
		a := &rule.Attrs{Path: path}
		got := names(s.Match(nil, a))
		if want := naive(file, a); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if want := explained(s.Explain(a)); got != want {
			t.Errorf("%s, explained as %s", got, want)
		}
	})
}

// explained returns what applies, as [names] does.
func explained(rules []rule.Explained) string {
	var out []string
	for _, x := range rules {
		if !x.Matched || x.BeatenBy != "" {
			continue
		}
		if x.Endpoint != "" {
			x.Rule += "@" + x.Endpoint
		}
		out = append(out, x.Rule)
	}
	return strings.Join(out, ", ")
}
