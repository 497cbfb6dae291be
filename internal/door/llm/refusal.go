package llm

import (
	"encoding/json"
	"strconv"
)

// Refused is what a client that is refused has used up.
type Refused string

const (
	// RefusedRequests is a limit of requests.
	RefusedRequests Refused = "requests"
	// RefusedTokens is a limit of tokens, or of money.
	RefusedTokens Refused = "tokens"
)

// Refusal returns the body of a response 429, in JSON, as clients of this shape know it.
func (s Shape) Refusal(message string, what Refused) []byte {
	if s.anthropic() {
		return anthropicError(message)
	}
	return openAIError(message, what)
}

func anthropicError(message string) []byte {
	return []byte(`{"type":"error","error":{"type":"rate_limit_error","message":` + quote(message) + `}}`)
}

func openAIError(message string, what Refused) []byte {
	return []byte(`{"error":{"message":` + quote(message) + `,"type":` + quote(string(what)) +
		`,"param":null,"code":"rate_limit_exceeded"}}`)
}

// quote returns a string in JSON, in one line.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""` // strings are always encoded
	}
	return string(b)
}

// Between reports whether the client has whole events only, so that a cut leaves no broken
// one behind.
func (r *Response) Between() bool { return !r.body.Streams() || r.body.Position().Between() }

// Cut adds an error event to dst, as clients of this shape know it, to end a stream that
// uses more than it may. It is well-formed after what was written: it begins with the line
// ends that end an event there. It adds nothing if the answer is not a stream, or is encoded:
// all that is left then is to close the connection.
//
// What the client has of an event that is not complete cannot be taken back: cut streams
// where [Response.Between] is true.
func (r *Response) Cut(dst []byte, message string) []byte {
	if !r.body.Streams() {
		return dst
	}
	switch at := r.body.Position(); {
	case at.Between():
	case at.LineStart():
		dst = append(dst, '\n')
	default:
		dst = append(dst, "\n\n"...)
	}
	name, data := "error", ""
	switch {
	case r.shape.anthropic():
		data = string(anthropicError(message))
	case r.shape == Responses:
		data = `{"type":"error","code":"rate_limit_exceeded","message":` + quote(message) +
			`,"param":null,"sequence_number":` + strconv.FormatInt(r.events, 10) + `}`
	default:
		name, data = "", string(openAIError(message, RefusedTokens))
	}
	if name != "" {
		dst = append(dst, "event: "+name+"\n"...)
	}
	return append(dst, "data: "+data+"\n\n"...)
}
