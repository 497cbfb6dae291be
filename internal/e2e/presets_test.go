package e2e_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

const presets = "../../deploy/config"

// presetToken is in the file that presets name.
const presetToken = "the-token-of-the-services"

// preset is a file of deploy/config, with what it names replaced by what is here.
type preset struct {
	text    string
	environ []string
}

// newPreset reads a file, writes the files of /etc/stint that it names, and replaces these servers and directories.
func newPreset(t *testing.T, name string, pairs ...string) *preset {
	t.Helper()
	dir := t.TempDir()
	testserver.WritePair(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "localhost")
	write(t, filepath.Join(dir, "http.token"), presetToken)
	write(t, filepath.Join(dir, "ticket.keys"), strings.Repeat("0123456789abcdef", 2))
	text := read(t, filepath.Join(presets, name))
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Errorf("%s has no %s", name, pairs[i])
		}
	}
	return &preset{
		text: strings.NewReplacer(append(pairs, "/etc/stint", dir)...).Replace(text),
		// A machine that is slow for a moment must not make a node decide by itself.
		environ: []string{"STINT_SERVER_STORE_BUDGET=30s"},
	}
}

// apply writes the rules of a file into the database of the preset, as its comments say.
func (p *preset) apply(t *testing.T, rules, more string) {
	t.Helper()
	dir := t.TempDir()
	config, file := filepath.Join(dir, "stint.toml"), filepath.Join(dir, "rules.toml")
	write(t, config, p.of(t))
	write(t, file, read(t, filepath.Join(presets, rules))+more)
	for _, args := range [][]string{{"rules", "check", config}, {"migrate", "up", "--config", config}, {"apply", "-f", file, "--config", config}} {
		if out, err := stintCommand(t, p.environ, args...); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
}

// of returns the file for a machine of its own.
func (p *preset) of(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(p.text, "/var/lib/stint", t.TempDir())
}

func (p *preset) serve(t *testing.T, environ ...string) *server {
	t.Helper()
	return serve(t, p.of(t), slices.Concat(p.environ, environ)...)
}

// passes sends the same request to nodes in turn, and returns how many of so many pass.
func passes(t *testing.T, n int, request string, nodes ...*server) (passed int) {
	t.Helper()
	for i := range n {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, nodes[i%len(nodes)].api+"/v1/check", strings.NewReader(request))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+presetToken)
		status, body, _ := answerOf(t, http.DefaultClient, r)
		if status != http.StatusOK || strings.Contains(body, `"basis":"local"`) {
			t.Fatalf("%d: %s", status, body)
		}
		if strings.HasPrefix(body, `{"allowed":true`) {
			passed++
		}
	}
	return passed
}

func answerOf(t *testing.T, c *http.Client, r *http.Request) (status int, body string, h http.Header) {
	t.Helper()
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

// TestPresets has a test for each file of deploy/config; those of regions are in internal/daemon.
func TestPresets(t *testing.T) {
	t.Parallel()
	tested := map[string]func(t *testing.T){
		"dev.toml": presetDev, "single-region.toml": presetSingleRegion, "cluster.toml": presetCluster,
		"envoy.toml": presetEnvoy, "llm-gateway.toml": presetModels,
		"rules.toml": nil, "llm-rules.toml": nil, "envoy-limits.yaml": nil, // are used by these
	}
	files, err := os.ReadDir(presets)
	if err != nil {
		t.Fatal(err)
	}
	guide := read(t, "../../docs/configuration.md")
	for _, f := range files {
		test, ok := tested[f.Name()]
		if !ok && !strings.HasPrefix(f.Name(), "regions-") {
			t.Errorf("no test starts %s", f.Name())
		}
		if !strings.Contains(guide, "(../deploy/config/"+f.Name()+")") {
			t.Errorf("docs/configuration.md does not name %s", f.Name())
		}
		if delete(tested, f.Name()); test != nil {
			t.Run(f.Name(), func(t *testing.T) { t.Parallel(); test(t) })
		}
	}
	if len(tested) > 0 {
		t.Errorf("these are not there: %v", tested)
	}
}

func presetDev(t *testing.T) {
	t.Helper()
	s := newPreset(t, "dev.toml").serve(t, "STINT_SERVER_LOG_FORMAT=json")
	if n := passes(t, 7, `{"path": "/search", "ip": "127.0.0.1", "headers": {"X-User-ID": "alice"}}`, s); n != 5 {
		t.Errorf("%d searches passed, want 5", n)
	}
	if n := passes(t, 7, `{"method": "POST", "path": "/login", "ip": "192.0.2.1"}`, s); n != 3 {
		t.Errorf("%d attempts passed, want 3", n)
	}
	if v := s.check(t, `{"method": "POST", "path": "/login", "ip": "192.0.2.1"}`); v.Outcome != "banned" {
		t.Errorf("after attempts that were denied: %+v", v)
	}
}

func presetSingleRegion(t *testing.T) {
	t.Helper()
	p := newPreset(t, "single-region.toml",
		"redis://redis:6379", patiently(testredis.Start(t).URL()),
		"postgres://stint@postgres/stint?sslmode=verify-full", testpostgres.Shared(t).Database(t))
	twoNodes(t, p)
}

func presetCluster(t *testing.T) {
	t.Helper()
	database := testpostgres.Start(t)
	p := newPreset(t, "cluster.toml",
		"redis+cluster://redis-1:6379,redis-2:6379,redis-3:6379", patiently(apart(testredis.SharedCluster(t).URL())),
		"postgres://stint@postgres/stint?sslmode=verify-full", database.URL(),
		"postgres://stint@postgres-standby/stint?sslmode=verify-full", database.Standby(t).URL())
	twoNodes(t, p)
}

// twoNodes has two nodes of a preset enforce rules.toml together.
func twoNodes(t *testing.T, p *preset) {
	t.Helper()
	p.apply(t, "rules.toml", "\n[[users]]\nid = \"alice\"\ntier = \"premium\"\n")
	nodes := []*server{p.serve(t, "STINT_SERVER_CATALOG_NODE=one"), p.serve(t, "STINT_SERVER_CATALOG_NODE=two")}
	if n := passes(t, 8, `{"method": "POST", "path": "/login", "ip": "192.0.2.1"}`, nodes...); n != 5 {
		t.Errorf("%d attempts passed, want 5", n)
	}
	wait.Nil(t, "bob is limited", func() error {
		if n := passes(t, 60, `{"path": "/api/orders", "user": "bob"}`, nodes...); n < 10 || n == 60 {
			return fmt.Errorf("%d of 60 requests passed", n)
		}
		return nil
	})
	if n := passes(t, 40, `{"path": "/api/orders", "user": "alice"}`, nodes...); n != 40 {
		t.Errorf("%d requests of a premium user passed, want 40", n)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, nodes[0].api+"/v1/check", strings.NewReader(`{"path": "/"}`))
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := answerOf(t, http.DefaultClient, r); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d: %s", status, body)
	}
}

func presetEnvoy(t *testing.T) {
	t.Helper()
	p := newPreset(t, "envoy.toml", "redis://redis:6379", patiently(testredis.Start(t).URL()))
	dir := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	limits := read(t, filepath.Join(presets, "envoy-limits.yaml"))
	write(t, filepath.Join(dir, "shop.yaml"), limits)
	s := p.serve(t, "STINT_ENVOY_CONFIG="+dir, "STINT_SERVER_GRPC_ADDRESS=127.0.0.1:0", "STINT_ENVOY_METRICS_ADDRESS=127.0.0.1:0")
	s.wait(t, func() error {
		if s.url("grpc") == "" {
			return errors.New("stint does not listen for Envoy")
		}
		return nil
	})
	envoy := connect(t, "the preset", s.process, s.url("grpc"))
	passed := 0
	for range 101 {
		if a := envoy.ask(t, short(t, "shop: route=shop,user=bot-7")); a.GetOverallCode() == rlsv3.RateLimitResponse_OK {
			passed++
		}
	}
	if passed != 100 {
		t.Errorf("%d requests of a bot passed, want 100", passed)
	}
}

// presetKey is a key, and presetHash the hash of its secret.
const (
	presetKey  = "stint_searchTeam01_kq3N8sVb2XwZ7rTgY5mPj9LdH4cF"
	presetHash = "sha256:d4c82b521bb029cd12faa395dbc6a973d01cd4b55d408e5a1f9894f1b040bd2f"
)

func presetModels(t *testing.T) {
	t.Helper()
	provider := new(testllm.Provider)
	url := provide(t, provider)
	p := newPreset(t, "llm-gateway.toml",
		"redis://redis:6379", patiently(testredis.Start(t).URL()),
		"postgres://stint@postgres/stint?sslmode=verify-full", testpostgres.Shared(t).Database(t),
		"https://api.openai.com", url, "https://api.anthropic.com", url)
	p.apply(t, "llm-rules.toml", fmt.Sprintf("\n[[api_keys]]\nid = \"searchTeam01\"\nhash = %q\ntenant = \"search-team\"\n", presetHash))
	s := p.serve(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the certificate is of this test
	defer client.CloseIdleConnections()
	ask := func(key string) (int, string, http.Header) {
		t.Helper()
		body := bytes.NewReader([]byte(`{"model": "gpt-4o", "max_completion_tokens": 300, "messages": [{"role": "user", "content": "How many geese?"}]}`))
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.gateway+"/openai/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer of-the-provider")
		if key != "" {
			r.Header.Set("X-Stint-Key", key)
		}
		return answerOf(t, client, r)
	}
	if status, body, _ := ask(""); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d: %s", status, body)
	}
	status, body, h := ask(presetKey)
	for status == http.StatusServiceUnavailable && t.Context().Err() == nil { // the machine is slow, and the key was not read in time
		status, body, h = ask(presetKey)
	}
	if status != http.StatusOK || h.Get("X-Ratelimit-Limit-Tokens") != "100000" || h.Get("X-Ratelimit-Limit-Requests") != "600" || len(provider.Ledger()) != 1 {
		t.Errorf("%d, %v: %s", status, h, body)
	}
}
