package admin_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/signin"
	"github.com/stintdev/stint/internal/test/testoidc"
)

// dashboard is where browsers find the API of these tests.
const dashboard = "http://127.0.0.1:9090"

// signInAPI is an API with a real identity provider.
type signInAPI struct {
	*testAPI
	provider *testoidc.Provider
	signIn   signin.Options
}

func newSignInAPI(t *testing.T, change ...func(*signin.Options)) *signInAPI {
	t.Helper()
	h := &signInAPI{provider: testoidc.New(t, []string{dashboard + admin.Prefix + "/sign-in/callback", "https://stint.example.com" + admin.Prefix + "/sign-in/callback"}, []string{dashboard + "/"},
		testoidc.Person{ID: "ada", Email: "ada@example.com", Groups: []string{"staff", "stint-admins"}},
		testoidc.Person{ID: "otto", Email: "otto@example.com", Groups: []string{"acme-ops", "beta-ops", "stint-viewers"}},
		testoidc.Person{ID: "eve", Email: "eve@example.com", Groups: []string{"staff"}},
		testoidc.Person{ID: "mallory", Email: "ada@example.org", Unverified: true, Groups: []string{"stint-viewers"}},
	)}
	h.testAPI = newTestAPI(t, func(o *admin.Options) {
		h.signIn = signin.Options{
			Issuer: h.provider.Issuer, ClientID: testoidc.ClientID, ClientSecret: testoidc.ClientSecret, Scopes: []string{"email"}, Claim: "groups",
			Groups: []signin.Group{
				{Name: "stint-admins", Role: catalog.Administrator},
				{Name: "acme-ops", Role: catalog.Operator, Tenants: []string{"acme"}},
				{Name: "beta-ops", Role: catalog.Operator, Tenants: []string{"beta"}},
				{Name: "stint-viewers", Role: catalog.Viewer},
			},
			Now: o.Now,
		}
		for _, f := range change {
			f(&h.signIn)
		}
		o.SignIn, o.SignInName = signin.New(h.signIn), "Example"
	})
	if err := h.options.SignIn.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// browser keeps cookies, as a browser does.
type browser struct {
	*signInAPI
	api     http.Handler
	host    string
	cookies map[string]*http.Cookie
}

func (h *signInAPI) browser() *browser {
	return &browser{h, h.api, strings.TrimPrefix(dashboard, "http://"), map[string]*http.Cookie{}}
}

// get follows one link.
func (b *browser) get(to string, headers ...string) *answer {
	b.Helper()
	return b.do(http.MethodGet, to, headers...)
}

func (b *browser) do(method, to string, headers ...string) *answer {
	b.Helper()
	r := httptest.NewRequestWithContext(b.Context(), method, to, nil)
	r.Host = b.host
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.api.ServeHTTP(w, r)
	a := &answer{b.TB, w.Result(), w.Body.Bytes()}
	for _, c := range a.Cookies() {
		if b.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return a
}

// begin returns where the API sends the browser.
func (b *browser) begin(page string) string {
	b.Helper()
	a := b.get(admin.Prefix + "/sign-in/start?return=" + url.QueryEscape(page)).want(http.StatusFound)
	return a.Header.Get("Location")
}

// finish comes back from the provider, and returns where it goes then.
func (b *browser) finish(back *url.URL) string {
	b.Helper()
	a := b.get(back.RequestURI(), "Sec-Fetch-Site", "cross-site").want(http.StatusFound)
	return a.Header.Get("Location")
}

// as signs in.
func (b *browser) as(email, page string) string {
	b.Helper()
	return b.finish(b.provider.SignIn(b, b.begin(page), email))
}

func (b *browser) session() (s admin.Session) {
	b.Helper()
	b.get(admin.Prefix + "/session").want(http.StatusOK).into(&s)
	return s
}

// TestSignIn signs people in with a real provider.
func TestSignIn(t *testing.T) {
	t.Parallel()
	h := newSignInAPI(t)
	b := h.browser()
	b.get(admin.Prefix+"/sign-in").want(http.StatusOK).says(`"name":"Example"`, `"ready":true`)
	at := b.begin("#/rules?q=a")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if !strings.HasPrefix(at, h.provider.Issuer) || q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43 || q.Get("response_type") != "code" ||
		len(q.Get("state")) != 43 || len(q.Get("nonce")) != 43 || q.Get("redirect_uri") != dashboard+admin.Prefix+"/sign-in/callback" || q.Get("scope") != "openid email" {
		t.Errorf("begins at %s", at)
	}
	c := b.cookies["stint_sign_in"]
	if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.MaxAge != 600 {
		t.Fatalf("%+v", c)
	}
	for _, secret := range []string{q.Get("state"), q.Get("nonce"), q.Get("code_challenge")} {
		if strings.Contains(c.Value, secret) {
			t.Error("the cookie tells more than its secret")
		}
	}
	if to := b.finish(h.provider.SignIn(t, at, "ada@example.com")); to != "/#/rules?q=a" {
		t.Fatalf("goes to %s: %s", to, h.log)
	}
	if b.cookies["stint_sign_in"] != nil {
		t.Error("the cookie of the sign-in is still there")
	}
	if c := b.cookies["stint_session"]; c == nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge > 3700 {
		t.Errorf("%+v", c)
	}
	s := b.session()
	if left := s.Expires.Sub(h.clock.now()); s.Name != "ada@example.com" || s.Role != catalog.Administrator || s.Tenants != nil || left < 58*time.Minute || left > 62*time.Minute {
		t.Errorf("%+v, which lasts for %v", s, left)
	}
	// The change log has the person.
	h.ask(http.MethodPost, "/rules", searchRule(), "Cookie", "stint_session="+b.cookies["stint_session"].Value, "X-Csrf-Token", s.CSRF).want(http.StatusCreated).says(`"updated_by":"ada@example.com"`)
	h.get("/changes").want(http.StatusOK).says(`"actor":"ada@example.com"`)
	// Another page cannot write.
	h.ask(http.MethodPost, "/rules", searchRule(), "Cookie", "stint_session="+b.cookies["stint_session"].Value).want(http.StatusForbidden)
	h.ask(http.MethodPost, "/rules", searchRule(), "Cookie", "stint_session="+b.cookies["stint_session"].Value, "X-Csrf-Token", s.CSRF, "Sec-Fetch-Site", "cross-site").want(http.StatusForbidden)

	// It ends with the ID token.
	h.clock.advance(62 * time.Minute)
	b.get(admin.Prefix + "/session").want(http.StatusUnauthorized)

	t.Run("tenants", func(t *testing.T) {
		b := h.browser()
		h.provider.Lifetime(3 * time.Hour)
		b.as("otto@example.com", "")
		if s := b.session(); s.Role != catalog.Operator || !slices.Equal(s.Tenants, []string{"acme", "beta"}) {
			t.Errorf("%+v", s)
		}
		b.get(admin.Prefix + "/changes").want(http.StatusForbidden)
	})
	t.Run("sign out", func(t *testing.T) {
		b := h.browser()
		b.as("ada@example.com", "")
		a := b.do(http.MethodDelete, admin.Prefix+"/session", "X-Csrf-Token", b.session().CSRF).want(http.StatusNoContent)
		to, err := url.Parse(a.Header.Get("Location"))
		if err != nil || !strings.HasPrefix(to.String(), h.provider.Issuer) || to.Query().Get("client_id") != "stint" || to.Query().Get("id_token_hint") == "" || to.Query().Get("post_logout_redirect_uri") != dashboard+"/" {
			t.Errorf("goes to %v", to)
		}
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, to.String(), nil)
		out, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		out.Body.Close()
		if out.StatusCode != http.StatusFound || out.Header.Get("Location") != dashboard+"/" {
			t.Errorf("the provider answers %d, %v", out.StatusCode, out.Header)
		}
		b.get(admin.Prefix + "/session").want(http.StatusUnauthorized)
	})
	t.Run("another node", func(t *testing.T) {
		b := h.browser()
		options := h.options
		other, err := admin.New(options)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		back := h.provider.SignIn(t, b.begin(""), "ada@example.com")
		b.api = other
		b.finish(back)
		b.session()
		b.api = h.api
		b.session()
		// One with other settings does not know it.
		changed := h.signIn
		changed.Groups = changed.Groups[1:]
		options.SignIn = signin.New(changed)
		if b.api, err = admin.New(options); err != nil {
			t.Fatal(err)
		}
		b.get(admin.Prefix + "/session").want(http.StatusUnauthorized)
	})
	t.Run("TLS at a proxy", func(t *testing.T) {
		options := h.options
		options.SignInURL, _ = url.Parse("https://stint.example.com" + admin.Prefix + "/sign-in/callback")
		api, err := admin.New(options)
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		b := h.browser()
		b.api, b.host = api, "stint.example.com"
		b.as("ada@example.com", "")
		if c := b.cookies["__Host-stint_session"]; c == nil || !c.Secure || c.Path != "/" || c.Domain != "" {
			t.Errorf("%v", b.cookies)
		}
		b.session()
	})
	t.Run("claims", func(t *testing.T) {
		h := newSignInAPI(t, func(o *signin.Options) { o.Claim = "realm_access.roles" })
		h.provider.Lifetime(2 * time.Hour)
		b := h.browser()
		b.as("ada@example.com", "")
		b.session()
		h.provider.Thin() // they are in the user info
		b = h.browser()
		b.as("ada@example.com", "")
		if s := b.session(); s.Name != "ada@example.com" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("unverified email", func(t *testing.T) {
		b := h.browser()
		b.as("ada@example.org", "")
		if s := b.session(); s.Name != "oidc:mallory" {
			t.Errorf("%+v", s)
		}
		h := newSignInAPI(t, func(o *signin.Options) { o.EmailDomains = []string{"example.org"} })
		b = h.browser()
		if to := b.as("ada@example.org", ""); to != "/?sign_in=group#/" {
			t.Errorf("goes to %s", to)
		}
		if to := b.as("ada@example.com", ""); to != "/?sign_in=group#/" {
			t.Errorf("goes to %s", to)
		}
	})
}

// TestSignInRefused tries what must not work, with the real provider.
func TestSignInRefused(t *testing.T) {
	t.Parallel()
	h := newSignInAPI(t)
	refused := func(t *testing.T, b *browser, to, want string) {
		t.Helper()
		if to != want {
			t.Errorf("goes to %s, want %s", to, want)
		}
		if b.cookies["stint_session"] != nil {
			t.Error("there is a session")
		}
		h.clock.advance(time.Minute) // those who fail are slowed down
	}
	t.Run("no group", func(t *testing.T) {
		b := h.browser()
		refused(t, b, b.as("eve@example.com", "#/rules"), "/?sign_in=group#/rules")
	})
	t.Run("another browser", func(t *testing.T) { // who is made to sign in as somebody else
		b := h.browser()
		back := h.provider.SignIn(t, b.begin(""), "ada@example.com")
		victim := h.browser()
		refused(t, victim, victim.finish(back), "/?sign_in=expired#/")
		victim.begin("")
		refused(t, victim, victim.finish(back), "/?sign_in=expired#/")
	})
	t.Run("another code", func(t *testing.T) { // which was stolen: the verifier is another
		thief := h.browser()
		own := h.provider.SignIn(t, thief.begin(""), "eve@example.com")
		b := h.browser()
		stolen := h.provider.SignIn(t, b.begin(""), "ada@example.com")
		q := own.Query()
		q.Set("code", stolen.Query().Get("code"))
		own.RawQuery = q.Encode()
		refused(t, thief, thief.finish(own), "/?sign_in=denied#/")
	})
	t.Run("a code again", func(t *testing.T) {
		b := h.browser()
		back := h.provider.SignIn(t, b.begin(""), "ada@example.com")
		again := h.browser()
		again.cookies["stint_sign_in"] = b.cookies["stint_sign_in"]
		b.finish(back)
		b.session()
		refused(t, again, again.finish(back), "/?sign_in=denied#/")
	})
	t.Run("refused by the provider", func(t *testing.T) {
		b := h.browser()
		at, _ := url.Parse(b.begin("#/keys"))
		back := &url.URL{Path: admin.Prefix + "/sign-in/callback", RawQuery: url.Values{"error": {"access_denied"}, "error_description": {"<b>no</b>"}, "state": {at.Query().Get("state")}}.Encode()}
		refused(t, b, b.finish(back), "/?sign_in=denied#/keys")
	})
	t.Run("another issuer", func(t *testing.T) {
		b := h.browser()
		back := h.provider.SignIn(t, b.begin(""), "ada@example.com")
		q := back.Query()
		q.Set("iss", "https://evil.example")
		back.RawQuery = q.Encode()
		refused(t, b, b.finish(back), "/?sign_in=invalid#/")
	})
	t.Run("open redirects", func(t *testing.T) {
		for _, page := range []string{"https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "#/" + strings.Repeat("a", 1020), ""} {
			b := h.browser()
			if to := b.as("ada@example.com", page); !strings.HasPrefix(to, "/#/") {
				t.Errorf("%q: goes to %s", page, to)
			}
		}
	})
	h.ask(http.MethodGet, "/sign-in/start?return=%23%2F%0D%0ASet-Cookie:a", nil).want(http.StatusBadRequest)
	t.Run("often", func(t *testing.T) {
		b := h.browser()
		b.begin("")
		to := ""
		for range 20 {
			b.begin("")
			to = b.finish(&url.URL{Path: admin.Prefix + "/sign-in/callback", RawQuery: "code=a&state=b"})
		}
		refused(t, b, to, "/?sign_in=too_many#/")
	})
	if text := h.log.String(); !strings.Contains(text, "in no group") || strings.Contains(text, testoidc.ClientSecret) {
		t.Errorf("%s", text)
	}
}

// TestSignInRenewed has ID tokens expire while there is a refresh token.
func TestSignInRenewed(t *testing.T) {
	t.Parallel()
	h := newSignInAPI(t, func(o *signin.Options) { o.Scopes = []string{"email", "offline_access"} })
	b := h.browser()
	b.as("otto@example.com", "")
	s := b.session()
	if left := s.Expires.Sub(h.clock.now()); left < 11*time.Hour {
		t.Errorf("it lasts for %v", left)
	}
	// The token has expired. Many requests at once renew it once: the refresh token is valid once.
	h.provider.Set(testoidc.Person{ID: "otto", Email: "otto@example.com", Groups: []string{"stint-viewers"}})
	h.provider.Lifetime(3 * time.Hour)
	h.clock.advance(2 * time.Hour)
	var all sync.WaitGroup
	for range 8 {
		one := h.browser()
		one.cookies["stint_session"] = b.cookies["stint_session"]
		all.Go(func() {
			if s := one.session(); s.Role != catalog.Viewer || s.Tenants != nil {
				t.Errorf("%+v", s)
			}
		})
	}
	all.Wait()

	// While the provider is away, the session goes on until its token ends.
	h.provider.Down(true)
	b.session()
	h.clock.advance(90 * time.Minute)
	b.get(admin.Prefix + "/session").want(http.StatusServiceUnavailable).says("identity provider")
	h.ask(http.MethodGet, "/session", nil, "", h.viewer).want(http.StatusOK)
	h.provider.Down(false)
	h.provider.Lifetime(5 * time.Hour)
	h.clock.advance(catalog.RenewalTime)
	b.session()

	// Who may no longer sign in is signed out.
	h.provider.Set(testoidc.Person{ID: "otto", Email: "otto@example.com"})
	h.clock.advance(2 * time.Hour)
	b.get(admin.Prefix + "/session").want(http.StatusUnauthorized)
}

// TestSignInAway has the provider away from the start.
func TestSignInAway(t *testing.T) {
	t.Parallel()
	h := newSignInAPI(t)
	p := signin.New(h.signIn)
	options := h.options
	options.SignIn = p
	api, err := admin.New(options)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	h.provider.Down(true)
	if err := p.Discover(t.Context()); err == nil {
		t.Fatal("it was found")
	}
	b := h.browser()
	b.api = api
	b.get(admin.Prefix + "/sign-in").want(http.StatusOK).says(`"ready":false`)
	if to := b.begin("#/rules"); to != "/?sign_in=unreachable#/rules" {
		t.Errorf("goes to %s", to)
	}
	h.provider.Down(false)
	if err := p.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.as("ada@example.com", "")
	b.session()
	// Without a provider, there is nothing to begin.
	options.SignIn = nil
	if b.api, err = admin.New(options); err != nil {
		t.Fatal(err)
	}
	b.get(admin.Prefix + "/sign-in/start").want(http.StatusNotFound)
	b.get(admin.Prefix + "/session").want(http.StatusUnauthorized)
}
