// Package testoidc runs a real OpenID Connect provider for tests, in the process of the test: that of zitadel/oidc, with
// its pages to sign in. It has one client, and people with a password and groups.
package testoidc

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// The client, and the password of everyone.
const (
	ClientID     = "stint"
	ClientSecret = "the secret of the client"
	Password     = "a long password"
)

// Person is someone who can sign in.
type Person struct {
	ID, Email  string // Email is also the name to sign in with
	Unverified bool   // the email
	Groups     []string
}

// Provider is a running provider.
type Provider struct {
	Issuer string

	mu       sync.Mutex
	people   map[string]Person
	lifetime time.Duration
	thin     bool
	// Where browsers may be sent to, when they have signed in and out.
	redirects, afterwards []string
	closed                atomic.Bool
	server                *httptest.Server
}

// serving is held to read while a provider serves, and to write while one is made: the library then changes what all of them read.
var serving sync.RWMutex

// New starts a provider for a client with these redirect URLs. It stops with the test.
func New(t testing.TB, redirects, afterwards []string, people ...Person) *Provider {
	t.Helper()
	p := &Provider{people: map[string]Person{}, lifetime: time.Hour, redirects: redirects, afterwards: afterwards}
	for _, one := range people {
		p.Set(one)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// By name, since cookies do not tell ports apart: it is another site than that at 127.0.0.1.
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	p.Issuer = "http://localhost:" + port + "/"
	client := storage.WebClient(ClientID, ClientSecret, redirects...)
	s := &store{storage.NewStorageWithClients(p, map[string]*storage.Client{ClientID: client}), p}
	serving.Lock()
	router := exampleop.SetupServer(p.Issuer, s, slog.New(slog.DiscardHandler), false)
	serving.Unlock()
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.closed.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		serving.RLock()
		defer serving.RUnlock()
		router.ServeHTTP(w, r)
	}))
	_ = p.server.Listener.Close() // it has one already
	p.server.Listener = listener
	p.server.Start()
	t.Cleanup(p.server.Close)
	return p
}

// Set adds a person, or changes one.
func (p *Provider) Set(one Person) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.people[one.ID] = one
}

// Allow sets where browsers may be sent to, when they have signed in and out.
func (p *Provider) Allow(redirect, afterwards string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.redirects, p.afterwards = []string{redirect}, []string{afterwards}
}

// Lifetime sets how long ID tokens are valid.
func (p *Provider) Lifetime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifetime = d
}

// Thin leaves groups and email out of ID tokens: they are in the user info only.
func (p *Provider) Thin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thin = true
}

// Down has every request fail, or not any more.
func (p *Provider) Down(is bool) { p.closed.Store(is) }

// GetUserByID implements storage.UserStore.
func (p *Provider) GetUserByID(id string) *storage.User {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, ok := p.people[id]
	if !ok {
		return nil
	}
	return &storage.User{ID: one.ID, Username: one.Email, Password: Password, Email: one.Email, EmailVerified: !one.Unverified}
}

// GetUserByUsername implements storage.UserStore.
func (p *Provider) GetUserByUsername(name string) *storage.User {
	p.mu.Lock()
	id := ""
	for _, one := range p.people {
		if one.Email == name {
			id = one.ID
		}
	}
	p.mu.Unlock()
	return p.GetUserByID(id)
}

// ExampleClientID implements storage.UserStore.
func (*Provider) ExampleClientID() string { return "" }

// store adds groups to the storage of the example.
type store struct {
	*storage.Storage
	p *Provider
}

func (s *store) groups(info *oidc.UserInfo, id string) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	info.AppendClaims("groups", s.p.people[id].Groups)
	info.AppendClaims("realm_access", map[string]any{"roles": s.p.people[id].Groups})
}

// SetUserinfoFromRequest implements op.CanSetUserinfoFromRequest, for ID tokens.
func (s *store) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, _ []string) error {
	s.p.mu.Lock()
	thin := s.p.thin
	s.p.mu.Unlock()
	info.Subject = token.GetSubject()
	if thin {
		return nil
	}
	s.groups(info, token.GetSubject())
	return s.Storage.SetUserinfoFromRequest(ctx, info, token, token.GetScopes())
}

// SetUserinfoFromScopes implements op.Storage.
func (*store) SetUserinfoFromScopes(context.Context, *oidc.UserInfo, string, string, []string) error {
	return nil
}

// SetUserinfoFromToken implements op.Storage, for the user info.
func (s *store) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, token, subject, origin string) error {
	s.groups(info, subject)
	return s.Storage.SetUserinfoFromToken(ctx, info, token, subject, origin)
}

// GetClientByClientID implements op.Storage.
func (s *store) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := s.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return client{c, s.p.lifetime, s.p.redirects, s.p.afterwards}, nil
}

// client is the client with settings of the test.
type client struct {
	op.Client
	lifetime              time.Duration
	redirects, afterwards []string
}

func (c client) IDTokenLifetime() time.Duration     { return c.lifetime }
func (c client) RedirectURIs() []string             { return c.redirects }
func (c client) PostLogoutRedirectURIs() []string   { return c.afterwards }
func (client) IDTokenUserinfoClaimsAssertion() bool { return true }

var requestID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// SignIn signs a person in at the provider, as a browser would that was sent to a URL, and returns where the provider
// sends it back to.
func (p *Provider) SignIn(t testing.TB, at, email string) *url.URL {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	issuer, _ := url.Parse(p.Issuer)
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Host != issuer.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	do := func(r *http.Request, err error) *http.Response {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		a, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	page := do(http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil))
	body, err := io.ReadAll(page.Body)
	page.Body.Close()
	if to, found := page.Location(); err == nil && found == nil {
		return to // it was refused at once
	}
	id := requestID.FindSubmatch(body)
	if err != nil || id == nil {
		t.Fatalf("%s is no page to sign in: %v: %s", at, err, body)
	}
	form := url.Values{"id": {string(id[1])}, "username": {email}, "password": {Password}}.Encode()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.Issuer+"login/username", strings.NewReader(form))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	answer := do(r, err)
	defer answer.Body.Close()
	to, err := answer.Location()
	if err != nil {
		rest, _ := io.ReadAll(answer.Body)
		t.Fatalf("%s could not sign in: %d: %s", email, answer.StatusCode, rest)
	}
	return to
}
