package llm_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/door/llm"
)

func TestHeaders(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 17, 23, 59, 58, 300_000_000, time.FixedZone("", 3600))
	all := llm.Standings{
		Requests: &llm.Standing{Limit: 60, Remaining: 59, Reset: time.Second},
		Tokens:   &llm.Standing{Limit: 150000, Remaining: -3, Reset: 6 * time.Minute},
		Input:    &llm.Standing{Limit: 7, Remaining: 6, Reset: 5 * time.Millisecond},
		Output:   &llm.Standing{Limit: 5, Remaining: 4, Reset: -time.Second},
	}
	for shape, want := range map[llm.Shape]string{
		llm.Chat: `X-Ratelimit-Limit-Requests: 60
X-Ratelimit-Limit-Tokens: 150000
X-Ratelimit-Remaining-Requests: 59
X-Ratelimit-Remaining-Tokens: 0
X-Ratelimit-Reset-Requests: 1s
X-Ratelimit-Reset-Tokens: 6m0s
`,
		llm.Messages: `Anthropic-Ratelimit-Input-Tokens-Limit: 7
Anthropic-Ratelimit-Input-Tokens-Remaining: 6
Anthropic-Ratelimit-Input-Tokens-Reset: 2026-11-17T22:59:59Z
Anthropic-Ratelimit-Output-Tokens-Limit: 5
Anthropic-Ratelimit-Output-Tokens-Remaining: 4
Anthropic-Ratelimit-Output-Tokens-Reset: 2026-11-17T22:59:59Z
Anthropic-Ratelimit-Requests-Limit: 60
Anthropic-Ratelimit-Requests-Remaining: 59
Anthropic-Ratelimit-Requests-Reset: 2026-11-17T23:00:00Z
Anthropic-Ratelimit-Tokens-Limit: 150000
Anthropic-Ratelimit-Tokens-Remaining: 0
Anthropic-Ratelimit-Tokens-Reset: 2026-11-17T23:05:59Z
`,
	} {
		h := http.Header{}
		shape.SetHeaders(h, now, all)
		var got strings.Builder
		for _, name := range slices.Sorted(maps.Keys(h)) {
			fmt.Fprintf(&got, "%s: %s\n", name, strings.Join(h[name], ", "))
			if name != http.CanonicalHeaderKey(name) {
				t.Errorf("%s is not canonical", name)
			}
		}
		if got.String() != want {
			t.Errorf("%s: got\n%swant\n%s", shape, got.String(), want)
		}
		h = http.Header{}
		if shape.SetHeaders(h, now, llm.Standings{}); len(h) > 0 {
			t.Errorf("%s: got %v of nothing", shape, h)
		}
	}
}

func TestResetFormat(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1ms", 120 * time.Millisecond: "120ms", 8640 * time.Millisecond: "8.64s", 90*time.Second + 1: "1m30.001s",
		24 * time.Hour: "24h0m0s", -time.Hour: "0s",
	} {
		h := http.Header{}
		llm.Responses.SetHeaders(h, time.Time{}, llm.Standings{Requests: &llm.Standing{Reset: d}})
		if got := h.Get("X-Ratelimit-Reset-Requests"); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	const message = "Limit \"tokens\" <reached>.\nTry again in 3s."
	quoted, _ := json.Marshal(message)
	for status, want := range map[int]struct{ openAI, code, anthropic string }{
		400: {"invalid_request_error", "bad_request", "invalid_request_error"},
		401: {"invalid_request_error", "invalid_api_key", "authentication_error"},
		403: {"invalid_request_error", "forbidden", "permission_error"},
		404: {"invalid_request_error", "not_found", "not_found_error"},
		413: {"invalid_request_error", "request_entity_too_large", "request_too_large"},
		429: {"requests", "rate_limit_exceeded", "rate_limit_error"},
		500: {"server_error", "internal_server_error", "api_error"},
		502: {"server_error", "bad_gateway", "api_error"},
		503: {"server_error", "service_unavailable", "overloaded_error"},
		504: {"server_error", "gateway_timeout", "timeout_error"},
	} {
		for shape, want := range map[llm.Shape]string{
			llm.Chat:     `{"error":{"message":%,"type":"` + want.openAI + `","param":null,"code":"` + want.code + `"}}`,
			llm.Messages: `{"type":"error","error":{"type":"` + want.anthropic + `","message":%}}`,
		} {
			want = strings.ReplaceAll(want, "%", string(quoted))
			if got := string(shape.Error(status, message, llm.RefusedRequests)); got != want {
				t.Errorf("%s, %d: got %s, want %s", shape, status, got, want)
			}
		}
	}
}

// TestCut cuts streams at every place. What the client gets are whole events, at most one
// that is broken, and the error.
func TestCut(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"chat.sse":      `{"error":{"message":"Too many tokens.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`,
		"responses.sse": `{"type":"error","code":"rate_limit_exceeded","message":"Too many tokens.","param":null,"sequence_number":#}`,
		"messages.sse":  `{"type":"error","error":{"type":"rate_limit_error","message":"Too many tokens."}}`,
	} {
		for _, variant := range []string{"as it is", "CRLF", "CR", "mark"} {
			stream := []byte(variants[variant](string(load(t, name))))
			for n := range stream {
				r := llm.NewResponse(answers[name].shape, prompt, header(name))
				r.Write(stream[:n])
				between, got := r.Between(), r.Cut(nil, "Too many tokens.")
				r.End()
				before, _ := events(stream[:n])
				after, _ := events(append(stream[:n:n], got...))
				extra := len(after) - len(before)
				want := strings.ReplaceAll(want, "#", strconv.Itoa(len(before)))
				if extra < 1 || extra > 2 || (between && (extra != 1 || got[0] == '\n')) || after[len(after)-1] != want {
					t.Fatalf("%s, %s, cut at %d (between: %v): %q gives %q, want %s", name, variant, n, between, got, after[len(before):], want)
				}
			}
		}
	}
	for _, h := range []http.Header{header("x.json"), {"Content-Encoding": {"gzip"}, "Content-Type": {"text/event-stream"}}} {
		r := llm.NewResponse(llm.Chat, prompt, h)
		defer r.End()
		if got := r.Cut(nil, "x"); got != nil || !r.Between() {
			t.Errorf("%v: got %q", h, got)
		}
	}
}
