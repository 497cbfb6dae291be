package meter_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/door/meter"
	"github.com/stintdev/stint/internal/kit/scan"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

func parse(t testing.TB, names ...string) *meter.Set {
	t.Helper()
	var meters []meter.Meter
	for _, name := range names {
		m, err := meter.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if m.String() != name {
			t.Fatalf("%s is called %s", name, m)
		}
		meters = append(meters, m)
	}
	return meter.NewSet(meters...)
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":               "want request_bytes",
		"bytes":          "want request_bytes",
		"header:":        "want the name of a header",
		"header:a b":     "want the name of a header",
		"header":         "want the name of a header",
		"json:":          "want a name",
		"json:a[*].cost": "in place of [*]",
		"json":           "want a name",
	} {
		if _, err := meter.Parse(name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: got %v, want an error that says %q", name, err, want)
		}
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Add(pairs[i], pairs[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		meter   string
		header  http.Header
		body    string
		end     meter.End
		want    int64
		because meter.Why
	}{
		"request bytes":      {meter: "request_bytes", end: meter.End{RequestBytes: 12}, want: 12},
		"unknown request":    {meter: "request_bytes", end: meter.End{RequestBytes: -1}, want: 0},
		"response bytes":     {meter: "response_bytes", body: "hello", want: 5},
		"no seconds":         {meter: "response_seconds", want: 0},
		"seconds":            {meter: "response_seconds", end: meter.End{Took: 1001 * time.Millisecond}, want: 2},
		"one second":         {meter: "response_seconds", end: meter.End{Took: time.Second}, want: 1},
		"clock goes back":    {meter: "response_seconds", end: meter.End{Took: -time.Second}, want: 0},
		"header":             {meter: "header:X-Cost", header: header("X-Cost", "7.2"), want: 8},
		"last header":        {meter: "header:X-Cost", header: header("X-Cost", "7", "X-Cost", "9"), want: 9},
		"trailer":            {meter: "header:X-Cost", header: header("X-Cost", "7"), end: meter.End{Trailer: header("X-Cost", "11")}, want: 11},
		"metadata":           {meter: "header:X-Cost", header: http.Header{"x-cost": {"7"}}, want: 7},
		"no header":          {meter: "header:X-Cost", want: 1, because: meter.Missing},
		"not a number":       {meter: "header:X-Cost", header: header("X-Cost", "many"), want: 1, because: meter.Missing},
		"negative header":    {meter: "header:X-Cost", header: header("X-Cost", "-5"), want: 0},
		"enormous header":    {meter: "header:X-Cost", header: header("X-Cost", "1e300"), want: scan.MaxNumber},
		"json":               {meter: "json:usage.total", header: header("Content-Type", "application/json"), body: `{"usage":{"total":42}}`, want: 42},
		"json fraction":      {meter: "json:usage.total", body: `{"usage":{"total":0.01}}`, want: 1},
		"json zero":          {meter: "json:usage.total", body: `{"usage":{"total":0}}`, want: 0},
		"json negative":      {meter: "json:usage.total", body: `{"usage":{"total":-3}}`, want: 0},
		"json enormous":      {meter: "json:usage.total", body: `{"usage":{"total":123456789012345678901234567890}}`, want: scan.MaxNumber},
		"json string":        {meter: "json:usage.total", body: `{"usage":{"total":"5"}}`, want: 6, because: meter.Missing},
		"json element":       {meter: "json:results[1].cost", body: `{"results":[{"cost":1},{"cost":2}]}`, want: 2},
		"json repeated":      {meter: "json:a", body: `{"a":1,"a":2}`, want: 2},
		"json missing":       {meter: "json:usage.total", body: `{"usage":{}}`, want: 3, because: meter.Missing},
		"json cut":           {meter: "json:a", body: `{"a":1,"b":`, want: 3, because: meter.Missing},
		"not json":           {meter: "json:a", header: header("Content-Type", "application/json"), body: `<html>`, want: 2, because: meter.Missing},
		"nothing":            {meter: "json:a", want: 1, because: meter.Missing},
		"number alone":       {meter: "json:a", header: header("Content-Type", "application/json"), body: `17`, want: 1, because: meter.Missing},
		"events":             {meter: "json:u.t", header: header("Content-Type", "text/event-stream; charset=utf-8"), body: "data: {\"u\":{\"t\":1}}\n\ndata: {\"u\":{\"t\":5}}\n\ndata: {\"x\":9}\n\ndata: [DONE]\n\n", want: 5},
		"events, no type":    {meter: "json:u.t", body: "data: {\"u\":{\"t\":1}}\n\n", want: 1},
		"last event open":    {meter: "json:u", header: header("Content-Type", "text/event-stream"), body: "data: {\"u\":1}\n\ndata: {\"u\":2}\n", want: 2},
		"last event cut":     {meter: "json:u", header: header("Content-Type", "text/event-stream"), body: "data: {\"u\":1}\n\ndata: {\"u\":2,", want: 1},
		"data in lines":      {meter: "json:u", header: header("Content-Type", "text/event-stream"), body: "data: {\"u\":\r\ndata: 3}\r\n\r\n", want: 3},
		"after a broken one": {meter: "json:u", header: header("Content-Type", "text/event-stream"), body: "data: {\"a\":[{\n\ndata: {\"u\":3}\n\n", want: 3},
		"brotli":             {meter: "json:a", header: header("Content-Encoding", "br"), body: strings.Repeat("x", 4001), want: 1001, because: meter.Encoded},
		"two encodings":      {meter: "json:a", header: header("Content-Encoding", "gzip, gzip"), body: "12345678", want: 2, because: meter.Encoded},
		"identity":           {meter: "json:a", header: header("Content-Encoding", "identity"), body: `{"a":4}`, want: 4},
		"not gzip":           {meter: "json:a", header: header("Content-Encoding", "gzip"), body: `{"a":4}`, want: 2, because: meter.Encoded},
		"bytes of gzip":      {meter: "response_bytes", header: header("Content-Encoding", "gzip"), body: "12345", want: 5},
	} {
		for size := 1; size <= len(c.body)+1; size += max(1, len(c.body)/20) {
			r := parse(t, c.meter, "response_bytes").Response(c.header)
			for p := []byte(c.body); len(p) > 0; p = p[min(size, len(p)):] {
				r.Write(p[:min(size, len(p))])
			}
			got := r.End(nil, c.end)
			if want := (meter.Units{N: c.want, Why: c.because}); got[0] != want || got[0].Estimated() != (c.because != meter.Exact) {
				t.Errorf("%s in pieces of %d: got %d (%s), want %d (%s)", name, size, got[0].N, got[0].Why, want.N, want.Why)
			}
			if got[1].N != int64(len(c.body)) {
				t.Errorf("%s: %d bytes, want %d", name, got[1].N, len(c.body))
			}
		}
	}
}

// encode compresses in several blocks, with a flush after each line.
func encode(t testing.TB, encoding, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "raw deflate":
		raw, err := flate.NewWriter(&out, 6)
		if err != nil {
			t.Fatal(err)
		}
		w = raw
	}
	for line := range strings.Lines(text) {
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestDecoder decodes what was cut at every place into two pieces, and into single bytes.
func TestDecoder(t *testing.T) {
	t.Parallel()
	text := "one line\n" + strings.Repeat("and another\n", 5) + strings.Repeat("x", 3000)
	for _, encoding := range []string{"gzip", "deflate", "raw deflate"} {
		encoded := encode(t, encoding, text)
		decode := func(size ...int) string {
			var out bytes.Buffer
			d := meter.NewDecoder(strings.TrimPrefix(encoding, "raw "), func(p []byte) { out.Write(p) })
			defer d.Close()
			p := encoded
			for _, n := range size {
				d.Write(p[:n])
				p = p[n:]
			}
			d.Write(p)
			d.Close()
			if d.Why() != meter.Exact {
				t.Errorf("%s: %s", encoding, d.Why())
			}
			return out.String()
		}
		ones := make([]int, len(encoded))
		for i := range ones {
			ones[i] = 1
			if got := decode(i); got != text {
				t.Fatalf("%s cut at %d: got %d bytes, want %d", encoding, i, len(got), len(text))
			}
		}
		if got := decode(ones...); got != text {
			t.Fatalf("%s in single bytes: got %d bytes, want %d", encoding, len(got), len(text))
		}
	}
	if meter.NewDecoder("zstd", nil) != nil {
		t.Error("decodes zstd, which needs megabytes")
	}
}

// TestDecoderSoon checks that what was flushed is passed on before more is written.
func TestDecoderSoon(t *testing.T) {
	t.Parallel()
	var packed, out bytes.Buffer
	w := gzip.NewWriter(&packed)
	d := meter.NewDecoder("gzip", func(p []byte) { out.Write(p) })
	defer d.Close()
	for _, line := range []string{"a\n", "bb\n", "ccc\n"} {
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		d.Write(packed.Next(packed.Len()))
		if !strings.HasSuffix(out.String(), line) {
			t.Errorf("after %q there is %q", line, out.String())
		}
	}
}

func TestCompressedJSON(t *testing.T) {
	t.Parallel()
	body := "{\n" + strings.Repeat("\"x\":[1,2,3],\n", 50) + "\"usage\":{\"total\":77}}"
	for _, encoding := range []string{"gzip", "deflate", "raw deflate"} {
		encoded := encode(t, encoding, body)
		h := http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {strings.TrimPrefix(encoding, "raw ")}}
		for cut := range encoded {
			r := parse(t, "json:usage.total").Response(h)
			r.Write(encoded[:cut])
			r.Write(encoded[cut:])
			if got := r.End(nil, meter.End{}); got[0] != (meter.Units{N: 77}) {
				t.Fatalf("%s cut at %d: got %v", encoding, cut, got)
			}
		}
		r := parse(t, "json:usage.total").Response(h)
		r.Write(encoded[:len(encoded)/2])
		if got := r.End(nil, meter.End{}); got[0].Why != meter.Encoded || got[0].N < int64(len(encoded)/2/meter.BytesPerUnit) {
			t.Errorf("half of %s: got %v", encoding, got)
		}
	}
}

// TestBomb decodes what would become gigabytes, and checks that it stops.
func TestBomb(t *testing.T) {
	t.Parallel()
	// pack packs the same megabyte again and again.
	pack := func(level int, megabyte []byte) []byte {
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, level)
		if err != nil {
			t.Fatal(err)
		}
		for range meter.MaxDecoded>>20 + 1 {
			if _, err := w.Write(megabyte); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	bomb, n := pack(gzip.BestSpeed, make([]byte, 1<<20)), int64(0)
	d := meter.NewDecoder("gzip", func(p []byte) { n += int64(len(p)) })
	d.Write(bomb)
	d.Close()
	if d.Why() != meter.TooLarge || n > 1<<20+int64(len(bomb))*meter.MaxRatio {
		t.Errorf("%d bytes became %d: %s", len(bomb), n, d.Why())
	}
	large := pack(gzip.NoCompression, make([]byte, 1<<20))
	r := parse(t, "json:a").Response(http.Header{"Content-Encoding": {"gzip"}})
	r.Write(large)
	got := r.End(nil, meter.End{})[0]
	if least, most := int64(meter.MaxDecoded/meter.BytesPerUnit), int64(len(large)); got.Why != meter.TooLarge || got.N < least || got.N > most {
		t.Errorf("%d bytes are %v", len(large), got)
	}
}

// TestForgotten checks that coroutines end: with the response, and without it.
func TestForgotten(t *testing.T) {
	before := runtime.NumGoroutine()
	set := parse(t, "json:a")
	h := http.Header{"Content-Encoding": {"gzip"}}
	encoded := encode(t, "gzip", `{"a":1}`)
	func() {
		for i := range 100 {
			r := set.Response(h)
			r.Write(encoded[:i%len(encoded)])
			if i%2 == 0 {
				r.End(nil, meter.End{})
			}
		}
	}()
	wait.For(t, "there are no more goroutines than before", func() bool {
		runtime.GC()
		return runtime.NumGoroutine() <= before
	})
}

// TestMemory measures what a response needs while it is under way.
func TestMemory(t *testing.T) {
	const responses = 400
	for _, c := range []struct {
		name   string
		set    *meter.Set
		header http.Header
		body   []byte
		atMost int64
	}{
		{"bytes", parse(t, "response_bytes", "response_seconds", "header:X-Cost"), nil, []byte("hello"), 200},
		{"json", parse(t, "json:usage.total", "json:results[0].cost", "response_bytes"), nil, []byte("data: {\"usage\":{\"to"), 2 << 10},
		{
			"gzip", parse(t, "json:usage.total", "json:results[0].cost", "response_bytes"),
			http.Header{"Content-Encoding": {"gzip"}},
			encode(t, "gzip", strings.Repeat("data: {\"usage\":{\"total\":77}}\n\n", 2000))[:2000], 56 << 10,
		},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC() // empties the pools
		runtime.ReadMemStats(&before)
		all := make([]*meter.Response, responses)
		for i := range all {
			all[i] = c.set.Response(c.header)
			all[i].Write(c.body)
		}
		runtime.ReadMemStats(&after)
		// All that was allocated, also what is garbage, and the stacks of coroutines.
		each := int64(after.TotalAlloc-before.TotalAlloc)/responses + max(int64(after.StackInuse)-int64(before.StackInuse), 0)/responses
		torture.AtMost(t, c.name+": bytes", each, c.atMost)
		for _, r := range all {
			r.End(nil, meter.End{})
		}
	}
}

func BenchmarkResponse(b *testing.B) {
	event := []byte("data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}],\"usage\":{\"total\":12}}\n\n")
	for _, name := range []string{"response_bytes", "json:usage.total"} {
		b.Run(name, func(b *testing.B) {
			r := parse(b, name).Response(http.Header{"Content-Type": {"text/event-stream"}})
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				r.Write(event)
			}
		})
	}
	b.Run("gzip", func(b *testing.B) {
		set, text := parse(b, "json:usage.total"), strings.Repeat(string(event), 1000)
		encoded := encode(b, "gzip", text)
		h := http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}}
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			r := set.Response(h)
			r.Write(encoded)
			r.End(nil, meter.End{})
		}
	})
}

// FuzzDecoder compares with the standard library's decoder of a whole body.
func FuzzDecoder(f *testing.F) {
	f.Add(encode(f, "gzip", "one\ntwo\n"), uint8(1))
	f.Add(encode(f, "gzip", strings.Repeat("a long line of text\n", 100)), uint8(9))
	f.Add(append(encode(f, "gzip", "a"), encode(f, "gzip", "b")...), uint8(3))
	f.Add([]byte("\x1f\x8b\x08"), uint8(0))
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		var got bytes.Buffer
		d := meter.NewDecoder("gzip", func(p []byte) { got.Write(p) })
		for p := body; len(p) > 0; {
			n := min(int(size%32)+1, len(p))
			d.Write(p[:n])
			p = p[n:]
		}
		d.Close()
		var want []byte
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			want, err = io.ReadAll(io.LimitReader(r, 1<<20))
		}
		if len(want) == 1<<20 {
			return
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q: got %d bytes, want %d", body, got.Len(), len(want))
		}
		if (d.Why() == meter.Exact) != (err == nil || len(body) == 0) {
			t.Fatalf("%q: %s, and %v", body, d.Why(), err)
		}
	})
}

// FuzzResponse checks that units do not depend on how a body is cut into pieces.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(`{"usage":{"total":42}}`), uint8(1), "application/json")
	f.Add([]byte("data: {\"usage\":{\"total\":1}}\r\n\r\ndata: [DONE]\n\n"), uint8(3), "text/event-stream")
	f.Add([]byte("  \n{\"usage\":{\"total\":1}}"), uint8(0), "")
	f.Fuzz(func(t *testing.T, body []byte, size uint8, kind string) {
		set := parse(t, "json:usage.total", "response_bytes")
		read := func(size int) meter.Units {
			r := set.Response(http.Header{"Content-Type": {kind}})
			for p := body; len(p) > 0; {
				n := min(size, len(p))
				r.Write(p[:n])
				p = p[n:]
			}
			u := r.End(nil, meter.End{})
			if u[1].N != int64(len(body)) {
				t.Fatalf("%q: %d bytes", body, u[1].N)
			}
			return u[0]
		}
		whole, pieces := read(len(body)+1), read(int(size%16)+1)
		if whole != pieces || whole.N < 0 || whole.N > scan.MaxNumber || (whole.Estimated() && whole.N == 0) {
			t.Fatalf("%q in pieces: %v, whole: %v", body, pieces, whole)
		}
	})
}
