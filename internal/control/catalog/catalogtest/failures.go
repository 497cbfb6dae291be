package catalogtest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// calls are all that a catalog can be asked.
func (h *house) calls() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, err := h.Users.Get(ctx, owner); return err },
		"list": func(ctx context.Context) error { _, err := h.Users.List(ctx, catalog.Query{}); return err },
		"create": func(ctx context.Context) error {
			_, err := h.Users.Create(ctx, actor, catalog.User{ID: "u"})
			return err
		},
		"update": func(ctx context.Context) error {
			_, err := h.Users.Update(ctx, actor, catalog.User{ID: owner, Tenant: "acme"}, 3)
			return err
		},
		"modify": func(ctx context.Context) error {
			_, err := h.Users.Modify(ctx, actor, owner, func(u *catalog.User) error { u.Tenant = "acme"; return nil })
			return err
		},
		"delete": func(ctx context.Context) error { return h.Users.Delete(ctx, actor, owner, 3) },
		"create key": func(ctx context.Context) error {
			_, _, _, err := h.CreateKey(ctx, actor, catalog.APIKey{User: owner})
			return err
		},
		"create token": func(ctx context.Context) error {
			_, _, err := h.CreateToken(ctx, actor, catalog.Token{Name: "a", Role: catalog.Viewer})
			return err
		},
		"tokens":       func(ctx context.Context) error { _, err := h.Tokens(ctx); return err },
		"any token":    func(ctx context.Context) error { _, err := h.AnyToken(ctx); return err },
		"revoke token": func(ctx context.Context) error { return h.RevokeToken(ctx, actor, "a") },
		"token of": func(ctx context.Context) error {
			_, err := h.TokenOf(ctx, "stint_admin_"+strings.Repeat("a", 16)+"_"+strings.Repeat("b", 26))
			return err
		},
		"create session": func(ctx context.Context) error {
			_, _, err := h.CreateSession(ctx, catalog.Token{ID: "a"}, time.Hour)
			return err
		},
		"session of":  func(ctx context.Context) error { _, err := h.SessionOf(ctx, strings.Repeat("a", 26)); return err },
		"end session": func(ctx context.Context) error { return h.EndSession(ctx, strings.Repeat("a", 26)) },
		"changes": func(ctx context.Context) error {
			_, _, err := h.Changes(ctx, catalog.ChangeQuery{Actor: actor})
			return err
		},
		"revert": func(ctx context.Context) error {
			_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 3})
			return err
		},
		"check rule": func(ctx context.Context) error { _, err := h.CheckRule(ctx, catalog.Rule{Name: "x"}, ""); return err },
		"order rules": func(ctx context.Context) error {
			_, err := h.OrderRules(ctx, actor, []string{"base"})
			return err
		},
		"find subjects": func(ctx context.Context) error { _, err := h.FindSubjects(ctx, "a", 1); return err },
		"trial": func(ctx context.Context) error {
			_, err := h.Trial().Users.Create(ctx, actor, catalog.User{ID: "u"})
			return err
		},
		"ping":   h.Ping,
		"schema": func(ctx context.Context) error { _, err := h.Schema(ctx); return err },
		"up":     func(ctx context.Context) error { _, err := h.Up(ctx, 0); return err },
	}
}

// checkContexts ends contexts before a call, and during one.
func checkContexts(h *house) {
	t := h.t
	h.furnish(t)
	before := Dump(t, h.db)
	ended, end := context.WithCancel(t.Context())
	end()
	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, call := range h.calls() {
		if err := call(ended); !errors.Is(err, context.Canceled) || errors.Is(err, catalog.ErrUnavailable) || catalog.Status(err) != http.StatusServiceUnavailable {
			t.Errorf("%s: got %v (%d), want that it was cancelled", name, err, catalog.Status(err))
		}
		if err := call(expired); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, catalog.ErrUnavailable) {
			t.Errorf("%s: got %v, want that the database is out of reach", name, err)
		}
	}
	// In the middle of a transaction: when it is asked for the change.
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := h.Users.Modify(ctx, actor, owner, func(u *catalog.User) error { u.Tenant = "acme"; cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
	}
	if after := Dump(t, h.db); after != before {
		t.Errorf("what was cancelled has changed\n%s\nto\n%s", before, after)
	}
	checkCancelled(h)
}

// checkCancelled cancels writes while they are under way. Each is there as a whole or
// not at all, and what was there stays.
func checkCancelled(h *house) {
	t := h.t
	start := h.revision(t)
	done := 0
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
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
		_, err := h.Tenants.Create(ctx, actor, catalog.Tenant{ID: tenantOf(i)})
		<-wait
		switch r, getErr := h.Tenants.Get(t.Context(), tenantOf(i)); {
		case getErr == nil:
			// It was too late to be cancelled, though it may not have heard of that.
			if done++; r.Version != start+int64(done) {
				t.Errorf("write %d is version %d, want %d", done, r.Version, start+int64(done))
			}
		case catalog.Status(getErr) != http.StatusNotFound:
			t.Fatal(getErr)
		case !errors.Is(err, context.Canceled):
			t.Errorf("got %v, want that it was cancelled", err)
		}
	}
	if end := h.revision(t); end != start+int64(done) || len(h.changes(t, start)) != done {
		t.Errorf("%d writes made revision %d after %d, and %d changes", done, end, start, len(h.changes(t, start)))
	}
	if _, err := h.Users.Get(t.Context(), owner); err != nil {
		t.Errorf("what was there is gone: %v", err)
	}
}

func tenantOf(i int) string { return string(rune('a'+i/26)) + string(rune('a'+i%26)) }

// checkClosed asks a catalog that was closed.
func checkClosed(h *house) {
	t := h.t
	h.furnish(t)
	check(t, h.Close())
	for name, call := range h.calls() {
		if err := call(t.Context()); !errors.Is(err, catalog.ErrUnavailable) || catalog.Status(err) != http.StatusServiceUnavailable {
			t.Errorf("%s: got %v, want that the database is out of reach", name, err)
		}
	}
	check(t, h.Close())
}
