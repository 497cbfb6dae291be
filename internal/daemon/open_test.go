package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestLoopback checks that listeners without an address are on the loopback interface.
func TestLoopback(t *testing.T) {
	t.Parallel()
	c, err := daemon.Source{}.Load()
	do(t, err)
	got := []string{c.Server.HTTP.Address, c.Server.Gateway.Address, c.Server.GRPC.Address, c.Server.Admin.Address}
	if want := "127.0.0.1:8080 127.0.0.1:8000 127.0.0.1:8081 127.0.0.1:9090"; strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestBound checks that the log says what listeners are bound to, and who can reach them.
func TestBound(t *testing.T) {
	t.Parallel()
	envoy := set("envoy.config", write(t, "shop.yaml", shop))
	bound := func(p *process) map[string]string {
		out := map[string]string{}
		for line := range strings.Lines(p.log.String()) {
			var l struct{ Msg, Listener, Address, URL, Reachable_from string } //nolint:revive // the name in the log
			if do(t, json.Unmarshal([]byte(line), &l)); l.Msg == "listening" {
				out[l.Listener] = l.Address + " " + l.Reachable_from
			} else if strings.HasPrefix(l.Msg, "other machines can ask") {
				out["warned"] += l.Listener
			}
		}
		return out
	}
	port := func(url string) string { return url[strings.LastIndexByte(url, ':'):] }
	p := start(t, few+echo(t), envoy)
	if got := bound(p); len(got) != 4 || got["http"] != "127.0.0.1"+port(p.URL("http"))+" this machine" || got["grpc"] != "127.0.0.1"+port(p.URL("grpc"))+" this machine" {
		t.Error(got)
	}
	p = start(t, few+echo(t), envoy, set("server.http.address", ":0"), set("server.gateway.address", "0.0.0.0:0"), set("server.grpc.address", "0.0.0.0:0"))
	if got := bound(p); !strings.HasSuffix(got["http"], port(p.URL("http"))+" other machines") || !strings.HasSuffix(got["gateway"], port(p.URL("gateway"))+" other machines") ||
		!strings.HasSuffix(got["grpc"], port(p.URL("grpc"))+" other machines") || !strings.HasSuffix(got["admin"], " this machine") || got["warned"] != "httpgrpc" {
		t.Error(got)
	}
	p = start(t, few, envoy, set("server.http.address", ":0"), set("server.grpc.address", ":0"), set("server.http.tokens", "0123456789abcdef"), set("server.grpc.tokens", "0123456789abcdef"))
	if got := bound(p); got["warned"] != "" {
		t.Error(got)
	}
}

// send sends a request to a listener, with headers, and returns the status and the body.
func (p *process) send(t *testing.T, c *http.Client, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	do(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := c.Do(r)
	do(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	do(t, err)
	return answer.StatusCode, string(text)
}

const oneCall = `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`

// TestTokens guards the decision API and the gRPC service with tokens, and replaces these
// while the daemon runs.
func TestTokens(t *testing.T) {
	t.Parallel()
	const first, second, third = "the-first-token-x", "the-second-token-x", "the-third-token-x"
	file := write(t, "token", second+"\n")
	text := fmt.Sprintf("[server]\nhttp = { tokens = [%q], token_files = [%q] }\ngrpc = { tokens = [%q] }\n[envoy]\nconfig = %q\n%s", first, file, first, write(t, "shop.yaml", shop), few)
	p := start(t, text)
	guarded := map[string]string{
		"POST /v1/check": `{"path":"/","ip":"192.0.2.1","peek":true}`, "POST /v1/check/batch": `{"requests":[{"path":"/","peek":true}]}`,
		"POST /v1/take": `{"subject":"a","limit":"9/1m"}`, "GET /v1/usage?user=a": "", "GET /v1/openapi.json": "", "GET /v1/forward-auth": "",
		"POST /v1/reserve": `{"path":"/","ip":"192.0.2.1"}`, "POST /v1/commit": `{"ticket":"x","cost":1}`, "POST /v1/cancel/batch": `{"requests":[{"ticket":"x"}]}`,
		"POST /json": oneCall, "GET /v1/descriptors?domain=shop&entry=user=a": "", "GET /v1/nothing": "",
	}
	answer := func(request string, headers ...string) int {
		method, path, _ := strings.Cut(request, " ")
		code, body := p.send(t, p.client, method, p.URL("http")+path, guarded[request], append(headers, "X-Forwarded-Uri", "/")...)
		if refused := code == http.StatusUnauthorized; refused != strings.Contains(body, "want a token of server.http.tokens") {
			t.Errorf("%s %v: %d %s", request, headers, code, body)
		}
		return code
	}
	for request := range guarded {
		for _, headers := range [][]string{nil, {"Authorization", "Bearer nonsense"}, {"Authorization", "Basic " + first}, {"Authorization", "Bearer " + first + "x"}, {"Authorization", "Bearer"}, {"X-Stint-Token", third}, {"X-Stint-Token", first + "," + second}, {"Authorization", "Bearer " + adminToken}} {
			if code := answer(request, headers...); code != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d", request, headers, code)
			}
		}
		for _, token := range []string{first, second} {
			if code := answer(request, "X-Stint-Token", token); code == http.StatusUnauthorized {
				t.Errorf("%s with a token: %d", request, code)
			}
			// Forward-auth gets the header of the client.
			if code := answer(request, "Authorization", "bearer "+token); (code == http.StatusUnauthorized) != strings.HasSuffix(request, "forward-auth") {
				t.Errorf("%s with a token in Authorization: %d", request, code)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/healthcheck"} {
		if code, body := p.get(t, "http", path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}

	conn, err := grpc.NewClient(p.URL("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	defer conn.Close()
	call := func(pairs ...string) codes.Code {
		_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), pairs...), &rlsv3.RateLimitRequest{Domain: "shop"})
		return status.Code(err)
	}
	for _, pairs := range [][]string{nil, {"authorization", "Bearer " + second}, {"authorization", first}, {"x-stint-token", "nonsense"}} {
		if code := call(pairs...); code != codes.Unauthenticated {
			t.Errorf("a call with %q: %v", pairs, code)
		}
	}
	for _, pairs := range [][]string{{"authorization", "Bearer " + first}, {"x-stint-token", first}} {
		if code := call(pairs...); code != codes.InvalidArgument { // it has no descriptor
			t.Errorf("a call with %q: %v", pairs, code)
		}
	}
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}

	// Tokens are replaced one by one, without a restart.
	put(t, file, third)
	do(t, p.Reload(t.Context()))
	const check = "POST /v1/check"
	for token, want := range map[string]int{first: 200, second: 401, third: 200} {
		if code := answer(check, "X-Stint-Token", token); code != want {
			t.Errorf("%s after the change: %d, want %d", token, code, want)
		}
	}
	put(t, p.path, strings.ReplaceAll(text, fmt.Sprintf("tokens = [%q]", first), "tokens = []"))
	do(t, p.Reload(t.Context()))
	if code := answer(check, "X-Stint-Token", first); code != http.StatusUnauthorized {
		t.Errorf("a token that was taken out: %d", code)
	}
	if code := call(); code != codes.InvalidArgument {
		t.Errorf("a call that needs no token any more: %v", code)
	}
	if h := p.Health(); h.Status != "ok" { // which would list settings that need a restart
		t.Errorf("%+v", h)
	}
	log := p.log.String()
	if !strings.Contains(log, "http: token refused") || !strings.Contains(log, "grpc: token refused") || !strings.Contains(log, `"from":"127.0.0.1:`) {
		t.Error("the log does not have who was refused")
	}
	if _, body := p.get(t, "admin", "/admin/v1/settings"); strings.Contains(log+body, first) || strings.Contains(log+body, third) {
		t.Error("a token is shown")
	}
}

// TestTokenProblems checks the problems of tokens, which do not show them.
func TestTokenProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"good":    {`tokens = ["0123456789abcdef", "fedcba9876543210"]`, ""},
		"short":   {`tokens = ["0123456789abcdef", "hunter2"]`, "stint.toml:2:31: server.http.tokens[1]: want at least 16 ASCII characters without spaces"},
		"spaces":  {`tokens = ["hunter2 hunter2 hunter2"]`, "server.http.tokens[0]: want at least 16 ASCII characters"},
		"twice":   {`tokens = ["hunter2hunter2hunter2", "hunter2hunter2hunter2"]`, "server.http.tokens[1]: is there already, want another"},
		"admin":   {`tokens = ["hunter2hunter2admin"]` + "\n[server.admin]\ntoken = \"hunter2hunter2admin\"", "server.http.tokens[0]: is the admin token, which can do much more: want another"},
		"missing": {`token_files = ["/not/there"]`, `server.http.token_files[0]: "/not/there": want a file that can be read: no such file or directory`},
		"empty":   {fmt.Sprintf("token_files = [%q]", write(t, "empty", "\n")), "server.http.token_files[0]: want at least 16 ASCII characters"},
		"text":    {`tokens = "hunter2hunter2hunter2"`, "server.http.tokens: found a string, want an array"},
	} {
		got := problems(t, "[server.http]\n"+c.text)
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := problems(t, "", "STINT_SERVER_GRPC_TOKENS=0123456789abcdef,hunter2"); !strings.HasPrefix(got, "STINT_SERVER_GRPC_TOKENS: want at least 16") {
		t.Error(got)
	}
}

// TestResetDoors checks who can reset counters at the doors of decisions: operators, whose
// names are in the change log, with what they have reset.
func TestResetDoors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"server", "alice"} {
		testserver.WritePair(t, path(name+".crt"), path(name+".key"), name)
	}
	put(t, path("shop.yaml"), strings.Replace(shop, "minute", "year", 1)) // which does not end meanwhile
	url := fill(t, few)
	text := strings.ReplaceAll(inDatabase, "%", url) + "record = { enabled = false }\n"
	p := start(t, text, set("envoy.config", path("shop.yaml")), set("server.http.tokens", "a-token-for-decisions"))
	token := func(role catalog.Role) string {
		text, _, err := openCatalog(t, url).CreateToken(t.Context(), "test", catalog.Token{Name: "the " + string(role), Role: role})
		do(t, err)
		return text
	}
	viewer, operator := token(catalog.Viewer), token(catalog.Operator)
	const usage, descriptors = "/v1/usage?ip=192.0.2.1", "/v1/descriptors?domain=shop&entry=user=a"
	spend := func() {
		p.send(t, p.client, "POST", p.URL("http")+"/v1/check", `{"path":"/","ip":"192.0.2.1"}`, "X-Stint-Token", "a-token-for-decisions")
		p.send(t, p.client, "POST", p.URL("http")+"/json", oneCall, "X-Stint-Token", "a-token-for-decisions")
	}
	used := func(path string) bool {
		_, body := p.send(t, p.client, "GET", p.URL("http")+path, "", "X-Stint-Token", "a-token-for-decisions")
		return !strings.Contains(body, `"reset_after":0`)
	}
	login, err := p.client.Post(p.URL("admin")+"/admin/v1/session", "application/json", strings.NewReader(`{"token":"`+operator+`"}`)) //nolint:noctx // it is short
	do(t, err)
	do(t, login.Body.Close())
	session, _, _ := strings.Cut(login.Header.Get("Set-Cookie"), ";")
	spend()
	for _, path := range []string{usage, descriptors} {
		for name, c := range map[string]struct {
			headers []string
			want    int
		}{
			"no one":           {nil, 401},
			"a caller":         {[]string{"Authorization", "Bearer a-token-for-decisions"}, 401},
			"another caller":   {[]string{"X-Stint-Token", "a-token-for-decisions"}, 401},
			"a viewer":         {[]string{"Authorization", "Bearer " + viewer}, 403},
			"another page":     {[]string{"Authorization", "Bearer " + operator, "Origin", "https://evil.example"}, 403},
			"a cookie":         {[]string{"Cookie", session}, 401},
			"a forged address": {[]string{"X-Forwarded-For", "127.0.0.1"}, 401},
		} {
			if code, body := p.send(t, p.client, "DELETE", p.URL("http")+path, "", c.headers...); code != c.want || !used(path) {
				t.Errorf("%s of %s: %d %s", path, name, code, body)
			}
		}
		if code, body := p.send(t, p.client, "DELETE", p.URL("http")+path, "", "Authorization", "Bearer "+operator); code != http.StatusNoContent || used(path) {
			t.Errorf("%s of an operator: %d %s", path, code, body)
		}
	}
	changes := func() (out []string) {
		all, _, err := openCatalog(t, url).Changes(t.Context(), catalog.ChangeQuery{Kind: "counters"})
		do(t, err)
		for _, c := range all {
			out = append(out, c.Actor+" "+c.Action+" "+c.ID+" "+string(c.Before))
		}
		return out
	}
	p.send(t, p.client, "DELETE", p.URL("http")+"/v1/usage?user=a&api_key=k&rule=few", "", "Authorization", "Bearer "+adminToken)
	p.send(t, p.client, "POST", p.URL("admin")+"/admin/v1/subjects/user/b/reset", "", "Authorization", "Bearer "+operator)
	want := []string{
		"the operator delete user:b {}", `config delete user:a key:k {"rule":"few"}`, "the operator delete descriptor:shop user=a {}", "the operator delete ip:192.0.2.1 {}",
	}
	if got := changes(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the change log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Who guesses is slowed down, and does not lock out others.
	for i := range 20 {
		code, _ := p.send(t, p.client, "DELETE", p.URL("http")+usage, "", "Authorization", fmt.Sprintf("Bearer guess-%d", i))
		if code != http.StatusUnauthorized && code != http.StatusTooManyRequests || i == 19 && code != http.StatusTooManyRequests {
			t.Errorf("guess %d: %d", i, code)
		}
	}
	if code, body := p.send(t, p.client, "DELETE", p.URL("http")+usage, "", "Authorization", "Bearer "+operator); code != http.StatusNoContent {
		t.Errorf("%d %s", code, body)
	}
	if n := strings.Count(p.log.String(), "admin: sign-in failed"); n == 0 || n > 15 {
		t.Errorf("%d failures are in the log", n)
	}

	// A certificate is enough, unless there is a token.
	p = start(t, text, set("server.http.tls_cert", path("server.crt")), set("server.http.tls_key", path("server.key")), set("server.http.tls_client_ca", path("alice.crt")))
	secure := &http.Client{Transport: &http.Transport{TLSClientConfig: client(t, dir, "alice")}}
	defer secure.CloseIdleConnections()
	if code, body := p.send(t, secure, "DELETE", p.URL("http")+usage, "", "Authorization", "Bearer nonsense"); code != http.StatusUnauthorized {
		t.Errorf("%d %s", code, body)
	}
	if code, body := p.send(t, secure, "DELETE", p.URL("http")+usage, ""); code != http.StatusNoContent {
		t.Errorf("%d %s", code, body)
	}
	if got := changes()[0]; !strings.HasPrefix(got, "certificate ") || !strings.HasSuffix(got, "delete ip:192.0.2.1 {}") {
		t.Error(got)
	}

	// Without a database, the log of the server has it.
	p = start(t, few)
	if code, body := p.send(t, p.client, "DELETE", p.URL("http")+"/v1/usage?api_key=stint_k3jq8w2n_0123456789abcdefghijklmnopq", "", "Authorization", "Bearer "+adminToken); code != http.StatusNoContent {
		t.Errorf("%d %s", code, body)
	}
	if log := p.log.String(); !strings.Contains(log, `"actor":"config","subject":"key:stint_k3jq8w2n"`) {
		t.Error(log)
	}
}

// TestSignInLog checks that failed sign-ins are in the log, with the address.
func TestSignInLog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/admin/v1/status", ""},
		{"POST", "/admin/v1/session", `{"token":"a-wrong-token-of-some-length"}`},
	} {
		p := start(t, few)
		p.send(t, p.client, c.method, p.URL("admin")+c.path, c.body, "Authorization", "Bearer a-wrong-token-of-some-length")
		log, found := p.log.String(), false
		for line := range strings.Lines(log) {
			found = found || strings.Contains(line, `"msg":"admin: sign-in failed","from":"127.0.0.1:`) && strings.Contains(line, `"path":"`+c.path+`"`)
		}
		if !found || strings.Contains(log, "a-wrong-token") {
			t.Errorf("%s: %s", c.path, log)
		}
	}
}

// TestPrivateFiles checks that other users cannot read the files of a server, not even those
// that it finds.
func TestPrivateFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := fmt.Sprintf("[server]\ndatabase = \"sqlite:%s/data/stint.db\"\ncatalog = { last_good = %q }\nrecord = { spool = %q }\n", dir, filepath.Join(dir, "state"), filepath.Join(dir, "state", "spool"))
	modes := func() (all []string) {
		do(t, filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil {
				all = append(all, fmt.Sprintf("%s %o", e.Name(), info.Mode().Perm()))
			}
			return err
		}))
		return all
	}
	p := start(t, text)
	wait.For(t, "the last good rules", func() bool { return strings.Contains(fmt.Sprint(modes()), "last-good-") })
	got := modes()
	for _, name := range []string{"stint.db 600", "stint.db-wal 600", "stint.db-shm 600", "lock 600"} {
		if !strings.Contains(strings.Join(got, "\n"), name) {
			t.Errorf("no %s in %v", name, got)
		}
	}
	for _, file := range got {
		if !strings.HasSuffix(file, " 600") {
			t.Error(file)
		}
	}
	const told = "other users had access to files of this server"
	if strings.Contains(p.log.String(), told) {
		t.Error(p.log.String())
	}
	do(t, p.Stop(context.WithoutCancel(t.Context())))
	put(t, filepath.Join(dir, "state", "spool", "00000000000000000001.bad"), "x")
	do(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return os.Chmod(path, 0o644)
	}))
	p = start(t, text)
	for _, file := range modes() {
		if !strings.HasSuffix(file, " 600") {
			t.Error(file)
		}
	}
	if log := p.log.String(); strings.Count(log, told) != 1 || !strings.Contains(log, filepath.Join(dir, "data", "stint.db")) || !strings.Contains(log, ".bad") {
		t.Error(log)
	}
}
