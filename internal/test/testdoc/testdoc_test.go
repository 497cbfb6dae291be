package testdoc_test

import (
	"reflect"
	"testing"

	"github.com/stintdev/stint/internal/test/testdoc"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		language, text string
		want           []testdoc.Command
	}{
		{"sh", "a 'b'   # d\n# e\nf \\\n  g\nh 'i\nj'\nk |\n  l\n", []testdoc.Command{{"a 'b'", ""}, {"f   g", ""}, {"h 'i\nj'", ""}, {"k |\n  l", ""}}},
		{"console", "$ a\nb\nc\n\n$ d 'e\nf'\ng\n", []testdoc.Command{{"a", "b\nc\n\n"}, {"d 'e\nf'", "g\n"}}},
	} {
		if got := (testdoc.Block{Language: c.language, Text: c.text}).Commands(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.text, got, c.want)
		}
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		output, document string
		want             bool
	}{
		{"a\nb\n", "a\nb", true},
		{"a\nb\n", "a", false},
		{"a\nb\nc\n", "a\n...", true},
		{"a\nb\nc\n", "a\n...\nc", true},
		{"a\nb\nc\n", "a ...\nb\nc", false},
		{"abc\nd\n", "a...\nd", true},
		{"a.c\n", "abc", false},
		{"at 2026-01-31T12:00:00Z  x", "at 2027-02-01T00:00:00.5Z x", true},
		{"limit 5/1m", "limit 6/1m", false},
		{"used 5 12s", "used 5 900ms", true},
		{"used 5 12s", "used 6 12s", false},
		{"HTTP/1.1 200 OK\r\nRetry-After: 9\r\n\r\n", "HTTP/1.1 200 OK\nRetry-After: 10", true},
	} {
		if got := testdoc.Same(c.output, c.document); got != c.want {
			t.Errorf("%q and %q: got %v", c.output, c.document, got)
		}
	}
}

func TestSameJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		output, document string
		want             bool
	}{
		{`{"a": [1, "x"]}`, `{"a": [1, "x"]}`, true},
		{`{"a": [1, "x"]}`, `{"a": [2, "x"]}`, false},
		{`{"a": 1, "b": 2}`, `{"a": 1}`, false},
		{`{"a": 1, "v": 2}`, `{"a": 1, "v": 3}`, true},
		{`{"a": 1, "v": 2}`, `{"a": 1, "v": "3"}`, false},
		{`{"a": "want one of these"}`, `{"a": "want ..."}`, true},
		{`[1, 2]`, `[1]`, false},
		{`no`, `[1]`, false},
	} {
		if err := testdoc.SameJSON(c.output, c.document, "v"); (err == nil) != c.want {
			t.Errorf("%s and %s: got %v", c.output, c.document, err)
		}
	}
}
