package daemon_test

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var tokenText = regexp.MustCompile(`stint_admin_\S+`)

// TestFirstToken starts daemons without a token: one is created and printed once, and works
// until there is another way to sign in.
func TestFirstToken(t *testing.T) {
	t.Parallel()
	file := "[server]\ndatabase = \"sqlite:" + filepath.Join(t.TempDir(), "stint.db") + "\"\ncatalog = { last_good = \"none\" }\n"
	status := func(p *process, token string) int {
		code, _ := fetchAs(t, p.client, token, p.URL("admin")+"/admin/v1/status")
		return code
	}
	run := func(text string, flags ...daemon.Flag) (p *process, token string) {
		p = start(t, text, append(flags, set("server.http.address", ""), set("server.grpc.address", ""))...)
		return p, tokenText.FindString(p.printed.String())
	}
	none := set("server.admin.token", "")
	first, token := run(file, none)
	if token == "" || status(first, token) != http.StatusOK || status(first, adminToken) != http.StatusUnauthorized {
		t.Error(first.printed.String())
	}
	if strings.Contains(first.log.String(), token) {
		t.Error("the log has the token")
	}
	again, other := run(file, none)
	if other != "" || status(again, token) != http.StatusOK {
		t.Error(again.printed.String())
	}
	if given, other := run(file); other != "" || status(given, adminToken) != http.StatusOK || status(given, token) != http.StatusOK {
		t.Error(given.printed.String())
	}
	// Without a database there is one for each process.
	alone, own := run(few, none)
	if own == "" || status(alone, own) != http.StatusOK || status(alone, token) != http.StatusUnauthorized {
		t.Error(alone.printed.String())
	}
	if nowhere, other := run(few, none, set("server.admin.address", "")); other != "" {
		t.Error(nowhere.printed.String())
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
	p = start(t, text, set("server.http.address", ""), set("server.admin.token", ""))
	if printed := p.printed.String(); printed != "" {
		t.Error(printed)
	}
	server.Restart(t)
	until(t, "the token", func() bool { return tokenText.MatchString(p.printed.String()) })
	token := tokenText.FindString(p.printed.String())
	if code, body := fetchAs(t, p.client, token, p.URL("admin")+"/admin/v1/status"); code != http.StatusOK {
		t.Error(code, body)
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
	p := start(t, few, set("server.catalog.node", "n1"), set("envoy.config", write(t, "shop.yaml", shop)))
	var s admin.Status
	if ask(p, "status", &s); s.Mode != "file" || s.File != p.path || s.Database != "none" || s.Counters != "memory" || s.Rules != 1 || s.Node != "n1" ||
		!s.Envoy || s.Record || s.Health.Status != "ok" || s.Doors.HTTP != p.URL("http") || s.Doors.Admin != p.URL("admin") {
		t.Errorf("%+v", s)
	}
	var limits admin.EnvoyList
	if ask(p, "envoy", &limits); !limits.Served || len(limits.Items) != 1 || limits.Items[0].Limit == "" {
		t.Errorf("%+v", limits)
	}
	p = start(t, strings.ReplaceAll(inDatabase, "%", fill(t, few)), set("server.catalog.node", "n2"))
	s = admin.Status{}
	if ask(p, "status", &s); s.Mode != "database" || s.File != "" || s.Database != "sqlite" || s.Revision != 1 || !s.Record || s.Envoy {
		t.Errorf("%+v", s)
	}
	var nodes admin.NodeList
	until(t, "the node", func() bool {
		ask(p, "nodes", &nodes)
		return len(nodes.Items) == 1 && nodes.Items[0].State != nil
	})
	if n := nodes.Items[0]; n.Name != "n2" || !n.Self || n.Behind || n.Revision != 1 || n.State.Status != "ok" || n.State.Counters != "memory" || n.State.Breaker != "none" || n.State.Replicas != 1 {
		t.Errorf("%+v, %+v", n, n.State)
	}
}
