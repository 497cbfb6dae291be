package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
)

// TestDocs reads the documentation of the APIs, without a token: it loads nothing from elsewhere, and is accessible.
func TestDocs(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	for _, size := range [][2]int64{wide, {390, 844}} {
		w := newTab(t, s.admin, size)
		w.open("/docs")
		w.injectAxe()
		w.settled("API documentation")
		w.says("Stint admin API", "Stint decision API", "/keys/{id}/rotate", "/v1/check")
		for _, theme := range []string{"light", "dark"} {
			w.theme(theme)
			w.look("docs", theme)
			w.keep(fmt.Sprintf("docs-%d-%s", size[0], theme))
		}
		w.fill("Search the documentation", "rotate key")
		w.until(func() error {
			if n := eval[int](w, `document.querySelectorAll('main details').length`); n != 2 {
				return fmt.Errorf("%d operations are shown, want 2", n)
			}
			return nil
		})
		w.fill("Search the documentation", "")
		w.visit("/#createKey") // as a link does
		w.says("Role operator or admin", "Idempotency-Key", "curl -s -X POST", "mobile app", "Fields of value")
		for _, theme := range []string{"light", "dark"} {
			w.theme(theme)
			w.look("docs of createKey", theme)
			w.keep(fmt.Sprintf("docs-createKey-%d-%s", size[0], theme))
		}
		w.theme("light")
	}
	w := newTab(t, s.admin, wide)
	w.open("/docs#decisions-check")
	w.says("Stint decision API", "curl -s -X POST")
}

// TestDashboardSort has the server sort a table.
func TestDashboardSort(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	for _, user := range []string{"anna", "zoe", "mia"} {
		s.must(t, http.MethodPost, "/users", map[string]any{"id": user})
	}
	w := s.signIn(t, wide)
	w.open("/#/subjects?tab=users")
	w.settled("Subjects")
	first := func(want string) {
		t.Helper()
		w.until(func() error {
			if got := eval[string](w, `document.querySelector('tbody tr td')?.innerText ?? ''`); got != want {
				return fmt.Errorf("the first is %q, want %q", got, want)
			}
			return nil
		})
	}
	w.click("button", "User")
	w.click("button", "User") // the last first
	first("zoe")
	w.click("button", "Created")
	first("anna")
	w.click("button", "Created")
	first("mia")
}
