package strict_test

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/kit/strict"
)

type loose struct {
	Name  string         `json:"name"`
	On    bool           `json:"on"`
	Set   *bool          `json:"set"`
	Count uint32         `json:"count"`
	Small int8           `json:"small"`
	Ratio float64        `json:"ratio"`
	Wait  length         `json:"wait"`
	When  time.Time      `json:"when"`
	Items []loose        `json:"items"`
	Extra map[string]any `json:"extra"`
	Inner *loose         `json:"inner"`
}

func TestYAML(t *testing.T) {
	t.Parallel()
	on := true
	for doc, want := range map[string]loose{
		"":                               {},
		"# nothing\n":                    {},
		"---\nname: a\n...\n":            {Name: "a"},
		"\ufeffname: a":                  {Name: "a"},
		"{name: a, count: 5}":            {Name: "a", Count: 5},
		"name: \"a\\nb\"":                {Name: "a\nb"},
		"name: |\n  a\n  b\n":            {Name: "a\nb\n"},
		"name: >-\n  a\n  b\n":           {Name: "a b"},
		"name: !!str 5":                  {Name: "5"},
		"name: 0123":                     {Name: "0123"},
		"name: 1_000":                    {Name: "1_000"},
		"name: 1.50":                     {Name: "1.50"},
		"name: True":                     {Name: "True"},
		"name: yes":                      {Name: "yes"},
		"name: 2024-01-01":               {Name: "2024-01-01"},
		"name:":                          {},
		"name: null":                     {},
		"name: ~\nitems:\ninner:\non:":   {},
		"on: yes":                        {On: true},
		"on: On":                         {On: true},
		"on: y":                          {On: true},
		"on: TRUE":                       {On: true},
		"on: off":                        {},
		"set: yes":                       {Set: &on},
		"set:":                           {},
		"count: 0x10":                    {Count: 16},
		"count: 010":                     {Count: 8},
		"count: +5":                      {Count: 5},
		"count: 4294967295":              {Count: 1<<32 - 1},
		"count: 1_000":                   {Count: 1000},
		"small: -128":                    {Small: -128},
		"ratio: 1":                       {Ratio: 1},
		"ratio: 1.5e3":                   {Ratio: 1500},
		"wait: 1m":                       {Wait: length(time.Minute)},
		"wait: 0":                        {},
		"when: 2030-01-02T03:04:05Z":     {When: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)},
		"items:\n- name: a\n- count: 1":  {Items: []loose{{Name: "a"}, {Count: 1}}},
		"items:\n  -\n  - name: a":       {Items: []loose{{}, {Name: "a"}}},
		"inner: &a {name: x}\n":          {Inner: &loose{Name: "x"}},
		"name: &a x\ninner: {name: *a}":  {Name: "x", Inner: &loose{Name: "x"}},
		"&k name: x\ninner: {name: *k}":  {Name: "x", Inner: &loose{Name: "name"}},
		"name: x\r\ncount: 1\r\n":        {Name: "x", Count: 1},
		"extra: {a: 1, b: [x, yes, ~]}":  {Extra: map[string]any{"a": 1.0, "b": []any{"x", true, nil}}},
		"extra: {a: {b: 'yes', 3: 1.5}}": {Extra: map[string]any{"a": map[string]any{"b": "yes", "3": 1.5}}},
		"extra: {a: 2024-01-01, b: 0x1}": {Extra: map[string]any{"a": "2024-01-01", "b": 1.0}},
		"items:\n- &a {name: x, count: 1}\n- <<: *a\n  count: 2": {
			Items: []loose{{Name: "x", Count: 1}, {Name: "x", Count: 2}},
		},
		"items:\n- &a {name: x, count: 1}\n- &b {name: y, small: 3}\n- {count: 2, <<: [*a, *b]}": {
			Items: []loose{{Name: "x", Count: 1}, {Name: "y", Small: 3}, {Name: "x", Count: 2, Small: 3}},
		},
		"inner: {<<: {name: x}}":                 {Inner: &loose{Name: "x"}},
		"inner: {<<: &a {name: x}, items: [*a]}": {Inner: &loose{Name: "x", Items: []loose{{Name: "x"}}}},
	} {
		var got loose
		if _, problems := strict.YAML("f", []byte(doc), &got); len(problems) > 0 {
			t.Errorf("%q: %v", doc, problems)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", doc, got, want)
		}
	}
}

func TestProblemsYAML(t *testing.T) {
	t.Parallel()
	deep := strict.MaxDepthYAML + 1
	for doc, want := range map[string]string{
		"naame: x":                             `f:1:1: naame: unknown field; did you mean "name"?`,
		"items:\n  - ratoi: 1":                 `f:2:5: items[0].ratoi: unknown field; did you mean "ratio"?`,
		"name: a\nname: b":                     "f:2:1: name: given twice, first in line 1",
		"extra: {a: 1, a: 2}":                  "f:1:15: extra.a: given twice, first in line 1",
		"name: [a]":                            "f:1:7: name: found an array, want a string",
		"name: {a: b}":                         "f:1:7: name: found a table, want a string",
		"on: 1":                                "f:1:5: on: found an integer, want a boolean",
		"on: 'yes'":                            "f:1:5: on: found a string, want a boolean",
		"on: 'true'":                           "f:1:5: on: found a string, want a boolean; write it without quotes",
		"count: -1":                            "f:1:8: count: -1 is out of range, want an integer from 0 to 4294967295",
		"count: 4294967296":                    "f:1:8: count: 4294967296 is out of range",
		"count: 99999999999999999999999":       "f:1:8: count: 99999999999999999999999 is out of range",
		"count: 1.5":                           "f:1:8: count: found a float, want an integer",
		"count: '5'":                           "f:1:8: count: found a string, want an integer; write it without quotes",
		"small: 128":                           "f:1:8: small: 128 is out of range, want an integer from -128 to 127",
		"ratio: .inf":                          "f:1:8: ratio: .inf is out of range, want a finite number",
		"extra: {a: .nan}":                     "f:1:12: extra.a: .nan is out of range",
		"items: {}":                            "f:1:8: items: found a table, want an array",
		"items: x":                             "f:1:8: items: found a string, want an array",
		"[]":                                   "f:1:1: found an array, want a table",
		"x":                                    "f:1:1: found a string, want a table",
		"{[a]: b}":                             "f:1:2: found an array as a name, want a string",
		"name: !!binary YQ==":                  `f:1:7: name: the tag "!!binary" is not supported; remove it`,
		"name: !x a":                           `f:1:7: name: the tag "!x" is not supported`,
		"extra: !!set {a}":                     `f:1:8: extra: the tag "!!set" is not supported`,
		"count: !!int x":                       `f:1:8: count: the tag "!!int" is not supported`,
		"name: a\n---\nname: b":                "f:2:1: a second document begins here, want one; put it into its own file",
		"name: a\n---\n{":                      "f:3:1: did not find expected node content",
		"name: *a":                             `f:1:7: there is no anchor "a" before this`,
		"inner: &a {inner: *a}":                `f:1:19: inner.inner: the anchor "a" contains itself`,
		"inner: {<<: x}":                       "f:1:9: inner: found a string to merge, want an alias of a table, or an array of them",
		"inner: {<<: [x]}":                     "f:1:9: inner: found a string to merge",
		"a: &a {}\ninner:\n  <<: *a\n  <<: *a": `f:4:3: inner."<<": given twice, first in line 3`,
		"items:\n- &a {naame: x}\n- *a":        "f:2:7: items[1].naame: unknown field",
		"name: 'ä' \nitems: [ä, ö, x: y]":      "f:2:9: items[0]: found a string, want a table\nf:2:12: items[1]: found",
		"name: \"a\u2028b\"\nnaame: x":         "f:2:1: naame: unknown field",
		"# a\rnaame: x":                        "f:1:5: naame: unknown field",
		"name: \"a":                            "f:1:1: found unexpected end of stream",
		"name: a\n\tcount: 1":                  "f:2:1: found a tab character",
		"name: a\n count: 1":                   "f:2:2: mapping values are not allowed in this context",
		"name: a\xff":                          `f:1:8: byte "\xff" is not UTF-8`,
		"#" + strings.Repeat(" ", strict.MaxSizeYAML):                               "f:1:1: the document has 4194305 bytes, want at most 4194304",
		"extra: {a: " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "}": "nested more than 256 levels deep",
		"a: " + strings.Repeat("[", 20_000):                                         "exceeded max depth",
		strings.Repeat("- ", 20_000):                                                "exceeded max depth",
	} {
		_, problems := strict.YAML("f", []byte(doc), new(loose))
		if got := problems.Error(); !strings.Contains(got, want) {
			t.Errorf("%.80q:\ngot  %s\nwant %s", doc, got, want)
		}
	}
}

func TestLocateYAML(t *testing.T) {
	t.Parallel()
	doc, problems := strict.YAML("f", []byte("name: x\nitems:\n  - name: ä\n    count: 1\n  - {name: ö, on: maybe, cuont: 3}\n"), new(loose))
	problems = problems.And(doc.Locate(strict.Problems{
		{Path: "items[0].count", Message: "too few"},
		{Path: "items[1].on", Message: "missing"},
		{Path: "items[1].count", Message: "missing"},
		{Path: "items[1].ratio", Message: "missing"},
		{Path: "", Message: "wrong"},
	}))
	want := `f:1:1: wrong
f:4:12: items[0].count: too few
f:5:5: items[1].ratio: missing
f:5:19: items[1].on: found a string, want a boolean
f:5:26: items[1].cuont: unknown field; did you mean "count"?`
	if got := problems.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestAliases has documents that would be much larger if they were written out. It is
// not parallel, since it counts what is allocated.
func TestAliases(t *testing.T) {
	bomb := "extra:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	chain := "extra:\n  a0: &a0 [x]\n"
	many := "extra:\n  a0: &a0 [x]\n  b:\n" + strings.Repeat("  - *a0\n", 2*strict.MaxAliased)
	for i := range 20 {
		bomb += fmt.Sprintf("  a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	for i := range 2 * strict.MaxDepthYAML {
		chain += fmt.Sprintf("  a%d: &a%d [*a%d]\n", i+1, i+1, i)
	}
	merge := strings.ReplaceAll(bomb, "[", "{<<: [") // of what is no table
	for doc, want := range map[string]string{
		bomb:                                 "f:6:47: extra.a4[7]: the aliases up to here stand for more than 100000 values",
		chain:                                "nested more than 256 levels deep",
		many:                                 "the aliases up to here stand for more than 100000 values",
		strings.ReplaceAll(merge, "]", "]}"): "to merge",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, problems := strict.YAML("f", []byte(doc), new(loose))
		runtime.ReadMemStats(&after)
		if got := problems.Error(); !strings.Contains(got, want) {
			t.Errorf("%.40q: got %.400s", doc, got)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<28 {
			t.Errorf("%.40q: %d bytes were allocated for %d", doc, got, len(doc))
		}
	}
}

func FuzzYAML(f *testing.F) {
	for _, seed := range []string{
		"", "name: x", "items:\n- name: a\n  count: 5\n- {on: yes}", "a: &a [1]\nb: *a", "inner: &a\n  <<: *a", "? [x]\n: y", "extra: {a: !!binary x}",
		"name: |\n x\n", "--- x\n--- y", "extra:\n  a: 0o7\n  b: 1e3\n  c: ~\n  d: .inf", "inner: {<<: [{name: x}, {name: y}]}", "\ufeffname: \u2028x\u0085\rz: 1", "*a : b", "&a : *a",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours loose
		doc, problems := strict.YAML("f", data, &ours)
		_ = doc.Locate(problems)
		_ = problems.Error()
		for _, p := range problems {
			if p.Line < 1 || p.Line > strings.Count(string(data), "\n")+1 {
				t.Errorf("%q: a problem in line %d", data, p.Line)
			}
		}
		// What has no problems is what the library takes for YAML.
		var tree any
		if err := yaml.Unmarshal(data, &tree); err != nil && len(problems) == 0 && !strings.Contains(err.Error(), "unmarshal") {
			t.Errorf("%q: they see %v, and we see nothing wrong", data, err)
		}
	})
}
