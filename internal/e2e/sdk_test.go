package e2e_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testllm"
)

// provide starts a provider of language models.
func provide(t testing.TB, p *testllm.Provider) string {
	t.Helper()
	s := httptest.NewUnstartedServer(p)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // it dies on purpose
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// sdk runs the script of the official clients, and reads what it prints.
func sdk(t testing.TB, what, url string, out any) {
	t.Helper()
	node(t, filepath.Join("sdk", "calls.js"), []string{what, url}, out)
}

// node runs a script. Its packages are those of directory sdk.
func node(t testing.TB, script string, args []string, out any) {
	t.Helper()
	if _, err := os.Stat("sdk/node_modules/.package-lock.json"); err != nil {
		t.Fatalf("the clients of language models are not installed: make sdk installs them, with Node 20.19 or later: %v", err)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "node", append([]string{script}, args...)...)
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", script, args, err, stderr.String())
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s %q: %v: %s", script, args, err, text)
	}
}

// models is a configuration with a provider under the paths that the script uses, and clients that say who they are.
func models(provider, rules string) string {
	return fmt.Sprintf(`
[identity]
trusted_proxies = ["127.0.0.1"]
user_header     = "X-User-ID"
tenant_header   = "X-Tenant-ID"

[[upstreams]]
path_prefix  = "/openai"
strip_prefix = true
targets      = [%[1]q]

[[upstreams]]
path_prefix  = "/anthropic"
strip_prefix = true
targets      = [%[1]q]
`, provider) + rules
}

// called is what a client has understood.
type called struct {
	Text  string
	Usage map[string]any
}

// TestSDKs calls language models with the official clients for Node, through the gateway.
func TestSDKs(t *testing.T) {
	t.Parallel()
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Input: 20, Cached: 4, Output: 30} }}
	s := serve(t, models(provide(t, p), ""))
	var got map[string]called
	sdk(t, "calls", s.gateway, &got)
	for _, sent := range p.Ledger() {
		c := got[sent.ID]
		if want := map[bool]string{true: "3", false: "word0 word1 word2 "}[sent.ID == "embeddings"]; c.Text != want || !sent.Complete {
			t.Errorf("%s: got %q, want %q", sent.ID, c.Text, want)
		}
		if used := c.Usage != nil; used != (sent.ID != "chat-stream") {
			t.Errorf("%s: got the usage %v", sent.ID, c.Usage)
		}
	}
	if n := len(p.Ledger()); n != 8 {
		t.Errorf("the provider has answered %d calls, want 8", n)
	}
}

// TestSDKRetries has the official clients repeat what is refused, when the answer says that it can pass: not before,
// and once.
func TestSDKRetries(t *testing.T) {
	t.Parallel()
	p := new(testllm.Provider)
	s := serve(t, models(provide(t, p), `
[[rules]]
name     = "requests"
count_by = ["user"]
limits   = [{ name = "requests", limit = "1/2s sliding_log" }]
`))
	var statuses map[string][]int
	sdk(t, "retry", s.gateway, &statuses)
	for _, client := range []string{"openai", "anthropic"} {
		if got := fmt.Sprint(statuses[client]); got != "[200 429 200]" {
			t.Errorf("%s got %s", client, got)
		}
	}
	if n := len(p.Ledger()); n != 4 {
		t.Errorf("the provider has answered %d calls, want 4", n)
	}
}
