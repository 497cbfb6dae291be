package scan_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/kit/scan"
)

// read reads a stream in pieces that end at these places, and returns its events, and
// whether it ends between two.
func read(stream []byte, cuts ...int) (events string, between bool) {
	var data []byte
	e := scan.NewEvents(func(p []byte) { data = append(data, p...) })
	var out strings.Builder
	start := 0
	for _, cut := range append(cuts, len(stream)) {
		for p := stream[start:cut]; len(p) > 0; {
			n, end := e.Read(p)
			p = p[n:]
			if end && e.Lines() > 0 {
				fmt.Fprintf(&out, "%s|%q ", e.Name(), data)
			}
			if end {
				data = data[:0]
			}
		}
		start = cut
	}
	return out.String(), e.Between()
}

var streams = map[string]string{
	"data: a\n\n":                                         `|"a" `,
	"data:a\r\n\r\n":                                      `|"a" `,
	"data:a\r\rdata:b\r\r":                                `|"a" |"b" `,
	"data: a\r\n\ndata:  b\n\r\n":                         `|"a" |" b" `,
	"\uFEFFdata: a\n\n":                                   `|"a" `,
	"\uFEFF\uFEFFdata: a\n\n":                             ``,
	"\xEF\xBBdata: a\n\ndata: b\n\n":                      `|"b" `,
	":\n: comment\ndata: a\n:x\ndata: b\n\n":              `|"a\nb" `,
	"event: add\ndata: a\nevent: sub\n\n":                 `sub|"a" `,
	"event: add\n\ndata: a\n\n":                           `|"a" `,
	"event\ndata\ndata\n\n":                               `|"\n" `,
	"data\n\n":                                            `|"" `,
	"data:\n\n":                                           `|"" `,
	"data: \n\n":                                          `|"" `,
	"Data: a\ndatas: b\ndat: c\nid: 1\n\n":                ``,
	"id: 1\nretry: 5\nfoo: bar\ndata: a:b\n\n":            `|"a:b" `,
	"data: a\nevent: x":                                   ``,
	"\n\n\ndata: a\n\n\n":                                 `|"a" `,
	"event: " + strings.Repeat("n", 100) + "\ndata:1\n\n": strings.Repeat("n", scan.MaxEventName) + `|"1" `,
}

// TestEvents reads streams cut at every pair of places.
func TestEvents(t *testing.T) {
	t.Parallel()
	for stream, want := range streams {
		got, between := read([]byte(stream))
		if got != want {
			t.Errorf("%q: got %s, want %s", stream, got, want)
		}
		for i := range len(stream) {
			for j := i; j < len(stream); j++ {
				g, b := read([]byte(stream), i, j)
				if g != got || b != between {
					t.Fatalf("%q cut at %d and %d: got %s, want %s", stream, i, j, g, got)
				}
			}
		}
	}
}

// dispatch is what Events means, for a whole stream of lines.
func dispatch(stream []byte) string {
	stream = bytes.TrimPrefix(stream, []byte("\uFEFF"))
	text := strings.ReplaceAll(strings.ReplaceAll(string(stream), "\r\n", "\n"), "\r", "\n")
	var out strings.Builder
	lines := strings.Split(text, "\n")
	var data, name string
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if data != "" {
				fmt.Fprintf(&out, "%s|%q ", name[:min(len(name), scan.MaxEventName)], strings.TrimSuffix(data, "\n"))
			}
			data, name = "", ""
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data += value + "\n"
		case "event":
			name = value
		}
	}
	return out.String()
}

func FuzzEvents(f *testing.F) {
	for stream := range streams {
		f.Add([]byte(stream), uint8(2))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		var cuts []int
		for at := int(size%16) + 1; at < len(stream); at += int(size%16) + 1 {
			cuts = append(cuts, at)
		}
		whole, _ := read(stream)
		if want := dispatch(stream); whole != want {
			t.Fatalf("%q: got %s, want %s", stream, whole, want)
		}
		if pieces, _ := read(stream, cuts...); pieces != whole {
			t.Fatalf("%q in pieces: got %s, want %s", stream, pieces, whole)
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	event := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n")
	n := 0
	e := scan.NewEvents(func(p []byte) { n += len(p) })
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		e.Read(event)
	}
}
