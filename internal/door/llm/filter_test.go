package llm_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/kit/scan"
)

// report finds the events that report usage, in the files of testdata.
var report = regexp.MustCompile(`data: ?\{[^\n\r]*"choices":\[\],"usage":\{[^\n\r]*(\r\n|\n|\r)(\r\n|\n|\r)`)

// filter filters a stream in pieces that end at these places. It returns what was passed
// on, and the most that was held back.
func filter(stream []byte, cuts ...int) (out []byte, held int) {
	f := llm.NewFilter()
	start := 0
	for _, cut := range append(cuts, len(stream)) {
		out = f.Append(out, stream[start:cut])
		held = max(held, f.Held())
		start = cut
	}
	return f.Flush(out), held
}

// TestFilter filters streams in every way they can be cut into pieces.
func TestFilter(t *testing.T) {
	t.Parallel()
	for name := range answers {
		if !strings.HasPrefix(name, "chat") && !strings.HasPrefix(name, "completions") || !strings.HasSuffix(name, ".sse") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, variant := range []string{"as it is", "CRLF", "CR", "no space"} {
				stream := []byte(variants[variant](string(load(t, name))))
				want := report.ReplaceAll(stream, nil)
				if removed := len(report.FindAll(stream, -1)); removed > 1 || (removed == 0) != bytes.Equal(want, stream) {
					t.Fatalf("%s has %d reports", name, removed)
				}
				cuts(len(stream), 1, func(at ...int) bool {
					got, _ := filter(stream, at...)
					if !bytes.Equal(got, want) {
						t.Errorf("%s cut at %v: got %q, want %q", variant, at, got, want)
					}
					return bytes.Equal(got, want)
				})
			}
		})
	}
}

func TestFilterEdges(t *testing.T) {
	t.Parallel()
	const usage = `{"choices":[],"usage":{"total_tokens":1}}`
	large := `data: {"x":"` + strings.Repeat("x", llm.MaxHeld) + `","usage":{}}` + "\n\n"
	for name, c := range map[string]struct{ in, out string }{
		"nothing":                  {"", ""},
		"comments stay":            {": one\r\ndata: " + usage + "\r\n: two\r\n\r\n: three\n\n", ": one\r\n: two\r\n: three\n\n"},
		"in lines":                 {"data: {\"choices\":[],\ndata: \"usage\":{}}\n\ndata: x\n\n", "data: x\n\n"},
		"choices are null":         {"data: {\"choices\":null,\"usage\":{}}\n\n", ""},
		"no choices":               {"data: {\"usage\":{}}\n\n", ""},
		"usage is null":            {"data: {\"choices\":[],\"usage\":null}\n\n", "data: {\"choices\":[],\"usage\":null}\n\n"},
		"usage before choices":     {"data: {\"usage\":{},\"choices\":[{}]}\n\n", "data: {\"usage\":{},\"choices\":[{}]}\n\n"},
		"an error":                 {"data: {\"error\":{},\"usage\":{}}\n\n", "data: {\"error\":{},\"usage\":{}}\n\n"},
		"usage deeper":             {"data: {\"a\":{\"usage\":{}}}\n\n", "data: {\"a\":{\"usage\":{}}}\n\n"},
		"not JSON":                 {"data: {\"usage\":{}}x\n\n", "data: {\"usage\":{}}x\n\n"},
		"no blank line":            {"data: a\n\ndata: " + usage, "data: a\n\n"},
		"an end in the middle":     {"data: {\"choices\":[],\"usa", "data: {\"choices\":[],\"usa"},
		"larger than what is held": {large, large},
		"twice":                    {"data: " + usage + "\n\ndata: " + usage + "\n\n", ""},
		"blank lines":              {"\n\n\r\n\n", "\n\n\r\n\n"},
	} {
		for size := 1; size < 40; size++ {
			var at []int
			for i := size; i < len(c.in); i += size {
				at = append(at, i)
			}
			got, held := filter([]byte(c.in), at...)
			if string(got) != c.out || held > llm.MaxHeld {
				t.Errorf("%s in pieces of %d: got %.100q, want %.100q, held %d", name, size, got, c.out, held)
			}
		}
	}
}

// TestFilterSoon checks that an event with a choice is passed on before it ends.
func TestFilterSoon(t *testing.T) {
	t.Parallel()
	f := llm.NewFilter()
	const begin = `data: {"id":"x","choices":[{"delta":{"content":"Hel`
	if got := f.Append(nil, []byte(begin)); string(got) != begin || f.Held() != 0 {
		t.Errorf("passed on %q, holds %d", got, f.Held())
	}
}

func FuzzFilter(f *testing.F) {
	for name := range answers {
		if strings.HasPrefix(name, "chat") && strings.HasSuffix(name, ".sse") {
			f.Add(load(f, name), uint8(7))
		}
	}
	f.Add([]byte(": c\rdata: {\"usage\":{}}\r\rdata: x\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		var at []int
		for i := int(size%32) + 1; i < len(stream); i += int(size%32) + 1 {
			at = append(at, i)
		}
		whole, _ := filter(stream)
		pieces, held := filter(stream, at...)
		if !bytes.Equal(whole, pieces) && len(stream) < llm.MaxHeld || held > llm.MaxHeld+1 {
			t.Fatalf("%q in pieces: %q, whole: %q, held %d", stream, pieces, whole, held)
		}
		if bytes.Contains(stream, []byte("\uFEFF")) || len(stream) > llm.MaxHeld {
			return // what follows the first event is then the beginning; or some is too large
		}
		var want []string
		before, end := events(stream)
		for _, data := range before {
			switch isReport, known := isReport(data); {
			case !known:
				return
			case !isReport:
				want = append(want, data)
			}
		}
		if got, _ := events(whole); !slices.Equal(got, want) {
			t.Fatalf("%q becomes %q: events %q, want %q", stream, whole, got, want)
		}
		if len(want) == len(before) && !bytes.HasPrefix(whole, stream[:end]) {
			t.Fatalf("%q becomes %q, though it has no report", stream, whole)
		}
	})
}

// events returns the data of a stream's events, and where the last one ends.
func events(stream []byte) (all []string, last int) {
	var data []byte
	e := scan.NewEvents(func(p []byte) { data = append(data, p...) })
	for at := 0; at < len(stream); {
		n, end := e.Read(stream[at:])
		at += n
		if end && e.Lines() > 0 {
			all = append(all, string(data))
		}
		if end {
			data, last = data[:0], at
		}
	}
	return all, last
}

// isReport reports whether an event is to be removed, by the standard library, and whether
// it can tell: members may be repeated, or nested too deep for us.
func isReport(data string) (is, known bool) {
	var event map[string]json.RawMessage
	if json.Unmarshal([]byte(data), &event) != nil {
		return false, true
	}
	for _, name := range []string{`"usage"`, `"choices"`, `"error"`, `\u`} {
		if strings.Count(data, name) > 1 || (name == `\u` && strings.Contains(data, name)) {
			return false, false
		}
	}
	var choices []json.RawMessage
	if _, given := event["choices"]; given && json.Unmarshal(event["choices"], &choices) != nil {
		choices = nil // not an array
	}
	failed := event["error"] != nil && string(event["error"]) != "null"
	return strings.HasPrefix(string(event["usage"]), "{") && len(choices) == 0 && !failed, !strings.Contains(data, "[[[[[[")
}

func BenchmarkFilter(b *testing.B) {
	stream := load(b, "chat.sse")
	f := llm.NewFilter()
	var out []byte
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		out = f.Append(out[:0], stream)
	}
}
