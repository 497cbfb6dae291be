package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"

	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

// adminToken is the token that the tests sign in with.
const adminToken = "a-token-for-those-who-look"

// site is a stint with a dashboard.
type site struct {
	*server
	admin string // where the dashboard is, as in http://127.0.0.1:12345
}

// database is the database of a site.
type database int

const (
	inSQLite database = iota
	inPostgres
)

// newSite starts a stint with a gateway and a dashboard.
func newSite(t testing.TB, where database, environ ...string) *site {
	t.Helper()
	at := "sqlite:" + filepath.Join(t.TempDir(), "stint.db")
	if where == inPostgres {
		at = testpostgres.Shared(t).Database(t)
	}
	return startSite(t, newApp(t).address, following(t, at, environ...)...)
}

func startSite(t testing.TB, upstream string, environ ...string) *site {
	t.Helper()
	s := &site{server: serve(t, fmt.Sprintf(`
[identity]
user_header     = "X-User"
tenant_header   = "X-Tenant"
tier_header     = "X-Tier"
trusted_proxies = ["127.0.0.1"]

[[upstreams]]
targets = ["http://%s"]
`, upstream), append([]string{
		"STINT_SERVER_ADMIN_TOKEN=" + adminToken, "STINT_SERVER_CATALOG_NODE=node-1", "STINT_SERVER_RECORD_SAMPLE_EVERY=4",
		"STINT_SERVER_RECORD_REGION=eu",
	}, environ...)...)}
	s.findAdmin(t)
	return s
}

// findAdmin waits until the dashboard is served, and checks that it was built.
func (s *site) findAdmin(t testing.TB) {
	t.Helper()
	s.wait(t, func() error {
		if s.admin = s.url("admin"); s.admin == "" {
			return errors.New("stint does not listen for operators")
		}
		return nil
	})
	if status, page := get(t, s.admin+"/"); status != http.StatusOK || !strings.Contains(page, `src="/assets/`) {
		t.Fatal("the dashboard was not built: make web builds it, with Node 20 or later, and then these tests can run")
	}
}

// must sends a request to the admin API, and fails unless it succeeds.
func (s *site) must(t testing.TB, method, path string, body any, headers ...string) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.admin+"/admin/v1"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if answer, err := io.ReadAll(w.Body); err != nil || w.StatusCode >= 300 {
		t.Fatalf("%s %s: %s, %v: %s", method, path, w.Status, err, answer)
	}
}

// send sends a request through the gateway as a user, and returns the status.
func (s *site) send(t testing.TB, user, path string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.gateway+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", user)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, w.Body); err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	return w.StatusCode
}

// aliceGets waits until requests of alice through the gateway get this status.
func (s *site) aliceGets(t testing.TB, status int, path string) {
	t.Helper()
	wait.Nil(t, "what alice gets", func() error {
		if got := s.send(t, "alice", path); got != status {
			return fmt.Errorf("alice gets %d for %s, want %d", got, path, status)
		}
		return nil
	})
}

// signIn returns an empty tab that is signed in with the token in the configuration.
func (s *site) signIn(t testing.TB, size [2]int64) *tab {
	t.Helper()
	w, err := http.Post(s.admin+"/admin/v1/session", "application/json", strings.NewReader(fmt.Sprintf(`{"token": %q}`, adminToken)))
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != http.StatusOK || len(w.Cookies()) != 1 {
		t.Fatalf("signing in: %s, %v", w.Status, w.Cookies())
	}
	c := w.Cookies()[0]
	out := newTab(t, s.admin, size)
	call(out, network.SetCookie, network.SetCookieParams{
		Name: c.Name, Value: c.Value, URL: s.admin, HTTPOnly: &c.HttpOnly, SameSite: network.CookieSameSiteStrict,
	})
	return out
}

// furnish gives a site the data of a small company: rules, tiers, tenants, users, keys,
// exemptions and bans.
func (s *site) furnish(t testing.TB) {
	t.Helper()
	limit := func(name, limit string) map[string]string { return map[string]string{"name": name, "limit": limit} }
	type list = []any
	type table = map[string]any
	s.must(t, http.MethodPost, "/apply", table{
		"tiers": list{
			table{"name": "free", "display_name": "Free", "price": "0", "limits": table{"hourly": "1000/1h"}},
			table{"name": "pro", "display_name": "Pro", "price": "49 a month", "limits": table{"hourly": "20000/1h", "search": "300/1m"}},
			table{"name": "enterprise", "display_name": "Enterprise", "price": "by contract", "limits": table{"hourly": "200000/1h", "search": "2000/1m", "monthly": "unlimited"}},
		},
		"tenants": list{table{"id": "acme", "name": "Acme", "tier": "enterprise"}, table{"id": "globex", "name": "Globex", "tier": "pro"}},
		"users": list{
			table{"id": "alice", "tier": "pro", "tenant": "globex", "limits": table{"search": table{"limit": "60/1m", "until": time.Now().Add(72 * time.Hour).UTC().Format(time.RFC3339)}}},
			table{"id": "bob", "tier": "free"},
			table{"id": "carol", "tenant": "acme"},
			table{"id": "dave", "tier": "free"},
			table{"id": "erin", "tier": "free", "blocked": table{"reason": "the account is closed"}},
		},
		"rules": list{
			table{"name": "per-user", "count_by": list{"user"}, "limits": list{limit("hourly", "1000/1h"), limit("burst", "20/1s burst=40 token_bucket")}},
			table{"name": "search", "match": table{"paths": list{"/v1/search/{index}"}, "methods": list{"GET", "POST"}}, "count_by": list{"user", "endpoint"}, "limits": list{limit("search", "30/1m")}, "response": table{"message": "Search less often, or ask for another plan."}},
			table{"name": "login", "match": table{"paths": list{"/login"}, "methods": list{"POST"}}, "count_by": list{"ip"}, "limits": list{limit("login", "5/1m fixed_window")}, "penalty": table{"threshold": 3, "within": "1h", "cooldown": "1m", "multipliers": list{1, 5, 30}}},
			table{"name": "reports", "match": table{"paths": list{"/v1/reports/**"}}, "count_by": list{"tenant"}, "limits": list{limit("reports", "20/1s leaky_bucket")}, "action": "throttle", "max_delay": "500ms"},
			table{"name": "uploads-trial", "match": table{"paths": list{"/v1/uploads"}, "methods": list{"POST"}}, "count_by": list{"user"}, "limits": list{limit("uploads", "10/1m")}, "action": "log_only"},
			table{"name": "monthly", "count_by": list{"tenant"}, "limits": list{limit("monthly", "500000/month")}},
			table{"name": "free-search", "group": "plans", "priority": 20, "match": table{"tiers": list{"free"}, "paths": list{"/v1/search/**"}}, "count_by": list{"user"}, "limits": list{limit("free-search", "200/1h")}},
			table{"name": "old-clients", "group": "plans", "priority": 10, "enabled": false, "match": table{"headers": table{"X-Client": "1.x"}}, "action": "block", "response": table{"status": 426, "message": "This client is too old."}},
			table{"name": "internal", "match": table{"paths": list{"/internal/**"}}, "action": "block"},
			table{"name": "health", "match": table{"paths": list{"/health"}}, "action": "allow"},
		},
	})
	for _, key := range []table{
		{"name": "mobile app", "user": "alice", "tenant": "globex"},
		{"name": "nightly report", "tenant": "acme", "tier": "enterprise"},
		{"name": "a trial", "user": "bob", "expires": time.Now().Add(5 * 24 * time.Hour).UTC().Format(time.RFC3339)},
	} {
		s.must(t, http.MethodPost, "/keys", key)
	}
	s.must(t, http.MethodPost, "/exemptions", table{"ip": "192.0.2.0/24", "reason": "our own monitors"})
	s.must(t, http.MethodPost, "/bans", table{"ip": "203.0.113.9", "reason": "tries passwords"})
	s.must(t, http.MethodPut, "/subjects/user/mallory/ban", table{"reason": "resells answers", "until": time.Now().Add(48 * time.Hour).UTC().Format(time.RFC3339)})
	s.must(t, http.MethodPost, "/tokens", table{"name": "deploy", "role": "operator", "expires_in_seconds": 90 * 24 * 3600})
	s.must(t, http.MethodPost, "/tokens", table{"name": "wall display", "role": "viewer"})
	s.must(t, http.MethodPatch, "/rules/search", table{"limits": list{limit("search", "40/1m")}}, "If-Match", "*")
	s.must(t, http.MethodPost, "/rules/uploads-trial/enable", nil)
}

// traffic sends requests of the clients of that company, until the test has ended.
func (s *site) traffic(t testing.TB) {
	t.Helper()
	type request = map[string]any
	var all []request
	add := func(n int, r request) {
		for range n {
			all = append(all, r)
		}
	}
	add(6, request{"method": "GET", "path": "/v1/search/books", "user": "alice", "tenant": "globex", "ip": "198.51.100.7"})
	add(5, request{"method": "GET", "path": "/v1/search/music", "user": "bob", "ip": "198.51.100.24"})
	add(8, request{"method": "GET", "path": "/v1/items", "user": "carol", "tenant": "acme", "ip": "198.51.100.91"})
	add(3, request{"method": "GET", "path": "/v1/reports/today", "user": "carol", "tenant": "acme", "ip": "198.51.100.91"})
	add(2, request{"method": "POST", "path": "/v1/uploads", "user": "dave", "ip": "2001:db8::17"})
	add(1, request{"method": "POST", "path": "/login", "ip": "203.0.113.77"})
	add(1, request{"method": "GET", "path": "/v1/items", "user": "mallory", "ip": "203.0.113.5"})
	add(1, request{"method": "GET", "path": "/internal/metrics", "user": "dave", "ip": "2001:db8::17"})
	add(2, request{"method": "GET", "path": "/v1/items", "ip": "192.0.2.44"})
	var batches [][]byte
	for i := range 8 { // no two seconds are alike
		var some []request
		for j, r := range all {
			if (i*5+j*3)%7 > 1 {
				some = append(some, r)
			}
		}
		text, err := json.Marshal(map[string]any{"requests": some})
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, text)
	}
	s.repeat(t, 250*time.Millisecond, batches...)
}

// repeat sends batches of checks, one after the other, until the test has ended.
func (s *site) repeat(t testing.TB, every time.Duration, batches ...[]byte) {
	t.Helper()
	ended, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		<-stopped
	})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			w, err := http.Post(s.api+"/v1/check/batch", "application/json", bytes.NewReader(batches[i%len(batches)]))
			if err != nil {
				t.Error(err)
				return
			}
			if w.StatusCode != http.StatusOK {
				t.Error(w.Status)
			}
			w.Body.Close()
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
}

// at returns a path of the dashboard with a filter.
func at(path string, filter ...string) string {
	q := url.Values{}
	for i := 0; i < len(filter); i += 2 {
		q.Set(filter[i], filter[i+1])
	}
	if len(q) == 0 {
		return "/#" + path
	}
	return "/#" + path + "?" + q.Encode()
}
