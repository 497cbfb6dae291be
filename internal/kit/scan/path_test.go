package scan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/kit/scan"
)

// finds writes down what is found.
type finds struct{ strings.Builder }

func (f *finds) Text(path int, piece []byte) {}

func (f *finds) Value(path int, v scan.Value) {
	fmt.Fprintf(f, "%d=", path)
	switch v.Kind {
	case scan.String:
		fmt.Fprintf(f, "%q", v.Text)
		if v.Cut {
			f.WriteByte('+')
		}
	case scan.Number:
		fmt.Fprint(f, v.Number)
	default:
		fmt.Fprint(f, [...]string{"object", "array", "", "", "true", "false", "null"}[v.Kind])
	}
	f.WriteByte(' ')
}

func TestMatch(t *testing.T) {
	t.Parallel()
	const text = `{"usage":{"total":7,"total ":8,"deep":{"total":9}},"results":[{"cost":1},{"cost":2.5},[{"cost":3}]],
		"other":{"usage":{"total":5}},"total":6,"a.b":"x","flag":true,"off":false,"none":null,"usage":{"total":10}}`
	for paths, want := range map[string]string{
		"usage.total":                      "0=7 0=10 ",
		"results[0].cost":                  "0=1 ",
		"results[1].cost results[0]":       "1=object 0=3 ",
		"results[*].cost results[*]":       "1=object 0=1 1=object 0=3 1=array ",
		"results[2][0].cost":               "0=3 ",
		"results[3].cost results.cost":     "",
		"usage.deep usage.deep.total":      "0=object 1=9 ",
		`["a.b"] flag off none`:            `0="x" 1=true 2=false 3=null `,
		`["a.b"] ["usage"]["total\u0020"]`: `1=8 0="x" `,
		"results[1][0] results[0][0]":      "",
	} {
		names := strings.Fields(paths)
		compiled, err := scan.NewPaths(names...)
		if err != nil {
			t.Fatal(err)
		}
		for size := 1; size < 9; size++ {
			var got finds
			j := scan.NewJSON(scan.NewMatch(compiled, &got))
			for p := []byte(text); len(p) > 0; p = p[min(size, len(p)):] {
				j.Write(p[:min(size, len(p))])
			}
			if !j.Close() || got.String() != want {
				t.Errorf("%s in pieces of %d: got %s, want %s", paths, size, got.String(), want)
			}
		}
	}
}

func TestMatchBounds(t *testing.T) {
	t.Parallel()
	longest := "a" + strings.Repeat(".a", scan.MaxPath-1)
	compiled, err := scan.NewPaths(longest)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"1": "0=1 ", `{"a":1}`: "0=object ", "[[1],2]": "0=array ",
		`"` + strings.Repeat("x", 200) + `"`: `0="` + strings.Repeat("x", scan.MaxText) + `"+ `,
	} {
		var got finds
		j := scan.NewJSON(scan.NewMatch(compiled, &got))
		j.Write([]byte(strings.Repeat(`{"a":`, scan.MaxPath) + value + strings.Repeat("}", scan.MaxPath)))
		if !j.Close() || got.String() != want {
			t.Errorf("%s: got %s, want %s", value, got.String(), want)
		}
	}
}

func TestPathErrors(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":                                       "want a name",
		"a.":                                     "want a name",
		".a":                                     "want a name",
		"a..b":                                   "want a name",
		"a b":                                    "want . or [",
		"a[":                                     "number of an element",
		"a[-1]":                                  "number of an element",
		"a[1":                                    "number of an element",
		"a[99999999999]":                         "number of an element",
		"a[*]":                                   "in place of [*]",
		`a["b]`:                                  `want ["name"]`,
		`a["b"`:                                  `want ["name"]`,
		strings.Repeat("a", 200):                 "at most 128 bytes",
		"a" + strings.Repeat(".a", scan.MaxPath): "at most 16 steps",
	} {
		if err := scan.CheckPath(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that says %q", path, err, want)
		}
	}
	if _, err := scan.NewPaths("a.b", `a["b"]`); err == nil || !strings.Contains(err.Error(), "only once") {
		t.Errorf("got %v", err)
	}
}
