package llm

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Refused is what a client that is refused has used up.
type Refused string

const (
	// RefusedRequests is a limit of requests.
	RefusedRequests Refused = "requests"
	// RefusedTokens is a limit of tokens, or of money.
	RefusedTokens Refused = "tokens"
)

// Error returns the body of an error response, in JSON, as clients of this shape know it. Of a status 429, it says what
// is used up.
func (s Shape) Error(status int, message string, what Refused) []byte {
	if s.anthropic() {
		return anthropicError(anthropicType(status), message)
	}
	kind, code := openAIType(status)
	if status == http.StatusTooManyRequests {
		kind = string(what)
	}
	return openAIError(message, kind, code)
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

func openAIType(status int) (kind, code string) {
	switch status {
	case http.StatusUnauthorized:
		return "invalid_request_error", "invalid_api_key"
	case http.StatusTooManyRequests:
		return "requests", "rate_limit_exceeded"
	}
	code = strings.ReplaceAll(strings.ToLower(http.StatusText(status)), " ", "_")
	if status >= http.StatusInternalServerError {
		return "server_error", code
	}
	return "invalid_request_error", code
}

func anthropicError(kind, message string) []byte {
	return []byte(`{"type":"error","error":{"type":` + quote(kind) + `,"message":` + quote(message) + `}}`)
}

func openAIError(message, kind, code string) []byte {
	return []byte(`{"error":{"message":` + quote(message) + `,"type":` + quote(kind) + `,"param":null,"code":` + quote(code) + `}}`)
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
// where [Response.Between] is true. What a [Filter] holds back then is not flushed.
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
	var data string
	switch name := "event: error\n"; {
	case r.shape.anthropic():
		dst, data = append(dst, name...), string(anthropicError("rate_limit_error", message))
	case r.shape == Responses:
		dst = append(dst, name...)
		data = `{"type":"error","code":"rate_limit_exceeded","message":` + quote(message) +
			`,"param":null,"sequence_number":` + strconv.FormatInt(r.events, 10) + `}`
	default:
		data = string(openAIError(message, string(RefusedTokens), "rate_limit_exceeded"))
	}
	return append(dst, "data: "+data+"\n\n"...)
}
