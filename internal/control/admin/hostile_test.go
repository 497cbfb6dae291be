package admin_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/torture"
)

// hostile are ids that an attacker may try.
var hostile = []string{
	"'", `"`, `';--`, "' OR '1'='1", `"; DROP TABLE stint_rules; --`, "x' UNION SELECT hash FROM stint_tokens --",
	"..", ".", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/", "//", "a/b", `a\b`, "%", "%00", "%2e%2e", "_", "*", "?", "#", "a b", " ",
	"\x00", "a\x00b", "\xff\xfe", "\xed\xa0\x80", "\n", "\r\nX-Evil: 1", "\u202e", "\ufeff", "\ufffd", "<script>alert(1)</script>", "${jndi:ldap://x}", "{{7*7}}", "{id}",
	strings.Repeat("a", 300), strings.Repeat("é", 600), strings.Repeat("a", 100_000), "-1", "0", "NaN", "null", "true", "\U0010ffff",
}

// TestHostileIDs calls every operation that has an id, with ids that do not exist: each with some of them,
// so that all are tried, or each with all.
func TestHostileIDs(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	before := h.do(http.MethodGet, "/export?users=true", nil).want(http.StatusOK).body
	every := 6
	if torture.Enabled {
		every = 1
	}
	for n, pattern := range h.api31.operations() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{") || strings.HasSuffix(path, "/live") || method == http.MethodPut && strings.HasPrefix(path, "/subjects/") {
			continue // what makes what is not there
		}
		for i, id := range hostile {
			if (i+n)%every != 0 {
				continue
			}
			path := strings.NewReplacer("{kind}", "user", "{id}", url.PathEscape(id), "{limit_name}", url.PathEscape(id), "{revision}", url.PathEscape(id)).Replace(path)
			body := any(nil)
			if method == http.MethodPut || method == http.MethodPatch || strings.HasSuffix(path, "/revert") || strings.HasSuffix(path, "/reset") {
				body = "{}"
			}
			a := h.ask(method, path, body, "", h.admin, "If-Match", "*")
			if a.StatusCode >= http.StatusInternalServerError {
				t.Errorf("%s of %.40q: %d: %s", pattern, id, a.StatusCode, a.body)
			}
			if text := strings.ToLower(string(a.body)); strings.Contains(text, "syntax error") || strings.Contains(text, "sqlite") || strings.Contains(text, "select ") && !strings.Contains(id, "SELECT") {
				t.Errorf("%s of %.40q tells too much: %s", pattern, id, a.body)
			}
			if len(a.body) > 20_000 {
				t.Errorf("%s of %.40q answers %d bytes", pattern, id, len(a.body))
			}
		}
	}
	if after := h.do(http.MethodGet, "/export?users=true", nil).want(http.StatusOK).body; !bytes.Equal(before, after) {
		t.Errorf("something has changed: %s", after)
	}
}

// TestHostileValues writes such ids, and reads those that were accepted.
func TestHostileValues(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	taken := 0
	for _, id := range hostile {
		a := h.do(http.MethodPost, "/users", catalog.User{ID: id})
		switch a.StatusCode {
		case http.StatusCreated:
			taken++
			made := a.asRecord()
			r := h.request(http.MethodGet, "", nil, "", h.viewer)
			r.URL.Path, r.URL.RawPath = mustUnescape(t, a.Header.Get("Location")), a.Header.Get("Location")
			w := httptest.NewRecorder()
			h.api.ServeHTTP(w, r)
			if made.ID == "/" {
				continue // of which ServeMux thinks that it ends the path
			}
			if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), strings.SplitAfter(string(a.body), `"version"`)[0]) {
				t.Errorf("%q at %s: %d: %s", made.ID, a.Header.Get("Location"), w.Code, w.Body)
			}
		case http.StatusUnprocessableEntity:
		default:
			t.Errorf("%.40q: %d: %s", id, a.StatusCode, a.body)
		}
	}
	if taken < 10 {
		t.Errorf("only %d were taken", taken)
	}
}

func mustUnescape(t *testing.T, path string) string {
	t.Helper()
	out, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHostileBodies sends invalid bodies to every operation that takes one.
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	bodies := map[string]int{ // 0: any that blames the client
		"":                               0,
		" ":                              http.StatusBadRequest,
		"{":                              http.StatusBadRequest,
		"}":                              http.StatusBadRequest,
		"{}x":                            http.StatusBadRequest,
		"[]":                             http.StatusUnprocessableEntity,
		"1":                              http.StatusUnprocessableEntity,
		"null":                           http.StatusUnprocessableEntity,
		`"x"`:                            http.StatusUnprocessableEntity,
		"\x00":                           http.StatusBadRequest,
		"\xff\xfe{}":                     http.StatusBadRequest,
		`{"\ud800":1}`:                   http.StatusUnprocessableEntity,
		`{"x":"` + "\xff" + `"}`:         0,
		`{"__proto__":{}}`:               http.StatusUnprocessableEntity,
		strings.Repeat("[", 500_000):     http.StatusBadRequest,
		strings.Repeat(`{"a":`, 100_000): http.StatusBadRequest,
		`{"a":` + strings.Repeat("9", 500_000) + `}`: http.StatusUnprocessableEntity,
	}
	types := []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "x", "application/json, text/plain"}
	large := bytes.Repeat([]byte(" "), 5<<20)
	for n, pattern := range h.api31.operations() {
		method, path, _ := strings.Cut(pattern, " ")
		content, ok := h.api31.at(h.api31.operation(pattern), "requestBody", "content").(object)
		if !ok {
			continue
		}
		optional := h.api31.at(h.api31.operation(pattern), "requestBody", "required") != true
		path = strings.NewReplacer("{kind}", "user", "{id}", "search", "{limit_name}", "searches", "{revision}", "1").Replace(path)
		for body, want := range bodies {
			if strings.HasPrefix(pattern, "PATCH") && body == `{"__proto__":{}}` {
				want = 0
			}
			if body == "" && optional || len(body) > 1000 && path != "/rules" && path != "/tiers/search" && path != "/apply" {
				continue // all read bodies alike
			}
			a := h.ask(method, path, body, "", h.may(pattern), "If-Match", "*")
			switch {
			case a.StatusCode == http.StatusNotFound: // of PATCH, which reads first
			case want == 0 && (a.StatusCode < 400 || a.StatusCode >= 500), want != 0 && a.StatusCode != want:
				t.Errorf("%s with %.40q: %d, want %d: %.200s", pattern, body, a.StatusCode, want, a.body)
			}
		}
		for i, contentType := range types {
			if i > 0 && i != n%len(types) {
				continue // all read the type alike
			}
			a := h.ask(method, path, `{"x":1}`, "", h.may(pattern), "If-Match", "*", "Content-Type", contentType)
			if a.StatusCode != http.StatusUnsupportedMediaType {
				t.Errorf("%s of type %q: %d: %s", pattern, contentType, a.StatusCode, a.body)
			}
		}
		if content["application/json"] == nil {
			t.Errorf("%s takes no JSON", pattern)
		}
		if path != "/apply" {
			h.ask(method, path, large, "", h.may(pattern), "If-Match", "*").want(http.StatusRequestEntityTooLarge)
		}
	}
}

// TestLargeApply sends bodies that only a document may have.
func TestLargeApply(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/apply", bytes.Repeat([]byte(" "), 16<<20+1)).want(http.StatusRequestEntityTooLarge).says("16 MiB")
	body := append([]byte("{"), bytes.Repeat([]byte(" "), 5<<20)...)
	h.do(http.MethodPost, "/apply", append(body, '}')).want(http.StatusOK)
}

// TestPaths requests paths that do not exist.
func TestPaths(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{http.MethodGet, "/admin/v1", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/nothing", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/rules/", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1//rules", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/./rules", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/../v1/rules", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v1/x/../rules", http.StatusNotFound, ""},
		{http.MethodGet, "/admin/v2/rules", http.StatusNotFound, ""},
		{http.MethodGet, "/admin", http.StatusNotFound, ""},
		{http.MethodPut, "/admin/v1/rules", http.StatusMethodNotAllowed, "GET, HEAD, POST"},
		{"BREW", "/admin/v1/rules", http.StatusMethodNotAllowed, "GET, HEAD, POST"},
		{http.MethodOptions, "/admin/v1/rules", http.StatusMethodNotAllowed, "GET, HEAD, POST"},
		{http.MethodConnect, "/admin/v1/rules", http.StatusMethodNotAllowed, "GET, HEAD, POST"},
		{http.MethodPost, "/", http.StatusMethodNotAllowed, "GET, HEAD"},
		{http.MethodPost, "/admin/v1/nothing", http.StatusNotFound, ""},
	} {
		r := h.request(c.method, "", nil, "", h.admin)
		r.URL.Path = c.path
		w := httptest.NewRecorder()
		h.api.ServeHTTP(w, r)
		if w.Code != c.status || w.Header().Get("Allow") != c.allow || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d, %q: %s", c.method, c.path, w.Code, w.Header().Get("Allow"), w.Body)
		}
		for header, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := w.Header().Get(header); got != want {
				t.Errorf("%s %s: %s: %q, want %q", c.method, c.path, header, got, want)
			}
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Error(csp)
		}
	}
	h.ask(http.MethodHead, "/rules", nil, "", h.viewer).want(http.StatusOK)
	h.ask(http.MethodHead, "/rules", nil).want(http.StatusUnauthorized)
}

// broken is a body that ends too early.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestBrokenBody(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	r := h.request(http.MethodPost, "/rules", "{}", "", h.operator)
	r.Body = io.NopCloser(broken{})
	h.status(r).want(http.StatusBadRequest).says("could not be read")
}

// TestDatabaseAway has a catalog that cannot be reached.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	away, err := catalog.Open("postgres://stint@127.0.0.1:1/stint?connect_timeout=1", catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { away.Close() })
	h := newTestAPI(t, func(o *admin.Options) { o.Catalog = away })
	for _, a := range []*answer{
		h.get("/rules"),
		h.get("/rules/search"),
		h.get("/export"),
		h.do(http.MethodPost, "/rules", searchRule()),
		h.do(http.MethodPost, "/rules?dry_run=true", searchRule()),
		h.do(http.MethodDelete, "/rules/search", nil, "If-Match", "*"),
		h.do(http.MethodPost, "/apply", "{}"),
	} {
		if p := a.want(http.StatusServiceUnavailable).problem(); a.Header.Get("Retry-After") != "1" || strings.Contains(p.Detail, "127.0.0.1") {
			t.Errorf("%q: %+v", a.Header.Get("Retry-After"), p)
		}
	}
	if !strings.Contains(h.log.String(), `"status":503`) {
		t.Error("the log does not say so")
	}

	// Without the database of tokens, that of the config is good, and others are neither
	// good nor bad.
	h = newTestAPI(t, func(o *admin.Options) { o.Tokens = away })
	h.ask(http.MethodGet, "/rules", nil, "", configToken).want(http.StatusOK)
	for range 20 {
		h.get("/rules").want(http.StatusServiceUnavailable)
	}
	h.ask(http.MethodGet, "/rules", nil, "Cookie", "stint_session=0123456789abcdefghijklmnop").want(http.StatusServiceUnavailable)
}

// TestWritesAreLogged checks the log of a write.
func TestWritesAreLogged(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.get("/rules")
	h.ask(http.MethodPost, "/rules/validate", searchRule(), "", h.viewer)
	if strings.Contains(h.log.String(), "a write") {
		t.Errorf("what reads is logged: %s", h.log)
	}
	h.do(http.MethodPost, "/rules", searchRule()).want(http.StatusCreated)
	h.ask(http.MethodDelete, "/rules/search", nil, "", h.viewer).want(http.StatusForbidden)
	for _, want := range []string{
		`"actor":"otto","operation":"POST /admin/v1/rules","status":201`,
		`"actor":"vera","operation":"DELETE /admin/v1/rules/{id}","status":403`,
	} {
		if !strings.Contains(h.log.String(), want) {
			t.Errorf("want %s in %s", want, h.log)
		}
	}
	// Who revokes a token may give all of it.
	h.ask(http.MethodDelete, "/tokens/"+h.viewer, nil, "", h.admin).want(http.StatusNoContent)
	if strings.Contains(h.log.String(), h.viewer) {
		t.Errorf("the log has the token: %s", h.log)
	}
}

// TestOptions creates APIs with invalid options.
func TestOptions(t *testing.T) {
	t.Parallel()
	good := newTestAPI(t).options
	for name, c := range map[string]struct {
		change func(*admin.Options)
		says   string
	}{
		"no tokens":   {func(o *admin.Options) { o.Tokens = nil }, "Tokens"},
		"no engine":   {func(o *admin.Options) { o.Engine = nil }, "Engine"},
		"no store":    {func(o *admin.Options) { o.Store = nil }, "Store"},
		"no resolver": {func(o *admin.Options) { o.Resolver = nil }, "Resolver"},
		"no rules":    {func(o *admin.Options) { o.Catalog = nil }, "Document"},
		"short token": {func(o *admin.Options) { o.Token = "hunter2" }, "has 7 bytes, want at least 16"},
		"no index":    {func(o *admin.Options) { o.Web = emptyFS }, "index.html"},
	} {
		o := good
		c.change(&o)
		if _, err := admin.New(o); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	good.Web, good.Log, good.Now, good.Secure, good.Look = nil, nil, nil, nil, nil
	a, err := admin.New(good)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("%d", w.Code)
	}
}

// TestSlow has an operation that takes too long.
func TestSlow(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t, func(o *admin.Options) { o.Timeout = 100 * time.Millisecond })
	// Another holds the one lock that writers of SQLite have.
	db := h.catalog.Database().Write
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // it is for nothing
	slow := make(chan int)
	go func() { slow <- slowBody(h) }()
	h.do(http.MethodPost, "/rules", searchRule()).want(http.StatusServiceUnavailable)
	if status := <-slow; status != http.StatusBadRequest {
		t.Errorf("a body that does not end: %d", status)
	}
}

// slowBody sends a body that does not end, and returns the status of the response.
func slowBody(h *testAPI) int {
	server := httptest.NewServer(h.api)
	defer server.Close()
	body, end := io.Pipe()
	defer end.Close()
	r, err := http.NewRequestWithContext(h.Context(), http.MethodPost, server.URL+admin.Prefix+"/session", body)
	if err != nil {
		h.Error(err)
		return 0
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := server.Client().Do(r)
	if err != nil {
		h.Error(err)
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}
