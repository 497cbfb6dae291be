package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// tokenFile matches the file with the first token, in what a daemon prints.
var tokenFile = regexp.MustCompile(`(?m)^  (/.*/(stint-)?admin-token-\d+)$`)

// firstToken returns the file with the first token, and its content, or "".
func (p *process) firstToken(t *testing.T) (file, token string) {
	t.Helper()
	m := tokenFile.FindStringSubmatch(p.printed.String())
	if m == nil {
		return "", ""
	}
	text, err := os.ReadFile(m[1])
	do(t, err)
	info, err := os.Stat(m[1])
	do(t, err)
	if info.Mode().Perm() != 0o600 || !strings.HasPrefix(string(text), "stint_admin_") {
		t.Errorf("%s: %v %s", m[1], info.Mode(), text)
	}
	if all := p.printed.String() + p.log.String(); strings.Contains(all, "stint_admin_") {
		t.Errorf("the token is shown: %s", all)
	}
	return m[1], strings.TrimSpace(string(text))
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// TestFirstToken starts daemons without a token: one is created, in a file, and works until
// there is another way to sign in.
func TestFirstToken(t *testing.T) {
	t.Parallel()
	file := "[server]\ndatabase = \"sqlite:" + filepath.Join(t.TempDir(), "stint.db") + "\"\ncatalog = { last_good = \"none\" }\n"
	state := filepath.Join(t.TempDir(), "state")
	status := func(p *process, token string) int {
		code, _ := fetchAs(t, p.client, token, p.URL("admin")+"/admin/v1/status")
		return code
	}
	run := func(text string, flags ...daemon.Flag) (p *process, name, token string) {
		p = startIn(t, []string{"STATE_DIRECTORY=" + state}, text, append(flags, set("server.http.address", ""), set("server.grpc.address", ""))...)
		name, token = p.firstToken(t)
		return p, name, token
	}
	none := set("server.admin.token", "")
	first, name, token := run(file, none)
	if token == "" || filepath.Dir(name) != state || status(first, token) != http.StatusOK || status(first, adminToken) != http.StatusUnauthorized {
		t.Error(name, first.printed.String())
	}
	if got := daemon.TokenFile([]string{"STATE_DIRECTORY=" + state}, first.URL("admin")); got != name {
		t.Errorf("commands look in %q, want %q", got, name)
	}
	for _, elsewhere := range []string{"http://127.0.0.1:1", "http://192.0.2.1" + name[strings.LastIndexByte(name, '-'):], "nonsense"} {
		if got := daemon.TokenFile([]string{"STATE_DIRECTORY=" + state}, elsewhere); got != "" {
			t.Errorf("for %s, commands look in %q", elsewhere, got)
		}
	}
	again, other, _ := run(file, none)
	if other != "" || status(again, token) != http.StatusOK {
		t.Error(again.printed.String())
	}
	if given, other, _ := run(file); other != "" || status(given, adminToken) != http.StatusOK || status(given, token) != http.StatusOK {
		t.Error(given.printed.String())
	}
	// The token is in the database, and so its file stays for the next process, unless it
	// was revoked.
	address := set("server.admin.address", strings.TrimPrefix(first.URL("admin"), "http://"))
	do(t, first.Stop(context.WithoutCancel(t.Context())))
	next, _, _ := run(file, none, address)
	if !exists(name) || status(next, token) != http.StatusOK {
		t.Error("the file of a valid token is gone")
	}
	do(t, next.Stop(context.WithoutCancel(t.Context())))
	do(t, openCatalog(t, "sqlite:"+strings.Split(file, "\"")[1][len("sqlite:"):]).RevokeToken(t.Context(), "test", token))
	last, _, _ := run(file, address)
	if exists(name) {
		t.Error("the file of a revoked token is still there")
	}
	do(t, last.Stop(context.WithoutCancel(t.Context())))
	// Without a database there is one for each process, which ends with it.
	alone, name, own := run(few, none)
	if own == "" || status(alone, own) != http.StatusOK || status(alone, token) != http.StatusUnauthorized {
		t.Error(alone.printed.String())
	}
	do(t, alone.Stop(context.WithoutCancel(t.Context())))
	if exists(name) {
		t.Error("the file of a lost token is still there")
	}
	if nowhere, other, _ := run(few, none, set("server.admin.address", "")); other != "" {
		t.Error(nowhere.printed.String())
	}
	// Without a state directory, or with one that cannot be written to, it is a temporary file.
	for _, environ := range [][]string{nil, {"STATE_DIRECTORY=" + filepath.Join(write(t, "file", ""), "x")}} {
		p := startIn(t, environ, few, none)
		name, own := p.firstToken(t)
		if own == "" || filepath.Dir(name) != filepath.Clean(os.TempDir()) || status(p, own) != http.StatusOK {
			t.Error(p.printed.String())
		}
		do(t, p.Stop(context.WithoutCancel(t.Context())))
		if exists(name) {
			t.Error(name)
		}
	}
}

// TestFirstTokenPlanted checks that a token is not written to a file that someone else has
// put there.
func TestFirstTokenPlanted(t *testing.T) {
	t.Parallel()
	state, mine := t.TempDir(), write(t, "mine", "")
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
	do(t, err)
	do(t, l.Close())
	name := filepath.Join(state, "admin-token-"+strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	do(t, os.Symlink(mine, name))
	p := startIn(t, []string{"STATE_DIRECTORY=" + state}, few, set("server.admin.token", ""), set("server.admin.address", l.Addr().String()))
	if file, token := p.firstToken(t); file != name || token == "" {
		t.Error(file)
	}
	if text, err := os.ReadFile(mine); err != nil || len(text) > 0 {
		t.Errorf("%s, %v", text, err)
	}
}

// TestFirstTokenLater starts a daemon from its last good rules while the database is down:
// the token is created when the database is back.
func TestFirstTokenLater(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	text := "[server]\ndatabase = \"" + server.Database(t) + "\"\ncatalog = { poll = \"100ms\", last_good = \"" + t.TempDir() + "\" }\nrecord = { enabled = false }\n"
	p := start(t, text, set("server.http.address", ""))
	do(t, p.Stop(context.WithoutCancel(t.Context())))
	server.Kill(t)
	state := t.TempDir()
	p = startIn(t, []string{"STATE_DIRECTORY=" + state}, text, set("server.http.address", ""), set("server.admin.token", ""))
	if printed := p.printed.String(); printed != "" {
		t.Error(printed)
	}
	server.Restart(t)
	wait.For(t, "the token", func() bool { return tokenFile.MatchString(p.printed.String()) })
	_, token := p.firstToken(t)
	if code, body := fetchAs(t, p.client, token, p.URL("admin")+"/admin/v1/status"); code != http.StatusOK {
		t.Error(code, body)
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestAdminDoor checks which roles may use which paths of the admin listener.
func TestAdminDoor(t *testing.T) {
	t.Parallel()
	p := start(t, few, set("envoy.config", write(t, "shop.yaml", shop)))
	for path, open := range map[string]bool{
		"/metrics": true, "/healthz": true, "/readyz": true, "/": true,
		"/rlconfig": false, "/debug/pprof/goroutine?debug=1": false, "/debug/pprof/profile": false, "/debug/pprof/trace": false,
		"/admin/v1/status": false, "/admin/v1/settings": false,
	} {
		code, _ := fetch(t, p.client, p.URL("admin")+path)
		if open != (code == http.StatusOK) || !open && code != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, code)
		}
	}
	if _, body := p.get(t, "admin", "/admin/v1/settings"); strings.Contains(body, adminToken) || !strings.Contains(body, `"server.admin.token"`) {
		t.Error(body)
	}
}

// TestAdminStatus checks the status of a daemon.
func TestAdminStatus(t *testing.T) {
	t.Parallel()
	ask := func(p *process, path string, into any) {
		t.Helper()
		code, body := p.get(t, "admin", "/admin/v1/"+path)
		if err := json.Unmarshal([]byte(body), into); err != nil || code != http.StatusOK {
			t.Fatal(path, code, body, err)
		}
	}
	dir := filepath.Dir(write(t, "shop.yaml", shop))
	if err := os.WriteFile(filepath.Join(dir, ".hidden"), []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, few, set("server.catalog.node", "n1"), set("envoy.config", dir))
	var s admin.Status
	if ask(p, "status", &s); s.Mode != "file" || s.File != p.path || s.Database != "none" || s.Counters != "memory" || s.Rules != 1 || s.Node != "n1" ||
		!s.Envoy || s.Record || s.Health.Status != "ok" || s.Doors.HTTP != p.URL("http") || s.Doors.Admin != p.URL("admin") {
		t.Errorf("%+v", s)
	}
	var limits admin.EnvoyList
	if ask(p, "envoy", &limits); !limits.Served || len(limits.Items) != 1 || limits.Items[0].Limit == "" ||
		!slices.Equal(limits.Skipped, []admin.EnvoySkipped{{Path: filepath.Join(dir, ".hidden"), Why: "its name begins with a dot"}}) {
		t.Errorf("%+v", limits)
	}
	p = start(t, strings.ReplaceAll(inDatabase, "%", fill(t, few)), set("server.catalog.node", "n2"))
	s = admin.Status{}
	if ask(p, "status", &s); s.Mode != "database" || s.File != "" || s.Database != "sqlite" || s.Revision != 1 || !s.Record || s.Envoy {
		t.Errorf("%+v", s)
	}
	var nodes admin.NodeList
	wait.For(t, "the node", func() bool {
		ask(p, "nodes", &nodes)
		return len(nodes.Items) == 1 && nodes.Items[0].State != nil
	})
	if n := nodes.Items[0]; n.Name != "n2" || !n.Self || n.Behind || n.Revision != 1 || n.State.Status != "ok" || n.State.Counters != "memory" || n.State.Breaker != "none" || n.State.Replicas != 1 {
		t.Errorf("%+v, %+v", n, n.State)
	}
}

// TestAdminServers checks that a node reports the servers of a ring with their shares, and which is down.
func TestAdminServers(t *testing.T) {
	t.Parallel()
	ring := testredis.StartRing(t, 2)
	p := start(t, strings.ReplaceAll(inDatabase, "%", fill(t, few)), set("server.counters", ring.URL()))
	servers := func(up ...bool) {
		t.Helper()
		wait.For(t, fmt.Sprint("servers that are up: ", up), func() bool {
			code, body := p.get(t, "admin", "/admin/v1/nodes")
			var nodes admin.NodeList
			if err := json.Unmarshal([]byte(body), &nodes); err != nil || code != http.StatusOK {
				t.Fatal(code, body, err)
			}
			if len(nodes.Items) != 1 || nodes.Items[0].State == nil {
				return false
			}
			is, share := map[string]bool{}, 0.0
			for _, s := range nodes.Items[0].State.Servers {
				is[s.Name], share = s.Up, share+s.Share
			}
			return len(is) == 2 && share > 0.999 && share < 1.001 && is[ring.Nodes()[0].Addr()] == up[0] && is[ring.Nodes()[1].Addr()] == up[1]
		})
	}
	servers(true, true)
	ring.Nodes()[1].Kill(t)
	servers(true, false)
}
