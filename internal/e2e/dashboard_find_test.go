package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// TestDashboardFind finds anything with the keyboard alone, expands an apply in the change log, and has the server sort a
// table.
func TestDashboardFind(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	s.must(t, http.MethodPost, "/apply", map[string]any{
		"tenants": []map[string]any{{"id": "acme", "name": "Acme Inc."}},
		"users":   []map[string]any{{"id": "alice.smith@example.com", "tenant": "acme"}, {"id": "100%"}, {"id": "100x"}},
	})
	w := s.signIn(t, wide)
	w.open("/")
	w.settled("Overview")
	w.press("/")
	w.focuses("combobox", "Find anything")
	w.press("smith")
	w.says("alice.smith@example.com")
	w.press(kb.Enter)
	w.see("heading", "alice.smith@example.com")

	w.press("/")
	w.press("100%")
	w.says("100%")
	w.press(kb.Escape)
	w.press("/")
	w.press("nobody at all")
	w.says("Nothing was found")
	w.press(kb.Escape)

	w.press("gc")
	w.see("heading", "Change log")
	w.says("4 changes:")
	w.click("button", "Details of revision 1, acme")
	w.says("changes together", "100x")

	for _, user := range []string{"bea", "abe"} {
		s.must(t, http.MethodPost, "/users", map[string]any{"id": user})
	}
	w.visit(at("/subjects", "tab", "users"))
	w.settled("Subjects")
	for column, last := range map[string]string{"User": "bea", "Created": "abe"} {
		w.click("button", column)
		w.click("button", column)
		w.until(func() error {
			if got := eval[string](w, `document.querySelector('tbody tr td')?.innerText ?? ''`); got != last {
				return fmt.Errorf("the first by %s is %q, want %q", column, got, last)
			}
			return nil
		})
	}
}
