package admin_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

// TestMe has a user look at what is his or her own, and rotate a key.
func TestMe(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		h.do(http.MethodPost, "/rules", searchRule()).want(http.StatusCreated)
		h.do(http.MethodPost, "/tiers", `{"name":"pro","limits":{"searches":"7/minute"}}`).want(http.StatusCreated)
		h.do(http.MethodPost, "/users", catalog.User{ID: "alice", Tier: "pro", Tenant: "acme"}).want(http.StatusCreated)
		h.do(http.MethodPost, "/users", catalog.User{ID: "bob"}).want(http.StatusCreated)
		var key, bobs admin.CreatedKey
		h.do(http.MethodPost, "/keys", admin.NewKey{Name: "app", User: "alice", Tier: "pro"}).want(http.StatusCreated).into(&key)
		h.do(http.MethodPost, "/keys", admin.NewKey{Name: "app", User: "bob"}).want(http.StatusCreated).into(&bobs)

		asAdmin := func(body any) *answer { return h.ask(http.MethodPost, "/tokens", body, "", h.admin) }
		for _, bad := range []string{
			`{"name":"x","user":"carol"}`, `{"name":"x","user":"alice","role":"operator"}`, `{"name":"x","user":"alice","tenants":["acme"]}`, `{"name":"x","role":"user"}`, `{"name":"x","user":" \u0000"}`,
		} {
			asAdmin(bad).want(http.StatusUnprocessableEntity)
		}
		var made admin.CreatedToken
		asAdmin(`{"name":"alice-laptop","user":"alice"}`).want(http.StatusCreated).into(&made)
		if made.Role != catalog.OfUser || made.User != "alice" {
			t.Fatalf("%+v", made)
		}
		as := func(method, path string, body any, headers ...string) *answer {
			return h.ask(method, path, body, append([]string{"", made.Text}, headers...)...)
		}
		var tokens admin.TokenList
		if h.ask(http.MethodGet, "/tokens", nil, "", h.admin).want(http.StatusOK).into(&tokens); len(tokens.Items) != 3 {
			t.Errorf("tokens of users are among the others: %+v", tokens)
		}
		if h.ask(http.MethodGet, "/tokens?user=alice", nil, "", h.admin).want(http.StatusOK).into(&tokens); len(tokens.Items) != 2 || tokens.Items[1].ID != made.ID {
			t.Errorf("%+v", tokens)
		}

		var me admin.Me
		as(http.MethodGet, "/me", nil).want(http.StatusOK).into(&me)
		if me.User != "alice" || me.Tenant != "acme" || me.Tier != "pro" || me.Token != "alice-laptop" || me.Blocked {
			t.Errorf("%+v", me)
		}
		var usage admin.Usage
		if as(http.MethodGet, "/me/usage", nil).want(http.StatusOK).into(&usage); len(usage.Items) != 1 || usage.Items[0].Max != 7 {
			t.Errorf("%+v", usage)
		}
		var list admin.RecordList[admin.KeyRecord]
		if as(http.MethodGet, "/me/keys", nil).want(http.StatusOK).into(&list); len(list.Items) != 1 || list.Items[0].ID != key.ID || list.Items[0].By != "" {
			t.Errorf("%+v", list)
		}
		h.get("/me").want(http.StatusForbidden).says("--user")
		h.ask(http.MethodPost, "/session", admin.Login{Token: made.Text}).want(http.StatusForbidden)

		rotate := func(id string, body any, headers ...string) *answer {
			return as(http.MethodPost, "/me/keys/"+id+"/rotate", body, headers...)
		}
		rotate(bobs.ID, nil).want(http.StatusNotFound)
		rotate("unknown1", nil).want(http.StatusNotFound)
		rotate(key.ID, `{"grace_seconds":-1}`).want(http.StatusUnprocessableEntity).says("grace_seconds")
		rotate(key.ID, `{"grace_seconds":2592001}`).want(http.StatusUnprocessableEntity).says("30 days")
		var first, again admin.RotatedKey
		rotate(key.ID, `{"grace_seconds":3600}`, onceKey, "0123456789abcdef").want(http.StatusCreated).into(&first)
		rotate(key.ID, `{"grace_seconds":3600}`, onceKey, "0123456789abcdef").want(http.StatusCreated).into(&again)
		if first.Text == "" || again.Text != first.Text || first.Value.Tier != "pro" || first.Value.User != "alice" || first.Old != key.ID || first.Value.Replaces != key.ID || first.By != "" {
			t.Errorf("%+v\n%+v", first, again)
		}
		if left := first.Expires.Sub(h.clock.now()); left < 50*time.Minute || left > time.Hour {
			t.Errorf("the old key expires in %v", left)
		}
		find := func(text string) error {
			k, err := h.catalog.APIKeys.Get(t.Context(), strings.Split(text, "_")[1])
			if err == nil && !k.Value.Expires.IsZero() && !k.Value.Expires.After(h.clock.now()) {
				err = errors.New("expired")
			}
			return err
		}
		if find(key.Text) != nil || find(first.Text) != nil {
			t.Error("both keys are to be valid")
		}
		rotate(key.ID, nil).want(http.StatusConflict).says(first.ID)
		rotate(first.ID, nil).want(http.StatusConflict).says("less than a day ago")
		h.clock.advance(2 * time.Hour)
		if find(key.Text) == nil {
			t.Error("the old key is valid after its grace")
		}
		h.clock.advance(23 * time.Hour)
		// What has limits, or none, is no way around a ban.
		for _, subject := range []string{"user/alice", "key/" + first.ID} {
			h.do(http.MethodPut, "/subjects/"+subject+"/ban", admin.NewEntry{Reason: "scraping"}).want(http.StatusOK)
			rotate(first.ID, nil).want(http.StatusConflict).says("blocked")
			if subject == "user/alice" {
				if as(http.MethodGet, "/me", nil).into(&me); !me.Blocked {
					t.Error("the ban is not shown")
				}
			}
			h.do(http.MethodDelete, "/subjects/"+subject+"/ban", nil).want(http.StatusNoContent)
		}
		h.do(http.MethodPatch, "/keys/"+first.ID, `{"disabled":true}`, "If-Match", "*").want(http.StatusOK)
		rotate(first.ID, nil).want(http.StatusConflict).says("disabled")
		h.do(http.MethodPatch, "/keys/"+first.ID, `{"disabled":null}`, "If-Match", "*").want(http.StatusOK)
		var second admin.RotatedKey
		rotate(first.ID, nil).want(http.StatusCreated).into(&second)
		h.get("/keys/" + key.ID).want(http.StatusNotFound) // it has expired, and was replaced
		h.get("/keys/" + first.ID).want(http.StatusOK)
		// Operators may at any time, and end the old key at once.
		var third admin.RotatedKey
		h.do(http.MethodPost, "/keys/"+second.ID+"/rotate", `{"grace_seconds":0}`).want(http.StatusCreated).into(&third)
		if find(second.Text) == nil || find(third.Text) != nil {
			t.Error("the old key is valid, or the new one is not")
		}
		h.do(http.MethodDelete, "/users/alice", nil, "If-Match", "*").want(http.StatusUnprocessableEntity)
		h.ask(http.MethodDelete, "/tokens/"+made.ID, nil, "", h.admin).want(http.StatusNoContent)
		as(http.MethodGet, "/me", nil).want(http.StatusUnauthorized)
	})
}

// TestTokensOfUsers checks that there is a bound of tokens for a user, and that a user who has one is not deleted.
func TestTokensOfUsers(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/users", catalog.User{ID: "alice"}).want(http.StatusCreated)
	const most = 10
	for range most - 1 { // beside the one that there is
		h.ofUser("alice")
	}
	h.ask(http.MethodPost, "/tokens", `{"name":"one more","user":"alice"}`, "", h.admin).want(http.StatusUnprocessableEntity).says("10 tokens")
	h.do(http.MethodDelete, "/users/alice", nil, "If-Match", "*").want(http.StatusUnprocessableEntity).says("token")
}
