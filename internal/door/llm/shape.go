package llm

import (
	"net/http"
	"strings"
)

// Shape is the form of a request and its response, by who has defined it.
type Shape uint8

const (
	// Unknown is none of the others.
	Unknown Shape = iota
	// Chat is OpenAI's chat completions.
	Chat
	// Completions is their older form, of a prompt and not of messages.
	Completions
	// Responses is OpenAI's responses.
	Responses
	// Embeddings is OpenAI's embeddings. They have no output.
	Embeddings
	// Messages is Anthropic's messages.
	Messages
)

var shapeNames = [...]string{"unknown", "chat", "completions", "responses", "embeddings", "messages"}

// String returns the shape's name, for metrics and logs.
func (s Shape) String() string { return shapeNames[s] }

// anthropic reports whether clients expect what Anthropic's API says, and not OpenAI's.
func (s Shape) anthropic() bool { return s == Messages }

// ShapeOf returns the shape of requests to a path, by its end: services that speak like one
// of the providers keep that, whatever they put before it.
func ShapeOf(path string) Shape {
	path = strings.TrimRight(path, "/")
	before, last := path, ""
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		before, last = path[:i], path[i+1:]
	}
	switch last {
	case "completions":
		if strings.HasSuffix(before, "/chat") || before == "chat" {
			return Chat
		}
		return Completions
	case "responses":
		return Responses
	case "embeddings":
		return Embeddings
	case "messages":
		if strings.Contains(before, "/threads/") { // OpenAI's, which use no tokens
			return Unknown
		}
		return Messages
	}
	return Unknown
}

// Generates reports whether a request with a body may use tokens. Others only ask about models, tokens, files and the like.
// An empty method is any.
func Generates(method, path string) bool {
	if method != "" && !strings.EqualFold(method, http.MethodPost) {
		return false
	}
	path = strings.TrimRight(path, "/")
	switch last := path[strings.LastIndexByte(path, '/')+1:]; last {
	case "count_tokens", "input_tokens", "files", "moderations":
		return false
	default:
		return last != "messages" || !strings.Contains(path, "/threads/")
	}
}
