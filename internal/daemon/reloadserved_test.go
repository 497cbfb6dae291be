package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestReloadWhileServed replaces rules and upstreams while a stream of a language model is sent. The stream ends as it
// would, its place is held until then, and what it has used is charged.
func TestReloadWhileServed(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	provider := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer {
		return testllm.Answer{Input: 40, Output: 9, Step: func(ctx context.Context, piece int) error {
			if piece == 1 {
				begun <- struct{}{}
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}}
	}}
	config := func(more string) string {
		s := httptest.NewServer(provider) // another one after the reload
		t.Cleanup(s.Close)
		return fmt.Sprintf(`
[[upstreams]]
targets = [%q]
[[rules]]
name = "streams"
limits = [{ name = "streams", limit = "1/1h concurrency" }]
[[rules]]
name = "tokens"
cost = { meter = "llm.total_tokens" }
limits = [{ name = "tokens", limit = "1000000/1h" }]
`, s.URL) + more
	}
	p := start(t, config(""))
	ask := func() (status int, body string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL("gateway")+"/v1/chat/completions",
			strings.NewReader(`{"model": "m", "stream": true, "max_tokens": 100, "messages": []}`))
		if err != nil {
			return 0, "", err
		}
		r.Header.Set("Authorization", "Bearer sk-1")
		res, err := p.client.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return res.StatusCode, string(text), err
	}
	first := make(chan string, 1)
	go func() {
		status, body, err := ask()
		first <- fmt.Sprint(status, " ", strings.HasSuffix(body, "data: [DONE]\n\n") && !strings.Contains(body, `"usage":{`), " ", err)
	}()
	<-begun
	put(t, p.path, config(many))
	do(t, p.Reload(t.Context()))
	if status, body, err := ask(); status != http.StatusTooManyRequests {
		t.Errorf("while the place is held: %d %s %v", status, body, err)
	}
	close(goOn)
	if got := <-first; got != "200 true <nil>" {
		t.Errorf("the stream that had begun: %s", got)
	}
	wait.For(t, "the stream is settled", func() bool {
		_, metrics := p.get(t, "admin", "/metrics")
		return strings.Contains(metrics, `stint_units_total{meter="llm.total_tokens",rule="tokens",what="used"} 49`)
	})
	wait.For(t, "the place is free", func() bool {
		status, _, err := ask()
		return err == nil && status == http.StatusOK
	})
}
