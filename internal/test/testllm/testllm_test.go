package testllm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/testserver"
)

func start(t *testing.T, p *testllm.Provider) string {
	t.Helper()
	s := httptest.NewUnstartedServer(p)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// post sends a request with both kinds of keys.
func post(ctx context.Context, t *testing.T, url, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer sk-1"}, "X-Api-Key": {"sk-2"}, "X-Request-Id": {"seven"}, "Accept-Encoding": {"gzip"}}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestShapes checks that the package that reads usage finds what was sent, in every shape.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, body string
		has        []string
		input      int64
		output     int64
		reported   bool
	}{
		{"/v1/chat/completions", `{"model": "m", "messages": [], "n": 2}`, []string{`"index":1`, `"finish_reason":"stop"`, "word2"}, 40, 9, true},
		{"/v1/chat/completions", `{"model": "m", "messages": [], "max_tokens": 4}`, []string{`"finish_reason":"length"`}, 40, 4, true},
		{
			"/v1/chat/completions", `{"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}, "n": 2, "max_completion_tokens": 3}`,
			[]string{`"choices":[]`, `"index":1`, `"finish_reason":"length"`, "word2", "data: [DONE]\n\n"},
			40, 6, true,
		},
		{"/v1/chat/completions", `{"model": "m", "messages": [], "stream": true}`, []string{"word2", "data: [DONE]\n\n"}, 40, 9, false},
		{"/openai/v1/responses", `{"model": "m", "input": "x"}`, []string{`"status":"completed"`, "word2"}, 40, 9, true},
		{"/v1/responses", `{"model": "m", "input": "x", "stream": true, "max_output_tokens": 2}`, []string{"event: response.created\n", "event: response.incomplete\n"}, 40, 2, true},
		{"/v1/embeddings", `{"model": "m", "input": "x"}`, []string{`"embedding":[0.5,`}, 40, 0, true},
		{"/v1/messages", `{"model": "m", "messages": [], "max_tokens": 100}`, []string{`"stop_reason":"end_turn"`, "word2"}, 40, 9, true},
		{"/v1/messages", `{"model": "m", "messages": [], "max_tokens": 5, "stream": true}`, []string{"event: ping\n", `"stop_reason":"max_tokens"`, "event: message_stop\n"}, 40, 5, true},
	} {
		for _, encoded := range []bool{false, true} {
			name := fmt.Sprintf("%s %s, encoded %v", c.path, c.body, encoded)
			p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer {
				return testllm.Answer{Input: 40, Cached: 16, Output: 9, Gzip: encoded}
			}}
			res := post(t.Context(), t, start(t, p)+c.path, c.body) //nolint:bodyclose // post closes it at the end
			reader := llm.NewResponse(llm.ShapeOf(c.path), 1, res.Header)
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK || (res.Header.Get("Content-Encoding") != "") != encoded {
				t.Fatalf("%s: %v, %v, %v", name, res.Status, res.Header, err)
			}
			reader.Write(body)
			u := reader.End()
			if !encoded {
				for _, want := range c.has {
					if !strings.Contains(string(body), want) {
						t.Errorf("%s: want %s in\n%s", name, want, body)
					}
				}
			}
			if u.Estimated == c.reported || !u.Complete || u.Model != "m" {
				t.Errorf("%s: got %+v", name, u)
			}
			if c.reported && (u.Input != c.input || u.Output != c.output || (u.Cached != 16 && !strings.HasSuffix(c.path, "/embeddings"))) {
				t.Errorf("%s: got %+v, want %d and %d", name, u, c.input, c.output)
			}
			sent := p.Ledger()
			if len(sent) != 1 || sent[0].ID != "seven" || !sent[0].Complete || sent[0].Reported != c.reported || sent[0].Input != 40 {
				t.Errorf("%s: the ledger has %+v", name, sent)
			}
			if c.reported && sent[0].Output != c.output {
				t.Errorf("%s: the ledger has %d, want %d", name, sent[0].Output, c.output)
			}
		}
	}
}

// TestSteps has one stream break off, and another one wait while a third begins and its client leaves.
func TestSteps(t *testing.T) {
	t.Parallel()
	const body = `{"model": "m", "messages": [], "stream": true, "max_tokens": 50}`
	step, waits := make(chan func(context.Context, int) error, 1), make(chan struct{})
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Output: 3, Step: <-step} }}
	url := start(t, p) + "/v1/messages"

	step <- func(_ context.Context, piece int) error {
		if piece == 2 {
			return errors.New("dies")
		}
		return nil
	}
	text, err := io.ReadAll(post(t.Context(), t, url, body).Body) //nolint:bodyclose // likewise
	if err == nil || !strings.Contains(string(text), "word1 ") || strings.Contains(string(text), "word2 ") {
		t.Errorf("got %v after %s", err, text)
	}

	waiting := func(ctx context.Context, _ int) error {
		select {
		case <-waits:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	step <- waiting
	first := post(t.Context(), t, url, body) //nolint:bodyclose // likewise
	ctx, leave := context.WithCancel(t.Context())
	step <- waiting
	post(ctx, t, url, body) //nolint:bodyclose // likewise
	if now, most := p.Open(); now != 2 || most != 2 {
		t.Errorf("%d are open, at most %d were: want 2", now, most)
	}
	leave()
	if err := testserver.Poll(testserver.ReadyLimit, func() error {
		if now, _ := p.Open(); now != 1 {
			return fmt.Errorf("%d are open, want 1", now)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close(waits)
	if text, err := io.ReadAll(first.Body); err != nil || !strings.Contains(string(text), "message_stop") {
		t.Errorf("got %v after %s", err, text)
	}
	var ends []string
	for _, s := range p.Ledger() {
		ends = append(ends, fmt.Sprint(s.Pieces, s.Reported, s.Complete))
	}
	if got := strings.Join(ends, ", "); got != "2 false false, 0 false false, 3 true true" {
		t.Errorf("the ledger has %s", got)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Status: 529} }}
	url := start(t, p)
	for _, c := range []struct {
		path, body string
		status     int
		has        string
	}{
		{"/v1/messages", `{"model": "m", "messages": []}`, 529, `"type":"error"`},
		{"/v1/messages", `{"model": "m"`, 400, `"type":"error"`},
		{"/v1/responses", `{"model": "m"}`, 400, `"param":null`},
		{"/v1/models", `{}`, 404, ""},
	} {
		res := post(t.Context(), t, url+c.path, c.body) //nolint:bodyclose // likewise
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != c.status || !strings.Contains(string(text), c.has) {
			t.Errorf("%s %s: got %s %s, %v", c.path, c.body, res.Status, text, err)
		}
	}
	res, err := http.Post(url+"/v1/responses", "application/json", strings.NewReader(`{"model": "m", "input": ""}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: got %s", res.Status)
	}
}
