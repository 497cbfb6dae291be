package admin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

// login starts a session, and returns its cookie and its CSRF token.
func (h *testAPI) login(token string) (cookie, csrf string) {
	h.Helper()
	a := h.ask(http.MethodPost, "/session", admin.Login{Token: token}).want(http.StatusOK)
	var s admin.Session
	a.into(&s)
	cookies := a.Cookies()
	if len(cookies) != 1 || s.CSRF == "" {
		h.Fatalf("%v, %+v", cookies, s)
	}
	return cookies[0].Name + "=" + cookies[0].Value, s.CSRF
}

// leaving is a writer whose client disconnects when a stream begins.
type leaving struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (l *leaving) WriteHeader(status int) {
	l.ResponseRecorder.WriteHeader(status)
	if l.Header().Get("Content-Type") == "text/event-stream" {
		l.leave()
	}
}

// example returns the request of an operation with the examples in the document.
func (h *testAPI) example(pattern string, headers ...string) *http.Request {
	h.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	op := h.api31.operation(pattern)
	parameters, _ := op["parameters"].([]any)
	query := url.Values{}
	for _, p := range parameters {
		p, _ := p.(object)
		if p["in"] != "path" && (p["in"] != "query" || p["required"] != true) {
			continue
		}
		examples, _ := h.api31.at(p, "schema", "examples").([]any)
		if len(examples) == 0 {
			h.Fatalf("%s: %v has no example", pattern, p["name"])
		}
		name, example := fmt.Sprint(p["name"]), fmt.Sprint(examples[0])
		if path = strings.Replace(path, "{"+name+"}", example, 1); p["in"] == "query" {
			query.Set(name, example)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var body any
	if content, ok := h.api31.at(op, "requestBody", "content", "application/json").(object); ok {
		examples, _ := h.api31.at(content["schema"], "examples").([]any)
		if len(examples) == 0 {
			h.Fatalf("%s: the body has no example", pattern)
		}
		body = examples[0]
	}
	return h.request(method, path, body, headers...)
}

// status returns the status of a request; for a stream, that of its start.
func (h *testAPI) status(r *http.Request) *answer {
	h.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w := &leaving{httptest.NewRecorder(), cancel}
	h.api.ServeHTTP(w, r.WithContext(ctx))
	a := &answer{h.TB, w.Result(), w.Body.Bytes()}
	if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
		h.api31.check(h, r, a)
	}
	return a
}

// TestAuthorization calls every operation with every kind of credentials.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	expired, _, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "eve", Role: catalog.Administrator, Expires: h.clock.now().Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	h.clock.advance(2 * time.Minute)
	tokens := []struct {
		role catalog.Role
		text string
	}{{catalog.Viewer, h.viewer}, {catalog.Operator, h.operator}, {catalog.Administrator, h.admin}, {catalog.Administrator, configToken}, {catalog.OfUser, h.user}}

	n := 0
	// from asks from an address of its own: those who guess are slowed down.
	from := func(r *http.Request) *answer {
		n++
		r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1234", n/256, n%256)
		return h.status(r)
	}
	for _, pattern := range h.api31.operations() {
		role, _ := h.api31.operation(pattern)["x-stint-role"].(string)
		method, _, _ := strings.Cut(pattern, " ")
		want := func(who string, a *answer, statuses ...int) {
			t.Helper()
			for _, s := range statuses {
				if a.StatusCode == s {
					return
				}
			}
			t.Errorf("%s, %s: %d, want %v: %s", pattern, who, a.StatusCode, statuses, a.body)
		}
		admitted := func(who string, a *answer) {
			t.Helper()
			if a.StatusCode == http.StatusUnauthorized || a.StatusCode == http.StatusForbidden || a.StatusCode >= http.StatusInternalServerError {
				t.Errorf("%s, %s: %d: %s", pattern, who, a.StatusCode, a.body)
			}
		}
		if role == "anyone" {
			if pattern != "POST /session" {
				admitted("no one", from(h.example(pattern)))
			}
			if r := h.example(pattern, "Sec-Fetch-Site", "cross-site"); method == http.MethodGet {
				admitted("another site", from(r))
			} else {
				want("another site", from(r), http.StatusForbidden)
			}
			continue
		}
		credentials := 2
		if role == string(catalog.OfUser) {
			credentials = 1 // it has no sessions
		}
		if security, _ := h.api31.operation(pattern)["security"].([]any); len(security) != credentials {
			t.Errorf("%s: the document says %v", pattern, security)
		}
		for who, header := range map[string]string{
			"no one": "", "one who makes one up": "Bearer stint_admin_4mqyx7bn2kcd6wvr_0123456789abcdefghijklmnop", "one whose token has expired": "Bearer " + expired,
			"Basic": "Basic YWRhOmFkYQ==", "no token": "Bearer ", "a long token": "Bearer " + strings.Repeat("a", 10000), "another's cookie": "cookie",
		} {
			name := "Authorization"
			if header == "cookie" {
				name, header = "Cookie", "stint_session=0123456789abcdefghijklmnop"
			}
			a := from(h.example(pattern, name, header))
			want(who, a, http.StatusUnauthorized)
			if a.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s, %s: no WWW-Authenticate", pattern, who)
			}
		}
		for _, token := range tokens {
			a := from(h.example(pattern, "", token.text))
			if token.role.Includes(catalog.Role(role)) {
				admitted(string(token.role), a)
			} else {
				want(string(token.role), a, http.StatusForbidden)
			}
		}
		if role == string(catalog.OfUser) {
			continue
		}
		cookie, csrf := h.login(h.admin)
		if method == http.MethodGet {
			admitted("a cookie", from(h.example(pattern, "Cookie", cookie)))
			admitted("a link of another site", from(h.example(pattern, "Cookie", cookie, "Sec-Fetch-Site", "cross-site")))
			continue
		}
		want("no CSRF token", from(h.example(pattern, "Cookie", cookie)), http.StatusForbidden)
		want("another CSRF token", from(h.example(pattern, "Cookie", cookie, "X-Csrf-Token", strings.Repeat("0", len(csrf)))), http.StatusForbidden)
		want("another site", from(h.example(pattern, "Cookie", cookie, "X-Csrf-Token", csrf, "Sec-Fetch-Site", "cross-site")), http.StatusForbidden)
		want("another origin", from(h.example(pattern, "Cookie", cookie, "X-Csrf-Token", csrf, "Origin", "https://evil.example")), http.StatusForbidden)
		want("another site with a token", from(h.example(pattern, "", h.admin, "Sec-Fetch-Site", "cross-site")), http.StatusForbidden)
		admitted("a session", from(h.example(pattern, "Cookie", cookie, "X-Csrf-Token", csrf, "Sec-Fetch-Site", "same-origin")))
	}
	if text := h.log.String(); strings.Contains(text, h.admin) || strings.Contains(text, h.viewer) || strings.Contains(text, configToken) || strings.Contains(text, expired) {
		t.Error("the log has a token")
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	a := h.ask(http.MethodPost, "/session", admin.Login{Token: h.operator}).want(http.StatusOK)
	var s admin.Session
	a.into(&s)
	if s.Name != "otto" || s.Role != catalog.Operator || s.CSRF == "" || !s.Token.IsZero() {
		t.Errorf("%+v", s)
	}
	if left := s.Expires.Sub(h.clock.now()); left < 11*time.Hour || left > 12*time.Hour {
		t.Errorf("it lasts for %v", left)
	}
	c := a.Cookies()[0]
	if c.Name != "stint_session" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure || c.MaxAge < 11*3600 || c.Domain != "" {
		t.Errorf("%+v", c)
	}
	cookie := c.Name + "=" + c.Value

	var same admin.Session
	h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusOK).into(&same)
	if !reflect.DeepEqual(same, s) {
		t.Errorf("%+v, then %+v", s, same)
	}
	var bare admin.Session
	h.get("/session").want(http.StatusOK).into(&bare)
	if !reflect.DeepEqual(bare, admin.Session{Name: "vera", Role: catalog.Viewer}) {
		t.Errorf("a token: %+v", bare)
	}

	// What the session writes is its token's.
	h.ask(http.MethodPost, "/rules", searchRule(), "Cookie", cookie, "X-Csrf-Token", s.CSRF).want(http.StatusCreated).says(`"updated_by":"otto"`)

	// A token goes before a cookie.
	h.ask(http.MethodGet, "/session", nil, "Cookie", cookie, "", h.viewer).want(http.StatusOK).says("vera")
	h.ask(http.MethodGet, "/session", nil, "Cookie", cookie, "Authorization", "Bearer no").want(http.StatusUnauthorized)

	out := h.ask(http.MethodDelete, "/session", nil, "Cookie", cookie, "X-Csrf-Token", s.CSRF).want(http.StatusNoContent)
	if c := out.Cookies(); len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
		t.Errorf("%+v", c)
	}
	h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusUnauthorized)
	h.ask(http.MethodDelete, "/session", nil, "", h.viewer).want(http.StatusNoContent) // which ends nothing
	h.get("/session").want(http.StatusOK)

	t.Run("over", func(*testing.T) {
		cookie, _ := h.login(h.viewer)
		h.clock.advance(12*time.Hour - time.Minute)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusOK)
		h.clock.advance(2 * time.Minute)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusUnauthorized)
	})
	t.Run("not longer than the token", func(t *testing.T) {
		text, _, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "brief", Role: catalog.Viewer, Expires: h.clock.now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		cookie, _ := h.login(text)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusOK).says("expires_token_at")
		h.clock.advance(time.Hour)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusUnauthorized)
	})
	t.Run("revoked", func(*testing.T) {
		var made admin.CreatedToken
		h.ask(http.MethodPost, "/tokens", admin.NewToken{Name: "gone", Role: catalog.Viewer}, "", h.admin).want(http.StatusCreated).into(&made)
		cookie, _ := h.login(made.Text)
		h.ask(http.MethodDelete, "/tokens/"+made.ID, nil, "", h.admin).want(http.StatusNoContent)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusUnauthorized)
		h.ask(http.MethodGet, "/session", nil, "", made.Text).want(http.StatusUnauthorized)
		h.ask(http.MethodDelete, "/tokens/"+made.ID, nil, "", h.admin).want(http.StatusNotFound)
	})
	t.Run("of the config", func(t *testing.T) {
		cookie, _ := h.login(configToken)
		h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusOK).says(`"name":"config"`, `"role":"admin"`)
		// Another API on the same database, whose token is another, does not know it.
		options := h.options
		options.Token = "another token of the config"
		other, err := admin.New(options)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		w := httptest.NewRecorder()
		other.ServeHTTP(w, h.request(http.MethodGet, "/session", nil, "Cookie", cookie))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}

func TestSecureCookie(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t, func(o *admin.Options) { o.Secure = func(*http.Request) bool { return true } })
	a := h.ask(http.MethodPost, "/session", admin.Login{Token: h.viewer}).want(http.StatusOK)
	c := a.Cookies()[0]
	if c.Name != "__Host-stint_session" || !c.Secure || c.Path != "/" || c.Domain != "" {
		t.Errorf("%+v", c)
	}
	h.ask(http.MethodGet, "/session", nil, "Cookie", c.Name+"="+c.Value).want(http.StatusOK)
	h.ask(http.MethodGet, "/session", nil, "Cookie", "stint_session="+c.Value).want(http.StatusUnauthorized)
}

// TestGuessing has one address guess tokens while others work.
func TestGuessing(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	ask := func(from, token string) *answer {
		t.Helper()
		r := h.request(http.MethodGet, "/session", nil, "", token)
		r.RemoteAddr = from
		return h.status(r)
	}
	login := func(from, token string) *answer {
		t.Helper()
		r := h.request(http.MethodPost, "/session", admin.Login{Token: token})
		r.RemoteAddr = from
		return h.status(r)
	}
	const guesser = "203.0.113.7:1000"
	ask(guesser, h.operator).want(http.StatusOK)
	for i := range 10 {
		if i%2 == 0 {
			ask(guesser, "guess").want(http.StatusUnauthorized)
		} else {
			login(guesser, "guess").want(http.StatusUnauthorized)
		}
	}
	a := ask("203.0.113.7:2000", "guess").want(http.StatusTooManyRequests)
	wait, err := time.ParseDuration(a.Header.Get("Retry-After") + "s")
	if err != nil || wait < time.Second || wait > 2*time.Minute {
		t.Errorf("Retry-After: %q", a.Header.Get("Retry-After"))
	}
	login(guesser, h.viewer).want(http.StatusTooManyRequests) // even if it were right
	ask(guesser, h.operator).want(http.StatusOK)              // who was at work before
	ask("203.0.113.8:1000", "guess").want(http.StatusUnauthorized)
	ask("[::ffff:203.0.113.7]:1000", "guess").want(http.StatusTooManyRequests)
	h.clock.advance(wait)
	login(guesser, h.viewer).want(http.StatusOK)

	// A network of IPv6 is one client.
	for i := range 10 {
		ask(fmt.Sprintf("[2001:db8:0:1::%x]:1000", i), "guess").want(http.StatusUnauthorized)
	}
	ask("[2001:db8:0:1:ffff::1]:1000", "guess").want(http.StatusTooManyRequests)
	ask("[2001:db8:0:2::1]:1000", "guess").want(http.StatusUnauthorized)

	// A token that was revoked is not remembered as good.
	h.clock.advance(time.Hour)
	text, made, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "gone", Role: catalog.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	ask(guesser, text).want(http.StatusOK)
	if err := h.tokens.RevokeToken(t.Context(), "test", made.ID); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		ask(guesser, text).want(http.StatusUnauthorized)
	}
	ask(guesser, text).want(http.StatusTooManyRequests)

	// Sessions that have ended ask on for a while, and logging in is possible.
	h.clock.advance(time.Hour)
	for range 50 {
		r := h.request(http.MethodGet, "/session", nil, "Cookie", "stint_session=0123456789abcdefghijklmnop")
		r.RemoteAddr = guesser
		h.status(r).want(http.StatusUnauthorized)
	}
	login(guesser, h.viewer).want(http.StatusOK)

	// All together, from wherever.
	h.clock.advance(time.Hour)
	n := 0
	for ; n < 2000 && ask(fmt.Sprintf("10.1.%d.%d:1", n/256, n%256), "guess").StatusCode == http.StatusUnauthorized; n++ {
	}
	if n < 900 || n > 1000 {
		t.Errorf("%d guesses", n)
	}
	ask("192.0.2.200:1", h.operator).want(http.StatusOK)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	var list admin.TokenList
	h.ask(http.MethodGet, "/tokens", nil, "", h.admin).want(http.StatusOK).into(&list)
	if len(list.Items) != 3 || list.Items[0].Name != "vera" || list.Items[0].CreatedBy != "test" {
		t.Fatalf("%+v", list)
	}
	var made admin.CreatedToken
	h.ask(http.MethodPost, "/tokens", `{"name":"deploy","role":"operator","expires_in_seconds":3600}`, "", h.admin).want(http.StatusCreated).into(&made)
	if left := made.Expires.Sub(h.clock.now()); left < 59*time.Minute || left > time.Hour || made.CreatedBy != "ada" {
		t.Errorf("%+v", made)
	}
	h.ask(http.MethodGet, "/session", nil, "", made.Text).want(http.StatusOK).says("deploy")
	if text := string(h.ask(http.MethodGet, "/tokens", nil, "", h.admin).body); strings.Contains(text, made.Text) || strings.Contains(text, "hash") {
		t.Errorf("%s", text)
	}
	for body, want := range map[string]string{
		`{"name":"","role":"viewer"}`:                                                             "name",
		`{"name":"x","role":"root"}`:                                                              "role",
		`{"name":"x"}`:                                                                            "role",
		`{"name":"config","role":"viewer"}`:                                                       "name",
		`{"name":"x","role":"viewer","expires_in_seconds":-1}`:                                    "expires_in_seconds",
		`{"name":"x","role":"viewer","expires_in_seconds":1e300}`:                                 "expires_in_seconds",
		`{"name":"x","role":"viewer","expires_at":"2001-01-01T00:00:00Z"}`:                        "expires_at",
		`{"name":"x","role":"viewer","expires_at":"tomorrow"}`:                                    "expires_at",
		`{"name":"x","role":"viewer","expires_in_seconds":5,"expires_at":"2100-01-01T00:00:00Z"}`: "expires_in_seconds",
		`{"name":"x\u0000","role":"viewer"}`:                                                      "name",
		`{"name":"x","role":"viewer","hash":"x"}`:                                                 "hash",
	} {
		p := h.ask(http.MethodPost, "/tokens", body, "", h.admin).want(http.StatusUnprocessableEntity).problem()
		if len(p.Errors) == 0 || p.Errors[0].Field != want {
			t.Errorf("%s: %+v, want %s", body, p, want)
		}
	}
}
