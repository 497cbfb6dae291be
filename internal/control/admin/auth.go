package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/memstore"
)

// person is who makes a request.
type person struct {
	catalog.Token
	session *catalog.Session // nil: the request has the token itself
}

type asking struct{}

// personOf returns who makes the request. It is zero for operations without credentials.
func personOf(ctx context.Context) person {
	p, _ := ctx.Value(asking{}).(person)
	return p
}

// actor returns the name of that person, for the change log.
func actor(ctx context.Context) string { return personOf(ctx).Name }

// Authorize returns a handler that requires a role. It is for handlers on the same
// listener that are not part of the API.
func (a *API) Authorize(role catalog.Role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.secure(w)
		admitted, err := a.admit(r, role, false)
		if err != nil {
			a.problem(w, r, err)
			return
		}
		next.ServeHTTP(w, admitted)
	})
}

// Operators returns a handler for requests on another listener that come from operators:
// with a token, or without one but with a client certificate that the listener has verified.
// Cookies of the dashboard, which browsers send to all ports of a host, do not count.
func (a *API) Operators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := person{}, a.origins.Check(r)
		switch {
		case err != nil:
			err = errOrigin
		case r.Header.Get("Authorization") == "" && r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
			p.Name, p.Role = nameOf(r.TLS.VerifiedChains[0][0]), catalog.Operator
		default:
			p, err = a.bearer(r)
		}
		if err == nil {
			err = p.may(catalog.Operator, false)
		}
		if err != nil {
			a.problem(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), asking{}, p)))
	})
}

// nameOf returns the name of the owner of a certificate, for the change log.
func nameOf(c *x509.Certificate) string {
	name := "certificate " + strings.ToValidUTF8(cmp.Or(c.Subject.String(), "number "+c.SerialNumber.String()), "?")
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, name)
	const longest = 200 // bytes
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "")
	}
	return name
}

// admit returns the request with its person in the context, if that has the role, and is for all tenants unless the
// operation is scoped.
func (a *API) admit(r *http.Request, role catalog.Role, scoped bool) (*http.Request, error) {
	if err := a.origins.Check(r); err != nil {
		return r, errOrigin
	}
	if role == anyone {
		return r, nil
	}
	p, err := a.authenticate(r)
	if err != nil {
		return r, err
	}
	r = r.WithContext(context.WithValue(r.Context(), asking{}, p))
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead
	if p.session != nil && !safe && subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Csrf-Token")), []byte(p.session.CSRF)) != 1 {
		return r, fail(http.StatusForbidden, "the header X-CSRF-Token does not match the session")
	}
	return r, p.may(role, scoped)
}

// may returns an error if the person does not have a role, or is restricted to tenants where the operation is not.
func (p *person) may(role catalog.Role, scoped bool) error {
	if role == catalog.OfUser {
		if p.User == "" {
			return fail(http.StatusForbidden, "this is for tokens of one user, and "+strconv.Quote(p.Name)+" is none: stint tokens create NAME --user ID creates one")
		}
		return nil
	}
	if !p.Role.Includes(role) {
		return fail(http.StatusForbidden, fmt.Sprintf("this needs the role %s, and %s has the role %s", role, strconv.Quote(p.Name), p.Role))
	}
	if p.scoped() && !scoped {
		return errScoped(p)
	}
	return nil
}

// errOrigin is the error for requests that a page of another site has made.
var errOrigin = fail(http.StatusForbidden, "the request comes from another site")

// errCredentials is the error for missing or invalid credentials.
var errCredentials = fail(http.StatusUnauthorized, "want a token, as Authorization: Bearer TOKEN, or a session").with("WWW-Authenticate", `Bearer realm="stint admin"`)

// errTooMany is the error for too many invalid credentials.
var errTooMany = fail(http.StatusTooManyRequests, "too many invalid credentials")

// authenticate returns the person of a request.
func (a *API) authenticate(r *http.Request) (person, error) {
	if r.Header.Get("Authorization") != "" {
		return a.bearer(r)
	}
	cookie, err := r.Cookie(a.cookieName(r))
	if err != nil {
		return person{}, errCredentials
	}
	var s catalog.Session
	err = a.guard.check(r, a.guard.cookies, cookie.Value, func() (err error) {
		s, err = a.options.Tokens.SessionOf(r.Context(), cookie.Value)
		if err == nil && strings.HasPrefix(s.Token.ID, configPrefix) && s.Token.ID != a.config.id {
			return catalog.ErrBadToken // the token in the configuration has changed
		}
		if err == nil && strings.HasPrefix(s.Token.ID, signInPrefix) {
			s, err = a.current(r.Context(), cookie.Value, s)
		}
		return err
	})
	return person{Token: s.Token, session: &s}, err
}

// bearer returns the person of a request with a token.
func (a *API) bearer(r *http.Request) (person, error) {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return person{}, errCredentials
	}
	t, err := a.tokenOf(r, strings.TrimSpace(text))
	return person{Token: t}, err
}

// tokenOf returns the token with a text, and logs a failure. The guard bounds how many
// there are.
func (a *API) tokenOf(r *http.Request, text string) (t catalog.Token, err error) {
	err = a.guard.check(r, a.guard.tokens, text, func() (err error) {
		if a.config.is(text) {
			t = catalog.Token{ID: a.config.id, Name: a.config.name(), Role: catalog.Administrator}
			return nil
		}
		t, err = a.options.Tokens.TokenOf(r.Context(), text)
		if errors.Is(err, catalog.ErrBadToken) {
			a.log.LogAttrs(r.Context(), slog.LevelWarn, "admin: sign-in failed", slog.String("from", r.RemoteAddr), slog.String("path", r.URL.Path))
		}
		return err
	})
	return t, err
}

// The prefixes of ids of tokens that are in no table.
const configPrefix, signInPrefix = "config:", "oidc:"

// configToken is the token in the configuration.
type configToken struct {
	set  bool
	hash [32]byte
	id   string // in sessions; another token has another id
}

func newConfigToken(text identity.Secret) (c configToken, err error) {
	const least = 16
	if text == "" {
		return c, nil
	}
	if len(text) < least {
		return c, fmt.Errorf("the token in the configuration has %d bytes, want at least %d: it gives full access", len(text), least)
	}
	c.set, c.hash = true, sha256.Sum256([]byte(text))
	again := sha256.Sum256(append([]byte("the id of "), c.hash[:]...))
	c.id = configPrefix + hex.EncodeToString(again[:16])
	return c, nil
}

// name is its name in the change log.
func (*configToken) name() string { return "config" }

// is reports whether text is this token, in constant time.
func (c *configToken) is(text string) bool {
	hash := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(hash[:], c.hash[:]) == 1 && c.set
}

// guard slows down guessing. It counts invalid credentials, by address and in total. Over
// its limits, only credentials that were valid before are checked, so that guessing does
// not lock out people who are signed in.
type guard struct {
	tokens, cookies, all *stint.Limiter

	mu   sync.Mutex
	good map[[32]byte]struct{}
}

// maxGood is how many valid credentials are remembered. Over it, all are forgotten, which
// matters only to those who share an address with a guesser.
const maxGood = 1000

func newGuard(now func() time.Time) (*guard, error) {
	store, err := memstore.New(memstore.Options{MaxKeys: 1 << 16, Now: now})
	if err != nil {
		return nil, err
	}
	g := &guard{good: map[[32]byte]struct{}{}}
	for _, l := range []struct {
		into  **stint.Limiter
		name  string
		limit stint.Limit
	}{
		{&g.tokens, "tokens", stint.PerMinute(10)},
		// A session that has ended is not a guess: open pages keep sending it.
		{&g.cookies, "cookies", stint.PerMinute(100)},
		{&g.all, "all", stint.PerMinute(1000)},
	} {
		if *l.into, err = stint.New(store, stint.Options{Name: l.name, Limit: l.limit}); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// check calls look to check credentials, unless there were too many invalid ones.
func (g *guard) check(r *http.Request, each *stint.Limiter, text string, look func() error) error {
	if text == "" || len(text) > maxParam {
		return errCredentials
	}
	ctx, from, hash := r.Context(), peer(r), sha256.Sum256([]byte(text))
	if !g.knows(hash) {
		for _, l := range []struct {
			*stint.Limiter
			subject string
		}{{each, from}, {g.all, "all"}} {
			d, err := l.Peek(ctx, l.subject)
			if err != nil {
				return err
			}
			if d.Remaining < 1 {
				// A peek costs nothing, so its RetryAfter is 0.
				wait := strconv.FormatInt(field.Seconds(d.ResetAfter), 10)
				return fail(http.StatusTooManyRequests, errTooMany.Detail).with("Retry-After", wait)
			}
		}
	}
	err := look()
	if !errors.Is(err, catalog.ErrBadToken) {
		if err == nil {
			g.remember(hash)
		}
		return err
	}
	g.forget(hash)
	if _, err := each.Take(ctx, from); err != nil {
		return err
	}
	if _, err := g.all.Take(ctx, "all"); err != nil {
		return err
	}
	return errCredentials
}

func (g *guard) knows(hash [32]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.good[hash]
	return ok
}

func (g *guard) remember(hash [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.good) >= maxGood {
		clear(g.good)
	}
	g.good[hash] = struct{}{}
}

func (g *guard) forget(hash [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.good, hash)
}

// peer returns the address of a request, or for IPv6 its network, since one client has a
// whole network of addresses. Headers are not trusted.
func peer(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown"
	}
	addr := from.Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, _ := addr.Prefix(64)
		return network.String()
	}
	return addr.String()
}

// cookieName is the name of the session cookie. With TLS it has the prefix __Host-, which
// browsers accept only over TLS and from this host.
func (a *API) cookieName(r *http.Request) string {
	if a.secureRequest(r) {
		return "__Host-stint_session"
	}
	return "stint_session"
}

// cookie returns the session cookie. An empty text deletes it.
func (a *API) cookie(r *http.Request, text string, lives time.Duration) *http.Cookie {
	c := &http.Cookie{
		Name: a.cookieName(r), Value: text, Path: "/", MaxAge: int(lives / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: a.secureRequest(r),
	}
	if text == "" {
		c.MaxAge = -1
	}
	return c
}
