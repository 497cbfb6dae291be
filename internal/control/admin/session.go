package admin

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// sessionTime is how long a session lasts.
const sessionTime = 12 * time.Hour

// Session is the current session, or the token of the request.
type Session struct {
	Name    string       `json:"name" doc:"The name of the token, which is the actor in the change log." example:"alice"`
	Role    catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"The role." example:"operator"`
	Tenants []string     `json:"tenants,omitempty" nullable:"false" doc:"The tenants that it is restricted to. Missing: it is for all." example:"[\"acme\"]"`
	CSRF    string       `json:"csrf,omitempty" doc:"The value of the header X-CSRF-Token, required with the session cookie for every method except GET and HEAD. Missing with a token, which needs none." example:"5f0c6b2a9d1e4b7f8a3c6d9e0b1a2c3d4e5f60718293a4b5c6d7e8f901a2b3c4"`
	Expires time.Time    `json:"expires_at,omitzero" doc:"When the session ends." example:"2026-01-02T15:04:05Z"`
	Token   time.Time    `json:"expires_token_at,omitzero" doc:"When the token expires. Never, if it is missing." example:"2026-02-01T00:00:00Z"`
}

func sessionOf(p person) Session {
	s := Session{Name: p.Name, Role: p.Role, Tenants: p.Tenants, Token: p.Expires}
	if p.session != nil {
		s.CSRF, s.Expires = p.session.CSRF, p.session.Expires
	}
	return s
}

// Login is the body of a login.
type Login struct {
	Token string `json:"token" doc:"The text of the token." example:"stint_admin_4mqyx7bn2kcd6wvr_0123456789abcdefghijklmnop"`
}

func (a *API) addSession() {
	type answer struct {
		Cookie string `header:"Set-Cookie" doc:"The session cookie." example:"stint_session=...; Path=/; HttpOnly; SameSite=Strict"`
		Body   Session
	}
	add(a, operation{
		ID: "createSession", Method: http.MethodPost, Path: "/session", Tag: tagAccess,
		Summary:     "Log in",
		Description: "Starts a session for a browser: sets its cookie, and returns its CSRF token. It lasts 12 hours, but not longer than the token.",
		Problems:    []int{http.StatusUnauthorized, http.StatusTooManyRequests},
	}, anyone, func(ctx context.Context, in *struct{ Body Login }) (*answer, error) {
		r := requestOf(ctx).Request
		t, err := a.tokenOf(r, in.Body.Token)
		if err != nil {
			return nil, err
		}
		if t.Role == catalog.OfUser {
			return nil, fail(http.StatusForbidden, "the token is for the operations under /me, and not for the dashboard")
		}
		text, s, err := a.options.Tokens.CreateSession(ctx, t, sessionTime)
		if err != nil {
			return nil, err
		}
		a.log.LogAttrs(ctx, slog.LevelInfo, "admin: session started", slog.String("actor", t.Name), slog.String("from", peer(r)))
		cookie := a.cookie(r, text, s.Expires.Sub(a.now()))
		return &answer{cookie.String(), sessionOf(person{t, &s})}, nil
	})

	addQuery(a, operation{
		ID: "getSession", Method: http.MethodGet, Path: "/session", Tag: tagAccess, Scoped: true,
		Summary: "Get the session", Description: "Returns the session, or the name and the role of the token.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (Session, error) {
		return sessionOf(personOf(ctx)), nil
	})

	type ended struct {
		Location string `header:"Location" doc:"For a session of an identity provider: where the browser goes to sign out there, too, if the provider has such a place." example:"https://login.example.com/logout?client_id=stint"`
		Cookie   string `header:"Set-Cookie" doc:"Deletes the cookie." example:"stint_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"`
	}
	add(a, operation{
		ID: "endSession", Method: http.MethodDelete, Path: "/session", Tag: tagAccess, Scoped: true,
		Summary: "Log out", Description: "Ends the session and deletes its cookie. The token stays valid.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (*ended, error) {
		r, out := requestOf(ctx).Request, &ended{}
		if s := personOf(ctx).session; s != nil && s.Kept != nil && a.options.SignIn != nil {
			out.Location = a.options.SignIn.Leave(s.Kept, a.origin(r)+"/")
		}
		if c, err := r.Cookie(a.cookieName(r)); err == nil && personOf(ctx).session != nil {
			if err := a.options.Tokens.EndSession(ctx, c.Value); err != nil {
				return nil, err
			}
		}
		out.Cookie = a.cookie(r, "", 0).String()
		return out, nil
	})
}
