package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// health returns the check of a part in /readyz, and the overall status.
func (p *process) health(t testing.TB, part string) (whole, status, detail string) {
	t.Helper()
	code, body := p.get(t, "http", "/readyz")
	var h daemon.Health
	if err := json.Unmarshal([]byte(body), &h); err != nil || (code == http.StatusOK) == (h.Status == "not_ready") {
		t.Fatal(code, body, err)
	}
	for _, c := range h.Checks {
		if c.Name == part {
			return h.Status, c.Status, c.Detail
		}
	}
	t.Fatalf("nothing is said of %s: %s", part, body)
	return "", "", ""
}

// becomes waits until a check has a status, and a detail with these words.
func (p *process) becomes(t testing.TB, part, want, words string) {
	t.Helper()
	wait.For(t, part+" "+want, func() bool {
		whole, status, detail := p.health(t, part)
		return status == want && whole == want && strings.Contains(detail, words)
	})
}

// TestRedisAway stops Redis. The daemon stays ready, decides, and reports the problem.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	p := start(t, few, set("server.counters", redis.URL()))
	p.becomes(t, "counters", "ok", "")
	redis.Kill(t)
	p.becomes(t, "counters", "degraded", "this node counts on its own")
	if answer := check(t, p); !strings.Contains(answer, `"allowed":true`) {
		t.Error(answer)
	}
	if _, text := p.get(t, "admin", "/metrics"); !strings.Contains(text, "stint_redis_up 0") {
		t.Error(text)
	}
	redis.Restart(t)
	p.becomes(t, "counters", "ok", "")

	// It need not be there at the start.
	redis.Kill(t)
	late := start(t, few, set("server.counters", redis.URL()))
	late.becomes(t, "counters", "degraded", "Redis cannot be used")
	redis.Restart(t)
	late.becomes(t, "counters", "ok", "")
}

// TestBrokenCounter has a corrupt counter. The error is in the log, but not in the
// response.
func TestBrokenCounter(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	p := start(t, few, set("server.counters", redis.URL()+patient), set("server.store_budget", "30s"))
	check(t, p)
	keys, _ := redis.Do(t, "KEYS", "*").([]any)
	for _, key := range keys {
		redis.Do(t, "DEL", fmt.Sprint(key))
		redis.Do(t, "LPUSH", fmt.Sprint(key), "nonsense")
	}
	answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"path": "/", "ip": "192.0.2.1"}`))
	do(t, err)
	do(t, answer.Body.Close())
	if answer.StatusCode != http.StatusInternalServerError || !strings.Contains(p.log.String(), `"msg":"call failed","path":"/v1/check"`) {
		t.Errorf("%s, %v, %s", answer.Status, keys, p.log.String())
	}
}

func TestKeysAway(t *testing.T) {
	t.Parallel()
	keys := httptest.NewServer(http.NotFoundHandler())
	defer keys.Close()
	p := start(t, few+fmt.Sprintf("[identity.jwt]\njwks_url = %q\n", keys.URL))
	p.becomes(t, "identity", "degraded", "404")
}

func TestUpstreamAway(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer target.Close()
	p := start(t, many+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\ncheck = { path = \"/up\", interval = \"10ms\" }\n", target.URL))
	p.becomes(t, "upstreams", "degraded", "1 of 1 targets are down: "+target.URL)
	well.Store(true)
	p.becomes(t, "upstreams", "ok", "")
}

// TestConfigProblem makes the file of a daemon invalid. The previous configuration stays in
// use.
func TestConfigProblem(t *testing.T) {
	t.Parallel()
	p := start(t, few)
	put(t, p.path, few+"actoin = \"block\"\n")
	p.becomes(t, "config", "degraded", `did you mean "action"?`)
	if answer := check(t, p); !strings.Contains(answer, `"rule":"few"`) {
		t.Error(answer)
	}
	if _, text := p.get(t, "admin", "/metrics"); !strings.Contains(text, "stint_config_last_reload_successful 0") {
		t.Error(text)
	}
	put(t, p.path, "[server]\nreplicas = 5\n"+few+echo(t))
	p.becomes(t, "config", "degraded", "a restart is needed for changes of server.replicas, upstreams")
	put(t, p.path, many)
	p.becomes(t, "config", "ok", "")
}

// TestDisabled lets everything pass while enabled is false, and counts nothing: also where no rules are asked.
func TestDisabled(t *testing.T) {
	t.Parallel()
	const text = few + `
[[rules]]
name   = "closed"
match  = { paths = ["/closed"] }
action = "block"

[[bans]]
ip = "192.0.2.9"
`
	p := start(t, "enabled = false\n"+text)
	p.becomes(t, "enabled", "degraded", "every request passes")
	asks := map[string]string{
		`{"path": "/", "ip": "192.0.2.1"}`:                  "/v1/check",
		`{"path": "/closed", "ip": "192.0.2.2"}`:            "/v1/check",
		`{"path": "/", "ip": "192.0.2.9"}`:                  "/v1/check",
		`{"subject": "a", "name": "n", "limit": "1/1000h"}`: "/v1/take",
	}
	for range 5 {
		for body, path := range asks {
			if status, answer := p.send(t, p.client, "POST", p.URL("http")+path, body); status != http.StatusOK || !strings.Contains(answer, `"allowed":true`) {
				t.Errorf("%s %s: %d %s", path, body, status, answer)
			}
		}
	}
	put(t, p.path, "enabled = false\n"+text+"# again\n")
	wait.For(t, "the log says it twice", func() bool {
		return strings.Count(p.log.String(), "enabled is false: every request passes, and nothing is counted") == 2
	})
	put(t, p.path, text)
	wait.For(t, "it is enabled", func() bool { return strings.Contains(p.log.String(), "enabled is true") })
	for body, path := range asks {
		want := !strings.Contains(body, "closed") && !strings.Contains(body, "192.0.2.9") // nothing was counted
		if _, answer := p.send(t, p.client, "POST", p.URL("http")+path, body); strings.Contains(answer, `"allowed":true`) != want {
			t.Errorf("%s %s, enabled again: %s", path, body, answer)
		}
	}
	if _, body := p.get(t, "http", "/readyz"); strings.Contains(body, "every request passes") {
		t.Error(body)
	}
}

// TestUpstreamsReplaced replaces the upstreams of the gateway, under load.
func TestUpstreamsReplaced(t *testing.T) {
	t.Parallel()
	say := func(text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
		t.Cleanup(s.Close)
		return fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", s.URL)
	}
	one, two := say("one"), say("two")
	p := start(t, many+one)
	g := newGate(t)
	put(t, p.path, many+g.upstreams())
	do(t, p.Reload(t.Context()))
	slow := make(chan string, 1)
	go func() {
		_, body := p.get(t, "gateway", "/slow")
		slow <- body
	}()
	<-g.begun

	quit := make(chan struct{})
	var failed atomic.Pointer[string]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
			}
			if status, body := p.get(t, "gateway", "/"); status != http.StatusOK {
				failed.Store(&body)
			}
		}
	}()
	for i := range 50 {
		text, want := one, "one"
		if i%2 == 1 {
			text, want = two, "two"
		}
		put(t, p.path, many+text)
		do(t, p.Reload(t.Context()))
		if _, body := p.get(t, "gateway", "/"); body != want {
			t.Errorf("%q, want %q", body, want)
		}
	}
	close(quit)
	<-done
	if s := failed.Load(); s != nil {
		t.Error("a request failed:", *s)
	}
	close(g.open)
	if body := <-slow; body != "done" {
		t.Errorf("what had begun: %q", body)
	}
	put(t, p.path, many)
	do(t, p.Reload(t.Context()))
	if status, body := p.get(t, "gateway", "/"); status != http.StatusNotFound {
		t.Error(status, body)
	}
}
