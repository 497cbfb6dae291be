package strict_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/stintdev/stint/internal/kit/strict"
)

// This file is long: one table of everything that a file can have wrong, in both formats.

type config struct {
	server
	Name   string            `json:"name"`
	On     *bool             `json:"on"`
	Ratio  float64           `json:"ratio"`
	Rules  []item            `json:"rules"`
	Labels map[string]string `json:"labels"`
	Wait   length            `json:"wait"`
	When   time.Time         `json:"when"`
	Price  price             `json:"price"`
	Hidden string            `json:"-"`
}

type server struct {
	Listen string `json:"listen"`
	Port   int16  `json:"port"`
}

type item struct {
	Title   string   `json:"title"`
	Paths   []string `json:"paths"`
	Options *options `json:"options"`
}

type options struct {
	Depth int `json:"depth"`
}

type length time.Duration

func (l *length) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*l = length(d)
	return err
}

// price is an integer, or a table.
type price struct {
	Units int64  `json:"units"`
	Of    string `json:"of"`
}

func (p *price) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	type plain price
	switch found {
	case strict.Integer:
		decode(&p.Units)
	case strict.Table:
		decode((*plain)(p))
	default:
		return errors.New("found " + found.String() + ", want an integer or a table")
	}
	return nil
}

func TestDecode(t *testing.T) {
	t.Parallel()
	on := true
	want := config{
		server: server{Listen: ":80", Port: 0x50},
		Name:   "a\n\"b\"",
		On:     &on,
		Ratio:  0.5,
		Rules: []item{
			{Title: "one", Paths: []string{"/a", "/b"}, Options: &options{3}},
			{Title: "two", Options: &options{1_000}},
		},
		Labels: map[string]string{"x.y": "1", "z": "2"},
		Wait:   length(time.Minute),
		When:   time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		Price:  price{7, ""},
	}
	const inTOML = `
listen = ":80"
port = 0x50
name = """
a
"b\""""
on = true
ratio = 5e-1
wait = '1m'
when = 2030-01-02T03:04:05Z
price = 7
labels."x.y" = "1"
labels.z = "2"

[[rules]]
title = "one"
paths = [
  "/a", # the first
  "/b",
]
[rules.options]
depth = 3

[[rules]]
title = "two"
options = { depth = 1_000 }
`
	const inJSON = `{
"listen": ":80", "port": 80, "name": "a\n\"b\"", "on": true, "ratio": 5e-1, "wait": "1m",
"when": "2030-01-02T03:04:05Z", "price": 7, "labels": {"x.y": "1", "z": "2"},
"rules": [{"title": "one", "paths": ["/a", "/b"], "options": {"depth": 3}}, {"title": "two", "options": {"depth": 1000}}]
}`
	for name, read := range map[string]func(*config) strict.Problems{
		"TOML": func(c *config) strict.Problems { _, ps := strict.TOML("f", []byte(inTOML), c); return ps },
		"JSON": func(c *config) strict.Problems { _, ps := strict.JSON("f", []byte(inJSON), c); return ps },
	} {
		var got config
		if err := read(&got).Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestProblemsTOML(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"naame = 'x'":          `f:1:1: naame: unknown field; did you mean "name"?`,
		"Name = 'x'":           `f:1:1: Name: unknown field; did you mean "name"?`,
		"\n  zzzzz = 1":        `f:2:3: zzzzz: unknown field; want one of listen, port, name, on, ratio, rules, labels, wait, when, price`,
		"'a b' = 1":            `f:1:1: "a b": unknown field`,
		"title = 'x'":          `f:1:1: title: unknown field; did you mean "rules[0].title"?`,
		"name = 5":             `f:1:8: name: found an integer, want a string; write it in quotes`,
		"port = '5'":           `f:1:8: port: found a string, want an integer; write it without quotes`,
		"port = 'x'":           "f:1:8: port: found a string, want an integer",
		"port = 5.0":           "f:1:8: port: found a float, want an integer",
		"on = 'true'":          `f:1:6: on: found a string, want a boolean; write it without quotes`,
		"ratio = nan":          "f:1:9: ratio: nan is out of range, want a finite number",
		"ratio = 1e999":        "f:1:9: ratio: 1e999 is out of range, want a finite number",
		"port = 32768":         "f:1:8: port: 32768 is out of range, want an integer from -32768 to 32767",
		"price = 'much'":       "f:1:9: price: found a string, want an integer or a table",
		"price = {unit = 1}":   `f:1:10: price.unit: unknown field; did you mean "units"?`,
		"price = {units=''}":   "f:1:16: price.units: found a string, want an integer",
		"wait = '1x'":          `f:1:8: wait: time: unknown unit "x" in duration "1x"`,
		"wait = 1":             `f:1:8: wait: found an integer, want a string; write it in quotes`,
		"when = 2030-13-01":    "f:1:8: when: parsing time",
		"rules = 1":            "f:1:9: rules: found an integer, want an array; write it in brackets",
		"rules = [1]":          "f:1:10: rules[0]: found an integer, want a table",
		"rules = {}":           "f:1:9: rules: found a table, want an array",
		"[rules]\ntitle = 'x'": "f:1:1: rules: found a table, want an array; write its header in double brackets",
		"labels = { a = 1 }":   "f:1:16: labels.a: found an integer, want a string; write it in quotes",
		"name='a'\nname='b'":   "f:2:1: name: given twice, first in line 1",
		"[a]\n[a]":             "f:2:1: a: given twice, first in line 1",
		"[[a]]\n[a]":           "f:2:1: a: given twice, first in line 1",
		"a = []\n[[a]]":        "f:2:1: a: given twice, first in line 1",
		"[a.b]\n[a]\nb.c = 1":  "f:3:1: a.b: given twice, first in line 1",
		"a = {}\na.b = 1":      "f:2:1: a: given twice, first in line 1",
		"a.b = 1\n[a]":         "f:2:1: a: given twice, first in line 1",
		"a.b = 1\n[a.b.c]":     "f:2:4: a.b: given twice, first in line 1",
		"name = 'ä' x":         "f:1:12: expected newline",
		"name = 20s":           "f:1:10: strings must be quoted",
		"name = \"a":           "f:1:",
		"name = 'a\xffb'":      `f:1:10: byte "\xff" is not UTF-8`,
		"[rules":               "f:1:6: expected ']' to close table name",
		"[[rules]]\n[rules.options]\ntitle = 'x'\n":                                              `f:3:1: rules[0].options.title: unknown field; did you mean "rules[0].title"?`,
		"a = " + strings.Repeat("[", strict.MaxDepth+1) + strings.Repeat("]", strict.MaxDepth+1): "nested more than 64 levels deep",
		strings.Repeat("a.", strict.MaxDepth) + "a = 1":                                          "nested more than 64 levels deep",
		"[" + strings.Repeat("a.", strict.MaxDepth) + "a]":                                       "nested more than 64 levels deep",
		"a = " + strings.Repeat("[", 20_000):                                                     "nested more than the maximum",
		"#" + strings.Repeat(" ", strict.MaxSize):                                                "f:1:1: the document has 16777217 bytes, want at most 16777216",
	} {
		_, problems := strict.TOML("f", []byte(doc), new(config))
		if got := problems.Error(); !strings.Contains("\n"+got, "\n"+want) && (!strings.HasPrefix(want, "nested") || !strings.Contains(got, want)) {
			t.Errorf("%.80q:\ngot  %s\nwant %s", doc, got, want)
		}
	}
}

func TestProblemsJSON(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{"naame": 1}`:                       `f:1:2: naame: unknown field; did you mean "name"?`,
		"{\n \"name\": 5}":                   `f:2:10: name: found an integer, want a string; write it in quotes`,
		`{"name": null}`:                     "f:1:10: name: found null, want a string; leave it out instead",
		`{"port": 1e2}`:                      "f:1:10: port: found a float, want an integer",
		`{"port": 99999999999999999999}`:     "f:1:10: port: 99999999999999999999 is out of range",
		`{"name": "a", "name": "b"}`:         "f:1:15: name: given twice, first in line 1",
		`{"rules": [{"x": 1}, {"titel":0}]}`: `f:1:23: rules[1].titel: unknown field; did you mean "title"?`,
		`{"labels": {"a": "` + strings.Repeat("ä", 10_000) + `"}, "x": 1}`: "f:1:10023: x: unknown field",
		`[]`:                        "f:1:1: found an array, want a table",
		`{} {}`:                     "f:1:4: invalid character '{' after top-level value",
		`{"name": "a",}`:            "f:1:14: invalid character '}' looking for beginning of object key string",
		"{\"name\": \"a\"\n":        "f:1:13: unexpected end of JSON input",
		``:                          "f:1:1: unexpected end of JSON input",
		`{"naame": 1, "name": tru}`: `f:1:2: naame: unknown field; did you mean "name"?` + "\nf:1:25: invalid character '}' in literal true",
		`{"rules": [1null]}`:        "f:1:13: invalid character 'n' after array element",
		"{\"name\": \"\xff\"}":      `f:1:11: byte "\xff" is not UTF-8`,
	} {
		_, problems := strict.JSON("f", []byte(doc), new(config))
		if got := problems.Error(); !strings.Contains(got, want) {
			t.Errorf("%.80q:\ngot  %s\nwant %s", doc, got, want)
		}
	}
	deep := strings.Repeat("[", strict.MaxDepth+1) + strings.Repeat("]", strict.MaxDepth+1)
	_, problems := strict.JSON("f", []byte(`{"rules": `+deep+`, "naame": 1}`), new(config))
	if got := problems.Error(); !strings.Contains(got, "nested more than 64") || !strings.Contains(got, "naame") {
		t.Errorf("got %s", got)
	}
}

// TestAll has many things wrong at once.
func TestAll(t *testing.T) {
	t.Parallel()
	_, problems := strict.TOML("f.toml", []byte(`naame = "x"
port = 70000
[[rules]]
titel = "a"
paths = "/a"
[[rules]]
title = 3
paths = ["/a", 4]
[labels]
a = true
b = 
`), new(config))
	want := `f.toml:1:1: naame: unknown field; did you mean "name"?
f.toml:2:8: port: 70000 is out of range, want an integer from -32768 to 32767
f.toml:4:1: rules[0].titel: unknown field; did you mean "title"?
f.toml:5:9: rules[0].paths: found a string, want an array; write it in brackets
f.toml:7:9: rules[1].title: found an integer, want a string; write it in quotes
f.toml:8:16: rules[1].paths[1]: found an integer, want a string; write it in quotes
f.toml:10:5: labels.a: found a boolean, want a string; write it in quotes
f.toml:11:5: unexpected character U+000A at start of value`
	if got := problems.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestManyProblems(t *testing.T) {
	t.Parallel()
	var doc strings.Builder
	for i := range 2 * strict.MaxProblems {
		doc.WriteString("x" + strconv.Itoa(i) + " = 1\n")
	}
	_, problems := strict.TOML("", []byte(doc.String()), new(config))
	if len(problems) != strict.MaxProblems {
		t.Errorf("%d problems, want %d", len(problems), strict.MaxProblems)
	}
	lines := strings.Split(problems.Error(), "\n")
	if len(lines) != 51 || lines[50] != "and 950 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	if err := strict.Problems(nil).Err(); err != nil {
		t.Errorf("no problems are the error %v", err)
	}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	doc, problems := strict.TOML("f", []byte(`name = "x"
prot = 5
labels = { "a.b" = "1", c = "2" }
  [[rules]]
  title = 1
[[rules]]
title = "b"
paths = [
  "/a",
  "/b",
]
`), new(config))
	for path, want := range map[string][2]int{
		"":                   {1, 1},
		"name":               {1, 8},
		"labels":             {3, 10},
		`labels."a.b"`:       {3, 20},
		"labels.c":           {3, 29},
		"labels.missing":     {3, 10},
		"rules":              {4, 3},
		"rules[0]":           {4, 3},
		"rules[0].paths[2]":  {4, 3},
		"rules[1]":           {6, 1},
		"rules[1].title":     {7, 9},
		"rules[1].paths":     {8, 1},
		"rules[1].paths[1]":  {10, 3},
		"rules[1].paths[9]":  {8, 1},
		"rules[-1]":          {4, 3},
		"rules[x].y":         {4, 3},
		"rules[1].title.sub": {7, 9},
		`"`:                  {1, 1},
		"[":                  {1, 1},
	} {
		if line, column := doc.At(path); line != want[0] || column != want[1] {
			t.Errorf("%q is at %d:%d, want %d:%d", path, line, column, want[0], want[1])
		}
	}

	// What was not decoded is not reported again: neither the title, which is no
	// string, nor the port, which is misspelled.
	later := doc.Locate(strict.Problems{
		{Path: "rules[1].title", Message: "too short"},
		{Path: "rules[0].title", Message: "missing"},
		{Path: "port", Message: "missing"},
		{Path: "name", Message: "too short"},
	})
	want := `f:1:8: name: too short
f:2:1: prot: unknown field; did you mean "port"?
f:5:11: rules[0].title: found an integer, want a string; write it in quotes
f:7:9: rules[1].title: too short`
	if got := problems.And(later).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// After a problem with the syntax nothing is known of the rest.
	doc, _ = strict.TOML("f", []byte("name = "), new(config))
	if later := doc.Locate(strict.Problems{{Path: "port", Message: "missing"}}); later != nil {
		t.Errorf("got %v", later)
	}
	// What is there under its own name, too, was decoded.
	doc, _ = strict.TOML("f", []byte("port = 1\nprot = 2\n"), new(config))
	if later := doc.Locate(strict.Problems{{Path: "port", Message: "taken"}}); len(later) != 1 || later[0].Line != 1 {
		t.Errorf("%v", later)
	}
}

// TestLongNames has documents whose names would be long in every problem. It is not
// parallel, since it counts what is allocated.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("\u00ad", 256<<10)
	deep, end := strings.Repeat(`{"`+strings.Repeat("a", 60)+`":`, strict.MaxDepth-1), strings.Repeat("}", strict.MaxDepth-1)
	many := strings.Repeat(`"a":1,`, 100_000)
	for name, c := range map[string]struct {
		read func(string, []byte, any) (*strict.Doc, strict.Problems)
		doc  string
	}{
		"JSON":            {strict.JSON, `{"` + long + `":{` + many + `"b":1}}`},
		"TOML":            {strict.TOML, `["` + long + "\"]\n" + strings.Repeat("a=1\n", 2000)},
		"JSON, deep":      {strict.JSON, deep + "{" + many + `"b":1}` + end},
		"JSON, unknown":   {strict.JSON, `{"rules":[{"options":{` + strings.ReplaceAll(many, `"a"`, `"`+long[:2000]+`"`)[:1<<20]},
		"JSON, in a word": {strict.JSON, `{"labels":{"` + long + `":` + strings.Repeat("[", 100)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, problems := c.read("f", []byte(c.doc), new(config))
		runtime.ReadMemStats(&after)
		// A tree takes some hundred bytes for each value.
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(100*len(c.doc)); got > most {
			t.Errorf("%s: %d bytes were allocated for %d", name, got, len(c.doc))
		}
		if len(problems) == 0 || len(problems) > strict.MaxProblems {
			t.Errorf("%s: %d problems", name, len(problems))
		}
		for _, p := range problems {
			if n := len(p.String()); n > strict.MaxDepth*80 {
				t.Fatalf("%s: a problem of %d bytes: %.200s", name, n, p)
			}
		}
	}
}

// TestDots has a name that looks like a path of millions of steps. It would not end
// if each were looked up by all that is before it.
func TestDots(t *testing.T) {
	t.Parallel()
	dots := strings.Repeat(".[", 4<<20)
	unknown := "x = 1\n"
	for i := range 20 {
		unknown += "x" + strconv.Itoa(i) + " = 1\n"
	}
	doc, _ := strict.TOML("f", []byte("labels = {a = 'b'}\n"+unknown), new(config))
	for _, path := range []string{`labels."` + dots + `"`, `"` + dots + `".a`} {
		if got := doc.Locate(strict.Problems{{Path: path, Message: "wrong"}}); len(got) != 1 || got[0].Line != 1 {
			t.Errorf("%.20s: located as %d problems", path, len(got))
		}
	}
	if got := doc.Locate(strict.Problems{{Path: `x."` + dots + `"`}, {Path: "x[3].a"}, {Path: "x"}}); got != nil {
		t.Errorf("%d problems with what was not decoded", len(got))
	}
}

func TestMember(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, name, want string }{
		{"", "a", "a"},
		{"a", "b-c", "a.b-c"},
		{"a", "", `a.""`},
		{"a", "b.c", `a."b.c"`},
		{"a[0]", "ä", `a[0]."ä"`},
		{"a", strings.Repeat("b", 64), "a." + strings.Repeat("b", 64)},
		{"a", strings.Repeat("b", 65), `a."` + strings.Repeat("b", 64) + `..."`},
		{"a", strings.Repeat("ä", 64) + "x", `a."` + strings.Repeat("ä", 32) + `..."`},
		{"a", "b" + strings.Repeat("ä", 64), `a."b` + strings.Repeat("ä", 31) + `..."`},
	} {
		if got := strict.Member(c.path, c.name); got != c.want {
			t.Errorf("member %q of %q is %s, want %s", c.name, c.path, got, c.want)
		}
	}
}

func TestClosest(t *testing.T) {
	t.Parallel()
	if got, ok := strict.Closest("name", append(slices.Repeat([]string{"other"}, 1000), "names")); ok {
		t.Errorf("%q is the last of very many words", got)
	}
	words := []string{"name", "count_by", "limits", "priority", "on", "on_store_failure"}
	for word, want := range map[string]string{
		"naame":        "name",
		"NAME":         "name",
		"count-by":     "count_by",
		"countby":      "count_by",
		"limit":        "limits",
		"prioritaet":   "priority",
		"onstorefail":  "",
		"x":            "",
		"":             "",
		"of":           "on",
		"ab":           "",
		"completely":   "",
		"on_store_fai": "on_store_failure",

		strings.Repeat("n", 1000): "",
	} {
		if got, ok := strict.Closest(word, words); got != want || ok != (want != "") {
			t.Errorf("closest to %q is %q, want %q", word, got, want)
		}
	}
}

var outOfRange = regexp.MustCompile("64-bit|out of range")

func FuzzTOML(f *testing.F) {
	for _, seed := range []string{
		"", "a = 1", "[a]\nb = 1", "[[a]]\n[a.b]\nc.d = [1, {e = 2}]", "a.b = 1\na.c = 2", "name = \"x\\u00e4\"",
		"[a.b]\n[a]\n[a.c]", "rules = [{title = 'x', paths = ['/a']}]", "when = 2030-01-02", "a = '''\nx'''", "[a]\n[[a.b]]\n[a.b.c]",
		"port = 0xff", "ratio = -inf", "ratio = 1e999", "# x\r\nname='y'\r\n", "[[a]]\n[[a]]\n[a.b]\n[a.b]", "a = {b.c = 1, b.d = 2}\n[a.b]", "[a]\nb.c=1\n[a.b.d]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c config
		doc, problems := strict.TOML("f", data, &c)
		_ = doc.Locate(problems)
		_ = problems.Error()

		// The library's own decoder agrees on what is TOML, but for the range of
		// numbers, which depends on what they are decoded into.
		ours, times := strict.Syntax(data)
		var tree map[string]any
		theirs := toml.Unmarshal(data, &tree)
		for _, p := range ours {
			if strings.Contains(p.Message, "levels deep") {
				return
			}
		}
		switch {
		case theirs == nil && len(ours) > 0:
			t.Errorf("%q: they see nothing wrong, and we %v", data, ours)
		case theirs != nil && len(ours) == 0 && !times && !outOfRange.MatchString(theirs.Error()):
			t.Errorf("%q: they see %v, and we see nothing wrong", data, theirs)
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"name": "x"}`, `{"rules": [{"title": "a", "paths": ["/a"]}, {}]}`, `{"price": {"units": 1}}`, `{"a": {"a": [1, null]}}`,
		`{"name": "\ud800"}`, `[1null]`, `{"port": -0}`, `{"ratio": 1E400}`, "{\"name\"\t:\n\"x\"}", `{"on": true, "labels": {"a.b": "c"}}`, "nul", `{"a":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours, theirs config
		doc, problems := strict.JSON("f", data, &ours)
		_ = doc.Locate(problems)
		_ = problems.Error()
		if len(problems) > 0 {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is not JSON, and has no problems", data)
		}
		// Prices have two shapes, and lengths are texts of another kind here.
		err := json.Unmarshal(data, &theirs)
		if theirs.Price = ours.Price; err == nil && !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%q: got %+v, want %+v", data, ours, theirs)
		}
	})
}
