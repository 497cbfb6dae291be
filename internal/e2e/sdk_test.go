package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestSDKs calls language models with the official clients for Node, through the gateway. They get what the provider has
// sent, and limits in the headers that they know; and what the provider has reported is counted.
func TestSDKs(t *testing.T) {
	t.Parallel()
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Input: 20, Cached: 4, Output: 30} }}
	s := serve(t, models(provide(t, p), `
[[rules]]
name     = "tokens"
count_by = ["tenant"]
cost     = { meter = "llm.total_tokens" }
limits   = [{ name = "tokens", limit = "1000000/1000h fixed_window" }]
response = { style = "auto" }

[[rules]]
name     = "requests"
count_by = ["tenant"]
limits   = [{ name = "requests", limit = "1000/1000h fixed_window" }]

[[rules]]
name     = "money"
count_by = ["tenant"]
cost     = { meter = "llm.cost" }
limits   = [{ name = "money", limit = "1000000/1000h fixed_window" }]

[[prices]]
model  = "*"
input  = "2.00"
output = "10.00"
cached = "1.00"
`), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
	var got struct {
		Calls             map[string]called
		OpenAI, Anthropic map[string]string // headers
	}
	sdk(t, "calls", s.gateway, &got)
	used := int64(0)
	for _, sent := range p.Ledger() {
		c := got.Calls[sent.ID]
		if want := map[bool]string{true: "3", false: "word0 word1 word2 "}[sent.ID == "embeddings"]; c.Text != want || !sent.Complete {
			t.Errorf("%s: got %q, want %q", sent.ID, c.Text, want)
		}
		if (c.Usage != nil) == (sent.ID == "chat-stream") || !sent.Reported {
			t.Errorf("%s: got the usage %v", sent.ID, c.Usage)
		}
		used += sent.Input + sent.Output
	}
	if n := len(p.Ledger()); n != 8 || used != 8*50-30 {
		t.Errorf("the provider has answered %d calls, with %d tokens", n, used)
	}
	const cost = 7*(16*2+4*1+30*10) + 20*2 // embeddings have no cache, and no output
	s.measures(t, fmt.Sprintf(`stint_units_total{meter="llm.total_tokens",rule="tokens",what="used"} %d`, used),
		fmt.Sprintf(`stint_units_total{meter="llm.cost",rule="money",what="used"} %d`, cost))
	for _, h := range []struct {
		of   map[string]string
		want string
	}{
		{got.OpenAI, "x-ratelimit-limit-requests 1000"},
		{got.OpenAI, "x-ratelimit-limit-tokens 1000000"},
		{got.OpenAI, "x-ratelimit-remaining-requests 999"},
		{got.Anthropic, "anthropic-ratelimit-requests-limit 1000"},
		{got.Anthropic, "anthropic-ratelimit-requests-remaining 993"},
		{got.Anthropic, "anthropic-ratelimit-tokens-limit 1000000"},
	} {
		if name, value, _ := strings.Cut(h.want, " "); h.of[name] != value {
			t.Errorf("want %s in %v", h.want, h.of)
		}
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
response = { style = "auto" }
`))
	var statuses map[string][]int
	sdk(t, "retry", s.gateway, &statuses)
	for _, client := range []string{"openai", "anthropic"} {
		slices.Sort(statuses[client])
		if got := fmt.Sprint(statuses[client]); got != "[200 200 429]" {
			t.Errorf("%s got %s", client, got)
		}
	}
	if n := len(p.Ledger()); n != 4 {
		t.Errorf("the provider has answered %d calls, want 4", n)
	}
}

// failure is an error of a client.
type failure struct {
	Class, Code, Type, Message, Text string
	Status                           int
}

// TestSDKRefusals has the official clients understand why they are refused, and that a stream was cut.
func TestSDKRefusals(t *testing.T) {
	t.Parallel()
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer {
		return testllm.Answer{Input: 10, Output: 150, Pieces: 200, Step: func(ctx context.Context, piece int) error {
			if piece == 150 { // by now it is cut
				<-ctx.Done()
			}
			return ctx.Err()
		}}
	}}
	rule := `
[[rules]]
name     = "tokens"
count_by = ["user"]
cost     = { meter = "llm.total_tokens", on_overrun = "cut" }
limits   = [{ name = "tokens", limit = "%d/1000h fixed_window" }]
response = { style = "auto" }
`
	target := provide(t, p)
	for what, c := range map[string]struct {
		limit             int
		openAI, anthropic failure
	}{
		"refuse": {
			100,
			failure{Class: "RateLimitError", Status: 429, Code: "rate_limit_exceeded", Type: "tokens", Message: "used up"},
			failure{Class: "RateLimitError", Status: 429, Type: "rate_limit_error", Message: "used up"},
		},
		"cut": {
			200,
			failure{Class: "APIError", Code: "rate_limit_exceeded", Type: "tokens", Message: "was cut", Text: "word9 "},
			failure{Class: "APIError", Type: "rate_limit_error", Message: "was cut", Text: "word9 "},
		},
	} {
		s := serve(t, models(target, fmt.Sprintf(rule, c.limit)))
		var got struct{ OpenAI, Anthropic failure }
		sdk(t, what, s.gateway, &got)
		for client, pair := range map[string][2]failure{"openai": {got.OpenAI, c.openAI}, "anthropic": {got.Anthropic, c.anthropic}} {
			got, want := pair[0], pair[1]
			if !strings.Contains(got.Message, want.Message) || !strings.Contains(got.Text, want.Text) || strings.Contains(got.Text, "word199 ") {
				t.Errorf("%s, %s: got %+v, want %+v", what, client, got, want)
			}
			if got.Message, got.Text = want.Message, want.Text; got != want {
				t.Errorf("%s, %s: got %+v, want %+v", what, client, got, want)
			}
		}
	}
}
