package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// topology is a folder of deploy/compose. tools/deploy checks that Docker Compose accepts it; here its services are processes of this
// machine, with the same files and variables.
type topology struct {
	dir      string
	Services map[string]struct {
		Command     []string
		Environment map[string]string
		Volumes     []string
	}
}

func newTopology(t *testing.T, name string) *topology {
	t.Helper()
	p := &topology{dir: filepath.Join("../../deploy/compose", name)}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(p.dir, "compose.yaml"))), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// config returns what a service has at a path in its container, with pairs replaced.
func (p *topology) config(t *testing.T, service, path string, pairs ...string) string {
	t.Helper()
	for _, v := range p.Services[service].Volumes {
		from, to, _ := strings.Cut(v, ":")
		to, _, _ = strings.Cut(to, ":")
		if rest, ok := strings.CutPrefix(path, to); ok && strings.HasPrefix(from, ".") {
			return replace(t, read(t, filepath.Join(p.dir, from, rest)), pairs...)
		}
	}
	t.Fatalf("%s of %s: no volume has %s", service, p.dir, path)
	return ""
}

// environ returns the variables of a service, with pairs replaced.
func (p *topology) environ(service string, pairs ...string) (out []string) {
	for name, value := range p.Services[service].Environment {
		out = append(out, name+"="+strings.NewReplacer(pairs...).Replace(value))
	}
	return append(out, "STINT_SERVER_STORE_BUDGET=30s") // a machine that is slow for a moment must not make a node decide by itself
}

const imageConfig = "/etc/stint/stint.toml" // the one that the image uses

func TestComposeSingle(t *testing.T) {
	t.Parallel()
	p, dir := newTopology(t, "single"), t.TempDir()
	config := p.config(t, "stint", imageConfig, "/var/lib/stint", dir)
	s := serve(t, config, p.environ("stint")...)
	file, rules := filepath.Join(dir, "stint.toml"), filepath.Join(dir, "rules.toml")
	write(t, file, config)
	write(t, rules, p.config(t, "stint", "/etc/stint/rules.toml"))
	if out, err := stintCommand(t, nil, "apply", "-f", rules, "--config", file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	limitsLogins(t, s.process, s.api)
}

// limitsLogins waits until the rules that the topologies start with are in use.
func limitsLogins(t *testing.T, p *process, url string) {
	t.Helper()
	n := 0
	p.wait(t, func() error {
		n++
		body := fmt.Sprintf(`{"method": "POST", "path": "/login", "ip": "192.0.2.%d"}`, n%250)
		for i := range 6 {
			status, text, err := postCheck(t, url, body)
			if want := `{"allowed":true`; err != nil || status != http.StatusOK || strings.HasPrefix(text, want) != (i < 5) || strings.Contains(text, `"basis":"local"`) {
				return fmt.Errorf("login %d: %d %s %w", i, status, text, err)
			}
		}
		return nil
	})
}

// postCheck asks for a decision.
func postCheck(t *testing.T, url, request string) (status int, text string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/check", strings.NewReader(request))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestComposeShared(t *testing.T) {
	t.Parallel()
	p := newTopology(t, "shared")
	servers := []string{
		"redis://redis:6379", patiently(testredis.Start(t).URL()),
		"postgres://stint:${POSTGRES_PASSWORD:?run the first line of compose.yaml}@postgres/stint?sslmode=disable", testpostgres.Shared(t).Database(t),
	}
	config := p.config(t, "node-1", imageConfig)
	one := serve(t, config, p.environ("node-1", servers...)...)
	dir := t.TempDir()
	file, rules := filepath.Join(dir, "stint.toml"), filepath.Join(dir, "rules.toml")
	write(t, file, config)
	write(t, rules, p.config(t, "rules", "/etc/stint/rules.toml"))
	command := strings.NewReplacer("/etc/stint/rules.toml", rules, imageConfig, file).Replace(strings.Join(p.Services["rules"].Command, "\n"))
	if out, err := stintCommand(t, p.environ("rules", servers...), strings.Split(command, "\n")...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	two := serve(t, config, p.environ("node-2", servers...)...)
	address := freeAddress(t)
	balancer := runNginx(t, address, p.config(t, "balancer", "/etc/nginx/conf.d/default.conf",
		"listen 8080;", "listen "+address+";", "node-1:8080", strings.TrimPrefix(one.api, "http://"), "node-2:8080", strings.TrimPrefix(two.api, "http://")))
	limitsLogins(t, one.process, balancer)
	two.kill(t) // the other one answers, and no caller notices
	for i := range 20 {
		status, text, err := postCheck(t, balancer, fmt.Sprintf(`{"path": "/", "ip": "198.51.100.%d"}`, i))
		if err != nil || status != http.StatusOK || !strings.HasPrefix(text, `{"allowed":true`) {
			t.Errorf("with one of two nodes: %d %s %v", status, text, err)
		}
	}
}

func TestComposeEnvoy(t *testing.T) {
	t.Parallel()
	p := newTopology(t, "envoy")
	decode(t, p.config(t, "envoy", "/etc/envoy/envoy.yaml"), new(bootstrapv3.Bootstrap))
	limits := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Mkdir(limits, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(limits, "shop.yaml"), p.config(t, "stint", "/etc/stint/ratelimit/shop.yaml"))
	s := serve(t, p.config(t, "stint", imageConfig, "redis://redis:6379", patiently(testredis.Start(t).URL()), "/etc/stint/ratelimit", limits),
		append(p.environ("stint"), "STINT_SERVER_GRPC_ADDRESS=127.0.0.1:0")...)
	s.wait(t, func() error {
		if s.url("grpc") == "" {
			return errors.New("stint does not listen for Envoy")
		}
		return nil
	})
	envoy := connect(t, "the topology", s.process, s.url("grpc"))
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
