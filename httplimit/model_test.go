package httplimit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

const modelRules = `
[[rules]]
name = "tokens"
match = { paths = ["/v1/**"] }
cost = { meter = "llm.total_tokens", reserve = 50 }
limits = [{ name = "tokens", limit = "10000/1000h fixed_window" }]
response = { style = "auto" }
[[rules]]
name = "output"
match = { paths = ["/v1/**"] }
cost = { meter = "llm.output_tokens", on_error = "refund" }
limits = [{ name = "output", limit = "100000/1000h fixed_window" }]
[[rules]]
name = "money"
match = { paths = ["/v1/**"] }
cost = { meter = "llm.cost", reserve = 7 }
limits = [{ name = "money", limit = "1000000/1000h fixed_window" }]
[[rules]]
name = "cut"
match = { paths = ["/cut/**"] }
cost = { meter = "llm.output_tokens", on_overrun = "cut" }
limits = [{ name = "cut", limit = "400/1000h fixed_window" }]
[[rules]]
name = "requests"
match = { paths = ["/v1/**"] }
limits = [{ name = "requests", limit = "100/1000h fixed_window" }]
`

// models is a gateway to a provider of language models.
type models struct {
	*engine.Engine
	url string
}

func newModels(tb testing.TB, provider http.HandlerFunc) models {
	tb.Helper()
	e := gatewayEngine(tb, modelRules, identity.Options{})
	_, s := gateway(tb, httplimit.GatewayOptions{
		Engine: e, Routes: to(serve(tb, provider, false).URL),
		Prices: map[string]httplimit.ModelPrice{"gpt-x": {Input: 2_000_000, Output: 10_000_000}},
	})
	return models{e, s.URL}
}

// used returns what is used of a limit, when all requests are settled.
func (m models) used(tb testing.TB, path, limit string) int64 {
	tb.Helper()
	if err := m.Settled(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	v, err := m.Peek(tb.Context(), engine.Request{Method: "POST", Path: path, Peer: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Name == limit {
			return l.Decision.Limit - l.Decision.Remaining
		}
	}
	tb.Fatalf("no limit %s", limit)
	return 0
}

// want waits until limits are used: a request is settled after the client has its response.
func (m models) want(tb testing.TB, path string, want map[string]int64) {
	tb.Helper()
	for limit, units := range want {
		wait.Nil(tb, path, func() error {
			if used := m.used(tb, path, limit); used != units {
				return fmt.Errorf("%d are used of %s, want %d", used, limit, units)
			}
			return nil
		})
	}
}

func prompt(tb testing.TB, url, body string) (answer, string) {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return ask(tb, r)
}

// TestModelAnswers counts what answers report. Clients get them as they are.
func TestModelAnswers(t *testing.T) {
	t.Parallel()
	const (
		hello  = `data: {"model":"gpt-x","choices":[{"delta":{"content":"hello"}}]}` + "\n\n"
		report = `data: {"model":"gpt-x","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12,"total_tokens":42}}` + "\n\n"
		done   = "data: [DONE]\n\n"
		whole  = `{"model":"gpt-x","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":30,"completion_tokens":12,"total_tokens":42}}`
		ofX    = `{"model":"gpt-x","max_tokens":20,"messages":[{"role":"user","content":"hi"}]`
	)
	for name, c := range map[string]struct {
		request  string
		sent     string // what the provider gets, if it is not the request
		status   int
		answer   string
		received string // what the client gets, if it is not the answer
		want     map[string]int64
	}{
		"json":         {request: ofX + "}", answer: whole, want: map[string]int64{"tokens": 42, "output": 12, "money": 180, "requests": 1}},
		"stream":       {request: ofX + `,"stream":true,"stream_options":{"include_usage":true}}`, answer: hello + report + done, want: map[string]int64{"tokens": 42, "money": 180}},
		"asked for it": {request: ofX + `,"stream":true}`, sent: `{"stream_options":{"include_usage":true},` + ofX[1:] + `,"stream":true}`, answer: hello + report + done, received: hello + done, want: map[string]int64{"tokens": 42, "output": 12}},
		"no report":    {request: ofX + `,"stream":true,"stream_options":{"include_usage":true}}`, answer: hello + done, want: map[string]int64{"output": 1}},
		"other model":  {request: strings.Replace(ofX, "gpt-x", "other", 1) + "}", answer: strings.Replace(whole, "gpt-x", "other", 1), want: map[string]int64{"tokens": 42, "money": 7}},
		"error":        {request: ofX + "}", status: http.StatusBadRequest, answer: `{"error":{"message":"no"}}`, want: map[string]int64{"output": 0}},
		"long":         {request: ofX + `,"stream":true,"user":"` + strings.Repeat("u", 2<<20) + `"}`, answer: hello + report + done, want: map[string]int64{"tokens": 42}},
		"not json":     {request: "hello", answer: "world", want: map[string]int64{"output": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := c.sent
			if sent == "" {
				sent = c.request
			}
			m := newModels(t, func(w http.ResponseWriter, r *http.Request) {
				if b, err := io.ReadAll(r.Body); err != nil || string(b) != sent || r.ContentLength != int64(len(sent)) {
					t.Errorf("the provider got %d bytes %.300q with length %d, %v", len(b), b, r.ContentLength, err)
				}
				if strings.HasPrefix(c.answer, "data:") {
					w.Header().Set("Content-Type", "text/event-stream")
				} else {
					w.Header().Set("Content-Type", "application/json")
				}
				w.Header().Set("X-Ratelimit-Remaining-Tokens", "1")
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				_, _ = io.WriteString(w, c.answer)
			})
			got, body := prompt(t, m.url+"/v1/chat/completions", c.request)
			want := c.received
			if want == "" {
				want = c.answer
			}
			if body != want {
				t.Errorf("the client got %q, want %q", body, want)
			}
			if left := got.header.Get("X-Ratelimit-Remaining-Requests"); left != "99" || got.header.Get("X-Ratelimit-Remaining-Tokens") == "1" {
				t.Errorf("headers: %v", got.header)
			}
			m.want(t, "/v1/chat/completions", c.want)
		})
	}
}

// TestModelIdle charges no tokens for what asks a model for nothing, whatever its answer says.
func TestModelIdle(t *testing.T) {
	t.Parallel()
	m := newModels(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"data":[],"usage":{"prompt_tokens":30,"completion_tokens":12}}`)
	})
	for i, c := range []struct {
		method, path, body string
		tokens             int64 // so far
	}{
		{"GET", "/v1/models", "", 0},
		{"DELETE", "/v1/responses/r1", "{}", 0},
		{"POST", "/v1/responses/r1/cancel", "", 0},
		{"POST", "/v1/messages/count_tokens", `{"messages":[]}`, 0},
		{"POST", "/v1/threads/t1/messages", `{"content":"hi"}`, 0},
		{"POST", "/v1/messages", `{"messages":[]}`, 42},
		{"POST", "/v1/unknown", `{"model":"x"}`, 84},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, m.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if a, _ := ask(t, r); a.status != http.StatusOK {
			t.Errorf("%s %s: %d", c.method, c.path, a.status)
		}
		m.want(t, c.path, map[string]int64{"tokens": c.tokens, "requests": int64(i + 1)})
	}
}

// TestModelReserve reserves what a request may use while it is served: its prompt and its cap, but not more than a quarter
// of the limit. Without a cap it is what the rule says, and what such requests have used once there are enough of them.
func TestModelReserve(t *testing.T) {
	t.Parallel()
	serving, goOn := make(chan struct{}), make(chan struct{})
	m := newModels(t, func(w http.ResponseWriter, _ *http.Request) {
		serving <- struct{}{}
		<-goOn
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":30,"completion_tokens":70}}`)
	})
	reserved := func(request string) int64 {
		t.Helper()
		before := m.used(t, "/v1/messages", "tokens")
		done := make(chan struct{})
		go func() {
			defer close(done)
			prompt(t, m.url+"/v1/messages", request)
		}()
		<-serving
		during := m.used(t, "/v1/messages", "tokens")
		goOn <- struct{}{}
		<-done
		m.want(t, "/v1/messages", map[string]int64{"tokens": before + 100})
		return during - before
	}
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	if n := reserved(`{"max_tokens":200,` + hi + `}`); n < 203 || n > 210 {
		t.Errorf("with a cap of 200: %d", n)
	}
	if n := reserved(`{"max_tokens":1000000,` + hi + `}`); n != 2500 {
		t.Errorf("with a cap beyond the limit: %d", n)
	}
	for range 21 {
		if n := reserved(`{` + hi + `}`); n != 50 && n < 100 {
			t.Errorf("without a cap: %d", n)
		}
	}
	if n := reserved(`{` + hi + `}`); n < 100 || n > 120 {
		t.Errorf("after requests that used 100: %d", n)
	}
}

// TestModelMeter counts answers and their tokens, those from a cache and those of reasoning apart.
func TestModelMeter(t *testing.T) {
	t.Parallel()
	answers := []string{
		`{"usage":{"prompt_tokens":30,"completion_tokens":70,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":50}}}`,
		`{"usage":{"input_tokens":5,"output_tokens":7,"cache_read_input_tokens":3,"cache_creation_input_tokens":2}}`,
		`{"choices":[{"message":{"content":"hello"}}]}`,
		`{"error":{"message":"overloaded"}}`,
	}
	next := make(chan string, 1)
	provider := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, <-next)
	}), false)
	var meter httplimit.ModelMeter
	e := gatewayEngine(t, modelRules, identity.Options{})
	_, s := gateway(t, httplimit.GatewayOptions{Engine: e, Routes: to(provider.URL), Models: &meter})
	for _, answer := range answers {
		next <- answer
		prompt(t, s.URL+"/v1/chat/completions", `{"max_tokens":20,"messages":[]}`)
	}
	want := httplimit.ModelCounts{Answers: 4, Estimated: 2, Failed: 1, Cached: 19, CacheWritten: 2, Reasoning: 50}
	wait.For(t, "all answers are counted", func() bool { return meter.Counts().Answers == want.Answers })
	got := meter.Counts()
	if got.Input < 40 || got.Output < 78 {
		t.Errorf("%+v: want an input of 40 and an output of 78, and what is estimated", got)
	}
	if got.Input, got.Output = 0, 0; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestModelLargest passes a request that is as large as one may be: usage is not asked for, as it would be larger then.
func TestModelLargest(t *testing.T) {
	t.Parallel()
	const request = `{"stream":true,"max_tokens":20,"messages":[]}`
	provider := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); string(b) != request {
			t.Errorf("the provider got %q, %v", b, err)
		}
	}), false)
	_, s := gateway(t, httplimit.GatewayOptions{Engine: gatewayEngine(t, modelRules, identity.Options{}), Routes: to(provider.URL), MaxBody: int64(len(request))})
	if a, body := prompt(t, s.URL+"/v1/chat/completions", request); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, body)
	}
}

// TestModelDenied denies requests as clients of the providers know it.
func TestModelDenied(t *testing.T) {
	t.Parallel()
	m := newModels(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":30000,"completion_tokens":1}}`)
	})
	const request = `{"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}`
	prompt(t, m.url+"/v1/messages", request)
	m.want(t, "/v1/messages", map[string]int64{"output": 1})
	for path, want := range map[string]struct{ body, header string }{
		"/v1/chat/completions": {`{"error":{"message":"The limit tokens (10000/1000h fixed_window) is used up.`, "X-Ratelimit-Reset-Tokens"},
		"/v1/messages":         {`{"type":"error","error":{"type":"rate_limit_error","message":"The limit tokens`, "Anthropic-Ratelimit-Tokens-Reset"},
	} {
		a, body := prompt(t, m.url+path, request)
		if a.status != http.StatusTooManyRequests || !strings.HasPrefix(body, want.body) || a.header.Get(want.header) == "" ||
			a.header.Get("Retry-After") == "" || a.header.Get("X-Should-Retry") != "false" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %s", path, a.status, a.header, body)
		}
	}
}

// TestModelErrors says whatever goes wrong as clients of the providers know it, on all paths of a rule about models, and on
// those of the providers' APIs. Elsewhere it is a problem.
func TestModelErrors(t *testing.T) {
	t.Parallel()
	const rules = `
[[rules]]
name = "tokens"
match = { paths = ["/up/**", "/slow/**", "/blocked/**"], methods = ["POST"] }
cost = { meter = "llm.total_tokens" }
limits = [{ name = "tokens", limit = "10000/1000h fixed_window" }]
[[rules]]
name = "blocked"
match = { paths = ["/blocked/**"] }
action = "block"
`
	slow := serve(t, waiting(make(chan struct{}, 10)), false).URL
	_, s := gateway(t, httplimit.GatewayOptions{
		Engine:  gatewayEngine(t, rules, identity.Options{Directory: failing{}, JWT: &identity.JWTOptions{Secret: tokenSecret}}),
		MaxBody: 1000,
		Routes: []httplimit.Route{
			{Prefix: "/up", StripPrefix: true, Targets: []string{"http://127.0.0.1:1"}}, // no one listens there
			{Prefix: "/plain", Targets: []string{"http://127.0.0.1:1"}},
			{Prefix: "/blocked", Targets: []string{slow}},
			{Prefix: "/slow", Targets: []string{slow}, Timeout: 50 * time.Millisecond},
		},
	})
	for _, c := range []struct {
		path, header      string
		size              int
		status            int
		openAI, anthropic string // type, code; type
	}{
		{"/up", "", 10, 502, "server_error bad_gateway", "api_error"},
		{"/slow", "", 10, 504, "server_error gateway_timeout", "timeout_error"},
		{"/up", "", 2000, 413, "invalid_request_error request_entity_too_large", "request_too_large"},
		{"/up", "Authorization: Bearer x", 10, 401, "invalid_request_error invalid_api_key", "authentication_error"},
		{"/up", "X-API-Key: stint_0123456789abcdef_0123456789abcdef0123456789abcdef", 10, 503, "server_error service_unavailable", "overloaded_error"},
		{"/blocked", "", 10, 403, "invalid_request_error forbidden", "permission_error"},
		{"", "", 10, 404, "invalid_request_error not_found", "not_found_error"},
		{"/up/%00", "", 10, 400, "invalid_request_error bad_request", "invalid_request_error"},
	} {
		for api, path := range map[string]string{"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "other": "/v1/models", "version": "/v1/models"} {
			if c.path == "" && path == "/v1/models" {
				continue // it might be any API's
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+c.path+path, strings.NewReader(strings.Repeat("x", c.size)))
			if err != nil {
				t.Fatal(err)
			}
			if name, value, ok := strings.Cut(c.header, ": "); ok {
				r.Header.Set(name, value)
			}
			if api == "version" {
				r.Header.Set("Anthropic-Version", "2023-06-01")
			}
			a, body := ask(t, r)
			var got struct {
				Type  string
				Error struct{ Type, Code, Message string }
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error.Message == "" || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("%s%s: %v, %v, %s", c.path, path, err, a.header, body)
			}
			says, want := got.Error.Type+" "+got.Error.Code, c.openAI
			if api == "anthropic" || api == "version" {
				says, want = got.Type+" "+got.Error.Type, "error "+c.anthropic
			}
			if a.status != c.status || says != want {
				t.Errorf("%s%s, %s: %d %s, want %d %s", c.path, path, api, a.status, says, c.status, want)
			}
		}
	}
	if a, body := prompt(t, s.URL+"/plain/x", "{}"); a.status != http.StatusBadGateway || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("elsewhere: %d %v %s", a.status, a.header, body)
	}
}

// TestModelCut cuts a stream that uses more than can be reserved, after a whole event, and ends the response as usual.
func TestModelCut(t *testing.T) {
	t.Parallel()
	const event = `data: {"choices":[{"delta":{"content":"one two three four five six seven eight"}}]}` + "\n\n"
	more, gone := make(chan struct{}), make(chan struct{})
	m := newModels(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
				return
			}
		}
	})
	const path = "/cut/chat/completions"
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+path, strings.NewReader(`{"stream":true,"max_tokens":50,"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	events, lines := 0, bufio.NewReader(res.Body)
	for {
		data, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d events: %q, %v", events, data, err)
		}
		if data+"\n" != event {
			if !strings.Contains(data, `"code":"rate_limit_exceeded"`) {
				t.Errorf("the last event is %s", data)
			}
			break
		}
		_, _ = lines.ReadString('\n')
		events++
		select {
		case more <- struct{}{}:
		case <-gone:
		}
	}
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "\n" {
		t.Errorf("and then %q, %v", rest, err)
	}
	<-gone
	sent := int64(events) * 8
	if used := m.used(t, path, "cut"); used < sent*3/4 || used > 400 || used < 300 {
		t.Errorf("%d of 400 are used after about %d were sent", used, sent)
	}
}

// TestModelEncoded has answers encoded so that they can be read, whatever the client accepts, and not at all if they may be
// changed: then a stream is cut as one is that was never encoded.
func TestModelEncoded(t *testing.T) {
	t.Parallel()
	const (
		object = `{"model":"gpt-x","max_tokens":200,"messages":[{"role":"user","content":"hi"}]}`
		stream = `{"model":"gpt-x","max_tokens":200,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
		asking = `{"model":"gpt-x","max_tokens":200,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
	)
	for name, c := range map[string]struct {
		path, accepts, body string
		want                string
	}{
		"unknown here":      {"/v1/chat/completions", "br, zstd", object, "identity"},
		"several":           {"/v1/chat/completions", "br;q=1.0, GZIP;q=0.8, *;q=0.1", object, "gzip"},
		"not gzip":          {"/v1/chat/completions", "gzip;q=0.0, br", object, "identity"},
		"none":              {"/v1/chat/completions", "identity", object, "identity"},
		"stream":            {"/v1/chat/completions", "gzip, br", asking, "gzip"},
		"asked for usage":   {"/v1/chat/completions", "gzip, br", stream, "identity"},
		"cut":               {"/cut/chat/completions", "gzip, br", asking, "identity"},
		"no rule of models": {"/chat/completions", "br", object, "br"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider := &testllm.Provider{Decide: func(call testllm.Call) testllm.Answer {
				if got := call.Header.Get("Accept-Encoding"); got != c.want {
					t.Errorf("the provider may encode as %q, want %q", got, c.want)
				}
				return testllm.Answer{Input: 30, Output: 120, Pieces: 20, Gzip: true}
			}}
			m := newModels(t, provider.ServeHTTP)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer key")
			r.Header.Set("Accept-Encoding", c.accepts)
			a, body := ask(t, r)
			if a.status != http.StatusOK || len(body) == 0 {
				t.Fatalf("%d %q", a.status, body)
			}
			if got := a.header.Get("Content-Encoding"); (got == "gzip") != (c.want == "gzip") {
				t.Errorf("the client got an answer that is encoded as %q", got)
			}
			if strings.HasPrefix(c.path, "/v1/") {
				m.want(t, c.path, map[string]int64{"tokens": 150, "output": 120})
			}
		})
	}
}

// TestModelCutEncoded cuts the stream of a client that accepts gzip.
func TestModelCutEncoded(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	provider := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer {
		return testllm.Answer{Input: 10, Output: 100_000, Pieces: 5000, Gzip: true}
	}}
	m := newModels(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		provider.ServeHTTP(w, r)
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+"/cut/chat/completions", strings.NewReader(`{"model":"gpt-x","stream":true,"stream_options":{"include_usage":true},"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set("Accept-Encoding", "gzip")
	if a, body := ask(t, r); a.status != http.StatusOK || !strings.Contains(body, `"code":"rate_limit_exceeded"`) {
		t.Errorf("%d ... %q", a.status, body[max(0, len(body)-200):])
	}
	<-gone
}

// TestModelUnanswered charges requests that get no answer for their prompt, by an estimate that is marked so, and nothing if
// the provider has got nothing of them, or has answered with an error. A connection that is upgraded stays charged as it was
// reserved, and is no failure.
func TestModelUnanswered(t *testing.T) {
	t.Parallel()
	const request = `{"model":"gpt-x","max_tokens":2000,"messages":[{"role":"user","content":"How many geese are there on the pond today?"}]}`
	failing := func(body string) func(chan<- struct{}) http.HandlerFunc {
		return func(chan<- struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, body)
			}
		}
	}
	for name, c := range map[string]struct {
		provider func(arrived chan<- struct{}) http.HandlerFunc // nil: it cannot be reached
		route    httplimit.Route
		maxBody  int64
		leaves   bool
		status   int
		tokens   [2]int64 // from, to
		output   int64
		guessed  bool
	}{
		"unreachable": {status: http.StatusBadGateway},
		"too large":   {maxBody: 20, status: http.StatusRequestEntityTooLarge},
		"error":       {provider: failing(`{"error":{"message":"overloaded"}}`), status: http.StatusServiceUnavailable},
		"reported":    {provider: failing(`{"error":{},"usage":{"prompt_tokens":30,"completion_tokens":1}}`), status: http.StatusServiceUnavailable, tokens: [2]int64{31, 31}},
		"broken": {provider: func(chan<- struct{}) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}, status: http.StatusBadGateway, tokens: [2]int64{8, 30}, guessed: true},
		"slow":    {provider: waiting, route: httplimit.Route{Timeout: 50 * time.Millisecond}, status: http.StatusGatewayTimeout, tokens: [2]int64{8, 30}, guessed: true},
		"leaving": {provider: waiting, leaves: true, tokens: [2]int64{8, 30}, guessed: true},
		"upgraded": {provider: func(chan<- struct{}) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Connection", "Upgrade")
				w.Header().Set("Upgrade", "words")
				w.WriteHeader(http.StatusSwitchingProtocols)
			}
		}, status: http.StatusSwitchingProtocols, tokens: [2]int64{2008, 2030}, output: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived := make(chan struct{}, 1)
			book := make(receipts, 1)
			e := ledgerEngine(t, modelRules, identity.Options{}, book)
			c.route.Targets = []string{"http://127.0.0.1:1"} // no one listens there
			if c.provider != nil {
				c.route.Targets = []string{serve(t, c.provider(arrived), false).URL}
			}
			_, s := gateway(t, httplimit.GatewayOptions{Engine: e, Routes: []httplimit.Route{c.route}, MaxBody: c.maxBody})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(request))
			if err != nil {
				t.Fatal(err)
			}
			if c.status == http.StatusSwitchingProtocols {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "words")
			}
			if c.leaves {
				go func() {
					<-arrived
					leave()
				}()
			}
			res, err := http.DefaultClient.Do(r)
			if (err != nil) != c.leaves {
				t.Fatal(err)
			}
			if err == nil {
				res.Body.Close()
				if res.StatusCode != c.status {
					t.Errorf("%d, want %d", res.StatusCode, c.status)
				}
			}
			receipt := <-book
			if receipt.Estimated != c.guessed || receipt.Model != "gpt-x" {
				t.Errorf("an estimate: %t, of %q", receipt.Estimated, receipt.Model)
			}
			for s := range receipt.Rules() {
				switch {
				case s.Rule == "tokens" && (s.Used < c.tokens[0] || s.Used > c.tokens[1]), s.Rule == "output" && s.Used != c.output:
					t.Errorf("%s: %d of %d", s.Rule, s.Used, s.Reserved)
				}
			}
		})
	}
}

// receipts is a ledger.
type receipts chan engine.Receipt

func (receipts) Reserved(string, rule.Meter, int64)        {}
func (r receipts) Settled(receipt *engine.Receipt, _ bool) { r <- *receipt }

// waiting is a provider that never answers.
func waiting(arrived chan<- struct{}) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client leaves
		arrived <- struct{}{}
		<-r.Context().Done()
	}
}

// TestModelLeaves charges a client that leaves for what the provider has sent.
func TestModelLeaves(t *testing.T) {
	t.Parallel()
	m := newModels(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 50 {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word%d \"}}]}\n\n", i)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+"/v1/chat/completions", strings.NewReader(`{"stream":true,"max_tokens":2000,"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for range 99 {
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		if n := m.used(t, "/v1/chat/completions", "output"); n < 2000 {
			if n < 50 || n > 200 {
				t.Errorf("%d tokens for 50 words", n)
			}
			return
		}
	}
}
