package ruletest_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/rule"
)

var update = flag.Bool("update", false, "write testdata")

// directory has the users alice, who pays, and bob.
type directory struct{}

func (directory) Key(context.Context, string) (*identity.Key, error)       { return nil, nil } //nolint:nilnil // there is none
func (directory) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil } //nolint:nilnil // there is none

func (directory) User(_ context.Context, id string) (*identity.User, error) {
	switch id {
	case "alice":
		limit, err := stint.ParseLimit("20/1m fixed_window")
		return &identity.User{ID: id, Tier: "premium", Limits: map[string]stint.Limit{"minute": limit}}, err
	case "bob":
		return &identity.User{ID: id}, nil
	}
	return nil, nil //nolint:nilnil // there is none
}

// clients identifies users by the header of a proxy. Monitoring is exempt, and mallory is banned for an hour.
func clients(func() time.Time) (*identity.Resolver, error) {
	exempt, err := identity.NewList([]identity.Entry{{Kind: identity.KindIP, Value: "198.51.100.0/24", Reason: "monitoring"}})
	if err != nil {
		return nil, err
	}
	banned, err := identity.NewList([]identity.Entry{{
		Kind: identity.KindUser, Value: "mallory", Reason: "abuse", Until: time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC),
	}})
	if err != nil {
		return nil, err
	}
	return identity.New(identity.Options{
		Methods: []identity.Source{identity.ByHeader}, Directory: directory{}, DefaultTier: "free", UserHeader: "X-User",
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Lists: identity.Lists{Exempt: exempt, Banned: banned},
	})
}

// newRunner returns a runner of the rules in a file.
func newRunner(t testing.TB, path string) *ruletest.Runner {
	t.Helper()
	rules, err := rule.ParseTOML(path, read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ruletest.New(ruletest.Options{Rules: rules, Identity: clients})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func parse(t testing.TB, name string, text []byte) *ruletest.File {
	t.Helper()
	f, err := ruletest.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func run(t testing.TB, r *ruletest.Runner, f *ruletest.File) *ruletest.Result {
	t.Helper()
	result, err := r.Run(t.Context(), f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func printed(r *ruletest.Result) string {
	var b strings.Builder
	for _, x := range r.Tests {
		for _, f := range x.Failures {
			b.WriteString(x.Name + ": " + f.String() + "\n")
		}
	}
	return b.String()
}

// TestLanguage runs a file that has every word.
func TestLanguage(t *testing.T) {
	t.Parallel()
	f := parse(t, "language.ruletest", read(t, "testdata/language.ruletest"))
	r := newRunner(t, filepath.Join("testdata", f.Config))
	if result := run(t, r, f); !result.Passed() || len(result.Tests) < 10 {
		t.Errorf("%d tests\n%s", len(result.Tests), printed(result))
	}
}

// TestUpdate breaks what a file expects, and updates it: nothing but expectations changes, the file passes, and a second
// update changes nothing.
func TestUpdate(t *testing.T) {
	t.Parallel()
	const broken = `config rules.toml  # a comment
test one
   at 0s GET /search user=bob x7 -> deny   # what it was before
at 0s	GET /search user=bob ->` + "\r" + `
at 0s GET /search user=carol -> allow by search/burst remaining=9 no header RateLimit header Nothing=x  # stays
at 1s POST /login x4 -># not a comment
at 1s GET /search user=bob -> allow remaining=4 # passes
at 2s reset user=bob
at 2s GET /internal -> deny   by  search status=1 reason="#" header Retry-After=7
at 3s GET /graphql x3 -> allow shadow tried none
at 4s GET /reports user=bob x3 ->
at 4s GET /elsewhere ->
at 4s GET /search user=mallory ->`
	r := newRunner(t, "testdata/rules.toml")
	text := []byte(strings.Replace(broken, "->#", "-> #", 1))
	f := parse(t, "broken.ruletest", text)
	updated, n := f.Update(run(t, r, f))
	if n != 9 {
		t.Errorf("%d steps were changed", n)
	}
	compare(t, "testdata/updated.ruletest", updated)
	f = parse(t, "updated.ruletest", updated)
	result := run(t, r, f)
	again, n := f.Update(result)
	if !result.Passed() || n > 0 || !bytes.Equal(again, updated) {
		t.Errorf("it was updated twice:\n%s\n%s", again, printed(result))
	}
	// What is not expected is as it was.
	before := strings.Split(string(text), "\n")
	for i, line := range strings.Split(string(updated), "\n") {
		left, _, _ := strings.Cut(line, "->")
		was, _, _ := strings.Cut(before[i], "->")
		_, comment, _ := strings.Cut(before[i], " # ")
		if left != was || !strings.HasSuffix(line, comment) {
			t.Errorf("line %d was\n%s\nand is\n%s", i+1, before[i], line)
		}
	}
}

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want := read(t, path); !bytes.Equal(got, want) {
		t.Errorf("%s: go test ./internal/control/ruletest -update accepts:\n%s", path, got)
	}
}

// TestProblems reads files that are wrong, each with what is said of it.
func TestProblems(t *testing.T) {
	t.Parallel()
	const path = "testdata/problems.txt"
	r := newRunner(t, "testdata/rules.toml")
	var out bytes.Buffer
	for block := range strings.SplitSeq(strings.TrimSpace(string(read(t, path))), "\n\n") {
		var lines []string
		for line := range strings.Lines(block) {
			if text, ok := strings.CutPrefix(line, "| "); ok {
				lines = append(lines, strings.TrimSuffix(text, "\n")+"\n")
			}
		}
		f, err := ruletest.Parse("x", []byte(strings.Join(lines, "")))
		if err == nil {
			err = r.Check(f)
		}
		if err == nil {
			t.Errorf("nothing is wrong with\n%s", block)
			continue
		}
		out.WriteString("| " + strings.Join(lines, "| ") + err.Error() + "\n\n")
	}
	compare(t, path, append(bytes.TrimSpace(out.Bytes()), '\n'))
	for name, text := range map[string]string{"empty": "", "not UTF-8": "test \xff", "too large": strings.Repeat("#\n", 9<<20)} {
		if _, err := ruletest.Parse("x", []byte(text)); err == nil {
			t.Errorf("%s: no problem", name)
		}
	}
}

// TestFails runs a step that cannot be made: that is a failure, which an update leaves.
func TestFails(t *testing.T) {
	t.Parallel()
	text := "test a\nat 0s unban user=bob\nat 0s GET /" + strings.Repeat("a", 9000) + " -> allow\n"
	f := parse(t, "x", []byte(text))
	result := run(t, newRunner(t, "testdata/rules.toml"), f)
	if x := result.Tests[0].Failures; len(x) != 2 || !x[0].Error || !strings.Contains(x[0].String(), "an existing ban") || !strings.Contains(x[1].Got, "8192") {
		t.Errorf("%+v", x)
	}
	if after, n := f.Update(result); n != 0 || string(after) != text {
		t.Errorf("%d were changed", n)
	}
}

// TestAgain runs a file twice: the result is the same.
func TestAgain(t *testing.T) {
	t.Parallel()
	f := parse(t, "language.ruletest", read(t, "testdata/language.ruletest"))
	r := newRunner(t, "testdata/rules.toml")
	only := func(name string) bool { return strings.Contains(name, "many") }
	for range 3 {
		result, err := r.Run(t.Context(), f, only)
		if err != nil || len(result.Tests) != 1 || !result.Passed() {
			t.Fatalf("%+v, %v", result, err)
		}
	}
}

// TestCoverage touches some parts of the rules, and others not.
func TestCoverage(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "testdata/rules.toml")
	run(t, r, parse(t, "x", []byte(`
test some
at 0s GET /search user=bob x9 -> allow
at 0s GET /search user=alice -> allow
at 0s POST /login x4 -> allow
at 0s GET /app -> allow
at 0s GET /graphql x2 -> allow
at 0s GET /health -> exempt
`)))
	got := map[string][]string{}
	c := r.Coverage()
	for _, k := range c.Kinds() {
		got[k.Name] = k.Missing
		if k.All < len(k.Missing) || k.All == 0 {
			t.Errorf("%s: %d of %d", k.Name, len(k.Missing), k.All)
		}
	}
	for name, want := range map[string][]string{
		"rules":              {"anonymous", "exports", "reports", "files", "mobile", "internal", "monthly"},
		"limits":             {"anonymous/minute", "exports/places", "reports/reports", "files/bytes", "mobile/mobile", "monthly/monthly"},
		"denials by limits":  {"search/minute", "anonymous/minute", "exports/places", "reports/reports", "files/bytes", "graphql/points", "mobile/mobile", "other/app", "monthly/monthly"},
		"bans by penalties":  {},
		"tiers":              {},
		"branches of groups": {"app: mobile"},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	r = newRunner(t, "testdata/rules.toml")
	run(t, r, parse(t, "x", []byte("test one\nat 0s POST /login user=alice -> allow\n")))
	if c = r.Coverage(); !slices.Equal(c.Tiers.Missing, []string{"free"}) || !slices.Equal(c.Bans.Missing, []string{"login"}) {
		t.Errorf("%+v", c)
	}
}

// TestJUnit writes results, and reads them back as XML.
func TestJUnit(t *testing.T) {
	t.Parallel()
	f := parse(t, "a<b>.ruletest", []byte("test passes\nat 0s GET / -> allow\ntest \"fails\" & <more>\x01\nat 0s GET / user=]]> -> deny\nat 0s GET / -> deny\n"))
	r := newRunner(t, "testdata/rules.toml")
	var b bytes.Buffer
	if err := ruletest.WriteJUnit(&b, []ruletest.Result{*run(t, r, f), *run(t, r, f)}); err != nil {
		t.Fatal(err)
	}
	var x struct {
		XMLName  xml.Name
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Name     string `xml:"name,attr"`
			Tests    int    `xml:"tests,attr"`
			Failures int    `xml:"failures,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Class   string `xml:"classname,attr"`
				Line    int    `xml:"line,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
					Text    string `xml:",chardata"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b.Bytes(), &x); err != nil {
		t.Fatalf("%v\n%s", err, &b)
	}
	if x.XMLName.Local != "testsuites" || x.Tests != 4 || x.Failures != 2 || len(x.Suites) != 2 {
		t.Fatalf("%+v", x)
	}
	s := x.Suites[1]
	if s.Name != f.Name || s.Tests != 2 || s.Failures != 1 || s.Cases[0].Failure != nil || s.Cases[1].Name != "\"fails\" & <more>\ufffd" || s.Cases[1].Line != 3 {
		t.Errorf("%+v", s)
	}
	if no := s.Cases[1].Failure; no == nil || !strings.Contains(no.Message, "line 4: want deny, got allow") || !strings.Contains(no.Text, f.Name+":5: at 0s GET /\nwant deny\ngot  allow") {
		t.Errorf("%+v", no)
	}
}

// FuzzParse reads any text. What can be read is run, updated, and passes then.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"testdata/language.ruletest", "testdata/updated.ruletest"} {
		text := read(f, path)
		for block := range bytes.SplitSeq(text, []byte("\n\n")) {
			f.Add(block)
		}
	}
	for block := range strings.SplitSeq(string(read(f, "testdata/problems.txt")), "\n\n") {
		f.Add([]byte(strings.ReplaceAll(block, "| ", "")))
	}
	f.Add([]byte("test a\nat 0s GET / user=\"\\x00\\\"\" header A=\"\\u1234\" -> allow user=\"\\xff\" reason=\"\\n\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := ruletest.Parse("x", text)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("it does not say what is wrong")
			}
			return
		}
		r := newRunner(t, "testdata/rules.toml")
		requests := 0
		for _, x := range file.Tests {
			requests += x.Requests()
		}
		if r.Check(file) != nil || requests > 1000 {
			return
		}
		result := run(t, r, file)
		updated, _ := file.Update(result)
		file, err = ruletest.Parse("x", updated)
		if err != nil {
			t.Fatalf("%v\n%s\nfrom\n%s", err, updated, text)
		}
		for _, x := range run(t, r, file).Tests {
			for _, failure := range x.Failures {
				if !failure.Error {
					t.Fatalf("%s\nin\n%s\nfrom\n%s", &failure, updated, text)
				}
			}
		}
	})
}
