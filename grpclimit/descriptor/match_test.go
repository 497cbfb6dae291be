package descriptor_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// entries reads "a=b c=d".
func entries(text string) []descriptor.Entry {
	var all []descriptor.Entry
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		all = append(all, descriptor.Entry{Key: key, Value: value})
	}
	return all
}

const matching = `
domain: d
descriptors:
- {key: user, value: alice, rate_limit: &l {unit: second, requests_per_unit: 1}}
- {key: user, rate_limit: *l}
- {key: user, value: a*, rate_limit: *l}
- {key: user, value: al*ce, rate_limit: *l}
- {key: path, value: /api/*/items/*, rate_limit: *l}
- {key: path, value: "*.png", rate_limit: *l}
- {key: path, value: /api/*, rate_limit: *l}
- {key: only, value: v, rate_limit: *l}
- {key: x-*, rate_limit: *l}
- {key: x-a, value: b*, rate_limit: *l}
- {key: x-b, rate_limit: *l}
- {key: "x*y", rate_limit: *l}
- {key: a, value: b_c, rate_limit: *l}
- {key: a_b, value: c, rate_limit: *l}
- {key: any, value: "*", rate_limit: *l}
- key: deep
  descriptors:
  - key: one
    value: "1"
    rate_limit: *l
    descriptors:
    - {key: two, rate_limit: *l}
  - {key: bare}
- key: deep
  value: wild*
  descriptors:
  - {key: other, rate_limit: *l}
- key: both
  rate_limit: *l
  descriptors: [{key: below, rate_limit: *l}]
`

func TestFind(t *testing.T) {
	t.Parallel()
	tree := read(t, matching, descriptor.Options{}).Domain("d")
	for text, want := range map[string]string{
		"user=alice":             "d.user_alice", // before patterns that it fits
		"user=al":                "d.user_a*",    // the first pattern that it fits
		"user=a":                 "d.user_a*",    // a star stands for nothing, too
		"user=alXce":             "d.user_a*",
		"user=bob":               "d.user",
		"user=":                  "d.user",
		"user=a*":                "d.user_a*",
		"path=/api/1/items/2":    "d.path_/api/*/items/*",
		"path=/api//items/":      "d.path_/api/*/items/*",
		"path=/api/items/2":      "d.path_/api/*",
		"path=/x.png":            "d.path_*.png",
		"path=/api/x.png":        "d.path_*.png",
		"path=/apix":             "",
		"only=v":                 "d.only_v",
		"only=w":                 "",
		"only=":                  "", // what wants a value does not match none
		"only":                   "",
		"x-=1":                   "d.x-*",
		"x-a=b":                  "d.x-*", // declared before x-a with b*
		"x-b=1":                  "d.x-*", // patterns before the key alone
		"x=1":                    "",
		"xay=1":                  "", // only a star at the end of a key is one
		"x*y=1":                  "d.x*y",
		"a=b_c":                  "d.a_b_c",
		"a_b=c":                  "d.a_b_c",
		"a=b":                    "",
		"a_b=":                   "",
		"any=x":                  "d.any_*",
		"any=":                   "",
		"deep=x":                 "", // it has no limit
		"deep=x one=1":           "d.deep.one_1",
		"deep=x one=2":           "",
		"deep=x one=1 two=x":     "d.deep.one_1.two",
		"deep=x one=1 two=x q=1": "", // too deep
		"deep=x bare=1":          "",
		"deep=wild other=1":      "d.deep_wild*.other",
		"deep=wild one=1":        "", // the first that matched decides: there is no way back
		"both=1":                 "d.both",
		"both=1 below=1":         "d.both.below",
		"both=1 elsewhere=1":     "",
		"unknown=1":              "",
		"unknown=1 user=alice":   "",
		"user=alice unknown=1":   "",
		"":                       "",
	} {
		got := ""
		if l := tree.Find(entries(text)); l != nil {
			got = l.Path
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	if a, b := tree.Find(entries("a=b_c")), tree.Find(entries("a_b=c")); a == b {
		t.Error("keys and values were joined")
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	tree := read(t, `
domain: d
descriptors:
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: &l {unit: second, requests_per_unit: 1}
  descriptors:
  - {key: user, rate_limit: *l}
  - {key: x-*, share_threshold: true, rate_limit: *l}
- {key: path, value: /own/*, rate_limit: *l}
`, descriptor.Options{}).Domain("d")
	for text, want := range map[string]string{
		"path=/files/a":         "[{path /files/*}]",
		"path=/files/a user=b":  "[{path /files/*} { }]",
		"path=/files/a x-key=b": "[{path /files/*} {x-* }]",
		"path=/own/a":           "[]",
	} {
		if got := fmt.Sprint(tree.Find(entries(text)).Shared); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestNoAllocations is not parallel, since it counts.
func TestNoAllocations(t *testing.T) {
	tree := read(t, matching, descriptor.Options{}).Domain("d")
	for _, text := range []string{"user=alice", "user=bob", "path=/api/1/items/2", "deep=x one=1 two=x", "unknown=1", "x-y=1"} {
		e := entries(text)
		if n := testing.AllocsPerRun(100, func() { tree.Find(e) }); n != 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
	detailed := read(t, one("detailed_metric: true\nrate_limit: {unit: second}"), descriptor.Options{}).Domain("d")
	e, room := entries("k=v"), make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { detailed.Find(e).AppendStat(room, e) }); n != 0 {
		t.Errorf("a name: %v allocations", n)
	}
}

// naive is the matching of one level, read from the description.
func naive(all []descriptor.Descriptor, e descriptor.Entry) *descriptor.Descriptor {
	for i, d := range all {
		if d.Value != "" && !strings.Contains(d.Value, "*") && d.Key == e.Key && d.Value == e.Value {
			return &all[i]
		}
	}
	for i, d := range all {
		switch {
		case strings.Contains(d.Value, "*") && d.Key == e.Key && e.Value != "" && glob(d.Value, e.Value):
			return &all[i]
		case d.Value == "" && strings.HasSuffix(d.Key, "*") && strings.HasPrefix(e.Key, d.Key[:len(d.Key)-1]):
			return &all[i]
		}
	}
	for i, d := range all {
		if d.Value == "" && !strings.HasSuffix(d.Key, "*") && d.Key == e.Key {
			return &all[i]
		}
	}
	return nil
}

func glob(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return glob(pattern[1:], text) || text != "" && glob(pattern, text[1:])
	default:
		return text != "" && text[0] == pattern[0] && glob(pattern[1:], text[1:])
	}
}

func TestFindIsNaive(t *testing.T) {
	t.Parallel()
	key, value := rapid.StringMatching(`[ab]{1,2}\*?`), rapid.StringMatching(`[ab_*]{0,4}`)
	var descriptors func(depth int) *rapid.Generator[[]descriptor.Descriptor]
	descriptors = func(depth int) *rapid.Generator[[]descriptor.Descriptor] {
		return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) descriptor.Descriptor {
			d := descriptor.Descriptor{Key: key.Draw(t, "key"), Value: value.Draw(t, "value")}
			if rapid.Bool().Draw(t, "limited") {
				d.RateLimit = &descriptor.RateLimit{Unit: "second", RequestsPerUnit: 1}
			}
			if depth > 0 {
				d.Descriptors = descriptors(depth-1).Draw(t, "descriptors")
			}
			return d
		}), 0, 6, func(d descriptor.Descriptor) descriptor.Entry { return descriptor.Entry{Key: d.Key, Value: d.Value} })
	}
	asked := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) descriptor.Entry {
		return descriptor.Entry{Key: rapid.StringMatching(`[ab]{1,3}\*?`).Draw(t, "key"), Value: value.Draw(t, "value")}
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		d := descriptor.Domain{Domain: "d", Descriptors: descriptors(2).Draw(t, "descriptors")}
		c, err := descriptor.Compile([]descriptor.Named{{Name: "x", Domain: d}}, descriptor.Options{})
		if err != nil {
			if d.Descriptors == nil {
				return
			}
			t.Fatal(err)
		}
		for range 20 {
			e := asked.Draw(t, "entries")
			var want *descriptor.Descriptor
			all, path := d.Descriptors, "d"
			for i := range e {
				if want = naive(all, e[i]); want == nil {
					break
				}
				path += "." + want.Key
				if want.Value != "" {
					path += "_" + want.Value
				}
				all = want.Descriptors
			}
			got := c.Domain("d").Find(e)
			switch {
			case want == nil || want.RateLimit == nil:
				if got != nil {
					t.Fatalf("%v: got %s, want nothing", e, got.Path)
				}
			case got == nil || got.Path != path:
				t.Fatalf("%v: got %v, want %s", e, got, path)
			}
			steps := c.Domain("d").Explain(e)
			if n := len(steps); n > 0 && steps[n-1].Limit != got || n == 0 && got != nil {
				t.Fatalf("%v: explained as %v, found %v", e, steps, got)
			}
		}
	})
}

// large has so many descriptors on one level, and as many patterns.
func large(n int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: user, value: u%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
		fmt.Fprintf(&b, "- {key: path, value: /p%d/*, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	return b.String()
}

func TestLarge(t *testing.T) {
	t.Parallel()
	const n = 10_000
	tree := read(t, large(n), descriptor.Options{}).Domain("d")
	for i := range n {
		text := strconv.Itoa(i)
		if l := tree.Find(entries("user=u" + text)); l == nil || l.Path != "d.user_u"+text {
			t.Fatalf("%d: got %v", i, l)
		}
		if l := tree.Find(entries("path=/p" + text + "/x")); l == nil || l.Path != "d.path_/p"+text+"/*" {
			t.Fatalf("%d: got %v", i, l)
		}
	}
	deep := read(t, nested(descriptor.MaxLevels), descriptor.Options{}).Domain("d")
	var all []descriptor.Entry
	for i := range descriptor.MaxLevels {
		if deep.Find(all) != nil {
			t.Fatalf("there is a limit at level %d", i)
		}
		all = append(all, descriptor.Entry{Key: "k" + strconv.Itoa(i), Value: "v"})
	}
	if deep.Find(all) == nil {
		t.Error("there is no limit at the end")
	}
}

func BenchmarkFind(b *testing.B) {
	tree := read(b, large(10_000)+`
- key: a
  descriptors:
  - key: b
    descriptors:
    - {key: c, rate_limit: {unit: second}}
`, descriptor.Options{}).Domain("d")
	for name, text := range map[string]string{
		"exact": "user=u7777", "pattern": "path=/p7777/items", "nested": "a=1 b=2 c=3", "nothing": "unknown=1",
	} {
		b.Run(name, func(b *testing.B) {
			e := entries(text)
			b.ReportAllocs()
			for b.Loop() {
				tree.Find(e)
			}
		})
	}
}

// FuzzRead has whatever is in a file read, matched, explained and converted.
func FuzzRead(f *testing.F) {
	f.Add([]byte(matching), "user", "alice")
	f.Add([]byte(one("rate_limit: {unit: month, requests_per_unit: 5, penalty: 3/1h cooldown=1m}")), "k", "")
	f.Add([]byte(nested(3)), "k0", "*")
	f.Fuzz(func(t *testing.T, data []byte, key, value string) {
		c, err := descriptor.Read([]descriptor.File{{Name: "f", Data: data}}, descriptor.Options{})
		if err != nil {
			return
		}
		for _, name := range c.Domains() {
			e := []descriptor.Entry{{Key: key, Value: value}, {Key: value, Value: key}}
			for i := range 3 {
				l := c.Domain(name).Find(e[:i])
				steps := c.Domain(name).Explain(e[:i])
				if l != nil && (steps[i-1].Limit != l || len(l.AppendStat(nil, e[:i])) == 0) {
					t.Errorf("%v: found %v, explained as %v", e[:i], l, steps)
				}
			}
		}
		mustCompile(t, c)
	})
}
