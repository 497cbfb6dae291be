//go:build torture

package llm_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestMemory measures what an answer needs while it is under way.
func TestMemory(t *testing.T) {
	const answers = 400
	stream := []byte(strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\"some words\"}}]}\n\n", 100) + "data: {\"id\":\"x")
	large := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("some words ", 20_000)) // of an event that has not ended
	pack := func(text []byte) []byte {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()[:packed.Len()-9]
	}
	type open struct {
		response *llm.Response
		filter   *llm.Filter
	}
	for _, c := range []struct {
		name   string
		header http.Header
		body   []byte
		filter bool
		atMost int64
	}{
		{"stream", header("x.sse"), stream, false, 2 << 10},
		{"filtered", header("x.sse"), stream, true, 4 << 10},
		{"gzip", http.Header{"Content-Encoding": {"gzip"}}, pack(stream), false, 56 << 10},
		{"large event", header("x.sse"), large, false, 2 << 10},
		{"large event, filtered", header("x.sse"), large, true, 4 << 10},
		{"large event, gzip", http.Header{"Content-Encoding": {"gzip"}}, pack(large), false, 56 << 10},
	} {
		var before, after runtime.MemStats
		out := make([]byte, 0, 2*len(large))
		runtime.GC()
		runtime.GC() // empties the pools
		runtime.ReadMemStats(&before)
		all := make([]open, answers)
		for i := range all {
			all[i].response = llm.NewResponse(llm.Chat, prompt, c.header)
			all[i].response.Write(c.body)
			if c.filter {
				all[i].filter = llm.NewFilter()
				out = all[i].filter.Append(out[:0], c.body)
			}
		}
		runtime.ReadMemStats(&after)
		// All that was allocated, also what is garbage, and the stacks of coroutines.
		each := int64(after.TotalAlloc-before.TotalAlloc)/answers + max(int64(after.StackInuse)-int64(before.StackInuse), 0)/answers
		torture.AtMost(t, c.name+": bytes", each, c.atMost)
		for _, o := range all {
			o.response.End()
		}
	}
}
