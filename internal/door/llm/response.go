package llm

import (
	"net/http"

	"github.com/stintdev/stint/internal/door/meter"
	"github.com/stintdev/stint/internal/kit/scan"
)

// What a path of a response is for: a number of the report, or one of these.
const (
	isModel = numbers + iota
	isType
	isError
	isText
)

// found says what each path of responsePaths is for.
var responsePaths, found = func() (*scan.Paths, []int) {
	var paths []string
	var found []int
	put := func(what int, names ...string) {
		for _, name := range names {
			paths, found = append(paths, name), append(found, what)
		}
	}
	// Reports are in the response, or in an event that has it as a member.
	for _, in := range [...]string{"", "response.", "message."} {
		put(nInput, in+"usage.prompt_tokens", in+"usage.input_tokens")
		put(nOutput, in+"usage.completion_tokens", in+"usage.output_tokens")
		put(nTotal, in+"usage.total_tokens")
		put(nCached, in+"usage.prompt_tokens_details.cached_tokens", in+"usage.input_tokens_details.cached_tokens",
			in+"usage.prompt_cache_hit_tokens")
		put(nReasoning, in+"usage.completion_tokens_details.reasoning_tokens", in+"usage.output_tokens_details.reasoning_tokens")
		put(nCacheRead, in+"usage.cache_read_input_tokens")
		put(nCacheWritten, in+"usage.cache_creation_input_tokens")
		put(isModel, in+"model")
	}
	put(isType, "type")
	put(isError, "error", "response.error")
	for _, in := range [...]string{"choices[*].delta.", "choices[*].message."} {
		put(isText, in+"content", in+"reasoning_content", in+"reasoning", in+"refusal",
			in+"tool_calls[*].function.name", in+"tool_calls[*].function.arguments",
			in+"function_call.name", in+"function_call.arguments")
	}
	put(isText, "choices[*].text")                                                          // older completions
	put(isText, "delta", "output[*].content[*].text", "output[*].arguments")                // OpenAI's responses
	put(isText, "delta.text", "delta.thinking", "delta.partial_json", "content_block.name") // Anthropic's messages
	put(isText, "content[*].text", "content[*].thinking")
	compiled, err := scan.NewPaths(paths...)
	if err != nil {
		panic("llm: " + err.Error())
	}
	return compiled, found
}()

// Response reads usage from an answer as it passes. It is not safe for concurrent use.
type Response struct {
	shape  Shape
	prompt int64
	body   *meter.Body
	bytes  int64
	events int64

	report  reported
	partial bool     // the report is from the beginning of the answer
	text    Estimate // since the report
	model   string

	event    reported // of the event that is being read
	kind     string   // its type
	complete bool
	failed   bool
}

// NewResponse returns a reader of the answer to a request with this shape and estimate of
// its prompt. The header is that of the response.
func NewResponse(shape Shape, prompt int64, header http.Header) *Response {
	r := &Response{shape: shape, prompt: prompt}
	r.body = meter.NewBody(header, responsePaths, r)
	return r
}

// Write reads a piece of the body, as it is sent. It never fails.
func (r *Response) Write(p []byte) (int, error) {
	r.bytes += int64(len(p))
	r.body.Write(p)
	return len(p), nil
}

// End ends the answer, whole or not, and returns its usage. It must be called; further calls
// return the same.
func (r *Response) End() Usage {
	r.body.Close()
	return r.Usage()
}

// Usage returns what was used so far: as reported, or else as estimated from the text. In a
// stream it grows with each event.
func (r *Response) Usage() Usage {
	more := r.text.Tokens()
	if r.body.Why() == meter.Encoded && r.body.Decoded() == 0 {
		more = ofBytes(r.bytes) // nothing could be read
	}
	u := r.report.usage(more)
	u.Model, u.Complete, u.Failed = r.model, r.complete, r.failed
	hasOutput := r.report.has[nOutput] || (r.shape == Embeddings && r.report.isUsage())
	u.Estimated = !r.report.has[nInput] || !hasOutput || r.partial || more > 0
	if !r.report.has[nInput] {
		u.Input = r.prompt
	}
	if !hasOutput && r.shape != Embeddings {
		u.Output = max(u.Output, 1) // never free
	}
	u.Total = max(u.Total, add(u.Input, u.Output))
	return u
}

// Value implements [scan.Finder].
func (r *Response) Value(path int, v scan.Value) {
	switch what := found[path]; what {
	case isModel:
		if v.Kind == scan.String && len(v.Text) > 0 && string(v.Text) != r.model {
			r.model = string(v.Text)
		}
	case isType:
		r.kind = typeOf(v.Text)
	case isError:
		r.failed = r.failed || v.Kind == scan.Object || v.Kind == scan.String
	case isText:
	default:
		if v.Kind == scan.Number {
			r.event.set(what, v.Number)
		}
	}
}

// typeOf returns the types that mean something here, without allocating for the others.
func typeOf(name []byte) string {
	for _, known := range [...]string{
		"message_start", "message_stop", "response.completed", "response.incomplete", "response.failed", "error",
	} {
		if string(name) == known {
			return known
		}
	}
	return ""
}

// Text implements [scan.Finder].
func (r *Response) Text(path int, piece []byte) {
	if found[path] == isText {
		r.text.Add(piece)
	}
}

// EndText implements [meter.Reader]: an event has ended, or the whole answer.
func (r *Response) EndText(e meter.Event) {
	r.events++
	if e.Whole && r.event.isUsage() {
		r.report.merge(&r.event)
		r.partial = r.kind == "message_start"
		r.text = Estimate{}
	}
	if e.Whole {
		switch r.kind {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			r.complete = true
		case "error":
			r.failed = true
		case "":
			r.complete = r.complete || e.Name == nil // a body that is not a stream
		}
		r.failed = r.failed || r.kind == "response.failed"
	}
	r.complete = r.complete || e.Done
	r.event, r.kind = reported{}, ""
}
