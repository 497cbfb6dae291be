package admin_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// TestSort reads lists page by page in every order, while others are created and deleted.
func TestSort(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		names := []string{"delta", "Alpha", "charlie", "", "Écho", "bravo", "alpha", "%", "bravo"}
		for i, name := range names {
			r := searchRule()
			r.Name, r.Priority = fmt.Sprintf("rule-%d", (i*5)%len(names)), []int{0, 20, 3, 100, 20, -7, 0, 3, 9}[i]
			h.do(http.MethodPost, "/rules", r).want(http.StatusCreated)
			h.do(http.MethodPost, "/users", catalog.User{ID: fmt.Sprintf("user-%d", (i*5)%len(names))}).want(http.StatusCreated)
			h.do(http.MethodPost, "/keys", admin.NewKey{Name: name, User: "user-0"}).want(http.StatusCreated)
			h.do(http.MethodPost, "/tenants", catalog.Tenant{ID: fmt.Sprintf("tenant-%d", i), Name: name}).want(http.StatusCreated)
			if i%3 == 0 { // some have the same time
				h.clock.advance(time.Second)
			}
		}
		h.do(http.MethodPatch, "/users/user-3", `{"blocked":{}}`, "If-Match", "*").want(http.StatusOK)
		sorted[rule.Rule](t, h, "rules", "priority", func(x, y admin.Record[rule.Rule]) int { return cmp.Compare(x.Value.Priority, y.Value.Priority) })
		sorted[catalog.User](t, h, "users", "", nil)
		sorted[admin.Key](t, h, "keys", "name", func(x, y admin.Record[admin.Key]) int {
			return strings.Compare(ascii(x.Value.Name), ascii(y.Value.Name))
		})
		sorted[catalog.Tenant](t, h, "tenants", "name", func(x, y admin.Record[catalog.Tenant]) int {
			return strings.Compare(ascii(x.Value.Name), ascii(y.Value.Name))
		})
		for path, say := range map[string]string{
			"/users?sort=nme": "one of id, -id, created_at", "/users?sort=name": "one of id", "/keys?sort=-nam": "-name", "/users?sort=created_at&after=user-3": "sorted by created_at",
			"/rules?sort=priority&after=" + strings.Repeat("A", 20): "sorted by priority", "/tokens?sort=role": "one of name",
		} {
			h.ask(http.MethodGet, path, nil, "", h.admin).want(http.StatusBadRequest).says(say)
		}
		// A page continues where it ended, whatever comes and goes.
		var page admin.RecordList[admin.Record[catalog.User]]
		h.get("/users?sort=-created_at&limit=3").want(http.StatusOK).into(&page)
		h.do(http.MethodDelete, "/users/"+page.Items[2].ID, nil, "If-Match", "*").want(http.StatusNoContent)
		h.do(http.MethodPost, "/users", catalog.User{ID: "newer"}).want(http.StatusCreated)
		h.get("/users?sort=-created_at&limit=1000&after=" + url.QueryEscape(page.Next)).want(http.StatusOK).into(&page)
		if len(page.Items) != len(names)-3 {
			t.Errorf("%d users follow, want %d", len(page.Items), len(names)-3)
		}
	})
}

// ascii makes A to Z lower case.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

// sorted checks all orders of a list, in pages of two.
func sorted[T any](t *testing.T, h *testAPI, kind, field string, compare func(x, y admin.Record[T]) int) {
	t.Helper()
	type record = admin.Record[T]
	orders := map[string]func(x, y record) int{
		"id": func(record, record) int { return 0 }, "created_at": func(x, y record) int { return x.Created.Compare(y.Created) }, "updated_at": func(x, y record) int { return x.Updated.Compare(y.Updated) },
	}
	if field != "" {
		orders[field] = compare
	}
	for field, compare := range orders {
		for _, sign := range []int{1, -1} {
			sort := map[int]string{1: "", -1: "-"}[sign] + field
			var all []record
			after := ""
			for range 100 {
				var page struct {
					Items []struct {
						record
						Reading  string    `json:"reading"`
						LastUsed time.Time `json:"last_used_at"`
						Total    int64     `json:"usage_total"`
					} `json:"items"`
					Next string `json:"next"`
				}
				h.get("/" + kind + "?limit=2&sort=" + sort + "&after=" + url.QueryEscape(after)).want(http.StatusOK).into(&page)
				for i := range page.Items {
					all = append(all, page.Items[i].record)
				}
				if after = page.Next; after == "" {
					break
				}
			}
			want := slices.Clone(all)
			slices.SortFunc(want, func(x, y record) int { return sign * cmp.Or(compare(x, y), strings.Compare(x.ID, y.ID)) })
			ids := func(of []record) (out []string) {
				for i := range of {
					out = append(out, of[i].ID)
				}
				return out
			}
			if got := ids(all); len(got) != 9 || !slices.Equal(got, ids(want)) {
				t.Errorf("%s by %s: %v, want %v", kind, sort, got, ids(want))
			}
		}
	}
}

// TestSortFile sorts what is in a file, and what is shown to people of one tenant.
func TestSortFile(t *testing.T) {
	t.Parallel()
	d := exampleDocument()
	d.Rules = []rule.Rule{searchRule(), searchRule(), searchRule()}
	for i, name := range []string{"a", "b", "c"} {
		d.Rules[i].Name, d.Rules[i].Priority = name, []int{5, 1, 3}[i]
	}
	d.Rules[1].Match.IPRanges = []string{"192.0.2.0/24"} // which guests do not see
	h := newFileAPI(t, d)
	guest, _, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "guest", Role: catalog.Viewer, Tenants: []string{"acme"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ token, sort, want string }{
		{h.viewer, "priority", "bca"}, {h.viewer, "-priority", "acb"}, {h.viewer, "-id", "cba"}, {guest, "priority", "ca"}, {guest, "-priority", "ac"},
	} {
		got, after := "", ""
		for range 10 {
			var page admin.RecordList[admin.RuleRecord]
			h.ask(http.MethodGet, "/rules?limit=1&sort="+c.sort+"&after="+after, nil, "", c.token).want(http.StatusOK).into(&page)
			for _, r := range page.Items {
				got += r.ID
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if got != c.want {
			t.Errorf("by %s: %s, want %s", c.sort, got, c.want)
		}
	}
}

// TestSortTokens sorts tokens.
func TestSortTokens(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.ask(http.MethodPost, "/tokens", `{"name":"Bea","role":"viewer","expires_in_seconds":60}`, "", h.admin).want(http.StatusCreated)
	for sort, want := range map[string]string{"": "vera otto ada Bea", "name": "ada Bea otto vera", "-name": "vera otto Bea ada", "expires_at": "Bea vera otto ada", "-created_at": "Bea ada otto vera", "-last_used_at": "ada vera otto Bea"} {
		var list admin.TokenList
		h.ask(http.MethodGet, "/tokens?sort="+sort, nil, "", h.admin).want(http.StatusOK).into(&list)
		var got []string
		for _, token := range list.Items {
			got = append(got, token.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("by %s: %v, want %s", sort, got, want)
		}
	}
}
