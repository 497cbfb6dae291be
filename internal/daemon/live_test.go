package daemon_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/record"
)

// live returns the live view that a query selects.
func (p *process) live(t testing.TB, query string) (s record.Snapshot) {
	t.Helper()
	code, body := p.get(t, "admin", "/admin/v1/live"+query)
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK {
		t.Fatal(code, body, err)
	}
	return s
}

// TestLive checks the live view of daemons, with a database and without.
func TestLive(t *testing.T) {
	t.Parallel()
	const key = "0123456789abcdef"
	for name, c := range map[string]struct {
		text  string
		flags []daemon.Flag
		ip    string // as it is shown
	}{
		"file":     {few, nil, "192.0.2.1"},
		"database": {"[server]\ndatabase = \"" + fill(t, few) + "\"\ncatalog = { last_good = \"none\" }\n", []daemon.Flag{set("server.record.ip", "truncate")}, "192.0.2.0/24"},
		"hash":     {few, []daemon.Flag{set("server.record.ip", "hash"), set("server.record.ip_key", key)}, "0d8541872a98f980f2137d19b3d6a97c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.text, append(c.flags, set("envoy.config", write(t, "shop.yaml", shop)), set("server.catalog.node", "n1"))...)
			if s := p.live(t, ""); s.Node != "n1" || s.Requests != 0 || len(s.Outcomes) != 8 || s.Talkers.Users.ByRequests == nil {
				t.Errorf("before anything: %+v", s)
			}
			for _, user := range []string{"alice", "alice", "bob", "alice", "alice"} {
				answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json",
					strings.NewReader(`{"path": "/", "ip": "192.0.2.1", "user": "`+user+`", "tenant": "acme", "api_key": "abcdefgh"}`))
				do(t, err)
				do(t, answer.Body.Close())
			}
			answer, err := p.client.Post(p.URL("http")+"/json", "application/json",
				strings.NewReader(`{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}`))
			do(t, err)
			do(t, answer.Body.Close())
			s := p.live(t, "")
			if s.Requests <= s.Refused || s.Refused <= 0 || s.Refused != s.Outcomes["denied"] {
				t.Errorf("%+v", s)
			}
			if got := s.Requests / s.Refused; got < 2.99 || got > 3.01 {
				t.Errorf("one in %v was refused, want one in 3, with those of Envoy: %+v", got, s)
			}
			alice, bob := record.Talker{Name: "alice", Requests: 4, Refused: 2}, record.Talker{Name: "bob", Requests: 1}
			if u := s.Talkers.Users; !slices.Equal(u.ByRequests, []record.Talker{alice, bob}) || !slices.Equal(u.ByRefused, []record.Talker{alice}) {
				t.Errorf("users: %+v", u)
			}
			for want, got := range map[string]record.Talkers{"acme": s.Talkers.Tenants, "abcdefgh": s.Talkers.Keys, c.ip: s.Talkers.Addresses} {
				if !slices.Equal(got.ByRefused, []record.Talker{{Name: want, Requests: 5, Refused: 2}}) {
					t.Errorf("%s: %+v", want, got)
				}
			}
			if code, _ := p.get(t, "http", "/admin/v1/live"); code != http.StatusNotFound {
				t.Errorf("those who ask for decisions see it, too: %d", code)
			}
		})
	}
}
