package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/signin"
)

const (
	// signInTime is how long a person may take to sign in at the identity provider.
	signInTime = 10 * time.Minute
	// renewAhead is how long before its end a session is renewed, while it is still valid for other requests.
	renewAhead = 30 * time.Second
	// maxReturn is the longest address of a page to come back to, in bytes.
	maxReturn = 1024
	// callbackPath is where the identity provider sends browsers back to.
	callbackPath = "/sign-in/callback"
)

// SignInWays is how one can sign in, beside a token.
type SignInWays struct {
	OIDC *SignInProvider `json:"oidc,omitempty" doc:"The identity provider. Missing: there is none."`
}

// SignInProvider is an identity provider.
type SignInProvider struct {
	Name  string `json:"name" doc:"Its name, for people." example:"Keycloak"`
	Ready bool   `json:"ready" doc:"Whether it was found. If not, that is retried, and tokens can be used." example:"true"`
}

// The reasons for which a sign-in fails, as the dashboard is told: it has words for them, and the log has the details.
const (
	failedOver        = "expired"     // it took too long, or began in another browser
	failedUnreachable = "unreachable" // the provider does not answer
	failedOften       = "too_many"    // there were too many failures from this address
)

func (a *API) addSignIn() {
	addQuery(a, operation{
		ID: "getSignIn", Method: http.MethodGet, Path: "/sign-in", Tag: tagAccess,
		Summary: "Get the ways to sign in", Description: "Returns the identity provider that people can sign in with, if there is one.",
	}, anyone, func(context.Context, *struct{}) (SignInWays, error) {
		p := a.options.SignIn
		if p == nil {
			return SignInWays{}, nil
		}
		return SignInWays{&SignInProvider{a.options.SignInName, p.Ready()}}, nil
	})

	type sent struct {
		Location string `header:"Location" doc:"Where the browser goes next." example:"https://login.example.com/authorize?client_id=stint&state=..."`
	}
	type startInput struct {
		Return string `query:"return" maxLength:"1024" doc:"The page of the dashboard to come back to: the part of its address from the # on." example:"#/rules"`
	}
	add(a, operation{
		ID: "startSignIn", Method: http.MethodGet, Path: "/sign-in/start", Tag: tagAccess, Status: http.StatusFound,
		Summary:     "Begin to sign in with the identity provider",
		Description: "Sends a browser to the identity provider, with a cookie that only this browser can come back with, within 10 minutes.",
		Answer:      "To the identity provider, or back to the dashboard if it cannot be reached.", Problems: []int{http.StatusNotFound},
	}, anyone, func(ctx context.Context, in *startInput) (*sent, error) {
		p, r := a.options.SignIn, requestOf(ctx)
		if p == nil {
			return nil, errNoSignIn
		}
		secret := signin.NewSecret()
		to, err := p.Begin(secret, a.callback(r.Request))
		if err != nil {
			return &sent{failedAt(failedUnreachable, pageOf(in.Return))}, nil
		}
		a.setSignIn(r, secret, in.Return)
		return &sent{to}, nil
	})

	type callbackInput struct {
		Code  string `query:"code" doc:"The code of the identity provider." example:"SplxlOBeZQQYbYS6WxSbIA"`
		State string `query:"state" maxLength:"128" doc:"What the sign-in began with." example:"af0ifjsldkj"`
		Error string `query:"error" maxLength:"256" doc:"Why the identity provider has refused." example:"access_denied"`
		Iss   string `query:"iss" maxLength:"1024" doc:"The issuer." example:"https://login.example.com"`
	}
	add(a, operation{
		ID: "finishSignIn", Method: http.MethodGet, Path: callbackPath, Tag: tagAccess, Status: http.StatusFound, AnyQuery: true,
		Summary: "Finish to sign in with the identity provider",
		Description: "The identity provider sends browsers here. It starts a session, and sends the browser to the page that it came from. " +
			"If that fails, the address has a parameter sign_in: expired, denied, group, invalid, unreachable or too_many.",
		Answer: "To the dashboard.", Problems: []int{http.StatusNotFound}, Timeout: 30 * time.Second,
	}, anyone, func(ctx context.Context, in *callbackInput) (*sent, error) {
		r := requestOf(ctx)
		if a.options.SignIn == nil {
			return nil, errNoSignIn
		}
		secret, page := a.signInOf(r.Request)
		a.setSignIn(r, "", "")
		person, failed, err := a.finishSignIn(r.Request, secret, in.Code, in.State, in.Error, in.Iss)
		if err != nil {
			return nil, err
		}
		if failed != "" {
			return &sent{failedAt(failed, page)}, nil
		}
		text, s, err := a.options.Tokens.CreateSignIn(ctx, tokenFor(person), sessionTime, person.Kept, person.Renews)
		if err != nil {
			return nil, err
		}
		a.log.LogAttrs(ctx, slog.LevelInfo, "admin: session started", slog.String("actor", person.Name), slog.String("role", string(person.Role)),
			slog.String("tenants", strings.Join(person.Tenants, ",")), slog.String("from", peer(r.Request)))
		r.w.Header().Add("Set-Cookie", a.cookie(r.Request, text, s.Expires.Sub(a.now())).String())
		return &sent{"/" + page}, nil
	})
}

// errNoSignIn is the error if there is no identity provider.
var errNoSignIn = fail(http.StatusNotFound, "there is no identity provider: set server.admin.oidc, or sign in with a token")

// tokenFor returns the token of a session of a person.
func tokenFor(p *signin.Person) catalog.Token {
	return catalog.Token{ID: p.ID, Name: p.Name, Role: p.Role, Tenants: p.Tenants, Expires: p.Expires}
}

// finishSignIn returns who comes back from the identity provider, or why that failed.
func (a *API) finishSignIn(r *http.Request, secret, code, state, refused, issuer string) (person *signin.Person, failed string, err error) {
	err = a.guard.check(r, a.guard.tokens, secret+" "+code, func() (err error) {
		switch {
		case !signin.Began(secret, state):
			err = &signin.RefusedError{Kind: failedOver, Why: "the sign-in began in another browser, or too long ago"}
		case refused != "":
			err = &signin.RefusedError{Kind: signin.Denied, Why: "the provider refuses it: " + shown(refused)}
		default:
			person, err = a.options.SignIn.Finish(r.Context(), secret, a.callback(r), code, issuer)
		}
		if no := new(signin.RefusedError); errors.As(err, &no) {
			failed = no.Kind
			a.logFailed(r, err)
			return catalog.ErrBadToken
		}
		return err
	})
	var p *Problem
	switch {
	case err == nil || failed != "":
		return person, failed, nil
	case errors.As(err, &p) && p.Status == http.StatusTooManyRequests:
		return nil, failedOften, nil
	case errors.Is(err, signin.ErrUnreachable):
		a.logFailed(r, err)
		return nil, failedUnreachable, nil
	}
	return nil, "", err
}

// logFailed logs why a sign-in failed, in the same line as for tokens.
func (a *API) logFailed(r *http.Request, err error) {
	a.log.LogAttrs(r.Context(), slog.LevelWarn, "admin: sign-in failed", slog.String("from", r.RemoteAddr), slog.String("path", r.URL.Path), slog.String("problem", err.Error()))
}

// failedAt returns the address of the dashboard after a failure.
func failedAt(reason, page string) string { return "/?sign_in=" + reason + page }

// pageOf returns the page of the dashboard to come back to. It is a part of an address, so it leads nowhere else.
func pageOf(text string) string {
	if len(text) > maxReturn || !strings.HasPrefix(text, "#/") || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\"\\<>^`{|}", c) }) {
		return "#/"
	}
	return text
}

// secureRequest reports whether the browser uses TLS, to this process or to a proxy in front of it.
func (a *API) secureRequest(r *http.Request) bool {
	u := a.options.SignInURL
	return a.options.Secure(r) || u != nil && u.Scheme == "https" && r.Host == u.Host
}

// origin returns the address of the dashboard, as browsers know it.
func (a *API) origin(r *http.Request) string {
	if u := a.options.SignInURL; u != nil {
		return u.Scheme + "://" + u.Host
	}
	scheme := "http"
	if a.options.Secure(r) {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: r.Host}).String()
}

// callback returns the redirect URL.
func (a *API) callback(r *http.Request) string {
	if u := a.options.SignInURL; u != nil {
		return u.String()
	}
	return a.origin(r) + Prefix + callbackPath
}

func (a *API) signInCookie(r *http.Request) string {
	if a.secureRequest(r) {
		return "__Host-stint_sign_in"
	}
	return "stint_sign_in"
}

// setSignIn sets the cookie of a sign-in. It is sent when the identity provider, another site, links back. An empty
// secret deletes it.
func (a *API) setSignIn(r request, secret, page string) {
	c := &http.Cookie{
		Name: a.signInCookie(r.Request), Value: secret + "." + base64.RawURLEncoding.EncodeToString([]byte(pageOf(page))), Path: "/", MaxAge: int(signInTime / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: a.secureRequest(r.Request),
	}
	if secret == "" {
		c.Value, c.MaxAge = "", -1
	}
	r.w.Header().Add("Set-Cookie", c.String())
}

// signInOf returns the secret of a sign-in, or "", and the page to come back to.
func (a *API) signInOf(r *http.Request) (secret, page string) {
	c, err := r.Cookie(a.signInCookie(r))
	if err != nil {
		return "", "#/"
	}
	secret, rest, _ := strings.Cut(c.Value, ".")
	text, _ := base64.RawURLEncoding.DecodeString(rest)
	return secret, pageOf(string(text))
}

// current returns a session as it is now: that of a person ends if the identity provider or its settings are others, and
// is renewed if its ID token has expired. One request of one node does so; others wait, unless it is still valid.
func (a *API) current(ctx context.Context, text string, s catalog.Session) (catalog.Session, error) {
	const pause = 100 * time.Millisecond
	for {
		p, now := a.options.SignIn, a.now()
		over := !now.Before(s.Token.Expires)
		switch {
		case p == nil || !strings.HasPrefix(s.Token.ID, p.Prefix()):
			return s, catalog.ErrBadToken
		case now.Add(renewAhead).Before(s.Token.Expires), !s.Expires.After(s.Token.Expires): // it is not due, or ends before its token
			return s, nil
		}
		mine, err := a.options.Tokens.ClaimRenewal(ctx, text, s.Token.Expires)
		switch {
		case err != nil && over:
			return s, err
		case mine:
			return a.renew(ctx, text, s, over)
		case !over:
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(pause):
		}
		if s, err = a.options.Tokens.SessionOf(ctx, text); err != nil {
			return s, err
		}
	}
}

// renew asks the identity provider about the person of a session.
func (a *API) renew(ctx context.Context, text string, s catalog.Session, over bool) (catalog.Session, error) {
	person, err := a.options.SignIn.Renew(ctx, s.Kept)
	refused := new(signin.RefusedError)
	switch {
	case errors.As(err, &refused) || err == nil && person.ID != s.Token.ID:
		a.log.LogAttrs(ctx, slog.LevelInfo, "admin: session ended, the identity provider does not renew it", slog.String("actor", s.Token.Name), slog.Any("problem", err))
		if err := a.options.Tokens.EndSession(ctx, text); err != nil {
			return s, err
		}
		return s, catalog.ErrBadToken
	case err != nil && !over:
		return s, nil // the next request after a while tries again
	case err != nil:
		a.log.LogAttrs(ctx, slog.LevelWarn, "admin: a session could not be renewed", slog.String("actor", s.Token.Name), slog.String("problem", err.Error()))
		return s, fail(http.StatusServiceUnavailable, "the identity provider does not answer, which has to renew the session: try again, or use a token").
			with("Retry-After", strconv.Itoa(int(catalog.RenewalTime/time.Second)))
	}
	t := tokenFor(person)
	if err := a.options.Tokens.Renew(ctx, text, t, person.Kept); err != nil {
		return s, err
	}
	s.Token, s.Kept = t, person.Kept
	return s, nil
}
