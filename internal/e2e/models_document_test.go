package e2e_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testllm"
)

// TestModelDocument takes the walk of docs/llm.md, under its rules: with curl, and with the clients for Node. Python is
// only parsed, as its clients are no part of the tests.
func TestModelDocument(t *testing.T) {
	t.Parallel()
	const file = "docs/llm.md"
	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Input: 12, Output: 30} }}
	target := provide(t, p)
	config := replace(t, testdoc.In(t, file, "toml")[0].Text, "https://api.openai.com", target, "https://api.anthropic.com", target)
	s := serve(t, config)
	script := "set -e\n"
	for _, b := range testdoc.In(t, file, "sh") {
		if !strings.HasPrefix(b.Text, "stint serve ") {
			script += b.Text
		}
	}
	keys := append(os.Environ(), "OPENAI_API_KEY=sk-o", "ANTHROPIC_API_KEY=sk-a")
	walk := exec.CommandContext(t.Context(), "sh", "-c", replace(t, script, "localhost:8000", s.gateway, "curl", "'"+tool(t, "curl")+"' -fsS"))
	walk.Env = keys
	out, err := walk.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	has(t, string(out), "chat.completion", `"type":"message"`, "anthropic-ratelimit-tokens-remaining: ")
	for line := range strings.Lines(testdoc.In(t, file, "text")[0].Text) {
		has(t, string(out), strings.TrimSpace(line)+"\r\n")
	}

	_, key, _ := strings.Cut(script, "export ")
	key, _, _ = strings.Cut(key, "\n")
	dir := t.TempDir()
	packages, err := filepath.Abs("sdk/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(packages, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "walk.mjs")
	if err := os.WriteFile(program, []byte(replace(t, testdoc.In(t, file, "js")[0].Text, "http://localhost:8000", s.gateway)), 0o600); err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", program)
	node.Env = slices.Concat(keys, []string{key})
	const text = "word0 word1 word2 "
	if out, err := node.CombinedOutput(); err != nil || string(out) != text+text+"\n" {
		t.Errorf("the program for Node: %v: %s", err, out)
	}
	if n := len(p.Ledger()); n != 4 {
		t.Errorf("the provider has answered %d calls, want 4", n)
	}

	python := exec.CommandContext(t.Context(), tool(t, "python3"), "-c", "import ast, sys; ast.parse(sys.stdin.read())")
	python.Stdin = strings.NewReader(testdoc.In(t, file, "python")[0].Text)
	if out, err := python.CombinedOutput(); err != nil {
		t.Errorf("the program in Python: %v: %s", err, out)
	}
	refused(t, config, key)
}

// refused checks what a team gets that has used up its tokens.
func refused(t *testing.T, config, key string) {
	t.Helper()
	s := serve(t, replace(t, config, "100000/1m", "40/1m", "reserve = 500", "reserve = 5"))
	ask := func() (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.gateway+"/openai/v1/chat/completions", strings.NewReader(`{"model": "m", "messages": []}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Stint-Key", strings.TrimPrefix(key, "STINT_KEY="))
		r.Header.Set("Authorization", "Bearer sk-o")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	status, text := ask()
	for range 20 { // it is settled after the answer
		if status != http.StatusOK {
			break
		}
		status, text = ask()
	}
	shown := strings.ReplaceAll(testdoc.In(t, "docs/llm.md", "json")[0].Text, "100000/1m", "40/1m")
	if err := testdoc.SameJSON(text, shown); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("%d: %v", status, err)
	}
}
