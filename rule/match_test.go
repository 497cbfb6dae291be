package rule_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"net/textproto"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/rule"
)

// This file is long: the reference matcher that walks all rules, and what it is compared with.

// scenario is a case of a script: rules, and requests with the rules that apply.
type scenario struct {
	name  string
	file  rule.File
	lines []line
}

type line struct {
	number int
	attrs  rule.Attrs
	want   string
}

func readScript(t *testing.T, name string) []scenario {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []scenario
	for i, l := range strings.Split(string(text), "\n") {
		fields := strings.Fields(l)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if fields[0] == "==" {
			out = append(out, scenario{name: strings.Join(fields[1:], " ")})
			continue
		}
		s := &out[len(out)-1]
		if fields[0] == "rule" {
			s.file.Rules = append(s.file.Rules, readRule(t, fields[1:]))
			continue
		}
		arrow := slices.Index(fields, "->")
		if arrow < 0 {
			t.Fatalf("%s:%d: no arrow", name, i+1)
		}
		s.lines = append(s.lines, line{i + 1, readAttrs(t, fields[:arrow]), strings.Join(fields[arrow+1:], " ")})
	}
	for i := range out {
		out[i].file = withTiers(out[i].file)
	}
	return out
}

// withTiers adds the tiers that the rules name.
func withTiers(f rule.File) rule.File {
	f.Tiers = nil
	var names []string
	for _, r := range f.Rules {
		names = append(names, r.Match.Tiers...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		f.Tiers = append(f.Tiers, rule.Tier{Name: name})
	}
	return f
}

func readRule(t *testing.T, fields []string) rule.Rule {
	t.Helper()
	r := rule.Rule{Name: fields[0], Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		list := strings.Split(value, ",")
		switch name {
		case "paths":
			r.Match.Paths = list
		case "methods":
			r.Match.Methods = list
		case "tiers":
			r.Match.Tiers = list
		case "ips":
			r.Match.IPRanges = list
		case "header":
			if r.Match.Headers == nil {
				r.Match.Headers = map[string]string{}
			}
			k, v, _ := strings.Cut(value, ":")
			r.Match.Headers[k] = v
		case "by":
			for _, d := range list {
				r.CountBy = append(r.CountBy, rule.Dimension(d))
			}
		case "group":
			r.Group = value
		case "priority":
			r.Priority, _ = strconv.Atoi(value)
		case "disabled":
			r.Enabled = new(bool)
		case "action":
			if r.Action = rule.Action(value); r.Action == rule.Allow || r.Action == rule.Block {
				r.Limits = nil
			}
		default:
			t.Fatalf("rule %s: what is %s?", r.Name, f)
		}
	}
	return r
}

func readAttrs(t *testing.T, fields []string) rule.Attrs {
	t.Helper()
	a := rule.Attrs{Method: strings.TrimPrefix(fields[0], "-"), Path: strings.TrimPrefix(fields[1], "-")}
	for _, f := range fields[2:] {
		name, value, _ := strings.Cut(f, "=")
		k, v, _ := strings.Cut(value, ":")
		switch name {
		case "user":
			a.User = value
		case "tenant":
			a.Tenant = value
		case "key":
			a.APIKey = value
		case "tier":
			a.Tier = value
		case "ip":
			a.IP = netip.MustParseAddr(value)
			a.Net = netip.PrefixFrom(a.IP, a.IP.BitLen())
			if a.IP.Is6() {
				a.Net, _ = a.IP.Prefix(64)
			}
		case "claim":
			if a.Claims == nil {
				a.Claims = map[string]string{}
			}
			a.Claims[k] = v
		case "header":
			if a.Headers == nil {
				a.Headers = map[string][]string{}
			}
			a.Headers[k] = append(a.Headers[k], v)
		case "trusted":
			a.Trusted = true
		default:
			t.Fatalf("what is %s?", f)
		}
	}
	return a
}

func compile(t rapid.TB, f rule.File) *rule.Set {
	t.Helper()
	s, err := rule.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// names returns hits as scripts have them.
func names(hits []rule.Hit) string {
	out := make([]string, len(hits))
	for i, h := range hits {
		if out[i] = h.Rule.Name; h.Endpoint != "" {
			out[i] += "@" + h.Endpoint
		}
	}
	return strings.Join(out, ", ")
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, s := range readScript(t, "testdata/match.txt") {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			set := compile(t, s.file)
			for _, l := range s.lines {
				if got := names(set.Match(nil, &l.attrs)); got != l.want {
					t.Errorf("line %d: %s, want %s", l.number, got, l.want)
				}
				if got := naive(s.file, &l.attrs); got != l.want {
					t.Errorf("line %d: the reference says %s, want %s", l.number, got, l.want)
				}
			}
		})
	}
}

// candidate is a rule that matches a request.
type candidate struct {
	rule       *rule.Rule
	endpoint   string
	conditions int
}

// better reports whether x stands before y in a group, or as a path of its rule.
func (x candidate) better(y candidate) bool {
	return cmp.Or(
		cmp.Compare(x.rule.Priority, y.rule.Priority),
		slices.Compare(specificity(y.endpoint), specificity(x.endpoint)),
		cmp.Compare(y.conditions, x.conditions),
		strings.Compare(x.rule.Name, y.rule.Name),
		strings.Compare(x.endpoint, y.endpoint),
	) < 0
}

// naive is what applies to a request, as one would say it: every rule is looked at,
// for every way in which its path may be read.
func naive(f rule.File, a *rule.Attrs) string {
	best := map[string]candidate{} // by rule
	exempt := true
	readings := naiveReadings(a.Path)
	for path := range readings {
		allows, blocks := math.MaxInt, math.MaxInt // the first priority of those that do
		for _, c := range naiveMatch(f, a, path) {
			if b, ok := best[c.rule.Name]; !ok || c.better(b) {
				best[c.rule.Name] = c
			}
			if c.rule.Action == rule.Allow {
				allows = min(allows, c.rule.Priority)
			}
			if c.rule.Action == rule.Block {
				blocks = min(blocks, c.rule.Priority)
			}
		}
		exempt = exempt && allows < blocks
	}
	var hits []candidate
	for _, c := range best {
		if exempt || len(readings) == 1 || c.rule.Action != rule.Allow {
			hits = append(hits, c)
		}
	}
	slices.SortFunc(hits, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.rule.Priority, y.rule.Priority), strings.Compare(x.rule.Name, y.rule.Name))
	})
	var out []string
	for _, c := range hits {
		name := c.rule.Name
		if c.endpoint != "" {
			name += "@" + c.endpoint
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// naiveReadings returns what a path may mean: what servers do with it, in any order.
func naiveReadings(path string) map[string]bool {
	does := []func(string) string{
		func(p string) string { return regexp.MustCompile("%2F").ReplaceAllString(p, "/") },
		func(p string) string { return regexp.MustCompile(`\\`).ReplaceAllString(p, "/") },
		func(p string) string { return regexp.MustCompile(";[^/]*").ReplaceAllString(p, "") },
	}
	// Escapes that are not of slashes, in one spelling.
	path = regexp.MustCompile(`(?s)[?#].*`).ReplaceAllString(path, "")
	path = "/" + regexp.MustCompile("(?i)%(61|5c|3b|2e|2f)").ReplaceAllStringFunc(path, func(s string) string {
		return map[string]string{"%61": "a", "%5c": `\`, "%3b": ";", "%2e": ".", "%2f": "%2F"}[strings.ToLower(s)]
	})
	all := map[string]bool{rule.CleanPath(path): true}
	for _, one := range does {
		for _, two := range does {
			for _, three := range does {
				p, q := path, rule.CleanPath(path)
				for _, do := range []func(string) string{one, two, three} {
					p, q = do(p), rule.CleanPath(do(q))
					all[rule.CleanPath(p)], all[q] = true, true
				}
			}
		}
	}
	return all
}

// naiveMatch is what applies to a request for a path.
func naiveMatch(f rule.File, a *rule.Attrs, path string) map[string]candidate {
	best := map[string]candidate{} // by group
	for i := range f.Rules {
		r := &f.Rules[i]
		if !naiveMeets(r, a) {
			continue
		}
		c := candidate{rule: r}
		for _, n := range []int{
			len(r.Match.Paths), len(r.Match.Methods), len(r.Match.Tiers), len(r.Match.IPRanges), len(r.Match.Headers),
		} {
			if n > 0 {
				c.conditions++
			}
		}
		group := fmt.Sprint("group ", r.Group, r.Action == rule.LogOnly)
		if r.Group == "" {
			group = "rule " + r.Name
		}
		for _, p := range append(slices.Clone(r.Match.Paths), "") {
			if p == "" && len(r.Match.Paths) > 0 || p != "" && !naivePath(p, path) {
				continue
			}
			c.endpoint = strings.TrimSuffix(p, "/")
			if p == "/" {
				c.endpoint = p
			}
			if b, ok := best[group]; !ok || c.better(b) {
				best[group] = c
			}
		}
	}
	return best
}

// specificity has its most important number first.
func specificity(pattern string) []int {
	if pattern == "" {
		return []int{0}
	}
	parts := segments(pattern)
	rest := 0
	if n := len(parts); n > 0 && parts[n-1] == "**" {
		rest = 1
		parts = parts[:n-1]
	}
	literals := 0
	for _, p := range parts {
		if p != "*" && p[0] != '{' {
			literals++
		}
	}
	exact := 0
	if rest == 0 && literals == len(parts) {
		exact = 1
	}
	return []int{1, exact, literals, len(parts), -rest}
}

func segments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

func naivePath(pattern, path string) bool {
	want, got := segments(pattern), segments(path)
	for i, w := range want {
		switch {
		case w == "**":
			return true
		case i >= len(got):
			return false
		case w == "*" || w[0] == '{':
		case segments(rule.CleanPath(w))[0] != got[i]:
			return false
		}
	}
	return len(want) == len(got)
}

func naiveMeets(r *rule.Rule, a *rule.Attrs) bool {
	m := r.Match
	holds := (r.Enabled == nil || *r.Enabled) &&
		(len(m.Methods) == 0 || slices.Contains(m.Methods, a.Method)) &&
		(len(m.Tiers) == 0 || slices.Contains(m.Tiers, a.Tier)) &&
		(len(m.IPRanges) == 0 || slices.ContainsFunc(m.IPRanges, func(text string) bool {
			if !strings.Contains(text, "/") {
				return a.IP == netip.MustParseAddr(text)
			}
			return netip.MustParsePrefix(text).Contains(a.IP)
		}))
	for name, want := range m.Headers {
		holds = holds && slices.ContainsFunc(a.Headers[textproto.CanonicalMIMEHeaderKey(name)], func(v string) bool {
			return v == want || (want == "*" && v != "")
		})
	}
	for _, d := range r.CountBy {
		kind, name, _ := strings.Cut(string(d), ":")
		switch kind {
		case "user":
			holds = holds && a.User != ""
		case "tenant":
			holds = holds && a.Tenant != ""
		case "api_key":
			holds = holds && a.APIKey != ""
		case "ip":
			holds = holds && a.IP.IsValid()
		case "method":
			holds = holds && a.Method != ""
		case "claim":
			holds = holds && a.Claims[name] != ""
		case "header":
			vs := a.Headers[textproto.CanonicalMIMEHeaderKey(name)]
			holds = holds && strings.Join(vs, "") != "" && (a.Trusted || a.IP.IsValid())
		}
	}
	return holds
}

var (
	somePaths = []string{
		"/", "/**", "/a", "/c/", "/a/b", "/a/*", "/a/{x}/c", "/*/b", "/{y}", "/a/**", "/a/b/**", "/a/*/**", "/*/*/c", "/b", "/b/%61",
		"/a%2fb", "/a;b/*", "/a%5Cb",
	}
	someNetworks = []string{
		"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3", "10.128.0.0/9", "192.0.2.0/31", "::/0", "2001:db8::/32", "2001:db8::1",
	}
	someAddresses = []string{"10.1.2.3", "10.1.2.4", "10.200.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "::1"}
	someDims      = []rule.Dimension{
		"user", "tenant", "api_key", "ip", "method", "claim:org", "header:X-A", "header:x-b",
	}
)

// some draws a few different values, mostly none.
func some[T comparable](t *rapid.T, label string, from []T) []T {
	if rapid.IntRange(0, 2).Draw(t, label+"?") > 0 {
		return nil
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 1, 3, rapid.ID[T]).Draw(t, label)
}

func drawRule(t *rapid.T, name string) rule.Rule {
	r := rule.Rule{
		Name:     name,
		Limits:   []rule.Limit{{Name: "n", Limit: "10/1s"}, {Name: "m", Limit: "50/1m"}},
		Priority: rapid.IntRange(-1, 1).Draw(t, "priority"),
		Group:    rapid.SampledFrom([]string{"", "", "g", "h"}).Draw(t, "group"),
		CountBy:  some(t, "count by", someDims),
		Match: rule.Match{
			Paths:    some(t, "paths", somePaths),
			Methods:  some(t, "methods", []string{"GET", "PUT", "POST"}),
			Tiers:    some(t, "tiers", []string{"free", "pro", "team"}),
			IPRanges: some(t, "networks", someNetworks),
		},
	}
	for _, h := range some(t, "headers", []string{"X-A", "x-b", "X-C"}) {
		if r.Match.Headers == nil {
			r.Match.Headers = map[string]string{}
		}
		r.Match.Headers[h] = rapid.SampledFrom([]string{"1", "2", "*"}).Draw(t, h)
	}
	switch rapid.IntRange(0, 9).Draw(t, "action") {
	case 0:
		r.Action, r.Limits = rule.Allow, nil
	case 1:
		r.Action, r.Limits = rule.Block, nil
	case 2, 3:
		r.Action = rule.LogOnly
	}
	if rapid.IntRange(0, 9).Draw(t, "disabled") == 0 {
		r.Enabled = new(bool)
	}
	if len(r.Match.Paths) > 0 && rapid.Bool().Draw(t, "by endpoint") {
		r.CountBy = append(r.CountBy, "endpoint")
	}
	return r
}

// drawFile draws rules that make a set: without those that have problems.
func drawFile(t *rapid.T, most int) (rule.File, *rule.Set) {
	var f rule.File
	for i := range rapid.IntRange(0, most).Draw(t, "rules") {
		f.Rules = append(f.Rules, drawRule(t, "r"+strconv.Itoa(i)))
	}
	for {
		f = withTiers(f)
		s, err := rule.Compile(f)
		if err == nil {
			return f, s
		}
		f.Rules = without(t, f.Rules, err)
	}
}

// without returns the rules that an error does not name.
func without(t *rapid.T, rules []rule.Rule, err error) []rule.Rule {
	var problems rule.Problems
	if !errors.As(err, &problems) {
		t.Fatal(err)
	}
	bad := map[int]bool{}
	for _, p := range problems {
		var i int
		if _, err := fmt.Sscanf(p.Path, "rules[%d]", &i); err != nil {
			t.Fatal(p)
		}
		bad[i] = true
	}
	var out []rule.Rule
	for i, r := range rules {
		if !bad[i] {
			out = append(out, r)
		}
	}
	return out
}

func drawAttrs(t *rapid.T) *rule.Attrs {
	value := func(label string, from ...string) string {
		return rapid.SampledFrom(append(from, "")).Draw(t, label)
	}
	a := &rule.Attrs{
		Method: value("method", "GET", "PUT", "POST", "get"),
		Path: strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{
			"", "/", "/a", "/b", "/c", "/x", "/..", "/.", "/%61", "?q", "%2Fb", "%2f..", `\c`, "%5Cb", ";", ";x", "%3b",
		}), 0, 5).Draw(t, "path"), ""),
		User:    value("user", "1", "2"),
		Tenant:  value("tenant", "1", "2"),
		APIKey:  value("key", "1", "2"),
		Tier:    value("tier", "free", "pro", "other"),
		Claims:  map[string]string{"org": value("org", "1", "2")},
		Trusted: rapid.Bool().Draw(t, "trusted"),
		Headers: map[string][]string{},
	}
	for _, h := range []string{"X-A", "X-B", "X-C"} {
		a.Headers[h] = rapid.SliceOfN(rapid.SampledFrom([]string{"", "1", "2", "*"}), 0, 2).Draw(t, h)
	}
	if ip := value("ip", someAddresses...); ip != "" {
		a.IP = netip.MustParseAddr(ip)
		a.Net, _ = a.IP.Prefix(min(a.IP.BitLen(), 64))
	}
	return a
}

func TestMatchIsTheReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, s := drawFile(t, 40)
		for range 10 {
			a := drawAttrs(t)
			if got, want := names(s.Match(nil, a)), naive(f, a); got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		}
	})
}

func TestMatchIgnoresTheOrderOfRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, s := drawFile(t, 20)
		f.Rules = rapid.Permutation(f.Rules).Draw(t, "order")
		again := compile(t, f)
		for range 10 {
			a := drawAttrs(t)
			if got, want := names(again.Match(nil, a)), names(s.Match(nil, a)); got != want {
				t.Fatalf("%s in another order, was %s", got, want)
			}
		}
	})
}

func TestMatchTakesOneOfAGroup(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, s := drawFile(t, 20)
		a := drawAttrs(t)
		took := map[string]int{}
		for _, h := range s.Match(nil, a) {
			took[fmt.Sprint(h.Rule.Group, h.Rule.Action == rule.LogOnly)]++
		}
		for _, group := range []string{"gtrue", "gfalse", "htrue", "hfalse"} {
			want := 0
			for _, r := range f.Rules {
				// By itself the rule is in no one's way.
				alone := compile(t, withTiers(rule.File{Rules: []rule.Rule{r}}))
				if fmt.Sprint(r.Group, r.Action == rule.LogOnly) == group && len(alone.Match(nil, a)) > 0 {
					want = 1
				}
			}
			// A path with several readings has a rule for each.
			if took[group] != want && len(naiveReadings(a.Path)) == 1 {
				t.Fatalf("%d rules of group %s, want %d", took[group], group, want)
			}
		}
	})
}

func TestMatchKeepsWhatApplied(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, s := drawFile(t, 20)
		added := drawRule(t, "added")
		if added.Group = ""; len(added.Limits) == 0 {
			return // it may take others' places
		}
		f.Rules = append(f.Rules, added)
		more, err := rule.Compile(withTiers(f))
		if err != nil {
			return // it can never count
		}
		a := drawAttrs(t)
		var kept []rule.Hit
		for _, h := range more.Match(nil, a) {
			if h.Rule.Name != "added" {
				kept = append(kept, h)
			}
		}
		if got, want := names(kept), names(s.Match(nil, a)); got != want {
			t.Fatalf("%s with another rule, was %s", got, want)
		}
	})
}

// TestMatchManyOfOnePath is for rules that only conditions other than paths tell
// apart.
func TestMatchManyOfOnePath(t *testing.T) {
	t.Parallel()
	for _, paths := range [][]string{nil, {"/**"}} {
		var f rule.File
		for i := range 300 {
			r := rule.Rule{
				Name: fmt.Sprintf("r%03d", i), Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}, Match: rule.Match{Paths: paths},
			}
			switch i % 4 {
			case 0:
				r.Match.IPRanges = []string{fmt.Sprintf("10.%d.0.0/16", i/4), fmt.Sprintf("2001:db8:%x::/48", i/4)}
			case 1:
				r.Match.Tiers = []string{fmt.Sprintf("t%d", i/4), "all"}
			case 2:
				r.Match.Headers = map[string]string{"X-A": strconv.Itoa(i / 4)}
			case 3:
				r.Match.Headers = map[string]string{"X-B": "*", "X-C": strconv.Itoa(i / 4)}
			}
			f.Rules = append(f.Rules, r)
		}
		f = withTiers(f)
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(f.Rules), func(i, j int) { f.Rules[i], f.Rules[j] = f.Rules[j], f.Rules[i] })
		s := compile(t, f)
		for i := range 80 {
			n := strconv.Itoa(i)
			for _, a := range []rule.Attrs{
				{IP: netip.AddrFrom4([4]byte{10, byte(i), 1, 1})},
				{IP: netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i))},
				{Tier: "t" + n},
				{Tier: "all"},
				{Headers: map[string][]string{"X-A": {n, "*", n, "7", n}}},
				{Headers: map[string][]string{"X-B": {"*", ""}, "X-C": {n, n}}},
				{Headers: map[string][]string{"X-B": {""}, "X-C": {n}}},
			} {
				if got, want := names(s.Match(nil, &a)), naive(f, &a); got != want {
					t.Fatalf("%+v: %s, want %s", a, got, want)
				}
			}
		}
	}
}

// TestMatchManyLines has a client send as many lines of a header as it can, for rules
// that all want one.
func TestMatchManyLines(t *testing.T) {
	const rules, lines = 5000, 200_000
	var f rule.File
	for i := range rules {
		r := rule.Rule{
			Name: "r" + strconv.Itoa(i), Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}},
			Match: rule.Match{Headers: map[string]string{"X-A": strconv.Itoa(i % 100)}},
		}
		if i%100 == 99 {
			r.Match.Headers["X-A"], r.Match.Headers["X-B"] = "*", "last"
		}
		f.Rules = append(f.Rules, r)
	}
	s := compile(t, f)
	a := &rule.Attrs{Headers: map[string][]string{"X-A": slices.Repeat([]string{"x"}, lines), "X-B": slices.Repeat([]string{"y"}, lines)}}
	copy(a.Headers["X-A"], []string{"1", "2"})           // too early
	copy(a.Headers["X-A"][lines-3:], []string{"3", "4"}) // late enough
	a.Headers["X-B"][lines-33] = "last"
	hits := s.Match(nil, a)
	for _, h := range hits {
		if !strings.HasSuffix(h.Rule.Name, "3") && !strings.HasSuffix(h.Rule.Name, "4") {
			t.Fatal(h.Rule.Name)
		}
	}
	if len(hits) != 2*rules/100 {
		t.Errorf("%d rules", len(hits))
	}
	if a.Headers["X-B"][lines-32] = "last"; len(s.Match(nil, a)) != 3*rules/100 {
		t.Errorf("%d rules", len(s.Match(nil, a)))
	}
	if n := testing.AllocsPerRun(10, func() { hits = s.Match(hits[:0], a) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func TestMethod(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("X", 64)
	s := compile(t, rule.File{Rules: []rule.Rule{
		readRule(t, []string{"a", "methods=PURGE,GET," + long}), readRule(t, []string{"b", "methods=REPORT", "disabled"}),
	}})
	for method, want := range map[string]string{
		"":          "",
		"GET":       "GET",
		"get":       "GET",
		"GeT":       "GET",
		"HEAD":      "HEAD",
		"trace":     "TRACE",
		"purge":     "PURGE",
		"REPORT":    "REPORT",
		"FOO1":      "OTHER",
		"other":     "OTHER",
		"G T":       "OTHER",
		"PO\u017fT": "OTHER", // a letter whose upper case is S
		"\xff":      "OTHER",

		strings.ToLower(long):        long,
		long + "X":                   "OTHER",
		strings.Repeat("GET", 1<<20): "OTHER",
	} {
		if got := s.Method(method); got != want {
			t.Errorf("%.20q: %q, want %q", method, got, want)
		}
	}
}

// TestMatchLongPath has a client send a long path that can be read in many ways.
func TestMatchLongPath(t *testing.T) {
	s := compile(t, rule.File{Rules: []rule.Rule{readRule(t, []string{"a", "paths=/a/**,/b"})}})
	path := "/a" + strings.Repeat(`/x%2Fy\z;q%2F..\..;/..`, 1<<15)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	hits := s.Match(nil, &rule.Attrs{Path: path})
	runtime.ReadMemStats(&after)
	if got := names(hits); got != "a@/a/**" {
		t.Error(got)
	}
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(200*len(path)); got > most {
		t.Errorf("%d bytes were allocated for %d", got, len(path))
	}
}

// TestMatchRepeatedHeader has a client repeat what a rule wants.
func TestMatchRepeatedHeader(t *testing.T) {
	t.Parallel()
	var f rule.File
	for i := range 20 {
		f.Rules = append(f.Rules, rule.Rule{
			Name: "r" + strconv.Itoa(i), Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}},
			Match: rule.Match{Headers: map[string]string{"X-A": "v" + strconv.Itoa(i)}},
		})
	}
	s := compile(t, f)
	hits := s.Match(nil, &rule.Attrs{Headers: map[string][]string{"X-A": slices.Repeat([]string{"v9", "v19"}, 5000)}})
	if got := names(hits); got != "r19, r9" {
		t.Fatal(got)
	}
	if cap(hits) > 100 {
		t.Fatalf("room for %d hits was made for 2", cap(hits))
	}
}

func TestMatchAppends(t *testing.T) {
	t.Parallel()
	s := compile(t, rule.File{Rules: []rule.Rule{
		readRule(t, []string{"b"}), readRule(t, []string{"a", "paths=/**,/a"}),
	}})
	hits := s.Match(nil, &rule.Attrs{})
	hits = s.Match(hits, &rule.Attrs{Path: "/a"})
	if got, want := names(hits), "a@/**, b, a@/a, b"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

func TestEvery(t *testing.T) {
	t.Parallel()
	f := withTiers(rule.File{})
	for _, l := range []string{
		"all", "user by=user methods=GET header=X-A:1", "user-off by=user disabled", "key by=api_key", "tenant by=tenant",
		"ip by=ip paths=/a", "endpoints by=user,endpoint paths=/b,/a/*", "both by=user,tenant", "method by=user,method",
		"claim by=user,claim:org", "header by=user,header:X-A", "endpoint by=endpoint paths=/a",
		"free by=user tiers=free", "net by=user ips=10.0.0.0/8", "first by=user priority=-1 group=g paths=/z", "second by=user group=g paths=/a",
	} {
		f.Rules = append(f.Rules, readRule(t, strings.Fields(l)))
	}
	f.Rules = append(f.Rules, rule.Rule{Name: "blocked", Action: rule.Block, CountBy: []rule.Dimension{"user"}, Match: rule.Match{Paths: []string{"/x"}}})
	s := compile(t, withTiers(f))
	for _, c := range []struct{ attrs, want string }{
		{"- -", ""},
		{"- - user=1", "first, endpoints@/b, endpoints@/a/*, net, second, user"},
		{"- - user=1 tier=free", "first, endpoints@/b, endpoints@/a/*, free, net, second, user"},
		{"- - user=1 ip=192.0.2.1", "first, endpoints@/b, endpoints@/a/*, ip, second, user"},
		{"- - user=1 tenant=2", "first, both, endpoints@/b, endpoints@/a/*, net, second, tenant, user"},
		{"- - key=1", "key"},
		{"- - ip=10.0.0.1", "ip"},
	} {
		a := readAttrs(t, strings.Fields(c.attrs))
		if got := names(s.Every(nil, &a)); got != c.want {
			t.Errorf("%s: %s, want %s", c.attrs, got, c.want)
		}
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	f := rule.File{Rules: []rule.Rule{
		{Name: "b", Action: rule.Block, Match: rule.Match{Tiers: []string{"free"}}, Enabled: new(bool)},
		readRule(t, []string{"c", "priority=-1"}),
		readRule(t, []string{"a", "methods=GET"}),
	}}
	s := compile(t, withTiers(f))
	f.Rules[2].Match.Methods[0] = "PUT" // the set has its own
	if got := names(s.Match(nil, &rule.Attrs{Method: "GET"})); got != "c, a" {
		t.Error(got)
	}
	var got []string
	for _, r := range s.Rules() {
		got = append(got, fmt.Sprint(r.Name, " ", r.Enabled, " ", r.Action, " ", r.Status, " ", r.OnFailure))
	}
	if want := []string{"c true reject 429 local", "a true reject 429 local", "b false block 403 local"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if s.Len() != 3 || !s.Tier("free") || s.Tier("pro") {
		t.Error(s.Len(), s.Tier("free"), s.Tier("pro"))
	}
	if _, err := rule.Compile(rule.File{Rules: []rule.Rule{{}}}); err == nil {
		t.Error("a rule without a name and limits was compiled")
	}
}
