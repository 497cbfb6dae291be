// Package signin signs people in with an identity provider, by OpenID Connect: the authorization code flow with PKCE.
//
// A [Provider] is found by discovery from the URL of its issuer. That may fail and be retried: nothing else depends on
// it. It sends a browser to the provider ([Provider.Begin]), redeems the code that the browser comes back with
// ([Provider.Finish]), asks again when the ID token expires ([Provider.Renew]), and tells where to sign out.
//
// Nothing is stored. State, nonce and PKCE verifier of a sign-in are derived from one secret, which the browser keeps in
// a cookie, so any node can finish what another began, and only the browser that began it.
//
// It accepts an ID token only if it has an asymmetric signature of the provider, its issuer, this client as audience, the
// nonce of the sign-in, and has not expired, give or take [Skew]. The groups in it give a role and, maybe, tenants; who
// is in none of the configured groups is refused. An email that the provider has not verified is not used.
package signin

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
)

const (
	// Skew is by how much the clocks of the provider and of this node may differ.
	Skew = time.Minute
	// callLimit is how long a call to the provider may take.
	callLimit = 8 * time.Second
	// maxAnswer is the largest answer of the provider in bytes.
	maxAnswer = 1 << 20
	// maxHint is the largest ID token that is sent again, in a URL, to sign out; maxRefresh the largest refresh token.
	maxHint, maxRefresh = 6 << 10, 8 << 10
	// maxName is the longest name of a person in bytes.
	maxName = 200
)

// algorithms are the signatures that are accepted: no "none", and no HMAC, whose key is not the provider's alone.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// Group gives people who are in a group of the provider a role, for some tenants or, if there are none, for all.
type Group struct {
	Name    string
	Role    catalog.Role
	Tenants []string
}

// Options describe a provider. They were checked.
type Options struct {
	Issuer, ClientID string
	ClientSecret     identity.Secret // empty: PKCE alone protects the code
	Scopes           []string        // beside openid
	Claim            string          // with the groups; a path, such as realm_access.roles
	NameClaim        string          // with the name of the person; empty: email, if it is verified, or else sub
	Groups           []Group         // the first that a person is in decides the role
	EmailDomains     []string        // of people who may sign in; empty: all
	Now              func() time.Time
}

// Provider is an identity provider.
type Provider struct {
	o      Options
	id     string
	client *http.Client
	found  atomic.Pointer[found]
}

// found is what discovery has found.
type found struct {
	*oidc.Provider
	verifier *oidc.IDTokenVerifier
	style    oauth2.AuthStyle
	end      string // the end_session_endpoint; empty: it has none
}

// Person is who has signed in.
type Person struct {
	ID      string // of this person at this provider, for this configuration
	Name    string // for the change log
	Role    catalog.Role
	Tenants []string
	Expires time.Time // when the ID token expires, and Skew
	Kept    []byte    // for [Provider.Renew] and [Provider.Leave]
	Renews  bool      // whether [Provider.Renew] can be called
}

// RefusedError means that a sign-in was refused. It is safe to log.
type RefusedError struct {
	// Kind is one of denied: the provider has refused, group: the person is in no group that may sign in, invalid: what
	// the provider sent is not acceptable.
	Kind string
	Why  string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Why }

func refuse(kind, why string, args ...any) error {
	return &RefusedError{kind, fmt.Sprintf(why, args...)}
}

// The kinds of [RefusedError].
const (
	Denied  = "denied"
	NoGroup = "group"
	Invalid = "invalid"
)

// ErrUnreachable means that the provider cannot be reached, or does not work.
var ErrUnreachable = errors.New("the identity provider cannot be reached")

// New returns a provider, which is not discovered yet.
func New(o Options) *Provider {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default; tests set another
	}
	p := &Provider{o: o, client: &http.Client{Timeout: callLimit, Transport: bounded{http.DefaultTransport}}}
	// Another configuration has another id, so that sessions of the old one end.
	about, _ := json.Marshal([]any{o.Issuer, o.ClientID, o.Claim, o.NameClaim, o.Groups, o.EmailDomains}) // it does not fail
	sum := sha256.Sum256(about)
	p.id = hex.EncodeToString(sum[:8])
	return p
}

// bounded limits the size of answers.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		a.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(a.Body, maxAnswer), a.Body}
	}
	return a, err
}

// Prefix is how the ids of all people of this provider begin, for this configuration.
func (p *Provider) Prefix() string { return "oidc:" + p.id + ":" }

// Ready reports whether the provider was discovered.
func (p *Provider) Ready() bool { return p.found.Load() != nil }

// Discover finds the provider, if it was not found before.
func (p *Provider) Discover(ctx context.Context) error {
	if p.Ready() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	provider, err := oidc.NewProvider(oidc.ClientContext(limited, p.client), p.o.Issuer)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	var more struct {
		End     string   `json:"end_session_endpoint"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := provider.Claims(&more); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	f := &found{Provider: provider, style: oauth2.AuthStyleInHeader, end: more.End}
	if p.o.ClientSecret == "" || len(more.Methods) > 0 && !slices.Contains(more.Methods, "client_secret_basic") {
		f.style = oauth2.AuthStyleInParams
	}
	// The context of the keys is one that does not end with this call.
	keys := oidc.ClientContext(context.WithoutCancel(ctx), p.client)
	f.verifier = provider.VerifierContext(keys, &oidc.Config{
		ClientID: p.o.ClientID, SupportedSigningAlgs: algorithms, Now: func() time.Time { return p.o.Now().Add(-Skew) },
	})
	p.found.Store(f)
	return nil
}

// NewSecret returns the secret of a sign-in.
func NewSecret() string { return rand.Text() }

// derive returns what a sign-in uses for a purpose, as 43 characters.
func derive(secret, purpose string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(purpose))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Began reports whether the sign-in with a secret has a state.
func Began(secret, state string) bool {
	return secret != "" && subtle.ConstantTimeCompare([]byte(derive(secret, "state")), []byte(state)) == 1
}

func (p *Provider) config(f *found, redirect string) *oauth2.Config {
	c := &oauth2.Config{ClientID: p.o.ClientID, ClientSecret: string(p.o.ClientSecret), Endpoint: f.Endpoint(), RedirectURL: redirect, Scopes: []string{oidc.ScopeOpenID}}
	c.Endpoint.AuthStyle = f.style
	for _, s := range p.o.Scopes {
		if s != oidc.ScopeOpenID && (s != oidc.ScopeOfflineAccess || !p.google()) {
			c.Scopes = append(c.Scopes, s)
		}
	}
	return c
}

// google reports whether it is Google, which has parameters in place of the scope offline_access.
func (p *Provider) google() bool { return p.o.Issuer == "https://accounts.google.com" }

// Begin returns where to send a browser to sign in. The browser keeps the secret.
func (p *Provider) Begin(secret, redirect string) (string, error) {
	f := p.found.Load()
	if f == nil {
		return "", ErrUnreachable
	}
	options := []oauth2.AuthCodeOption{oidc.Nonce(derive(secret, "nonce")), oauth2.S256ChallengeOption(derive(secret, "verifier"))}
	if p.google() && slices.Contains(p.o.Scopes, oidc.ScopeOfflineAccess) {
		options = append(options, oauth2.AccessTypeOffline, oauth2.SetAuthURLParam("prompt", "consent"))
	}
	return p.config(f, redirect).AuthCodeURL(derive(secret, "state"), options...), nil
}

// Finish redeems a code. The caller has checked the state with [Began]. The issuer is that in the answer of the
// provider, if there was one.
func (p *Provider) Finish(ctx context.Context, secret, redirect, code, issuer string) (*Person, error) {
	f := p.found.Load()
	switch {
	case f == nil:
		return nil, ErrUnreachable
	case issuer != "" && issuer != p.o.Issuer:
		return nil, refuse(Invalid, "the answer is of another issuer")
	case code == "":
		return nil, refuse(Invalid, "the answer has no code")
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.config(f, redirect).Exchange(ctx, code, oauth2.VerifierOption(derive(secret, "verifier")))
	if err != nil {
		return nil, tokenError(err)
	}
	return p.person(ctx, f, token, derive(secret, "nonce"), "")
}

// tokenError converts an error of the token endpoint.
func tokenError(err error) error {
	answer := new(oauth2.RetrieveError)
	if errors.As(err, &answer) && answer.Response != nil && answer.Response.StatusCode < http.StatusInternalServerError && answer.Response.StatusCode != http.StatusTooManyRequests {
		return refuse(Denied, "the provider refuses it: %s", cmp.Or(clean(answer.ErrorCode), answer.Response.Status))
	}
	if answer.Response == nil && !errors.As(err, new(*url.Error)) {
		return refuse(Invalid, "the answer of the provider cannot be used: %s", clean(err.Error()))
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// kept is what a session keeps.
type kept struct {
	Refresh string `json:"refresh,omitempty"`
	ID      string `json:"id_token,omitempty"`
	Subject string `json:"sub"`
}

// Renew asks the provider again about a person, by what was kept.
func (p *Provider) Renew(ctx context.Context, keep []byte) (*Person, error) {
	f := p.found.Load()
	if f == nil {
		return nil, ErrUnreachable
	}
	var k kept
	if json.Unmarshal(keep, &k) != nil || k.Refresh == "" {
		return nil, refuse(Invalid, "there is no refresh token")
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.config(f, "").TokenSource(ctx, &oauth2.Token{RefreshToken: k.Refresh}).Token()
	if err != nil {
		return nil, tokenError(err)
	}
	if token.RefreshToken == "" {
		token.RefreshToken = k.Refresh
	}
	return p.person(ctx, f, token, "", k.Subject)
}

// Leave returns where to send a browser to sign out at the provider, too, and come back to a URL afterwards; empty: the
// provider has no such place.
func (p *Provider) Leave(keep []byte, back string) string {
	f := p.found.Load()
	if f == nil || f.end == "" {
		return ""
	}
	to, err := url.Parse(f.end)
	if err != nil || to.Scheme != "https" && to.Scheme != "http" {
		return ""
	}
	q := to.Query()
	q.Set("client_id", p.o.ClientID)
	q.Set("post_logout_redirect_uri", back)
	var k kept
	if json.Unmarshal(keep, &k) == nil && k.ID != "" {
		q.Set("id_token_hint", k.ID)
	}
	to.RawQuery = q.Encode()
	return to.String()
}

// person checks the ID token of an answer, and returns whose it is. Of a person who is known, the subject cannot change,
// and the token need not have a nonce.
func (p *Provider) person(ctx context.Context, f *found, token *oauth2.Token, nonce, subject string) (*Person, error) {
	text, _ := token.Extra("id_token").(string)
	if text == "" {
		return nil, refuse(Invalid, "the answer has no ID token")
	}
	id, err := f.verifier.Verify(ctx, text)
	if err != nil {
		if ctx.Err() != nil || strings.Contains(err.Error(), "fetching keys") {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return nil, refuse(Invalid, "the ID token is not valid: %s", clean(err.Error()))
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return nil, refuse(Invalid, "the claims of the ID token cannot be read")
	}
	authorized, _ := claims["azp"].(string)
	switch {
	case nonce != "" && subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1:
		return nil, refuse(Invalid, "the ID token has another nonce")
	case len(id.Audience) > 1 && authorized != p.o.ClientID || authorized != "" && authorized != p.o.ClientID:
		return nil, refuse(Invalid, "the ID token was made for another client")
	case id.Subject == "" || len(id.Subject) > 255:
		return nil, refuse(Invalid, "the ID token has no subject, or one of more than 255 bytes")
	case subject != "" && subject != id.Subject:
		return nil, refuse(Invalid, "the ID token is of another person")
	case id.IssuedAt.After(p.o.Now().Add(Skew)):
		return nil, refuse(Invalid, "the ID token was made in the future: compare the clocks")
	}
	if missing(claims, p.o.Claim) && f.UserInfoEndpoint() != "" {
		if err := addUserInfo(ctx, f, token, id.Subject, claims); err != nil {
			return nil, err
		}
	}
	return p.admit(claims, id, text, token.RefreshToken)
}

// missing reports whether a claim has to be looked for elsewhere.
func missing(claims map[string]any, path string) bool {
	_, ok := lookup(claims, path)
	return !ok
}

// addUserInfo adds the claims of the user info endpoint that are not in the ID token, which some providers keep small.
func addUserInfo(ctx context.Context, f *found, token *oauth2.Token, subject string, claims map[string]any) error {
	info, err := f.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("%w: user info: %w", ErrUnreachable, err)
	}
	if info.Subject != subject {
		return refuse(Invalid, "the user info is of another person")
	}
	var more map[string]any
	if err := info.Claims(&more); err != nil {
		return refuse(Invalid, "the user info cannot be read")
	}
	for name, value := range more {
		if _, ok := claims[name]; !ok {
			claims[name] = value
		}
	}
	return nil
}

// admit returns the person with these claims, if it may sign in.
func (p *Provider) admit(claims map[string]any, id *oidc.IDToken, text, refresh string) (*Person, error) {
	var name string
	email := verifiedEmail(claims)
	switch {
	case p.o.NameClaim != "":
		value, _ := lookup(claims, p.o.NameClaim)
		if name, _ = value.(string); name == "" {
			return nil, refuse(Invalid, "the claim %s, with the name, is missing", p.o.NameClaim)
		}
	case email != "":
		name = email
	default:
		name = "oidc:" + id.Subject
	}
	if !p.fromDomain(email) {
		return nil, refuse(NoGroup, "%s has no verified email of %s", clean(name), strings.Join(p.o.EmailDomains, ", "))
	}
	if (p.o.Claim == "email" || p.o.NameClaim == "email") && email == "" {
		return nil, refuse(NoGroup, "the email of %s is not verified", clean(id.Subject))
	}
	role, tenants, err := p.roleOf(claims, clean(name))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(id.Subject))
	out := &Person{ID: p.Prefix() + hex.EncodeToString(sum[:16]), Name: clean(name), Role: role, Tenants: tenants, Expires: id.Expiry.Add(Skew).UTC()}
	k := kept{Refresh: refresh, ID: text, Subject: id.Subject}
	if len(k.ID) > maxHint {
		k.ID = ""
	}
	if len(k.Refresh) > maxRefresh {
		k.Refresh = ""
	}
	out.Renews = k.Refresh != ""
	out.Kept, _ = json.Marshal(k) // it does not fail
	return out, nil
}

// verifiedEmail returns the email, in lower case, if the provider says that it is the person's.
func verifiedEmail(claims map[string]any) string {
	email, _ := claims["email"].(string)
	if is, text := claims["email_verified"], "true"; is != true && is != text || !strings.Contains(email, "@") {
		return ""
	}
	return strings.ToLower(email)
}

// fromDomain reports whether people with an email may sign in.
func (p *Provider) fromDomain(email string) bool {
	_, domain, _ := strings.Cut(email, "@")
	return len(p.o.EmailDomains) == 0 || domain != "" && slices.ContainsFunc(p.o.EmailDomains, func(d string) bool { return strings.EqualFold(d, domain) })
}

// roleOf returns what the groups of a person give. The first configured group that the person is in decides the role. If
// it is for some tenants, those of further groups with this role are added.
func (p *Provider) roleOf(claims map[string]any, name string) (role catalog.Role, tenants []string, err error) {
	value, ok := lookup(claims, p.o.Claim)
	if !ok {
		if elsewhere, _ := claims["_claim_names"].(map[string]any); elsewhere[p.o.Claim] != nil {
			return "", nil, refuse(NoGroup, "%s is in too many groups: the provider leaves them out of the claim %s", name, p.o.Claim)
		}
		return "", nil, refuse(NoGroup, "the claim %s, with the groups of %s, is missing", p.o.Claim, name)
	}
	has := map[string]bool{}
	switch v := value.(type) {
	case string:
		has[v] = true
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				has[text] = true
			}
		}
	default:
		return "", nil, refuse(NoGroup, "the claim %s of %s is no text and no list of texts", p.o.Claim, name)
	}
	for _, g := range p.o.Groups {
		switch {
		case !has[g.Name] || role != "" && g.Role != role:
		case role == "" && len(g.Tenants) == 0:
			return g.Role, nil, nil
		default:
			role = g.Role
			for _, t := range g.Tenants {
				if !slices.Contains(tenants, t) {
					tenants = append(tenants, t)
				}
			}
		}
	}
	if role == "" {
		return "", nil, refuse(NoGroup, "%s is in no group that may sign in", name)
	}
	return role, tenants, nil
}

// lookup returns a claim by its name or by a path of names with dots between them.
func lookup(claims map[string]any, path string) (any, bool) {
	if v, ok := claims[path]; ok {
		return v, true
	}
	name, rest, more := strings.Cut(path, ".")
	inner, ok := claims[name].(map[string]any)
	if !more || !ok {
		return nil, false
	}
	return lookup(inner, rest)
}

// clean returns a text of the provider in a form that is safe to show.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxName {
		text = strings.ToValidUTF8(text[:maxName], "")
	}
	return text
}
