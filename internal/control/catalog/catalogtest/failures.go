package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// calls are the calls of a catalog.
func (s *suite) calls() map[string]func(context.Context) error {
	type ctx = context.Context
	return map[string]func(ctx) error{
		"get":    func(c ctx) error { return failure(s.Users.Get(c, owner)) },
		"list":   func(c ctx) error { return failure(s.Users.List(c, catalog.Query{})) },
		"create": func(c ctx) error { return failure(s.Users.Create(c, actor, catalog.User{ID: "u"})) },
		"update": func(c ctx) error {
			return failure(s.Users.Update(c, actor, catalog.User{ID: owner, Tenant: "acme"}, 3))
		},
		"modify": func(c ctx) error {
			return failure(s.Users.Modify(c, actor, owner, func(u *catalog.User) error { u.Tenant = "acme"; return nil }))
		},
		"delete":     func(c ctx) error { return s.Users.Delete(c, actor, owner, 3) },
		"create key": func(c ctx) error { _, _, _, err := s.CreateKey(c, actor, catalog.APIKey{User: owner}); return err },
		"create token": func(c ctx) error {
			_, _, err := s.CreateToken(c, actor, catalog.Token{Name: "a", Role: catalog.Viewer})
			return err
		},
		"tokens":       func(c ctx) error { return failure(s.Tokens(c)) },
		"any token":    func(c ctx) error { return failure(s.AnyToken(c)) },
		"revoke token": func(c ctx) error { return s.RevokeToken(c, actor, "a") },
		"token of": func(c ctx) error {
			return failure(s.TokenOf(c, "stint_admin_"+strings.Repeat("a", 16)+"_"+strings.Repeat("b", 26)))
		},
		"create session": func(c ctx) error { _, _, err := s.CreateSession(c, catalog.Token{ID: "a"}, time.Hour); return err },
		"session of":     func(c ctx) error { return failure(s.SessionOf(c, strings.Repeat("a", 26))) },
		"end session":    func(c ctx) error { return s.EndSession(c, strings.Repeat("a", 26)) },
		"changes":        func(c ctx) error { _, _, err := s.Changes(c, catalog.ChangeQuery{Actor: actor}); return err },
		"revert":         func(c ctx) error { return failure(s.Revert(c, catalog.RevertOptions{Actor: actor, Revision: 3})) },
		"check rule":     func(c ctx) error { return failure(s.CheckRule(c, catalog.Rule{Name: "x"}, "")) },
		"order rules":    func(c ctx) error { return failure(s.OrderRules(c, actor, []string{"base"})) },
		"find subjects":  func(c ctx) error { return failure(s.FindSubjects(c, "a", 1)) },
		"trial":          func(c ctx) error { return failure(s.Trial().Users.Create(c, actor, catalog.User{ID: "u"})) },
		"ping":           s.Ping,
		"schema":         func(c ctx) error { return failure(s.Schema(c)) },
		"up":             func(c ctx) error { return failure(s.Up(c, 0)) },
	}
}

// checkContexts ends contexts before a call, and during one.
func checkContexts(s *suite) {
	s.prepare()
	unchanged := s.unchanged()
	canceled, cancel := context.WithCancel(s.t.Context())
	cancel()
	expired, cancel := context.WithTimeout(s.t.Context(), 0)
	defer cancel()
	for name, call := range s.calls() {
		if err := call(canceled); !errors.Is(err, context.Canceled) || errors.Is(err, catalog.ErrUnavailable) || catalog.Status(err) != http.StatusServiceUnavailable {
			s.t.Errorf("%s: got %v (%d), want that it was canceled", name, err, catalog.Status(err))
		}
		if err := call(expired); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, catalog.ErrUnavailable) {
			s.t.Errorf("%s: got %v, want that the database is unavailable", name, err)
		}
	}
	for range 20 {
		ctx, cancel := context.WithCancel(s.t.Context())
		_, err := s.Users.Modify(ctx, actor, owner, func(u *catalog.User) error { u.Tenant = "acme"; cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			s.t.Errorf("got %v, want that it was canceled", err)
		}
	}
	unchanged()
	checkCanceled(s)
}

// checkCanceled cancels writes at different points. Each is stored as a whole or not at all.
func checkCanceled(s *suite) {
	start, done := s.revision(), 0
	for i := range 200 {
		ctx, cancel := context.WithCancel(s.t.Context())
		wait := make(chan struct{})
		go func() {
			defer close(wait)
			for range i * 20 { // a little later each time
				if ctx.Err() != nil {
					break
				}
			}
			cancel()
		}()
		id := fmt.Sprint("t", i)
		_, err := s.Tenants.Create(ctx, actor, catalog.Tenant{ID: id})
		<-wait
		switch r, getErr := s.Tenants.Get(s.t.Context(), id); {
		case getErr == nil: // it was too late to cancel it, even if the call returned an error
			if done++; r.Version != start+int64(done) {
				s.t.Errorf("write %d is version %d, want %d", done, r.Version, start+int64(done))
			}
		case catalog.Status(getErr) != http.StatusNotFound:
			s.t.Fatal(getErr)
		case !errors.Is(err, context.Canceled):
			s.t.Errorf("got %v, want that it was canceled", err)
		}
	}
	if end := s.revision(); end != start+int64(done) || len(s.changes(start)) != done {
		s.t.Errorf("%d writes made revision %d after %d, and %d changes", done, end, start, len(s.changes(start)))
	}
	s.check(failure(s.Users.Get(s.t.Context(), owner)))
}

// checkClosed calls a catalog that was closed.
func checkClosed(s *suite) {
	s.prepare()
	s.check(s.Close())
	for name, call := range s.calls() {
		if err := call(s.t.Context()); !errors.Is(err, catalog.ErrUnavailable) || catalog.Status(err) != http.StatusServiceUnavailable {
			s.t.Errorf("%s: got %v, want that the database is unavailable", name, err)
		}
	}
	s.check(s.Close())
}
