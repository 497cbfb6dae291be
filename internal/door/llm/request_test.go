package llm_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
)

func TestShapeOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]llm.Shape{
		"/v1/chat/completions":                   llm.Chat,
		"/openai/deployments/x/chat/completions": llm.Chat,
		"/chat/completions/":                     llm.Chat,
		"/v1/completions":                        llm.Completions,
		"/v1/responses":                          llm.Responses,
		"/v1/responses/resp_1":                   llm.Unknown,
		"/v1/embeddings":                         llm.Embeddings,
		"/v1/messages":                           llm.Messages,
		"/anthropic/v1/messages":                 llm.Messages,
		"/v1/messages/count_tokens":              llm.Unknown,
		"/v1/threads/thread_1/messages":          llm.Unknown,
		"/v1/models":                             llm.Unknown,
		"":                                       llm.Unknown,
		"/":                                      llm.Unknown,
	} {
		if got := llm.ShapeOf(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

func readRequest(shape llm.Shape, body string) llm.Request {
	return llm.ReadRequest(shape, []byte(body), int64(len(body)))
}

func TestRequest(t *testing.T) {
	t.Parallel()
	image := strings.Repeat("iVBORw0KGgo", 10_000)
	for name, c := range map[string]struct {
		shape    llm.Shape
		body     string
		model    string
		n, cap   int64
		prompt   [2]int64 // at least, at most
		parts    int64
		reserve  int64 // beside the prompt
		uncapped bool
	}{
		"chat": {
			shape: llm.Chat, body: `{"model":"gpt-4o","messages":[{"role":"user","content":"How many geese are grey?"}],"max_tokens":100}`,
			model: "gpt-4o", n: 1, cap: 100, prompt: [2]int64{5, 12}, reserve: 100,
		},
		"the largest cap": {
			shape: llm.Chat, body: `{"max_tokens":1,"max_completion_tokens":10000,"messages":[],"n":3}`,
			n: 3, cap: 10000, prompt: [2]int64{0, 20}, reserve: 30000,
		},
		"a cap that is repeated": {
			shape: llm.Chat, body: `{"max_tokens":10000,"messages":[{"content":"a"}],"max_tokens":1}`,
			n: 1, cap: 10000, prompt: [2]int64{5, 6}, reserve: 10000,
		},
		"no cap": {
			shape: llm.Chat, body: `{"model":"m","messages":[{"content":"a"}]}`, model: "m", n: 1, prompt: [2]int64{5, 6}, uncapped: true,
		},
		"no end": {
			shape: llm.Chat, body: `{"messages":[{"content":"a"}],"max_tokens":-1}`, n: 1, prompt: [2]int64{5, 6}, uncapped: true,
		},
		"responses": {
			shape: llm.Responses, body: `{"model":"m","instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"Hello there"},{"type":"input_image","image_url":"data:image/png;base64,` + image + `"}]}],"max_output_tokens":50}`,
			model: "m", n: 1, cap: 50, prompt: [2]int64{llm.PartTokens + 6, llm.PartTokens + 20}, parts: 1, reserve: 50,
		},
		"images": {
			shape: llm.Chat, body: `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `","detail":"high"}},{"type":"image_url","image_url":{"url":"https://example.com/a.png"}},{"type":"input_audio","input_audio":{"data":"` + image + `","format":"wav"}},{"type":"file","file":{"file_data":"` + image + `"}}]}],"max_tokens":5}`,
			n: 1, cap: 5, prompt: [2]int64{4 * llm.PartTokens, 4*llm.PartTokens + 30}, parts: 4, reserve: 5,
		},
		"messages": {
			shape: llm.Messages, body: `{"model":"claude-x","max_tokens":1024,"system":"You are kind.","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}},{"type":"text","text":"What is this?"}]}]}`,
			model: "claude-x", n: 1, cap: 1024, prompt: [2]int64{llm.PartTokens + 8, llm.PartTokens + 30}, parts: 1, reserve: 1024,
		},
		"a text as a source": {
			shape: llm.Messages, body: `{"max_tokens":1,"messages":[{"content":[{"type":"document","source":{"type":"text","data":"` + strings.Repeat("plain words ", 500) + `"}}]}]}`,
			n: 1, cap: 1, prompt: [2]int64{800, 1200}, reserve: 1,
		},
		"data that a tool is given": {
			shape: llm.Messages, body: `{"max_tokens":1,"messages":[{"content":[{"type":"tool_use","input":{"data":"` + strings.Repeat("x", 7000) + `"}}]}]}`,
			n: 1, cap: 1, prompt: [2]int64{1000, 8000}, reserve: 1,
		},
		"thinking within max_tokens": {
			shape: llm.Messages, body: `{"max_tokens":16000,"thinking":{"type":"enabled","budget_tokens":10000},"messages":[{"content":"a"}]}`,
			n: 1, cap: 16000, prompt: [2]int64{5, 6}, reserve: 16000,
		},
		"thinking apart": {
			shape: llm.Messages, body: `{"max_tokens":4000,"thinking":{"budget_tokens":10000},"messages":[{"content":"a"}]}`,
			n: 1, cap: 14000, prompt: [2]int64{5, 6}, reserve: 14000,
		},
		"embeddings": {
			shape: llm.Embeddings, body: `{"model":"e","input":["one two","three"],"dimensions":256}`, model: "e", n: 1, prompt: [2]int64{2, 5},
		},
		"embeddings of tokens": {
			shape: llm.Embeddings, body: `{"model":"e","input":[[1,2,3],[4,5]]}`, model: "e", n: 1, prompt: [2]int64{5, 5},
		},
		"prompts": {
			shape: llm.Completions, body: `{"prompt":["a","b"],"max_tokens":7,"n":2,"best_of":3}`, n: 6, cap: 7, prompt: [2]int64{2, 2}, reserve: 42,
		},
		"tools": {
			shape: llm.Chat, body: `{"max_tokens":1,"messages":[],"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"town":{"type":"string"}}}}}]}`,
			n: 1, cap: 1, prompt: [2]int64{10, 30}, reserve: 1,
		},
		"enormous": {
			shape: llm.Chat, body: `{"max_tokens":1e300,"n":1e300,"messages":[{"content":"a"}]}`,
			n: 1<<53 - 1, cap: 1<<53 - 1, prompt: [2]int64{5, 5}, reserve: 1<<53 - 6,
		},
		"null": {
			shape: llm.Chat, body: `{"model":null,"n":null,"max_tokens":null,"stream":null,"messages":[{"content":null}]}`,
			n: 1, prompt: [2]int64{4, 4}, uncapped: true,
		},
	} {
		r := readRequest(c.shape, c.body)
		most, capped := r.Reserve()
		if r.Shape != c.shape || !r.Whole || r.Model != c.model || r.N != c.n || r.Cap != c.cap || r.Parts != c.parts ||
			most.Total-r.Prompt != c.reserve || most.Input != r.Prompt || most.Model != c.model || capped == c.uncapped {
			t.Errorf("%s: got %+v, reserves %d beside the prompt, capped %v", name, r, most.Total-r.Prompt, capped)
		}
		if r.Prompt < c.prompt[0] || r.Prompt > c.prompt[1] {
			t.Errorf("%s: a prompt of %d, want %v", name, r.Prompt, c.prompt)
		}
	}
}

func TestRequestGuess(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]llm.Shape{
		`{"messages":[]}`:                       llm.Chat,
		`{"messages":[],"system":"x"}`:          llm.Messages,
		`{"messages":[],"anthropic_version":1}`: llm.Messages,
		`{"input":"x"}`:                         llm.Responses,
		`{"input":"x","model":"text-embed-3"}`:  llm.Embeddings,
		`{"input":"x","dimensions":3}`:          llm.Embeddings,
		`{"prompt":"x"}`:                        llm.Completions,
		`{}`:                                    llm.Unknown,
		`[]`:                                    llm.Unknown,
		`x`:                                     llm.Unknown,
	} {
		if got := readRequest(llm.Unknown, body).Shape; got != want {
			t.Errorf("%s is %s, want %s", body, got, want)
		}
	}
}

// TestRequestCut reads the beginning of bodies, and what is not JSON.
func TestRequestCut(t *testing.T) {
	t.Parallel()
	text := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 1000)
	for _, size := range []int64{-1, int64(len(text)) + 4000} {
		r := llm.ReadRequest(llm.Chat, []byte(text), size)
		least := int64(800)
		if size > 0 {
			least += 1000
		}
		if r.Whole || r.Model != "m" || !r.Stream || r.Prompt < least || r.Prompt > least+500 {
			t.Errorf("size %d: got %+v", size, r)
		}
		if _, ok := r.AskUsage([]byte(text)); ok {
			t.Error("asks for usage in a body that is not whole")
		}
	}
	for _, body := range []string{"", "<xml>" + strings.Repeat("y", 400), `{"messages":[{"content":"` + strings.Repeat("word ", 90) + "\x00" + strings.Repeat("y", 400)} {
		r := readRequest(llm.Chat, body)
		if r.Whole || r.N != 1 || r.Prompt < int64(len(body)/5) {
			t.Errorf("%.20q: got %+v", body, r)
		}
	}
}

// TestRequestUpload takes what is not JSON, such as a recording with its form, for one part of a prompt: its bytes are not text.
func TestRequestUpload(t *testing.T) {
	t.Parallel()
	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x\r\n" + strings.Repeat("\x00\xff", 1<<19)
	for body, size := range map[string]int64{form: int64(len(form)), form[:1000]: 10 << 20, "[1]" + form: -1} {
		if r := llm.ReadRequest(llm.Unknown, []byte(body), size); r.Prompt != llm.PartTokens || r.Parts != 1 || r.Whole {
			t.Errorf("%d of %d bytes: got %+v", len(body), size, r)
		}
	}
	if r := readRequest(llm.Unknown, "hello there"); r.Prompt < 1 || r.Prompt > 3 {
		t.Errorf("a small one: got %+v", r)
	}
}

// TestAskUsage checks each splice as JSON and as bytes.
func TestAskUsage(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"stream":true,"messages":[]}`:                                                `{"stream_options":{"include_usage":true},"stream":true,"messages":[]}`,
		" \n{ \"stream\" : true}":                                                      " \n{\"stream_options\":{\"include_usage\":true}, \"stream\" : true}",
		`{"stream":true,"stream_options":null,"x":1}`:                                  `{"stream":true,"stream_options":{"include_usage":true},"x":1}`,
		`{"stream":true,"stream_options":{}}`:                                          `{"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream":true,"stream_options":{ }}`:                                         `{"stream":true,"stream_options":{"include_usage":true }}`,
		`{"stream":true,"stream_options":{"a":{"include_usage":true}}}`:                `{"stream":true,"stream_options":{"include_usage":true,"a":{"include_usage":true}}}`,
		`{"stream":true,"stream_options":{"include_usage":false,"a":1}}`:               `{"stream":true,"stream_options":{"include_usage":true,"a":1}}`,
		`{"stream":true,"stream_options":{"include_usage": null}}`:                     `{"stream":true,"stream_options":{"include_usage": true}}`,
		`{"stream":true,"stream_options":{"include_\u0075sage":false}}`:                `{"stream":true,"stream_options":{"include_\u0075sage":true}}`,
		`{"stream_options":{"include_usage":true},"stream":true}`:                      "",
		`{"stream":true,"stream_options":{"include_usage":"yes"}}`:                     "",
		`{"stream":true,"stream_options":[]}`:                                          "",
		`{"stream":false}`:                                                             "",
		`{"messages":[]}`:                                                              "",
		`{"stream":true,"stream":false}`:                                               "",
		`{"stream":"true"}`:                                                            "",
		`{"stream":true`:                                                               "",
		`[{"stream":true}]`:                                                            "",
		`{"stream":true,"stream_options":{"include_usage":false},"stream_options":{}}`: `{"stream":true,"stream_options":{"include_usage":false},"stream_options":{"include_usage":true}}`,
		`{"stream":true,"stream_options":{"include_usage":true},"stream_options":{}}`:  `{"stream":true,"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}`,
	} {
		r := readRequest(llm.Chat, body)
		got, ok := r.AskUsage([]byte(body))
		if ok != (want != "") || string(got) != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
		if ok {
			again := llm.ReadRequest(llm.Chat, got, int64(len(got)))
			if !again.AsksUsage || !again.Whole {
				t.Errorf("%s does not ask", got)
			}
		}
	}
	for _, shape := range []llm.Shape{llm.Responses, llm.Messages, llm.Embeddings} {
		const body = `{"stream":true}`
		r := readRequest(shape, body)
		if _, ok := r.AskUsage([]byte(body)); ok {
			t.Errorf("%s are asked for usage, which they report anyway", shape)
		}
	}
}

func FuzzAskUsage(f *testing.F) {
	for _, seed := range []string{
		`{"stream":true,"messages":[{"role":"user","content":"hi"}]}`, `{"stream":true,"stream_options":null}`,
		`{"stream":true,"stream_options":{"include_usage":false}}`, `{"stream":true,"stream_options":{}}`, `{"stream":true,"n":1,"n":2}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := llm.ReadRequest(llm.Chat, body, int64(len(body)))
		if most, _ := r.Reserve(); most.Total < r.Prompt || r.Prompt < 0 || r.N < 1 {
			t.Fatalf("%q: %+v", body, r)
		}
		got, ok := r.AskUsage(body)
		if !ok {
			return
		}
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil || json.Unmarshal(got, &after) != nil {
			t.Fatalf("%q becomes %q", body, got)
		}
		options, _ := after["stream_options"].(map[string]any)
		if options["include_usage"] != true {
			t.Fatalf("%q becomes %q, which does not ask", body, got)
		}
		// All else is the same: what was cut out and put in lies between a common beginning
		// and a common end.
		start := 0
		for start < len(body) && body[start] == got[start] {
			start++
		}
		end := 0
		for end < len(body)-start && body[len(body)-1-end] == got[len(got)-1-end] {
			end++
		}
		if out := string(bytes.TrimSpace(body[start : len(body)-end])); !strings.HasPrefix("false", out) && !strings.HasPrefix("null", out) { //nolint:gocritic // part of a word that was replaced
			t.Fatalf("%q becomes %q: %q is gone", body, got, out)
		}
		delete(options, "include_usage")
		if was, _ := before["stream_options"].(map[string]any); was != nil {
			delete(was, "include_usage")
		}
		for _, m := range []map[string]any{before, after} {
			if o, _ := m["stream_options"].(map[string]any); len(o) == 0 {
				delete(m, "stream_options")
			}
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q becomes %q", body, got)
		}
	})
}

func BenchmarkReadRequest(b *testing.B) {
	body := []byte(`{"model":"gpt-4o","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"` + strings.Repeat("How many geese are grey? ", 40_000) + `"}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		llm.ReadRequest(llm.Chat, body, int64(len(body)))
	}
}
