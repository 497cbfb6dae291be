package testllm

import (
	"cmp"
	"net/http"
	"strings"
)

// object is JSON.
type object = map[string]any

// shape is the form of requests to one path, and of their answers.
type shape struct {
	suffix string
	// idHeader is the response's header with the id of the request.
	idHeader string
	key      func(http.Header) string
	// failure is the body of an error.
	failure func(kind, message string) object
	whole   func(Call, Answer) object
	stream  func(*writer, Call, Answer) // nil: there are no streams, and no output
}

var shapes = []*shape{
	{"/chat/completions", "X-Request-Id", bearer, openAIError, wholeChat, streamChat},
	{"/responses", "X-Request-Id", bearer, openAIError, wholeResponse, streamResponse},
	{"/embeddings", "X-Request-Id", bearer, openAIError, wholeEmbeddings, nil},
	{"/messages", "Request-Id", apiKey, anthropicError, wholeMessage, streamMessage},
}

func shapeOf(path string) *shape {
	for _, s := range shapes {
		if strings.HasSuffix(path, s.suffix) {
			return s
		}
	}
	return nil
}

func (s *shape) fail(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(encode(s.failure(kind, message)))) // the client may be gone
}

func bearer(h http.Header) string {
	key, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	return key
}

// apiKey returns the key of a request to Anthropic. Older clients send it in a header of its own.
func apiKey(h http.Header) string { return cmp.Or(h.Get("X-Api-Key"), bearer(h)) }
