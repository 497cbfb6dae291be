package httplimit_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

const forwardRules = `
	[[rules]]
	name     = "search"
	match    = { paths = ["/search"], methods = ["GET"] }
	count_by = ["ip"]
	limits   = [ { name = "search", limit = "1/1m fixed_window" } ]
	[[rules]]
	name     = "closed"
	match    = { paths = ["/admin"] }
	action   = "block"
`

// forward asks whether a request may pass, as a proxy does.
func forward(h http.Handler, target string, headers ...string) *httptest.ResponseRecorder {
	r := from("10.0.0.1", "GET", target)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// TestForwardAuth has each row begin with a request of 192.0.2.1 for /search, so that
// the next is denied if it is counted as the same.
func TestForwardAuth(t *testing.T) {
	t.Parallel()
	const auth = "/v1/forward-auth"
	for _, c := range []struct {
		about, target string
		headers       []string
		status        int
		says          string
	}{
		{"the same", auth, []string{"X-Forwarded-Uri", "/search", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
		{"with a query", auth, []string{"X-Forwarded-Uri", "/search?q=1", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
		{"another client", auth, []string{"X-Forwarded-Uri", "/search", "X-Forwarded-For", "192.0.2.2"}, 200, ""},
		{"another that says it is the first", auth, []string{"X-Forwarded-Uri", "/search", "X-Forwarded-For", "192.0.2.1, 192.0.2.2"}, 200, ""},
		{"another path", auth, []string{"X-Forwarded-Uri", "/other", "X-Forwarded-For", "192.0.2.1"}, 200, ""},
		{"another method", auth, []string{"X-Forwarded-Uri", "/search", "X-Forwarded-Method", "POST", "X-Forwarded-For", "192.0.2.1"}, 200, ""},
		{"as nginx says it", auth, []string{"X-Original-URI", "/search", "X-Original-Method", "GET", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
		{
			"as nginx says it, and a method of the client", auth,
			[]string{"X-Original-URI", "/search", "X-Forwarded-Method", "POST", "X-Forwarded-For", "192.0.2.1"},
			429, "",
		},
		{"a path of the proxy and one of the client", auth, []string{"X-Forwarded-Uri", "/search", "X-Original-URI", "/"}, 400, "X-Original-Uri: want one of"},
		{"both the same", auth, []string{"X-Forwarded-Uri", "/search", "X-Original-URI", "/search", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
		{"two paths", auth, []string{"X-Forwarded-Uri", "/search", "X-Forwarded-Uri", "/"}, 400, "X-Forwarded-Uri: want one of"},
		{"no path", auth, nil, 400, "X-Forwarded-Uri: want the path"},
		{"an empty path", auth, []string{"X-Forwarded-Uri", ""}, 400, "X-Forwarded-Uri: want the path"},
		{"a whole URL", auth, []string{"X-Original-URI", "http://api.example/search", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
		{"a whole URL without a path", auth, []string{"X-Original-URI", "http://api.example?x=/search", "X-Forwarded-For", "192.0.2.1"}, 200, ""},
		{"no path at all", auth, []string{"X-Original-URI", "*", "X-Forwarded-For", "192.0.2.1"}, 200, ""},
		{"for nginx", auth + "?status=403", []string{"X-Original-URI", "/search", "X-Forwarded-For", "192.0.2.1"}, 403, ""},
		{"for nginx, and it passes", auth + "?status=403", []string{"X-Original-URI", "/other", "X-Forwarded-For", "192.0.2.1"}, 200, ""},
		{"what nginx passes on anyway", auth + "?status=401", []string{"X-Original-URI", "/admin"}, 403, ""},
		{"a status that is none", auth + "?status=200", []string{"X-Original-URI", "/admin"}, 400, "status: want a status from 400 to 599"},
		{"a status that is no number", auth + "?status=x", []string{"X-Original-URI", "/admin"}, 400, `found "x"`},
		{"blocked", auth, []string{"X-Forwarded-Uri", "/admin"}, 403, ""},
		{"a ticket for no time", auth + "?ticket=0", []string{"X-Original-URI", "/other"}, 400, `ticket: want for how many seconds the ticket is valid, from 1 to 3600, found "0"`},
		{"a ticket for too long", auth + "?ticket=3601", []string{"X-Original-URI", "/other"}, 400, `found "3601"`},
		{"a ticket, and it is denied", auth + "?ticket=60", []string{"X-Original-URI", "/search", "X-Forwarded-For", "192.0.2.1"}, 429, ""},
	} {
		h := apiOf(t, worldOf(t, forwardRules, identity.Options{}))
		if rec := forward(h, auth, "X-Forwarded-Uri", "/search", "X-Forwarded-For", "192.0.2.1"); rec.Code != 200 || rec.Body.Len() > 0 {
			t.Fatalf("%s", transcript(rec))
		}
		rec := forward(h, c.target, c.headers...)
		if rec.Code != c.status || !strings.Contains(rec.Body.String(), strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("%s: %s, want %d, %q", c.about, transcript(rec), c.status, c.says)
		}
		if told := rec.Header().Get("Retry-After"); (c.status == 429 || strings.HasPrefix(c.about, "for nginx") && c.status == 403) != (told != "") {
			t.Errorf("%s: Retry-After: %q", c.about, told)
		}
		if rec.Code != 200 {
			var p struct{ Status int }
			if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Status != rec.Code {
				t.Errorf("%s: %s", c.about, rec.Body)
			}
		}
	}
}

// TestForwardAuthMethods asks with any method, as proxies do that pass it on.
func TestForwardAuthMethods(t *testing.T) {
	t.Parallel()
	h := apiOf(t, worldOf(t, forwardRules, identity.Options{}))
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"} {
		r := from("10.0.0.1", method, "/v1/forward-auth")
		r.Header.Set("X-Forwarded-Uri", "/other")
		rec := httptest.NewRecorder()
		if h.ServeHTTP(rec, r); rec.Code != 200 {
			t.Errorf("%s: %d", method, rec.Code)
		}
	}
}

// TestForwardAuthTicket gives a ticket to a proxy that asks for one, if there is something to settle.
func TestForwardAuthTicket(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	const auth, ticket = "/v1/forward-auth", "Stint-Ticket"
	if rec := forward(h, auth, "X-Forwarded-Uri", "/", "X-User", "alice"); rec.Code != 200 || rec.Header().Get(ticket) != "" {
		t.Errorf("not asked for: %s", transcript(rec))
	}
	if rec := forward(h, auth+"?ticket=60", "X-Forwarded-Uri", "/"); rec.Code != 200 || rec.Header().Get(ticket) != "" {
		t.Errorf("nothing is counted: %s", transcript(rec))
	}
	rec := forward(h, auth+"?ticket=60&status=403", "X-Forwarded-Uri", "/", "X-User", "alice")
	if rec.Code != 200 || rec.Header().Get(ticket) == "" || rec.Header().Get("X-Ratelimit-Limit") == "" {
		t.Fatalf("there is no ticket: %s", transcript(rec))
	}
	settle := fmt.Sprintf(usedCost, rec.Header().Get(ticket), 30)
	if rec := call(h, "POST", "/v1/commit", settle); rec.Code != 200 {
		t.Error(transcript(rec))
	}
	wantUsed(t, w, 2, 130, 31)
	w.clock.Add(time.Minute)
	if rec := call(h, "POST", "/v1/commit", settle); rec.Code != 400 {
		t.Errorf("it lives too long: %s", transcript(rec))
	}

	places := apiOf(t, worldOf(t, `
		[[rules]]
		name   = "places"
		limits = [ { name = "places", limit = "1/1m concurrency" } ]
	`, identity.Options{}))
	for range 2 {
		rec = forward(places, auth+"?ticket=60", "X-Forwarded-Uri", "/")
		if rec.Code != 200 || rec.Header().Get(ticket) == "" {
			t.Fatalf("there is no ticket for a place: %s", transcript(rec))
		}
		if rec := call(places, "POST", "/v1/commit", fmt.Sprintf(usedCost, rec.Header().Get(ticket), 0)); rec.Code != 200 {
			t.Error(transcript(rec))
		}
	}

	plain := apiOf(t, worldOf(t, forwardRules, identity.Options{}))
	if rec := forward(plain, auth+"?ticket=60", "X-Forwarded-Uri", "/search"); rec.Code != 200 || rec.Header().Get(ticket) != "" {
		t.Errorf("no rule has a meter: %s", transcript(rec))
	}
	none, err := httplimit.API(httplimit.APIOptions{Engine: w.Engine, Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	if rec := forward(none, auth+"?ticket=60", "X-Forwarded-Uri", "/"); rec.Code != 400 || !strings.Contains(rec.Body.String(), "there are no tickets here") {
		t.Error(transcript(rec))
	}
}

func FuzzForwardAuth(f *testing.F) {
	f.Add("/search", "GET", "", "192.0.2.1", "status=403")
	f.Add("", "", "/a?b#c", "[::1]:80, x", "status=")
	f.Add("http://a/b", "\x00", "*", ",,,", "%zz&status=1000")
	h := apiOf(f, worldOf(f, forwardRules, identity.Options{}))
	f.Fuzz(func(t *testing.T, uri, method, original, client, query string) {
		r := from("10.0.0.1", "GET", "/v1/forward-auth")
		r.URL.RawQuery = query
		for name, value := range map[string]string{
			"X-Forwarded-Uri": uri, "X-Forwarded-Method": method, "X-Original-Uri": original, "X-Forwarded-For": client,
		} {
			if value != "" {
				r.Header[name] = []string{value}
			}
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if r.URL.Query().Get("status") != "" {
			return
		}
		switch rec.Code {
		case 200, 400, 403, 429:
		default:
			t.Fatalf("%s", transcript(rec))
		}
	})
}
