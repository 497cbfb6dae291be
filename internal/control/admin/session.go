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

// Session is who one is, as the API sees it.
type Session struct {
	Name    string       `json:"name" doc:"The name of the token, which is the actor of what is changed." example:"alice"`
	Role    catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"What one may do." example:"operator"`
	CSRF    string       `json:"csrf,omitempty" doc:"What X-CSRF-Token has to be with this session's cookie, on every method but GET and HEAD. Not with a token: it needs none." example:"5f0c6b2a9d1e4b7f8a3c6d9e0b1a2c3d4e5f60718293a4b5c6d7e8f901a2b3c4"`
	Expires time.Time    `json:"expires_at,omitzero" doc:"When the session ends." example:"2026-01-02T15:04:05Z"`
	Token   time.Time    `json:"expires_token_at,omitzero" doc:"When the token expires. Without it, never." example:"2026-02-01T00:00:00Z"`
}

func sessionOf(p person) Session {
	s := Session{Name: p.Name, Role: p.Role, Token: p.Expires}
	if p.session != nil {
		s.CSRF, s.Expires = p.session.CSRF, p.session.Expires
	}
	return s
}

// Login is what one logs in with.
type Login struct {
	Token string `json:"token" doc:"The text of the token." example:"stint_admin_4mqyx7bn2kcd6wvr_0123456789abcdefghijklmnop"`
}

func (a *API) addSession() {
	type answer struct {
		Cookie string `header:"Set-Cookie" doc:"The session, for browsers." example:"stint_session=...; Path=/; HttpOnly; SameSite=Strict"`
		Body   Session
	}
	add(a, operation{
		ID: "createSession", Method: http.MethodPost, Path: "/session", Tag: tagAccess,
		Summary:     "Log in",
		Description: "Begins a session of a token, for a browser: sets its cookie, and returns what its pages need. It lasts for 12 hours, and not longer than the token.",
		Problems:    []int{http.StatusUnauthorized, http.StatusTooManyRequests},
	}, anyone, func(ctx context.Context, in *struct{ Body Login }) (*answer, error) {
		r := requestOf(ctx).Request
		t, err := a.tokenOf(r, in.Body.Token)
		if err != nil {
			return nil, err
		}
		text, s, err := a.options.Tokens.CreateSession(ctx, t, sessionTime)
		if err != nil {
			return nil, err
		}
		a.log.LogAttrs(ctx, slog.LevelInfo, "admin: a session begins", slog.String("actor", t.Name), slog.String("from", peer(r)))
		cookie := a.cookie(r, text, s.Expires.Sub(a.now()))
		return &answer{cookie.String(), sessionOf(person{t, &s})}, nil
	})

	add(a, operation{
		ID: "getSession", Method: http.MethodGet, Path: "/session", Tag: tagAccess,
		Summary: "Who am I", Description: "Returns the session, or whose the token is.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (*struct{ Body Session }, error) {
		return &struct{ Body Session }{sessionOf(personOf(ctx))}, nil
	})

	type ended struct {
		Cookie string `header:"Set-Cookie" doc:"The cookie, deleted." example:"stint_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"`
	}
	add(a, operation{
		ID: "endSession", Method: http.MethodDelete, Path: "/session", Tag: tagAccess,
		Summary: "Log out", Description: "Ends the session, and deletes its cookie. A token goes on.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (*ended, error) {
		r := requestOf(ctx).Request
		if c, err := r.Cookie(a.cookieName(r)); err == nil && personOf(ctx).session != nil {
			if err := a.options.Tokens.EndSession(ctx, c.Value); err != nil {
				return nil, err
			}
		}
		return &ended{a.cookie(r, "", 0).String()}, nil
	})
}
