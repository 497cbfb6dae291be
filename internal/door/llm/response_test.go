package llm_test

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/test/torture"
)

// prompt is the estimate of the prompt, for answers that do not report their input.
const prompt = 1000

// answers are the files of testdata, made after the providers' documentation, and what each
// has used.
var answers = map[string]struct {
	shape llm.Shape
	usage llm.Usage
}{
	"chat.sse":         {llm.Chat, llm.Usage{Input: 31, Output: 12, Total: 43, Cached: 16, Reasoning: 5, Model: "gpt-test-2026-01-02", Complete: true}},
	"chat-short.sse":   {llm.Chat, llm.Usage{Input: 4, Output: 1, Total: 5, Model: "m", Complete: true}},
	"chat-silent.sse":  {llm.Chat, llm.Usage{Input: prompt, Output: 3, Total: prompt + 3, Model: "gpt-test-2026-01-02", Estimated: true, Complete: true}},
	"chat-tools.sse":   {llm.Chat, llm.Usage{Input: 80, Output: 15, Total: 95, Model: "gpt-test-2026-01-02", Complete: true}},
	"chat-azure.sse":   {llm.Chat, llm.Usage{Input: 9, Output: 1, Total: 10, Model: "gpt-test-2026-01-02", Complete: true}},
	"chat-running.sse": {llm.Chat, llm.Usage{Input: 7, Output: 3, Total: 10, Model: "gpt-test-2026-01-02", Complete: true}},
	"chat-error.sse":   {llm.Chat, llm.Usage{Input: prompt, Output: 3, Total: prompt + 3, Model: "gpt-test-2026-01-02", Estimated: true, Complete: true, Failed: true}},
	"chat.json":        {llm.Chat, llm.Usage{Input: 31, Output: 12, Total: 43, Cached: 16, Reasoning: 5, Model: "gpt-test-2026-01-02", Complete: true}},
	"completions.sse":  {llm.Completions, llm.Usage{Input: 3, Output: 1, Total: 4, Model: "older-test", Complete: true}},
	"embeddings.json":  {llm.Embeddings, llm.Usage{Input: 8, Total: 8, Model: "embed-test", Complete: true}},

	"responses.sse":            {llm.Responses, llm.Usage{Input: 52, Output: 40, Total: 92, Cached: 20, Reasoning: 24, Model: "gpt-test-5", Complete: true}},
	"responses-incomplete.sse": {llm.Responses, llm.Usage{Input: 52, Output: 40, Total: 92, Cached: 20, Reasoning: 24, Model: "gpt-test-5", Complete: true}},
	"responses-failed.sse":     {llm.Responses, llm.Usage{Input: prompt, Output: 2, Total: prompt + 2, Model: "gpt-test-5", Estimated: true, Complete: true, Failed: true}},
	"responses.json":           {llm.Responses, llm.Usage{Input: 52, Output: 40, Total: 92, Cached: 20, Reasoning: 24, Model: "gpt-test-5", Complete: true}},

	"messages.sse":       {llm.Messages, llm.Usage{Input: 2125, Output: 15, Total: 2140, Cached: 2000, CacheWritten: 100, Model: "claude-test-20260101", Complete: true}},
	"messages-twice.sse": {llm.Messages, llm.Usage{Input: 2640, Output: 33, Total: 2673, Cached: 2500, CacheWritten: 100, Model: "claude-test-20260101", Complete: true}},
	"messages-error.sse": {llm.Messages, llm.Usage{Input: 2125, Output: 2, Total: 2127, Cached: 2000, CacheWritten: 100, Model: "claude-test-20260101", Estimated: true, Failed: true}},
	"messages.json":      {llm.Messages, llm.Usage{Input: 18, Output: 3, Total: 21, Cached: 6, Model: "claude-test-20260101", Complete: true}},
	"error.json":         {llm.Chat, llm.Usage{Input: prompt, Output: 1, Total: prompt + 1, Estimated: true, Complete: true, Failed: true}},
}

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func header(name string) http.Header {
	if strings.HasSuffix(name, ".sse") {
		return http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}
	}
	return http.Header{"Content-Type": {"application/json"}}
}

// usage reads an answer in pieces that end at these places.
func usage(shape llm.Shape, h http.Header, body []byte, cuts ...int) llm.Usage {
	r := llm.NewResponse(shape, prompt, h)
	start := 0
	for _, cut := range cuts {
		r.Write(body[start:cut])
		start = cut
	}
	r.Write(body[start:])
	return r.End()
}

// cuts yields ways to cut n bytes: nowhere, everywhere, at each place or each step of them,
// at each pair of places if there are not many, and at random.
func cuts(n, step int, yield func(...int) bool) {
	all := make([]int, n)
	for i := range all {
		all[i] = i
		if i%step == 0 && !yield(i) {
			return
		}
	}
	if !yield() || !yield(all...) {
		return
	}
	const few = 256
	for i := 0; i < n && n < few && step == 1; i++ {
		for j := i + 1; j < min(n, i+torture.Rounds(26)); j++ { // under make torture, all pairs
			if !yield(i, j) {
				return
			}
		}
	}
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for range 50 {
		var some []int
		for at := random.IntN(60); at < n; at += 1 + random.IntN(60) {
			some = append(some, at)
		}
		if !yield(some...) {
			return
		}
	}
}

// variants are other ways to write the same stream.
var variants = map[string]func(string) string{
	"as it is": func(s string) string { return s },
	"CRLF":     func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
	"CR":       func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
	"no space": func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") },
	"comments": func(s string) string {
		return ": begin\n\n" + strings.ReplaceAll(s, "data: ", ": data: {\nid: 7\ndata: ")
	},
	"many lines": func(s string) string { return strings.ReplaceAll(s, `,"`, ",\ndata: \"") },
	"mark":       func(s string) string { return "\uFEFF" + s },
	"no end":     func(s string) string { return strings.TrimSuffix(s, "\n\n") },
}

// TestUsage reads every answer, in every variant, in every way it can be cut into pieces.
func TestUsage(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) != len(answers) {
		t.Fatalf("%d files, %d answers, %v", len(files), len(answers), err)
	}
	for name, want := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for variant, write := range variants {
				if variant != "as it is" && !strings.HasSuffix(name, ".sse") {
					continue
				}
				body := []byte(write(string(load(t, name))))
				step := 1
				if variant != "as it is" && !strings.HasPrefix(variant, "CR") {
					step = 7
				}
				cuts(len(body), step, func(at ...int) bool {
					got := usage(want.shape, header(name), body, at...)
					if got != want.usage {
						t.Errorf("%s cut at %v: got %+v, want %+v", variant, at, got, want.usage)
					}
					return got == want.usage
				})
			}
		})
	}
}

// TestUsageCompressed reads the same through gzip, and with a type that says nothing.
func TestUsageCompressed(t *testing.T) {
	t.Parallel()
	for name, want := range answers {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(load(t, name)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		h := http.Header{"Content-Encoding": {"gzip"}}
		for at := range packed.Len() {
			if got := usage(want.shape, h, packed.Bytes(), at); got != want.usage {
				t.Fatalf("%s cut at %d: got %+v, want %+v", name, at, got, want.usage)
			}
		}
	}
}

// TestUsageCut ends streams early, at every place: what was not reported is estimated, and
// grows with what came.
func TestUsageCut(t *testing.T) {
	t.Parallel()
	for name, whole := range answers {
		body := load(t, name)
		last := int64(0)
		for n := range body {
			got := usage(whole.shape, header(name), body[:n])
			switch {
			case got == whole.usage: // all that counts was there
			case !got.Estimated && got.Complete:
				t.Fatalf("%d bytes of %s: got %+v", n, name, got)
			case !got.Estimated && (got.Input > whole.usage.Input || got.Output > whole.usage.Output):
				t.Fatalf("%d bytes of %s: got %+v", n, name, got)
			}
			if got.Total < got.Input+got.Output || got.Input == 0 || (got.Output == 0 && whole.shape != llm.Embeddings) {
				t.Fatalf("%d bytes of %s are free: %+v", n, name, got)
			}
			if got.Estimated && got.Output < last && got.Input == prompt {
				t.Fatalf("%d bytes of %s: output %d, and before %d", n, name, got.Output, last)
			}
			last = got.Output
		}
	}
}

// TestUsageBroken checks that a report that was cut is none.
func TestUsageBroken(t *testing.T) {
	t.Parallel()
	const body = `{"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,`
	for _, h := range []http.Header{header("x.sse"), header("x.json")} {
		stream := body
		if h.Get("Content-Type") != "application/json" {
			stream = "data: " + body + "\n\n"
		}
		got := usage(llm.Chat, h, []byte(stream))
		if want := (llm.Usage{Input: prompt, Output: 1, Total: prompt + 1, Estimated: true}); got != want {
			t.Errorf("%s: got %+v, want %+v", stream, got, want)
		}
	}
}

// TestUsageUnread estimates what cannot be read from its bytes.
func TestUsageUnread(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("x"), 4000)
	for name, h := range map[string]http.Header{
		"brotli":   {"Content-Encoding": {"br"}},
		"not gzip": {"Content-Encoding": {"gzip"}},
	} {
		got := usage(llm.Chat, h, body, 17)
		if want := (llm.Usage{Input: prompt, Output: 1000, Total: prompt + 1000, Estimated: true}); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// TestUsageBounds reads numbers that no provider sends.
func TestUsageBounds(t *testing.T) {
	t.Parallel()
	const most = 1<<53 - 1
	for body, want := range map[string]llm.Usage{
		`{"usage":{"prompt_tokens":1e300,"completion_tokens":1e300,"total_tokens":1}}`: {Input: most, Output: most, Total: most, Complete: true},
		`{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}`:                       {Output: 2, Total: 2, Complete: true},
		`{"usage":{"prompt_tokens":"9","completion_tokens":[1]}}`:                      {Input: prompt, Output: 1, Total: prompt + 1, Estimated: true, Complete: true},
		`{"usage":[{"prompt_tokens":9}]}`:                                              {Input: prompt, Output: 1, Total: prompt + 1, Estimated: true, Complete: true},
		`{"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":20}}`:        {Input: 2, Output: 3, Total: 20, Complete: true},
	} {
		if got := usage(llm.Chat, header("x.json"), []byte(body)); got != want {
			t.Errorf("%s: got %+v, want %+v", body, got, want)
		}
	}
}

// TestUsageGrows checks what is known while a stream is under way.
func TestUsageGrows(t *testing.T) {
	t.Parallel()
	r := llm.NewResponse(llm.Messages, prompt, header("x.sse"))
	defer r.End()
	if got := r.Usage(); got.Input != prompt || !got.Estimated {
		t.Errorf("at first: %+v", got)
	}
	body := load(t, "messages.sse")
	start := bytes.Index(body, []byte("event: content_block_start"))
	r.Write(body[:start])
	if got := r.Usage(); got.Input != 2125 || got.Output != 1 || !got.Estimated {
		t.Errorf("after its start: %+v", got)
	}
	long := `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"` + strings.Repeat("word ", 1000)
	r.Write([]byte(long))
	if got := r.Usage(); got.Output < 800 || got.Output > 1300 {
		t.Errorf("in the middle of 1000 words: %+v", got)
	}
}

func BenchmarkResponse(b *testing.B) {
	for name, a := range answers {
		if !strings.HasSuffix(name, ".sse") || strings.Contains(name, "-") {
			continue
		}
		body := load(b, name)
		events := bytes.Count(body, []byte("\n\n"))
		b.Run(name, func(b *testing.B) {
			r := llm.NewResponse(a.shape, prompt, header(name))
			defer r.End()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r.Write(body)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(events), "ns/event")
		})
	}
}

// FuzzResponse checks that usage does not depend on how an answer is cut into pieces, and is
// never free.
func FuzzResponse(f *testing.F) {
	for name, a := range answers {
		f.Add(load(f, name), uint8(a.shape), uint8(5), strings.HasSuffix(name, ".sse"))
	}
	f.Fuzz(func(t *testing.T, body []byte, shape, size uint8, stream bool) {
		h := header("x.json")
		if stream {
			h = header("x.sse")
		}
		kind := llm.Shape(shape % 6)
		var at []int
		for i := int(size%32) + 1; i < len(body); i += int(size%32) + 1 {
			at = append(at, i)
		}
		whole, pieces := usage(kind, h, body), usage(kind, h, body, at...)
		if whole != pieces {
			t.Fatalf("%q in pieces: %+v, whole: %+v", body, pieces, whole)
		}
		if whole.Input < 0 || whole.Output < 0 || whole.Total < max(whole.Input, whole.Output) || whole.Total > 1<<53-1 {
			t.Fatalf("%q: %+v", body, whole)
		}
		if !bytes.Contains(body, []byte("tokens")) && !bytes.Contains(body, []byte(`\u`)) &&
			(!whole.Estimated || whole.Input != prompt || (whole.Output == 0 && kind != llm.Embeddings)) {
			t.Fatalf("%q is free: %+v", body, whole)
		}
	})
}
