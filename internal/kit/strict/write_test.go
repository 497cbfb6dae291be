package strict_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/kit/strict"
)

func TestAppendTOML(t *testing.T) {
	t.Parallel()
	type limit struct {
		Name string `json:"name"`
		Max  int    `json:"max,omitempty"`
	}
	type part struct {
		Name   string            `json:"name"`
		Limits []limit           `json:"limits,omitempty"`
		Paths  []string          `json:"paths"`
		Match  *limit            `json:"match,omitempty"`
		Tags   map[string]string `json:"tags,omitempty"`
		Until  time.Time         `json:"until,omitzero"`
	}
	type whole struct {
		Parts  []part         `json:"parts,omitempty"`
		Server limit          `json:"server,omitzero"`
		Empty  []part         `json:"empty"`
		None   *int           `json:"none"`
		Ratio  float64        `json:"ratio,omitempty"`
		Any    map[string]any `json:"any,omitempty"`
		Title  string         `json:"title,omitempty"`
	}
	long := strings.Repeat("x", 60)
	for want, v := range map[string]any{
		"":                       map[string]string{},
		"title = \"a\"\n":        map[string]any{"title": "a", "nothing": nil},
		"ratio = 1e+21\n":        map[string]any{"ratio": 1e21},
		"\"a b\" = true\n":       map[string]bool{"a b": true},
		"[\"\"]\n":               map[string]any{"": map[string]any{}},
		"list = [[1], [], {}]\n": map[string]any{"list": []any{[]int{1}, []int{}, map[string]any{"x": nil}}},
		`empty = []
ratio = 0.5
title = "q\"\\\n\u0001\u007fé <&>"

[[parts]]
name = "one"
limits = [{ name = "a", max = 5 }]
paths = []
match = { name = "m" }
tags = { "x.y" = "1", z = "2" }
until = "2030-01-02T03:04:05Z"

[[parts]]
name = "two"
limits = [
  { name = "a" },
  { name = "b" },
]
paths = [
  "` + long + `",
  "` + long + `",
]

[server]
name = "s"

[any]
a = { b = [1, { c = "d" }] }
`: whole{
			Parts: []part{
				{
					Name: "one", Limits: []limit{{"a", 5}}, Paths: []string{}, Match: &limit{Name: "m"},
					Tags: map[string]string{"z": "2", "x.y": "1"}, Until: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
				},
				{Name: "two", Limits: []limit{{Name: "a"}, {Name: "b"}}, Paths: []string{long, long}},
			},
			Server: limit{Name: "s"}, Empty: []part{}, Ratio: 0.5, Title: "q\"\\\n\x01\x7fé <&>",
			Any: map[string]any{"a": map[string]any{"b": []any{1, map[string]any{"c": "d"}}}},
		},
	} {
		got, err := strict.AppendTOML([]byte("# before\n"), v)
		if text, _ := strings.CutPrefix(string(got), "# before\n"); err != nil || text != want {
			t.Errorf("got %v\n%s\nwant\n%s", err, text, want)
		}
	}
	for want, v := range map[string]any{
		"is an array, want a table": []int{1},
		"a list has a null":         map[string]any{"a": []any{nil}},
		"unsupported value: NaN":    map[string]float64{"a": math.NaN()},
		"nested more than 64":       deep(100),
	} {
		if _, err := strict.AppendTOML(nil, v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func deep(levels int) any {
	v := any(1)
	for range levels {
		v = map[string]any{"a": v}
	}
	return v
}

// TestAppendTOMLBack reads back whatever was written.
func TestAppendTOMLBack(t *testing.T) {
	t.Parallel()
	scalar := rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.Float64Range(-1e300, 1e300), func(f float64) any { return f }),
		rapid.Map(rapid.Int32(), func(i int32) any { return float64(i) }),
	)
	value := scalar
	for range 3 {
		value = rapid.OneOf(
			scalar,
			rapid.Map(rapid.SliceOfN(value, 0, 4), func(l []any) any { return append([]any{}, l...) }),
			rapid.Map(rapid.MapOfN(rapid.String(), value, 0, 4), func(m map[string]any) any { return m }),
		)
	}
	document := rapid.MapOfN(rapid.String(), value, 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		want := document.Draw(t, "document")
		text, err := strict.AppendTOML(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		if _, problems := strict.TOML("f", text, &got); len(problems) > 0 {
			t.Fatalf("%v\n%s", problems, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot  %v\nwant %v", text, got, want)
		}
	})
}
