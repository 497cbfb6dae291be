package llm

import (
	"slices"

	"github.com/stintdev/stint/internal/kit/scan"
)

// splice is where a request says whether its stream reports usage.
type splice struct {
	present    bool // there are stream_options
	inner      bool // with include_usage, and the rest is about that
	kind       scan.Kind
	start, end int64 // of the value, or of the first byte of an object
}

// AskUsage returns the body of the request with usage asked for in its stream. All other
// bytes are as they were. It returns false, and no body, if that is not needed, or not
// possible: the stream reports usage anyway, or the body is not whole.
//
// Who sends this body must remove what the client has not asked for: see [Filter].
func (r *Request) AskUsage(body []byte) ([]byte, bool) {
	if !r.Whole || !r.Stream || r.AsksUsage || (r.Shape != Chat && r.Shape != Completions) {
		return nil, false
	}
	const option = `"include_usage":true`
	s := r.splice
	switch {
	case !s.present:
		at := slices.Index(body, '{') + 1
		return insert(body, at, at, `"stream_options":{`+option+`},`), true // there is a member: stream
	case s.inner && (s.kind == scan.False || s.kind == scan.Null):
		return insert(body, int(s.start), int(s.end), "true"), true
	case s.inner:
		return nil, false // it is wrong, which is for the provider to say
	case s.kind == scan.Null:
		return insert(body, int(s.start), int(s.end), "{"+option+"}"), true
	case s.kind == scan.Object:
		comma := ","
		if isEmptyObject(body[s.end:]) {
			comma = ""
		}
		return insert(body, int(s.end), int(s.end), option+comma), true
	}
	return nil, false
}

// insert replaces a part of the body.
func insert(body []byte, start, end int, text string) []byte {
	out := make([]byte, 0, len(body)+len(text))
	out = append(out, body[:start]...)
	out = append(out, text...)
	return append(out, body[end:]...)
}

// isEmptyObject reports whether an object ends that has just begun.
func isEmptyObject(p []byte) bool {
	for _, c := range p {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c == '}'
		}
	}
	return false
}
