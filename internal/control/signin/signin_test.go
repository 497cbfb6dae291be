package signin_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/signin"
)

// forger is a provider that sends what a real one does not.
type forger struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu    sync.Mutex
	id    func(claims jwt.MapClaims) string // makes the ID token
	token map[string]any                    // more of the answer
	info  map[string]any                    // the user info
}

func newForger(t *testing.T) *forger {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := &forger{key: key}
	m := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	m.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": f.URL, "authorization_endpoint": f.URL + "/auth", "token_endpoint": f.URL + "/token", "jwks_uri": f.URL + "/keys", "userinfo_endpoint": f.URL + "/info",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	})
	m.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		text := base64.RawURLEncoding.EncodeToString
		answer(w, map[string]any{"keys": []any{map[string]any{"kty": "RSA", "kid": "1", "use": "sig", "n": text(key.N.Bytes()), "e": text(big.NewInt(int64(key.E)).Bytes())}}})
	})
	m.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		now := time.Now()
		claims := jwt.MapClaims{
			"iss": f.URL, "aud": "stint", "sub": "ada", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "nonce": r.FormValue("code"), // the test sends it as the code
			"email": "ada@example.com", "email_verified": true, "groups": []string{"admins"},
		}
		out := map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": f.id(claims)}
		maps.Copy(out, f.token)
		answer(w, out)
	})
	m.HandleFunc("/info", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		answer(w, f.info)
	})
	f.Server = httptest.NewServer(m)
	t.Cleanup(f.Close)
	return f
}

// sign signs claims as the provider does.
func (f *forger) sign(claims jwt.MapClaims) string {
	return signed(jwt.SigningMethodRS256, f.key, claims)
}

func signed(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = "1"
	text, err := token.SignedString(key)
	if err != nil {
		panic(err)
	}
	return text
}

// try signs in, with an ID token of the forger.
func (f *forger) try(t *testing.T, o signin.Options, id func(jwt.MapClaims) string) (*signin.Person, error) {
	t.Helper()
	f.mu.Lock()
	f.id = id
	f.mu.Unlock()
	o.Issuer, o.ClientID = f.URL, "stint"
	if o.Claim == "" {
		o.Claim = "groups"
	}
	if o.Groups == nil {
		o.Groups = []signin.Group{{Name: "admins", Role: catalog.Administrator}}
	}
	p := signin.New(o)
	if err := p.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	secret := signin.NewSecret()
	at, err := p.Begin(secret, "http://127.0.0.1/callback")
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(at)
	return p.Finish(t.Context(), secret, "http://127.0.0.1/callback", u.Query().Get("nonce"), "")
}

// TestForged sends ID tokens that must not be accepted.
func TestForged(t *testing.T) {
	t.Parallel()
	f := newForger(t)
	if p, err := f.try(t, signin.Options{}, f.sign); err != nil || p.Name != "ada@example.com" || p.Role != catalog.Administrator || p.Renews {
		t.Fatalf("%+v, %v", p, err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: func() []byte { b, _ := x509.MarshalPKIXPublicKey(&f.key.PublicKey); return b }()})
	with := func(name string, value any) func(jwt.MapClaims) string {
		return func(c jwt.MapClaims) string {
			if c[name] = value; value == nil {
				delete(c, name)
			}
			return f.sign(c)
		}
	}
	now := time.Now()
	for what, id := range map[string]func(jwt.MapClaims) string{
		"another issuer":      with("iss", "https://evil.example"),
		"no issuer":           with("iss", nil),
		"another audience":    with("aud", "other"),
		"no audience":         with("aud", nil),
		"two audiences":       with("aud", []string{"stint", "other"}),
		"another party":       with("azp", "other"),
		"another nonce":       with("nonce", "other"),
		"no nonce":            with("nonce", nil),
		"expired":             with("exp", now.Add(-signin.Skew-5*time.Second).Unix()),
		"no expiry":           with("exp", nil),
		"not yet valid":       with("nbf", now.Add(time.Hour).Unix()),
		"made in the future":  with("iat", now.Add(signin.Skew+time.Minute).Unix()),
		"no subject":          with("sub", nil),
		"a long subject":      with("sub", strings.Repeat("a", 256)),
		"the key of another":  func(c jwt.MapClaims) string { return signed(jwt.SigningMethodRS256, other, c) },
		"another kind of key": func(c jwt.MapClaims) string { return signed(jwt.SigningMethodES256, curve, c) },
		"none": func(c jwt.MapClaims) string {
			return signed(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, c)
		},
		"HS256 with the public key":      func(c jwt.MapClaims) string { return signed(jwt.SigningMethodHS256, public, c) },
		"HS256 with the client's secret": func(c jwt.MapClaims) string { return signed(jwt.SigningMethodHS256, []byte("secret"), c) },
		"no signature":                   func(c jwt.MapClaims) string { s := f.sign(c); return s[:strings.LastIndexByte(s, '.')+1] },
		"no token":                       func(jwt.MapClaims) string { return "" },
		"no JWT":                         func(jwt.MapClaims) string { return "a.b.c" },
	} {
		p, err := f.try(t, signin.Options{ClientSecret: "secret"}, id)
		if no := new(signin.RefusedError); !errors.As(err, &no) || no.Kind != signin.Invalid {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	// Clocks may differ a little.
	for what, id := range map[string]func(jwt.MapClaims) string{
		"just expired": with("exp", now.Add(-signin.Skew/2).Unix()),
		"just ahead":   with("iat", now.Add(signin.Skew/2).Unix()),
	} {
		if _, err := f.try(t, signin.Options{}, id); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRoles maps groups.
func TestRoles(t *testing.T) {
	t.Parallel()
	f := newForger(t)
	groups := []signin.Group{
		{Name: "admins", Role: catalog.Administrator},
		{Name: "acme", Role: catalog.Operator, Tenants: []string{"acme"}},
		{Name: "both", Role: catalog.Operator, Tenants: []string{"acme", "beta"}},
		{Name: "ops", Role: catalog.Operator},
		{Name: "watch", Role: catalog.Viewer},
	}
	for _, c := range []struct {
		groups  any
		role    catalog.Role // empty: refused
		tenants []string
	}{
		{[]string{"watch", "admins"}, catalog.Administrator, nil},
		{[]string{"watch"}, catalog.Viewer, nil},
		{"watch", catalog.Viewer, nil},
		{[]string{"watch", "acme"}, catalog.Operator, []string{"acme"}},
		{[]string{"both", "acme"}, catalog.Operator, []string{"acme", "beta"}},
		{[]string{"acme", "ops"}, catalog.Operator, []string{"acme"}}, // the first decides
		{[]any{1, nil, "watch"}, catalog.Viewer, nil},
		{[]string{}, "", nil},
		{[]string{"Admins", "admins "}, "", nil},
		{map[string]any{"admins": true}, "", nil},
		{true, "", nil},
		{nil, "", nil},
	} {
		p, err := f.try(t, signin.Options{Groups: groups}, func(claims jwt.MapClaims) string { claims["groups"] = c.groups; return f.sign(claims) })
		if no := new(signin.RefusedError); c.role == "" && (!errors.As(err, &no) || no.Kind != signin.NoGroup) {
			t.Errorf("%v: %+v, %v", c.groups, p, err)
		} else if c.role != "" && (err != nil || p.Role != c.role || !slices.Equal(p.Tenants, c.tenants)) {
			t.Errorf("%v: %+v, %v, want %v for %v", c.groups, p, err, c.role, c.tenants)
		}
	}
	// The user info must be that of the same person.
	thin := func(c jwt.MapClaims) string { delete(c, "groups"); return f.sign(c) }
	f.info = map[string]any{"sub": "ada", "groups": []string{"admins"}}
	if p, err := f.try(t, signin.Options{}, thin); err != nil || p.Role != catalog.Administrator {
		t.Errorf("%+v, %v", p, err)
	}
	f.info = map[string]any{"sub": "eve", "groups": []string{"admins"}}
	if p, err := f.try(t, signin.Options{}, thin); err == nil {
		t.Errorf("%+v", p)
	}
	// Too many groups for the token of Entra.
	f.info = map[string]any{"sub": "ada"}
	_, err := f.try(t, signin.Options{}, func(c jwt.MapClaims) string {
		delete(c, "groups")
		c["_claim_names"], c["_claim_sources"] = map[string]any{"groups": "src1"}, map[string]any{"src1": map[string]any{"endpoint": "https://graph.example"}}
		return f.sign(c)
	})
	if err == nil || !strings.Contains(err.Error(), "too many groups") {
		t.Error(err)
	}
	// A group that is an email has to be verified.
	mails := signin.Options{Claim: "email", Groups: []signin.Group{{Name: "ada@example.com", Role: catalog.Viewer}}}
	if _, err := f.try(t, mails, f.sign); err != nil {
		t.Error(err)
	}
	for _, verified := range []any{false, nil, "no", 1} {
		if p, err := f.try(t, mails, func(c jwt.MapClaims) string { c["email_verified"] = verified; return f.sign(c) }); err == nil {
			t.Errorf("%v: %+v", verified, p)
		}
	}
	if p, err := f.try(t, signin.Options{NameClaim: "email"}, func(c jwt.MapClaims) string { c["email_verified"] = false; return f.sign(c) }); err == nil {
		t.Errorf("%+v", p)
	}
	// Names are safe to show.
	p, err := f.try(t, signin.Options{NameClaim: "nick"}, func(c jwt.MapClaims) string { c["nick"] = "a\nb" + strings.Repeat("c", 1000); return f.sign(c) })
	if err != nil || strings.Contains(p.Name, "\n") || len(p.Name) > 200 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestBegan has a state belong to one secret.
func TestBegan(t *testing.T) {
	t.Parallel()
	if signin.Began("", "") || signin.Began("a", "") || signin.Began("", "a") {
		t.Error("a sign-in without a secret")
	}
}
